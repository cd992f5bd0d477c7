"""Who decided each next state and each reward, and how often that was right."""

from __future__ import annotations

import pytest

from dreamgym.envs.webshop.rules import ShopRules
from dreamgym.evals.attribution import Attribution, exactness, shares
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import prediction
from dreamgym.types import REAL_STEP, Observation, Query, StepInfo, Task


def test_steps_are_counted_by_what_decided_them_and_real_ones_are_not():
    found = Attribution()
    found.add([StepInfo(decided_by="rule", reward_by="rule"), StepInfo(decided_by="generated", reward_by="rule"), REAL_STEP])
    counts = found.to_json()
    assert counts["states"] == {"rule": 1, "recalled": 0, "composed": 0, "generated": 1}
    assert counts["rewards"]["rule"] == 2
    assert shares(counts)["states"]["generated"] == 0.5 and shares(Attribution().to_json())["rewards"]["rule"] == 0.0


def test_exactness_is_told_apart_by_what_decided_the_state():
    steps = [(StepInfo(decided_by="recalled"), True), (StepInfo(decided_by="generated"), True), (StepInfo(decided_by="generated"), False)]
    found = exactness(steps)
    assert (found["recalled"].value, found["recalled"].n) == (1.0, 1)
    assert (found["generated"].value, found["generated"].n, found["rule"].n) == (0.5, 2, 0)


@pytest.mark.parametrize(("grounding", "reward", "by"), [(True, 1.0, "rule"), (True, 0.0, "rule"), (False, 1.0, "generated")])
def test_a_reward_that_the_text_check_judged_is_decided_by_rule_and_the_state_is_not(grounding: bool, reward: float, by: str):
    page = Observation("item $9 red lamp\n[buy now]")
    query = Query(Task("t", "find me a red lamp", "webshop"), (), page, "click[buy now]")
    claimed = prediction(query, Answer("", "bought", reward, True), ())
    judged = Guard(ShopRules(), GuardConfig(grounding=grounding)).after(query, claimed)
    assert (judged.info.decided_by, judged.info.reward_by) == ("generated", by)
