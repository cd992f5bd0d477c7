"""Who decided each next state and each reward, and how often that was right."""

from __future__ import annotations

import pytest

from dreamgym.envs.webshop.rules import ShopRules
from dreamgym.evals.attribution import Attribution, JudgedStep, decided_json, shares
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import prediction
from dreamgym.types import REAL_STEP, Observation, Query, StepInfo, Task


def test_steps_are_counted_by_what_decided_them_and_real_ones_are_not():
    found = Attribution()
    found.add([StepInfo(decided_by="rule", reward_by="rule"), StepInfo(decided_by="generated", reward_by="rule"), REAL_STEP])
    counts = found.to_json()
    assert counts["states"] == {"rule": 1, "recalled": 0, "inferred": 0, "composed": 0, "generated": 1}
    assert counts["rewards"]["rule"] == 2
    assert shares(counts)["states"]["generated"] == 0.5 and shares(Attribution().to_json())["rewards"]["rule"] == 0.0


def test_exactness_of_states_and_of_rewards_is_by_what_decided_each():
    composed = StepInfo(decided_by="generated", reward_by="rule")
    recalled = StepInfo(decided_by="recalled", reward_by="recalled")
    judged = [JudgedStep(recalled, True, True), JudgedStep(composed, True, True), JudgedStep(composed, False, True)]
    found = decided_json([recalled, composed], judged)
    assert found["steps"] == 2 and found["states"]["generated"] == found["rewards"]["rule"] == 0.5
    states, rewards = found["exact"], found["rewards_exact"]
    assert (states["recalled"]["value"], states["generated"]["value"], states["generated"]["n"], states["rule"]["n"]) == (1.0, 0.5, 2, 0)
    assert (rewards["rule"]["value"], rewards["rule"]["n"], rewards["generated"]["n"]) == (1.0, 2, 0)


@pytest.mark.parametrize(("grounding", "reward", "by"), [(True, 1.0, "rule"), (True, 0.0, "rule"), (False, 1.0, "generated")])
def test_a_reward_that_the_text_check_judged_is_decided_by_rule_and_the_state_is_not(grounding: bool, reward: float, by: str):
    page = Observation("item $9 red lamp\n[buy now]")
    query = Query(Task("t", "find me a red lamp", "webshop"), (), page, "click[buy now]")
    claimed = prediction(query, Answer("", "bought", reward, True), ())
    judged = Guard(ShopRules(), GuardConfig(grounding=grounding)).after(query, claimed)
    assert (judged.info.decided_by, judged.info.reward_by) == ("generated", by)
