"""What logs seldom hold: near-miss goals, actions that do not exist, and subsets of the logs; and the switches of the ablations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dreamgym.envs import corridor, webshop
from dreamgym.envs.corridor import read_goal
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import UsageError
from dreamgym.evals import near_misses
from dreamgym.experience.augmentation import insert_invalid_actions, near_miss_goals_of
from dreamgym.experience.dataset import memory_texts, up_to
from dreamgym.experience.guard import FAILURE_STATE
from dreamgym.experience.retriever import RetrievalConfig, Retriever
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes.ablations import ABLATIONS
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.factory import open_replay
from dreamgym.replay.random_retrieval import RandomRetrieval
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

FAMILIES: dict[str, Any] = {"corridor": corridor.make(length=5), "webshop": webshop.make()}
LOGS = {name: collect(suite, 80, seed=0) for name, suite in FAMILIES.items()}


# --- near goals ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_near_goal_differs_in_one_word_and_turns_the_outcome_round(name: str):
    suite = FAMILIES[name]
    logs = collect(suite, 250, seed=0)  # words come from other instructions, and few failures are one word from a success
    copies = near_miss_goals_of(logs, suite.rules, 1.0, seed=0)
    originals = {episode.id: episode for episode in logs}
    assert {copy.success for copy in copies} == {True, False} and len(copies) > 20
    for copy in copies:
        original = originals[copy.id.partition("/as/")[0]]
        changed = zip(original.task.instruction.split(), copy.task.instruction.split(), strict=True)
        assert sum(a != b for a, b in changed) == 1 and suite.rules.well_formed(copy.task.instruction)
        assert copy.success != original.success and copy.total_reward == float(copy.success)
        assert copy.task.goal is None and copy.task.source == "synthetic"
        assert ("success" if copy.success else "failure") in copy.transitions[-1].info.reasoning
        assert [t.next_state for t in copy.transitions] == [t.next_state for t in original.transitions]


def test_the_real_corridor_agrees_with_near_goals_about_the_door():
    suite = FAMILIES["corridor"]
    env, confirmed = suite.env(), []
    for copy in near_miss_goals_of(LOGS["corridor"], suite.rules, 1.0, seed=0):
        asked, original = read_goal(copy.task.instruction), read_goal(original_instruction(copy.id))
        assert asked is not None and original is not None
        if (asked.start, asked.key) != (original.start, original.key):
            continue  # another corridor: the states would tell
        env.reset(replace(copy.task, goal={"start": asked.start, "target": asked.target, "key": asked.key}))
        for t in copy.transitions:
            raw, reward, terminated = env.step(t.action)
            assert (suite.rules.abstract(raw), reward, terminated) == (t.next_state, t.reward, t.terminated)
        confirmed.append(copy.success)
    assert len(confirmed) > 10 and set(confirmed) == {True, False}


def original_instruction(copy: str) -> str:
    return next(episode.task.instruction for episode in LOGS["corridor"] if copy.startswith(episode.id + "/as/"))


# --- invalid actions -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_invalid_actions_are_put_between_the_steps_and_change_nothing(name: str):
    suite, logs = FAMILIES[name], LOGS[name]
    copies = insert_invalid_actions(logs, suite.rules, 0.5, seed=0)
    steps, more = sum(len(e.turns) for e in logs), sum(len(e.turns) for e in copies)
    assert 1.3 * steps < more < 1.6 * steps
    for original, copy in zip(logs, copies, strict=True):
        assert copy.success == original.success and copy.id.startswith(original.id + "/as/")
        added = [t for t in copy.transitions if t not in original.transitions]
        assert [t for t in copy.transitions if t not in added] == list(original.transitions)
        for t in added:
            assert t.is_noop and t.info.reasoning == FAILURE_STATE
            assert suite.rules.admissible(t.state, (), t.action) is False
        assert all(a.next_state == b.state for a, b in zip(copy.transitions, copy.transitions[1:], strict=False))


def test_training_and_measuring_miss_in_other_ways():
    """The guard's figure would be a figure of memory if the model had been shown the very mistakes that it is asked about."""
    suite, logs = FAMILIES["webshop"], LOGS["webshop"]
    copies = insert_invalid_actions(logs, suite.rules, 1.0, seed=0)
    known = {t.action for e in logs for t in e.transitions}
    learnt = {t.action for e in copies for t in e.transitions} - known
    drawn = near_misses.draw(logs, EnvPool(suite.env, suite.rules), suite.rules, share=1.0, seed=0)
    asked = {one.truth.action for one in drawn.misses if one.way != "elsewhere"}
    assert len(learnt) > 100 and len(asked - known) > 50 and len(asked & learnt) < 0.02 * len(asked)


def test_a_share_of_nothing_changes_nothing():
    suite, logs = FAMILIES["webshop"], LOGS["webshop"]
    assert near_miss_goals_of(logs, suite.rules, 0.0, seed=0) == []
    assert [copy.turns for copy in insert_invalid_actions(logs, suite.rules, 0.0, seed=0)] == [episode.turns for episode in logs]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_copy_never_retrieves_what_it_was_copied_from(name: str):
    suite, logs = FAMILIES[name], LOGS[name][:20]
    copies = [*near_miss_goals_of(logs, suite.rules, 1.0, seed=0), *insert_invalid_actions(logs, suite.rules, 0.5, seed=0)]
    shown = memory_texts(copies, Retriever(open_replay(None, logs), suite.rules, RetrievalConfig(k=2)))
    for copy, rows in zip(copies, shown, strict=True):
        others = open_replay(None, [log for log in logs if not copy.id.startswith(log.id)])
        assert rows == memory_texts([copy], Retriever(others, suite.rules, RetrievalConfig(k=2)))[0]


