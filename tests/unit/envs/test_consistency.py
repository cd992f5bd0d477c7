"""What an episode shows twice must agree: rules that logs show, and episodes that break them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import plugins
from dreamgym.envs.consistency import CarryRule, RepeatRule, carry_rules, checks, repeat_rules
from dreamgym.envs.induction import from_toml, induce, to_toml, whole
from dreamgym.envs.wrappers.induced_rules import InducedRules
from dreamgym.envs.wrappers.without_rules import StateMapping
from dreamgym.experience.guard import Guard
from dreamgym.logs.demonstrations import collect
from dreamgym.types import Observation, Prediction, Query, StepInfo, Task, Trajectory, Transition, Turn, Verdict

SHOP = plugins.make("envs", "webshop")


def disagreements(steps: Any, repeats: Any, carries: Any, shown: Any) -> list[tuple[int, str]]:
    """(step, why) for every step that contradicts what the episode showed before."""
    return [(i, why) for i, agrees, why in checks(steps, repeats, carries, shown) if not agrees]


def step(state: str, action: str, after: str, *, end: bool = False, reward: float = 0.0) -> Transition:
    return Transition(Observation(state), action, Observation(after), reward, end)


def episodes(*steps: Transition, n: int = 40) -> list[Trajectory]:
    return [Trajectory(f"e{i}", Task(f"t{i}", "do it", "toy"), "demo", tuple(map(Turn, steps)), False) for i in range(n)]


READ = (step("s0", "read(id=1)", "5 left"), step("5 left", "look()", "a desk"), step("a desk", "read(id=1)", "5 left"))
SOLD = (step("5 left", "sell(id=1)", "sold"), step("sold", "read(id=1)", "4 left"))


def test_an_action_shows_the_same_again_unless_a_kind_of_action_lies_between_that_changes_it():
    logs = [*episodes(*READ, n=60), *episodes(*READ, *SOLD)]
    assert list(repeat_rules(logs, whole)) == [RepeatRule("read", "anywhere", ("sell",), 100, 0)]


def test_an_action_that_shows_the_same_only_in_the_same_state_has_that_scope():
    here, there = step("a", "next", "b"), step("b", "next", "c")
    back = step("c", "home", "a")
    assert list(repeat_rules(episodes(here, there, back, here), whole)) == [RepeatRule("next", "state", (), 40, 0)]


def test_the_line_with_an_argument_agrees_with_the_state_behind_it():
    logs = episodes(step("b7 red mug 12\nb8 blue mug 9", "open[b7]", "the page of a red mug\ncosts 12"))
    assert list(carry_rules(logs)) == [CarryRule("open", "", "words", 40, 0)]
    logs += episodes(step("b7 red mug 12\nb8 blue mug 9", "open[b7]", "a vessel\ncosts 12"))
    assert list(carry_rules(logs)) == [CarryRule("open", "", "numbers", 80, 0)]


def test_rules_of_too_few_cases_are_not_found():
    assert not list(repeat_rules(episodes(*READ, n=29), whole)) and not list(carry_rules(episodes(step("b7 12", "open[b7]", "12 x"), n=29)))


def test_an_episode_that_contradicts_itself_is_found_with_the_step_and_the_reason():
    rules = [RepeatRule("read", "anywhere", ("sell",), 100, 0)]
    wrong = (*READ[:2], step("a desk", "read(id=1)", "6 left"))
    assert disagreements(wrong, rules, [], whole) == [(2, "read(id=1) showed something else before")]
    assert not disagreements((*READ, *SOLD), rules, [], whole)
    ((at, why),) = disagreements([step("b7 12", "open[b7]", "costs 13")], [], [CarryRule("open", "", "numbers", 40, 0)], whole)
    assert at == 0 and "without the numbers of its line" in why
    assert not disagreements(wrong, [RepeatRule("read", "anywhere", (), 100, 0, used=False)], [], whole)


@pytest.mark.parametrize("name", ["webshop", "corridor", "alfworld"])
def test_no_held_out_real_episode_contradicts_itself_and_something_is_checked(name: str):
    if name == "alfworld":
        pytest.importorskip("alfworld", reason="the extra alfworld is not installed")
    suite = plugins.make("envs", name)
    rules = InducedRules(StateMapping(suite.rules), induce(collect(suite, 400, seed=0)))
    held = [t for t in collect(suite, 150, seed=99) if t.turns]
    found = [agrees for t in held for agrees in rules.revisit_consistency(t.transitions)]
    assert len(found) >= 15 and sum(not agrees for agrees in found) <= 0.01 * len(found)


def test_a_claim_of_success_in_a_dream_that_contradicts_itself_masks_the_episode():
    rules = InducedRules(StateMapping(SHOP.rules), induce(episodes(*READ, step("5 left", "done()", "over", end=True, reward=1.0))))
    history = (*READ[:2], step("a desk", "read(id=1)", "6 left"))
    query = Query(Task("t", "do it", "toy"), history, Observation("6 left"), "done()")
    claim = Prediction(Observation("over"), 1.0, True, StepInfo(verdict=Verdict("passed"), raw_reward=1.0, raw_terminated=True))
    judged = Guard(rules).after(query, claim)
    assert judged.info.has_verdict("masked") and judged.reward == 0.0 and "showed something else before" in str(judged.info.verdict)
    assert Guard(rules).after(Query(query.task, READ, Observation("5 left"), "done()"), claim).reward == 1.0


def test_the_rules_survive_their_file():
    rules = induce([*episodes(*READ, n=60), *episodes(*READ, *SOLD), *episodes(step("b7 red 12", "open[b7]", "red for 12"))])
    assert rules.repeats and rules.carries and from_toml(to_toml(rules), "rules.toml") == rules


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8)), max_size=5))
def test_any_episode_can_be_checked(steps: list[tuple[str, str, str]]):
    rules = [RepeatRule("a", "state", (), 40, 0)], [CarryRule("a", "", "words", 40, 0)]
    assert isinstance(disagreements([step(*one) for one in steps], *rules, whole), list)
