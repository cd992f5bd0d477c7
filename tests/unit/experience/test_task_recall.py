"""Recall within a task: what other episodes of a task showed answers a dream of it, as far as pairs of logged rows establish that."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dreamgym import plugins
from dreamgym.envs.base import TextRules, play
from dreamgym.experience.task_recall import TaskRecall
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes.factory import open_replay
from dreamgym.replay import export
from dreamgym.replay.stores import open_to_read
from dreamgym.types import Action, Observation, Query, StepInfo, Task, Trajectory, Transition, Turn

ACTIONS = ("look at the lamp", "look at the door", "flip the switch", "knock", "leave")


class RoomRules(TextRules):
    """States are what the last action showed; nothing else is known."""

    name = "room"

    def abstract(self, raw: dict[str, Any]) -> Observation:
        return Observation(raw["text"])


class Room:
    """A task hides whether its lamp is on and its door is open. The switch changes the lamp, and nothing changes the door."""

    name = "room"

    def __init__(self, noise: float = 0.0) -> None:
        self.noise, self.rng = noise, random.Random(0)

    def accepts(self, task: Task) -> bool:
        return True

    def reset(self, task: Task) -> dict[str, Any]:
        hidden = random.Random(task.id)
        self.lamp, self.door = hidden.random() < 0.5, hidden.randrange(5)
        return {"text": "a room"}

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        if action == "flip the switch":
            self.lamp = not self.lamp
        if action != "leave" and self.rng.random() < self.noise:
            return {"text": f"noise {self.rng.random()}"}, 0.0, False
        shown = {
            "look at the lamp": f"the lamp is {'on' if self.lamp else 'off'}",
            "look at the door": f"the door has the number {self.door}",
            "flip the switch": f"click, and it is {'light' if self.lamp else 'dark'}",
            "knock": "knock knock",
            "leave": "outside",
        }
        return {"text": shown[action]}, float(action == "leave" and self.lamp), action == "leave"


def episodes(tasks: int, each: int, *, seed: int = 0, noise: float = 0.0) -> list[Trajectory]:
    rng, found, env, rules = random.Random(seed), [], Room(noise), RoomRules()
    for i in range(tasks * each):
        task = Task(f"room-{i % tasks}", "leave a room with the lamp on", "room")
        chosen = [rng.choice(ACTIONS[:-1]) for _ in range(6)] + ["leave"]
        name = f"{seed}/{i}"
        found.append(play(env, rules, task, lambda _, left=iter(chosen): next(left), max_steps=9, behaviour="random", name=name))
    return found


def answers(recall: TaskRecall, of: Sequence[Trajectory]) -> tuple[int, int, int]:
    """(steps, answered, right)"""
    steps, right = [], 0
    for episode in of:
        for i, step in enumerate(episode.transitions):
            found = recall.recall(Query(episode.task, episode.transitions[:i], step.state, step.action))
            steps.append(found)
            right += found is not None and (found.next_state, found.reward, found.terminated) == (
                step.next_state.text, step.reward, step.terminated,
            )  # fmt: skip
    return len(steps), sum(one is not None for one in steps), right


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_a_task_hides_is_recalled_from_its_other_episodes_and_never_wrongly(seed: int):
    recall = TaskRecall(open_replay(None, episodes(60, 5, seed=seed)), RoomRules())
    steps, answered, right = answers(recall, episodes(60, 1, seed=100 + seed))
    assert answered > 0.6 * steps and right == answered


def test_on_which_actions_an_answer_depends_is_mined():
    recall = TaskRecall(open_replay(None, episodes(60, 5)), RoomRules())
    found = {one.kind: one.invalidated_by for one in recall.dependencies()}
    assert found["look"] == ("flip",) and found["knock"] == () and found["leave"] == ("flip",)
    assert found["flip"] == ("flip",), "a switch changes its own answer"


def test_a_question_asked_again_has_its_answer_until_something_changes_it():
    recall = TaskRecall(open_replay(None, episodes(60, 5)), RoomRules())
    new = Task("an unknown room", "leave a room with the lamp on", "room")
    (episode,) = [t for t in [play_in(new, ["look at the lamp", "knock", "look at the lamp", "flip the switch", "look at the lamp"])]]
    asked = [Query(new, episode.transitions[:i], step.state, step.action) for i, step in enumerate(episode.transitions)]
    first, _, again, _, after = [recall.recall(query) for query in asked]
    assert first is None and after is None, "nobody has seen this room, nor its lamp after the switch"
    assert again is not None and again.next_state == episode.transitions[0].next_state.text


class ReadingRules(RoomRules):
    """The same rules, which know what only reads."""

    encodes_deltas = True

    def reads_only(self, action: Action) -> bool:
        return action in ("look at the lamp", "look at the door", "knock")


def test_what_only_reads_shows_the_same_again_while_nothing_acts_even_where_no_task_is_logged_twice():
    recall = TaskRecall(open_replay(None, episodes(60, 1)), ReadingRules())
    new = Task("an unknown room", "leave a room with the lamp on", "room")
    episode = play_in(new, ["look at the lamp", "knock", "look at the lamp", "flip the switch", "look at the lamp", "flip the switch"])
    asked = [Query(new, episode.transitions[:i], step.state, step.action) for i, step in enumerate(episode.transitions)]
    found = [recall.recall(query) for query in asked]
    assert found[2] is not None and found[2].next_state == episode.transitions[0].next_state.text
    assert [answer for i, answer in enumerate(found) if i != 2] == [None] * 5, "the switch acts, and what it showed is no answer to itself"


def test_what_is_declared_to_read_and_varies_in_the_logs_is_not_answered_from_its_own_episode():
    logs = episodes(300, 1, noise=0.5)
    recall = TaskRecall(open_replay(None, logs), ReadingRules())
    reading = [
        recall.recall(Query(episode.task, episode.transitions[:i], step.state, step.action))
        for episode in logs
        for i, step in enumerate(episode.transitions)
        if ReadingRules().reads_only(step.action)
    ]
    assert len(reading) > 1000 and set(reading) == {None}, "nor from the recording of the task"


def test_one_kind_of_reading_that_varies_takes_nothing_from_another_that_does_not():
    """A poll changes by itself; a look does not."""
    asked, rows = ["look at the lamp", "poll"] * 4, list[Trajectory]()
    for i in range(200):
        steps = [
            Turn(Transition(Observation("a"), action, Observation(f"poll {i} {n}" if action == "poll" else f"lamp {i % 2}"), 0.0, False))
            for n, action in enumerate(asked)
        ]
        rows.append(Trajectory(f"log/{i}", Task(f"t{i}", "wait", "room"), "real", tuple(steps), False))

    class PollingRules(RoomRules):
        def reads_only(self, action: Action) -> bool:
            return True

    recall = TaskRecall(open_replay(None, rows), PollingRules())
    task, history = Task("new", "wait", "room"), tuple(turn.transition for turn in rows[0].turns)
    look, poll = (recall.recall(Query(task, history, history[-1].next_state, action)) for action in asked[:2])
    assert look is not None and look.next_state == "lamp 0" and poll is None
    (unchanged,) = (one for one in recall.agreements() if one.situation == "unchanged")
    assert unchanged.used and unchanged.right == unchanged.predicted == 3 * 200, "of looks alone: a poll is not answered so"


def test_a_refused_call_is_no_answer_and_changes_none():
    logs = episodes(60, 5)
    recall = TaskRecall(open_replay(None, logs), RoomRules())
    lamp = next(query for query in map(first_look, logs) if recall.recall(query))
    state, by_rule = Observation("a room\nError"), StepInfo(decided_by="rule")
    for action in ("flip the switch", lamp.action):
        refused = Transition(lamp.state, action, state, 0.0, False, by_rule)
        assert recall.recall(replace(lamp, history=(refused,))) == recall.recall(replace(lamp, history=()))


def first_look(episode: Trajectory) -> Query:
    """The question after the lamp at the start of an episode's task."""
    return Query(episode.task, (), episode.transitions[0].state, "look at the lamp")


