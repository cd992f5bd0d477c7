"""The next actions of a policy beside recorded ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dreamgym.engines.scripted import ScriptedLLM
from dreamgym.envs.tools.conversation import Exchange, conversation_state
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import tools_of
from dreamgym.evals.next_actions import NextActions, compare_actions, identifier_arguments, sentences, warning
from dreamgym.llm.vocabulary import END, MARKERS, Vocabulary
from dreamgym.policy.agent import Agent
from dreamgym.policy.templates.markers import Markers
from dreamgym.statistics import wilson
from dreamgym.tool_calls import ToolCall, action_of
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

RULES = ToolRules("clinic", tools_of([{"name": name} for name in ("find", "book", "respond")]), refusals="unchanged")


def episode(name: str, identifier: str) -> Trajectory:
    """A patient is looked up and booked for by the identifier that the look-up shows."""
    calls = [
        (ToolCall("find", {"name": name}), f'{{"id": "{identifier}"}}'),
        (ToolCall("book", {"beds": "2", "id": identifier, "note": "by phone"}), "booked"),
        (ToolCall("respond", {"content": "Done."}), ""),
    ]
    exchanges = [Exchange((call,), (result,)) for call, result in calls]
    states = [conversation_state(exchanges[:n]) for n in range(len(exchanges) + 1)]
    steps = [
        Transition(Observation(states[n].text), action_of(exchange.calls), states[n + 1], float(n == 2), n == 2)
        for n, exchange in enumerate(exchanges)
    ]
    return Trajectory(name, Task(name, f"I am {name}.", "clinic"), "demo", tuple(map(Turn, steps)), success=True)


EPISODES = [episode("Ada", "P-101"), episode("Bo", "P-202"), episode("Cy", "P-303")]


def policy(answer: Callable[[str], str]) -> tuple[Agent, ScriptedLLM]:
    """An agent whose actions come from a function of its prompt."""
    llm = ScriptedLLM(answer)
    words = Vocabulary(llm.encode, llm.decode, dict.fromkeys((*MARKERS, END), llm.special_id("")))
    return Agent(llm, Markers(words), RULES, max_reply_tokens=200), llm


def recorded(prompt: str) -> str:
    """The recorded action after what the prompt shows."""
    (this,) = [one for one in EPISODES if f"I am {one.task.id}." in prompt]
    return this.transitions[("book(" in prompt) + ("find(" in prompt)].action


def memorised(prompt: str) -> str:
    """The same with the identifier of another task."""
    return re.sub(r"P-\d+", "P-777", recorded(prompt))


def test_a_policy_that_acts_as_recorded_agrees_at_every_step():
    agent, _ = policy(recorded)
    found = compare_actions(agent, EPISODES, identifier_arguments(EPISODES, RULES), name="a")
    assert (found.action_exact.value, found.action_exact.n, found.action_kind.value) == (1.0, 9, 1.0)
    assert (found.identifier_unknown.value, found.identifier_unknown.n) == (0.0, 3)
    assert {kind: rate.value for kind, rate in found.by_action.items()} == {"book": 1.0, "find": 1.0, "respond": 1.0}


def test_steps_of_an_episode_depend_on_each_other_and_widen_the_interval():
    agent, _ = policy(lambda prompt: recorded(prompt) if "I am Ada." in prompt else 'find(name="nobody")')
    rate = compare_actions(agent, EPISODES[:2], identifier_arguments(EPISODES, RULES), name="a").action_exact
    assert (rate.value, rate.n) == (0.5, 6)
    assert (rate.low, rate.high) == pytest.approx((wilson(1, 2).low, wilson(1, 2).high), abs=0.05), "two episodes, and not six cases"


def test_an_identifier_that_no_text_so_far_shows_is_counted_though_the_tool_is_right():
    agent, _ = policy(memorised)
    found = compare_actions(agent, EPISODES, identifier_arguments(EPISODES, RULES), name="a")
    assert (found.identifier_unknown.value, found.identifier_unknown.n, found.action_kind.value) == (1.0, 3, 1.0)
    assert found.by_action["book"].value == 0.0 and found.by_action["find"].value == 1.0


def test_the_history_of_every_step_is_the_recorded_one_whatever_the_policy_wrote_before():
    agent, llm = policy(lambda prompt: 'find(name="nobody")')
    found = compare_actions(agent, EPISODES[:1], identifier_arguments(EPISODES, RULES), name="a")
    assert len(llm.prompts) == 3 and not any("nobody" in prompt for prompt in llm.prompts)
    assert 'find(name="Ada")' in llm.prompts[1] and "P-101" in llm.prompts[2] and found.action_exact.value == 0.0


def test_only_arguments_that_are_identifiers_in_all_logs_and_shown_before_count():
    assert identifier_arguments(EPISODES, RULES) == {("book", "id")}  # neither names and notes, nor a number that nothing shows


def measured(exact: tuple[int, int], unknown: int, *, by: str = "task", kind: int = 18) -> dict[str, Any]:
    """What the phase keeps: exact actions of 20 held-out and of 20 training steps, and identifiers from nowhere of 10."""
    held, training = (NextActions(5, wilson(n, 20), wilson(kind, 20), wilson(unknown, 10), {}).to_json() for n in exact)
    return {"held_out_by": by, "by_policy": {"dream": {"held_out": held, "training": training}}}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (measured((19, 19), 0), ""),
        (measured((17, 19), 1), ""),  # one of ten may be chance, and so may two of twenty
        (measured((19, 19), 8), "8 of 10 actions with an identifier give one that no text so far shows"),
        (measured((5, 19), 0), "of its actions are the recorded ones, and 95.0 %"),
        (measured((5, 5), 0, kind=6), "30.0 % [14.5, 51.9] of its actions call the recorded tool"),
        ({"held_out_by": "task", "by_policy": {}}, ""),
    ],
)
def test_identifiers_from_nowhere_and_tasks_known_by_heart_are_warned_of(found: dict[str, Any], said: str):
    text = warning(found)
    assert said in text and bool(text) == bool(said)
    assert not text or ("more tasks" in text and "pretrained" in text and ("placeholders" in text) == ("identifier" in said))


def test_the_line_names_the_policy_and_says_that_other_actions_can_be_right():
    (line,) = sentences(measured((5, 19), 8))
    assert line.startswith("Next actions of dream in 5 recorded successes that were held out (new tasks): 25.0 %")
    assert "training episodes 95.0 %" in line and line.endswith("Other actions than the recorded one can be right.")
    assert "trained on, since few" in sentences(measured((5, 19), 8, by="episode"))[0]
    assert "no recorded success was held out" in sentences({"held_out_by": "task", "by_policy": {}})[0]