# --- sizes -----------------------------------------------------------------------------------------------------------------------------


def test_a_size_of_the_logs_is_whole_trajectories_each_size_within_the_next():
    logs = LOGS["webshop"]
    sizes = [up_to(logs, n) for n in (1, 50, 100, 200)]
    for n, chosen in zip((1, 50, 100, 200), sizes, strict=True):
        steps = [len(e.turns) for e in chosen]
        assert sum(steps) >= n > sum(steps[:-1]) and chosen == logs[: len(chosen)]
    with pytest.raises(UsageError, match="Raise logs.trajectories"):
        up_to(logs, 10**6)


def test_an_unknown_behaviour_in_a_mix_is_named():
    with pytest.raises(UsageError, match="no behaviour 'expret'. Did you mean 'expert'"):
        collect(FAMILIES["webshop"], 3, seed=0, mix={"expret": 1.0})
    assert {e.behaviour for e in collect(FAMILIES["webshop"], 9, seed=0, mix={"random": 1.0})} == {"random"}


# --- the control of retrieval ----------------------------------------------------------------------------------------------------------


def test_random_memories_are_as_many_of_the_same_buffer_and_have_nothing_to_do_with_the_question():
    logs = LOGS["webshop"]
    real = open_replay(None, logs)
    replay = RandomRetrieval(real, seed=0)
    states = [t.state.text for e in logs[:20] for t in e.transitions]
    actions = [t.action for e in logs[:20] for t in e.transitions]
    owners = [e.id for e in logs[:20] for _ in e.transitions]
    found = replay.search(states, actions, k=2, env="webshop", exclude=owners)
    assert [len(row) for row in found] == [2] * len(states) and found == replay.search(states, actions, k=2, env="webshop", exclude=owners)
    assert all(one.memory.trajectory != owner for row, owner in zip(found, owners, strict=True) for one in row)
    nearest = real.search(states, actions, k=2, env="webshop", exclude=owners)
    same = sum(a[0].memory.action == b[0].memory.action for a, b in zip(found, nearest, strict=True))
    assert same < 0.3 * len(found)
    assert replay.search(states, actions, k=0) == [[] for _ in states]


def test_random_memories_are_as_many_as_the_buffer_finds_where_contents_repeat_and_most_are_the_queries_own():
    def told(name: str, steps: int, contents: int) -> Trajectory:
        turns = [
            Turn(Transition(Observation(f"{name} {i}"), f"go {i % contents}", Observation("a room"), 0.0, False)) for i in range(steps)
        ]
        return Trajectory(name, Task("t", "find the door", "maze"), "real", tuple(turns), True)

    real = open_replay(None, [told("long", 3000, 3000), told("short", 40, 3)])
    replay = RandomRetrieval(real, seed=0)
    states, actions, owners = [f"long {i}" for i in range(50)], ["go 1"] * 50, ["long"] * 50
    found = replay.search(states, actions, k=3, exclude=owners)
    assert [len(row) for row in found] == [len(row) for row in real.search(states, actions, k=3, exclude=owners)] == [3] * 50
    assert all(len({one.memory.action for one in row}) == 3 and {one.memory.trajectory for one in row} == {"short"} for row in found)


def test_a_buffer_with_too_little_to_shuffle_gives_what_it_has():
    logs = LOGS["corridor"][:2]
    replay = RandomRetrieval(open_replay(None, logs[:1]), seed=0)
    t = logs[0].transitions[0]
    contents = {(t.action, t.next_state.text) for t in logs[0].transitions}
    assert len(replay.search([t.state.text], [t.action], k=99)[0]) == len(contents)
    assert replay.search([t.state.text], [t.action], k=1, exclude=[logs[0].id]) == [[]]
    assert replay.search([t.state.text], [t.action], k=1, env="webshop") == [[]]


# --- switches --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ablation", [name for name in ABLATIONS if name != "model"])
def test_an_ablation_takes_one_part_away_and_leaves_the_rest(ablation: str):
    whole = RunConfig.model_validate({"experience": {"verifier": {"name": "learned"}}})
    less, loop = whole.without(ablation), whole.dream.without(ablation)
    changed = {
        f"{block}.{name}"
        for block in ("experience", "guard", "logs")
        for name in getattr(whole, block).model_dump()
        if getattr(getattr(whole, block), name) != getattr(getattr(less, block), name)
    } | {f"curriculum.{n}" for n, v in whole.dream.curriculum.model_dump().items() if v != getattr(loop.curriculum, n)}
    assert (
        changed
        == {
            "curriculum": {"curriculum.strategy", "curriculum.synthetic_share"},
            "task_generation": {"curriculum.synthetic_share"},
            "replay": {"experience.k", "experience.recall"},
            "random_retrieval": {"experience.retrieval", "experience.recall"},
            "recall": {"experience.recall"},
            "conditions": {"experience.conditions"},
            "reasoning": {"experience.reasoning"},
            "history": {"experience.history"},
            "verifier": {"experience.verifier"},
            "probes": {"experience.verifier"},
            "guard": {"guard.admissibility", "guard.grounding", "guard.mask_disputed", "guard.mask_doubtful", "experience.verifier"},
        }[ablation]
    )
