"""Near misses of tool calls: each is the fault that its name says, and what the schemas allow is the environment's to refuse."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
import tool_desk
from predictions import predicted

from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.tools.conversation import Exchange, conversation_state, extend
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import inferred_tools
from dreamgym.evals import near_misses
from dreamgym.evals.one_step import apply_guard, draw_questions, measure
from dreamgym.experience.augmentation import insert_invalid_actions
from dreamgym.experience.guard import Guard
from dreamgym.tool_calls import ToolCall, calls_of, respond
from dreamgym.types import Action, Trajectory, Transition, Turn

EPISODES, RULES = tool_desk.episodes(60), tool_desk.RULES
FAULTS = {
    "unknown tool": r"there is no tool \w+",
    "missing argument": r"the arguments: (room|on) is missing",
    "unknown argument": r"the arguments: \w+ is unknown",
    "wrong type": r"(room|on): expected (string|boolean)",
}
IDENTIFIERS = ("changed identifier", "identifier elsewhere")


def misses(rules: ToolRules, way: str) -> list[tuple[Trajectory, int, Action]]:
    """What one way of missing makes at every step."""
    rng, miss = random.Random(0), rules.near_misses(EPISODES)[way]
    found = [(episode, step, miss(episode, step, rng)) for episode in EPISODES for step in range(len(episode.turns))]
    return [(episode, step, action) for episode, step, action in found if action]


def test_the_ways_are_the_faults_of_schemas_and_two_that_schemas_allow() -> None:
    assert tuple(RULES.near_misses(EPISODES)) == (*FAULTS, *IDENTIFIERS)


@pytest.mark.parametrize("way", FAULTS)
def test_a_near_miss_is_read_as_a_call_and_has_the_fault_that_its_way_names(way: str) -> None:
    found = misses(RULES, way)
    assert len({action for _, _, action in found}) > 3
    for episode, step, action in found:
        (call,) = calls_of(action)
        assert str(call) == action and re.fullmatch(FAULTS[way], RULES.fault(action)), (action, RULES.fault(action))
        assert RULES.admissible(episode.transitions[step].state, (), action) is False


def test_another_identifier_is_admissible_and_is_one_letter_off_or_from_another_episode() -> None:
    for way in IDENTIFIERS:
        found = misses(RULES, way)
        assert len(found) == sum(len(episode.turns) for episode in EPISODES), "a step without an identifier takes a call of another step"
        for episode, step, action in found:
            (call,) = calls_of(action)
            assert not isinstance(call.arguments, str)
            room, own = call.arguments["room"], tool_desk.ROOMS[int(episode.id.split("/")[1]) % len(tool_desk.ROOMS)]
            assert RULES.fault(action) == "" and RULES.admissible(episode.transitions[step].state, (), action) is None
            if way == "changed identifier":
                assert sum(a != b for a, b in zip(room, own, strict=True)) == 1
            else:
                assert room != own and room in tool_desk.ROOMS


def test_schemas_that_are_open_leave_an_unknown_argument_to_the_environment() -> None:
    rules = ToolRules("desk", inferred_tools(call for e in EPISODES for t in e.transitions for call in calls_of(t.action)))
    found = misses(rules, "unknown argument")
    assert found and all(rules.fault(action) == "" and RULES.fault(action) for _, _, action in found)


def test_a_message_to_the_user_has_no_identifier_and_its_text_can_be_missing() -> None:
    start, exchange = conversation_state([]), Exchange((respond("ok"),), ("",))
    step = Transition(start, str(respond("ok")), extend(start, exchange), 0.0, False)
    one = Trajectory("talk", EPISODES[0].task, "demo", (Turn(step),), success=False)
    ways = RULES.near_misses([one])
    assert ways["missing argument"](one, 0, random.Random(0)) == "respond()"
    assert all(ways[way](one, 0, random.Random(0)) is None for way in (*IDENTIFIERS, "unknown argument"))


def test_a_call_that_only_errors_come_back_from_is_refused() -> None:
    def step(*results: str, user: str = "", reward: float = 0.0) -> Transition:
        state = conversation_state([])
        calls = tuple(ToolCall("get_lamp", {"room": str(i)}) for i in range(len(results)))
        return Transition(state, "\n".join(map(str, calls)), extend(state, Exchange(calls, results, user)), reward, False)

    assert RULES.refused(step("Error: no such room")) and RULES.refused(step("Error", "Error: no"))
    assert not any(map(RULES.refused, (step("on"), step("Error", "on"), step("Error", user="Thanks"), step("Error", reward=1.0))))


def test_the_guard_refuses_what_the_schemas_exclude_and_the_environment_what_it_does_not_know() -> None:
    real = EnvPool(tool_desk.Desk, RULES)
    questions, counts = draw_questions(EPISODES, real, RULES, misses=1.0, seed=0)
    asked = [question for question in questions if question.near_miss]
    assert counts["near_misses"] == len(asked) and counts["near_misses_lost"] == 0
    assert counts["near_misses_that_took_effect"] > 0, "another episode's room is a room: the call is answered"
    assert all(q.truth.next_state == q.truth.state for q in asked if q.kind in FAULTS)
    assert all(q.truth.next_state.text.endswith("Error: no such room") for q in asked if q.kind == "changed identifier")
    assert not any(question.valid for question in asked)
    wrong = [predicted("no calls yet\nswitched on") for _ in questions]
    bare, guarded = (measure(questions, answers, known=()).by_miss for answers in (wrong, apply_guard(Guard(RULES), questions, wrong)))
    assert set(guarded) == set(bare) == {*FAULTS, "changed identifier"}
    assert {way: rate.n for way, rate in guarded.items()} == Counter(question.kind for question in asked)
    assert all(bare[way].value == 0.0 for way in bare) and all(guarded[way].value == 1.0 for way in FAULTS)
    assert guarded["changed identifier"].value == 0.0, "only the model can know"
    truth = [predicted(q.truth.next_state.text, q.truth.reward, q.truth.terminated) for q in questions]
    assert all(rate.value == 1.0 for rate in measure(questions, truth, known=()).by_miss.values())


def test_the_same_seed_draws_the_same_near_misses_of_calls_and_another_seed_others() -> None:
    real = EnvPool(tool_desk.Desk, RULES)
    one, same, other = (near_misses.draw(EPISODES, real, RULES, share=0.5, seed=seed) for seed in (0, 0, 1))
    assert one == same != other


def test_invalid_calls_of_the_training_rows_are_read_as_calls_and_are_other_mistakes() -> None:
    logged = {step.action for episode in EPISODES for step in episode.transitions}
    copies = insert_invalid_actions(EPISODES, RULES, 1.0, seed=0)
    learnt = {step.action for copy in copies for step in copy.transitions} - logged
    assert len(learnt) > 10 and all(len(calls_of(action)) == 1 and RULES.fault(action) for action in learnt)
    assert not learnt & {action for way in FAULTS for _, _, action in misses(RULES, way)}