def play_in(task: Task, actions: Sequence[Action]) -> Trajectory:
    left = iter(actions)
    return play(Room(), RoomRules(), task, lambda _: next(left), max_steps=len(actions), behaviour="by hand", name="by hand")


def test_what_varies_is_not_recalled_and_what_does_not_is():
    recall = TaskRecall(open_replay(None, episodes(60, 5, noise=0.2)), RoomRules())
    assert [one.kind for one in recall.dependencies()] == ["leave"], "noise is in every answer but that"


def test_logs_that_never_repeat_a_task_tell_what_followed_the_same_actions_and_no_reward():
    class Rules(RoomRules):
        encodes_deltas = True

    logs = episodes(300, 1)
    assert answers(TaskRecall(open_replay(None, logs), RoomRules()), logs)[1] == 0, "a state that shows everything says where an episode is"
    recall = TaskRecall(open_replay(None, logs), Rules())
    steps, answered, right = answers(recall, logs)
    assert recall.dependencies() == [] and right == answered == steps - len(logs), "all but the ends"
    steps, answered, right = answers(recall, episodes(300, 1, seed=3))
    assert 0.05 * steps < answered == right, "other episodes of the same rooms, as long as they do the same"


def test_what_a_recording_saw_before_it_acted_holds_in_any_order_where_the_rules_know_what_reads():
    task = Task("room-1", "leave a room with the lamp on", "room")
    recall = TaskRecall(open_replay(None, [play_in(task, ["look at the lamp", "look at the door", "flip the switch"])]), ReadingRules())
    episode = play_in(task, ["look at the door", "look at the lamp", "flip the switch", "look at the lamp"])
    found = [recall.recall(Query(task, episode.transitions[:i], step.state, step.action)) for i, step in enumerate(episode.transitions)]
    assert [one and one.next_state for one in found[:3]] == [step.next_state.text for step in episode.transitions[:3]]
    assert found[3] is None, "no recording looked after the switch"
    assert set(recall.first_answers("room", "room-1")) == {"look at the lamp", "look at the door"}
    assert recall.first_answers("room", "room-1", without="by hand") == {}


