"""Answers that stay as long as a condition holds, mined from logged rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from dreamgym import plugins
from dreamgym.envs.base import TextRules, play
from dreamgym.experience import conditions as mined
from dreamgym.experience.conditions import Conditions
from dreamgym.experience.guard import Guard
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import ModelInputs
from dreamgym.experience.task_recall import TaskRecall
from dreamgym.recipes.factory import open_replay
from dreamgym.types import Action, Observation, Query, StepInfo, Task, Trajectory, Transition

PARTS = ("pump", "valve", "fuse")
CHECKS = tuple(f"check {part}" for part in PARTS)
REPAIRS = tuple(f"repair_{part} now" for part in PARTS)
START = "start the engine"


class EngineRules(TextRules):
    """States are what the last action showed; nothing else is known but which actions read. A lamp's switch shows a second line, which is
    never the same."""

    name = "engine"

    def abstract(self, raw: dict[str, Any]) -> Observation:
        return Observation(raw["text"])

    def reads_only(self, action: Action) -> bool:
        return action in (*CHECKS, START, "look around")


class Engine:
    """A task hides which of three parts are broken. The engine starts where all are whole."""

    name = "engine"

    def __init__(self, noise: float = 0.0, leaking: float = 0.0) -> None:
        self.noise, self.leaking, self.rng, self.time = noise, leaking, random.Random(0), 0

    def accepts(self, task: Task) -> bool:
        return True

    def reset(self, task: Task) -> dict[str, Any]:
        hidden = random.Random(task.id)
        self.broken = {part for part in PARTS if hidden.random() < 0.5}
        self.light = hidden.random() < 0.5
        self.leaks = hidden.random() < self.leaking  # which nothing shows and nothing repairs
        return {"text": "an engine"}

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        verb, part = action.split()[0], next((part for part in PARTS if part in action), "")
        if verb.startswith("repair"):
            self.broken.discard(part)
            return {"text": f"worked on the {part}"}, 0.0, False
        if verb == "check":
            return {"text": f"the {part} is {'broken' if part in self.broken else 'whole'}"}, 0.0, False
        if verb == "look":
            return {"text": f"it is {'light' if self.light else 'dark'}"}, 0.0, False
        if verb == "flip":
            self.light, self.time = not self.light, self.time + 1
            return {"text": f"now it is {'light' if self.light else 'dark'}\nat {self.time}"}, 0.0, False
        if action == "leave":
            return {"text": "home"}, float(not self.broken), True
        runs = not (self.broken or self.leaks) if self.rng.random() >= self.noise else self.rng.random() < 0.5
        return {"text": "it runs" if runs else "it does not start"}, 0.0, False


def chosen(rng: random.Random) -> list[Action]:
    """A mechanic who looks at all parts, repairs some at random, and tries."""
    return [*rng.sample(CHECKS, len(CHECKS)), *rng.sample(REPAIRS, rng.randrange(4)), "look around", "flip the switch", START, "leave"]


@cache
def episodes(tasks: int, each: int, *, seed: int = 0, noise: float = 0.0, leaking: float = 0.0) -> list[Trajectory]:
    rng, found, env, rules = random.Random(seed), [], Engine(noise, leaking), EngineRules()
    for i in range(tasks * each):
        task = Task(f"engine-{seed}-{i % tasks}", "make it run", "engine")
        actions = iter(chosen(rng))
        found.append(play(env, rules, task, lambda _, left=actions: next(left), max_steps=14, behaviour="random", name=f"{seed}/{i}"))
    return found


def conditions(logs: Sequence[Trajectory]) -> Conditions:
    replay, rules = open_replay(None, logs), EngineRules()
    return Conditions(replay, rules, TaskRecall(replay, rules))


def asked(episode: Trajectory, action: Action) -> tuple[Query, str]:
    """The query of the first step with that action, and what really came."""
    i = next(i for i, step in enumerate(episode.transitions) if step.action == action)
    step = episode.transitions[i]
    return Query(episode.task, episode.transitions[:i], step.state, action), step.next_state.text


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_conjunction_is_learned_and_predicts_new_tasks_without_error(seed: int):
    found = conditions(episodes(240, 2, seed=seed))
    told, failures = 0, 0
    for episode in episodes(100, 1, seed=1000 + seed):
        query, real = asked(episode, START)
        answer = found.infer(query)
        failures += real == "it does not start"
        told += answer is not None
        assert answer is None or (answer.next_state, answer.reward, answer.terminated) == (real, 0.0, False)
    assert told >= 0.9 * failures > 30


def test_what_is_mined_is_which_line_waits_for_which_action():
    start = next(
        one for one in conditions(episodes(240, 2)).mined_answers() if one.kind == "start" and one.answer[0] == "it does not start"
    )
    broken = {place: set(end_actions) for place, end_actions in start.conditions.items() if "broken" in place[1]}
    assert broken == {(f"check {part}", f"the {part} is broken"): {f"repair_{part} now"} for part in PARTS}
    assert start.right == start.predicted > 100
    listed = start.to_json()["conditions"]
    assert listed[0]["rows"] >= listed[-1]["rows"] and {"shown_by", "line", "until", "rows"} == listed[0].keys()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_once_all_that_an_answer_waited_for_is_done_the_other_of_two_answers_is_inferred(seed: int):
    found = conditions(episodes(240, 2, seed=seed))
    told, running = 0, 0
    for episode in episodes(100, 1, seed=1000 + seed):
        query, real = asked(episode, START)
        waited = any("is broken" in step.next_state.text for step in query.history)
        answer = found.infer(query)
        running += waited and real == "it runs"
        told += answer is not None and answer.next_state == "it runs"
        assert waited or answer is None or answer.next_state != "it runs", "nothing is known that it would have waited for"
    assert told >= 0.9 * running > 5
    other = next(one.other for one in found.mined_answers() if one.answer[0] == "it does not start")
    assert other and other.answer == ("it runs", 0.0, False) and other.right == other.predicted > mined.MIN_SAMPLES


def test_the_other_answer_is_not_inferred_where_something_that_no_log_shows_is_mostly_in_the_way():
    found = conditions(episodes(240, 2, leaking=0.6))
    (one,) = [one for one in found.mined_answers() if one.answer[0] == "it does not start"]
    assert one.right == one.predicted and one.other is None
    for episode in episodes(100, 1, seed=9, leaking=0.6):
        answer = found.infer(asked(episode, START)[0])
        assert answer is None or answer.next_state == "it does not start"


def test_an_end_without_a_reward_is_inferred_and_a_reward_never_is():
    found = conditions(episodes(240, 2))
    told = 0
    for episode in episodes(40, 1, seed=9):
        query, _ = asked(episode, "leave")
        answer = found.infer(query)
        told += answer is not None
        assert answer is None or (answer.terminated and answer.reward == 0.0 and not episode.success)
    assert told > 10


def test_what_another_episode_of_the_task_saw_counts_until_it_is_changed():
    logs = episodes(240, 2)
    found = conditions(logs)
    query, _ = asked(next(t for t in logs if asked(t, START)[1] == "it does not start"), START)
    unseen = replace(query, history=())
    assert (answer := found.infer(unseen)) is not None and answer.next_state == "it does not start"
    assert found.infer(replace(unseen, task=replace(query.task, id="nobody has seen it"))) is None
    steps = {step.action: step for t in logs for step in t.transitions}
    repaired = tuple(steps[action] for action in REPAIRS)
    after = found.infer(replace(unseen, history=repaired))
    assert after is not None and after.next_state == "it runs"


def test_a_refused_repair_repairs_nothing():
    logs = episodes(240, 2)
    found = conditions(logs)
    query, _ = asked(next(t for t in logs if asked(t, START)[1] == "it does not start"), START)
    refused = tuple(Transition(query.state, action, Observation("Error"), 0.0, False, StepInfo(decided_by="rule")) for action in REPAIRS)
    after = found.infer(replace(query, history=(*query.history, *refused)))
    assert after is not None and after.next_state == "it does not start"


def test_of_an_answer_with_few_first_lines_the_first_line_is_corrected_and_the_others_are_kept():
    found = conditions(episodes(240, 2))
    mined = {one.answer[0] for one in found.mined_answers() if one.kind == "flip" and one.first_line}
    assert mined == {"now it is light", "now it is dark"}
    for episode in episodes(20, 1, seed=7):
        query, real = asked(episode, "flip the switch")
        said = [found.correct_first_line(query, Observation(f"now it is {light}\nat noon")).text for light in ("light", "dark")]
        assert said == [f"{real.split(chr(10))[0]}\nat noon"] * 2
        assert found.infer(query) is None
    query, _ = asked(episodes(1, 1)[0], START)
    assert found.correct_first_line(query, Observation("anything")).text == "anything"


def test_answers_by_chance_establish_nothing():
    assert not [one for one in conditions(episodes(240, 2, noise=0.9)).mined_answers() if one.kind == "start"]


def test_an_answer_that_changes_only_after_all_counted_rows_establishes_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mined, "MOST_ROWS", 100)
    logs = episodes(240, 2)
    alike = [one for one in logs if asked(one, START)[1] == "it does not start"]
    other = [one for one in logs if asked(one, START)[1] == "it runs"]
    found = conditions([*alike[:120], *other[:20]])
    assert len(alike) >= 120 and not [one for one in found.mined_answers() if one.kind == "start"]


def test_dreamed_rows_are_no_evidence():
    dreams = [replace(t, source="dream") for t in episodes(240, 2)]
    assert conditions(dreams).mined_answers() == []


def test_two_answers_whose_conditions_hold_give_none():
    found = conditions(episodes(240, 2))
    (one,) = [one for one in found.mined_answers() if one.kind == "start" and one.answer[0] == "it does not start"]
    query, _ = asked(next(t for t in episodes(240, 2) if asked(t, START)[1] == "it does not start"), START)
    assert found.infer(query) is not None
    found._mined_answers = [one, replace(one, answer=("it runs", 0.0, False))]
    assert found.infer(query) is None


def test_a_dream_says_which_answers_were_inferred_and_the_ablation_infers_none():
    logs = episodes(240, 2)
    asked_for = [asked(episode, START) for episode in episodes(60, 1, seed=3)]
    with_conditions, without = (
        plugins.make(
            "experience.models", "no_model", inputs=ModelInputs(Guard(EngineRules()), open_replay(None, logs), logs), conditions=kind
        )
        for kind in (True, False)
    )
    answers = with_conditions.predict([query for query, _ in asked_for])
    inferred = [(one, real) for one, (_, real) in zip(answers, asked_for, strict=True) if one.info.decided_by == "inferred"]
    assert len(inferred) == with_conditions.counts["inferred"] > 5
    assert all(one.next_state.text == real and one.info.reward_by == "inferred" for one, real in inferred)
    assert "inferred" not in {one.info.decided_by for one in without.predict([query for query, _ in asked_for])}


def test_what_a_model_writes_of_a_switch_is_corrected_before_the_guard_sees_it(monkeypatch: pytest.MonkeyPatch):
    logs = episodes(240, 2)
    model = plugins.make("experience.models", "no_model", inputs=ModelInputs(Guard(EngineRules()), open_replay(None, logs), logs))
    monkeypatch.setattr(model, "generate", lambda queries, memories: [Answer("", "now it is gone\nat noon", 0.0, False) for _ in queries])
    flips = [asked(episode, "flip the switch") for episode in episodes(30, 1, seed=3)]
    for (query, real), answer in zip(flips, model.predict([query for query, _ in flips]), strict=True):
        assert answer.next_state.text == f"{real.splitlines()[0]}\nat noon", query.task.id
    assert model.counts["corrected"] == len(flips)