def test_kinds_of_action_about_which_recordings_of_a_task_contradict_each_other_are_not_answered_from_them():
    logs = episodes(60, 5, noise=0.3)
    recall = TaskRecall(open_replay(None, logs), ReadingRules())
    (recording,) = (one for one in recall.agreements() if one.situation == "recording")
    assert recording.predicted == 0 and {recall.recall(query) for query in map(first_look, logs)} == {None}


def test_dreams_are_no_precedents_and_new_real_rows_are():
    buffer = open_replay(None, episodes(60, 3))
    recall, later = TaskRecall(buffer, RoomRules()), episodes(90, 1, seed=5)
    before = answers(recall, later)[1]
    buffer.add([replace(episode, id=f"dream/{episode.id}", source="dream") for episode in later])
    assert answers(recall, later)[1] == before
    buffer.add([replace(episode, id=f"real/{episode.id}", source="real") for episode in later])
    assert answers(recall, later)[1] > before


def test_the_support_desk_of_tau2_is_recalled_though_nobody_wrote_what_its_tools_do():
    pytest.importorskip("tau2")
    suite = plugins.make("envs", "telecom")
    mix = {"careless": 0.6, "forgetful": 0.2, "random": 0.2}
    recall = TaskRecall(open_replay(None, collect(suite, 320, seed=0, tasks=80, mix=mix)), suite.rules)
    again = [replace(t, id=f"again/{t.id}") for t in collect(suite, 80, seed=0, tasks=80, mix={"wrong_tool": 1.0})]
    steps, answered, right = answers(recall, again)
    assert answered > 0.45 * steps and right >= 0.98 * answered


def test_a_replay_log_keeps_the_task_of_every_row_and_so_does_its_export(tmp_path):
    logs = episodes(10, 2)
    open_replay(tmp_path / "log.sqlite", logs).close()
    store = open_to_read(tmp_path / "log.sqlite")
    export.export(store, tmp_path / "rows.jsonl")
    store.close()
    assert [t.task.id for t in export.read(tmp_path / "rows.jsonl")] == [t.task.id for t in logs]
