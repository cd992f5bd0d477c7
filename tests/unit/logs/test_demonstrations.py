"""Logs from scripted policies: which episodes there are, and in which order they are played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from fragile import house

from dreamgym.envs import corridor, logs
from dreamgym.envs.base import EnvSuite
from dreamgym.errors import EnvironmentFailure, UsageError
from dreamgym.logs.demonstrations import FIRST, Job, collect, played
from dreamgym.types import Trajectory

SUITE = corridor.make(length=4)


def test_episodes_of_one_task_are_played_one_after_the_other_and_come_back_as_they_were_drawn():
    """A household game takes a tenth of a second to load and a thousandth to play."""
    jobs: list[Job] = []

    def play(wanted: Sequence[Job]) -> list[Trajectory]:
        jobs.extend(wanted)
        return played(SUITE, wanted)

    drawn = [task.id for task in SUITE.tasks("train", 1000, seed=0)]
    episodes = collect(SUITE, 3 * len(drawn), seed=0, play=play)
    names = [task.id for task, _, _ in jobs]
    assert sum(a != b for a, b in pairwise(names)) == len(drawn) - 1
    assert [episode.task.id for episode in episodes] == 3 * drawn


def test_a_suite_without_scripted_policies_plays_no_episodes_and_says_what_to_set():
    suite = logs.make(files=("corridor",))
    with pytest.raises(UsageError, match=r"'corridor' has no scripted policies.*logs\.files.*--policy"):
        collect(suite, 3, seed=0)


def test_a_split_without_tasks_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(SUITE), "tasks", lambda *_, **__: [])
    with pytest.raises(UsageError, match="has no dev tasks"):
        collect(SUITE, 3, seed=0, split="dev")


JOBS = 12
KNOWN = SUITE.tasks("train", JOBS, seed=0)


def failing(count: int, step: int) -> EnvSuite:
    """The corridor that fails in that many of the tasks, at a step; 0: as the episode begins."""
    return house.make(length=4, failing={task.id: step for task in KNOWN[:count]})


@pytest.mark.parametrize("step", [0, 2])
def test_an_episode_that_the_environment_fails_in_is_left_out_and_named_and_the_others_are_kept(
    step: int, caplog: pytest.LogCaptureFixture
):
    whole = collect(SUITE, JOBS, seed=0, mix={"expert": 1.0})
    lost = {task.id for task in KNOWN[:2]}
    assert collect(failing(2, step), JOBS, seed=0, mix={"expert": 1.0}) == [one for one in whole if one.task.id not in lost]
    (warning,) = caplog.messages
    assert warning.startswith("The environment failed in 2 of 12 scripted episodes, which are left out. ")
    assert warning.endswith(f"The first is 'expert/{KNOWN[0].id}/0': The house is locked.")


def test_half_of_the_episodes_are_enough_and_fewer_are_an_error_that_names_the_first_reason():
    assert len(collect(failing(6, 0), JOBS, seed=0)) == 6
    with pytest.raises(EnvironmentFailure, match=r"failed in 7 of 12 scripted episodes.*too many to go on.*The house is locked"):
        collect(failing(7, 0), JOBS, seed=0)


@pytest.mark.parametrize("broken", [1, 3, 5])
def test_broken_tasks_do_not_end_a_collection_though_their_episodes_are_played_first(broken: int, monkeypatch: pytest.MonkeyPatch):
    suite, tried = failing(broken, 0), list[str]()
    demonstrate = suite.demonstrate
    monkeypatch.setattr(suite, "demonstrate", lambda task, *rest, **options: tried.append(task.id) or demonstrate(task, *rest, **options))
    kept = collect(suite, 4 * JOBS, seed=0, tasks=JOBS, mix={"expert": 1.0})
    assert set(tried[: 4 * broken]) == {task.id for task in KNOWN[:broken]}
    assert len(kept) == 4 * (JOBS - broken)


def test_an_environment_of_few_tasks_that_fails_in_all_of_them_is_given_up_after_each_was_tried(monkeypatch: pytest.MonkeyPatch):
    suite, tried = failing(JOBS, 0), list[str]()
    demonstrate = suite.demonstrate
    monkeypatch.setattr(suite, "demonstrate", lambda task, *rest, **options: tried.append(task.id) or demonstrate(task, *rest, **options))
    with pytest.raises(EnvironmentFailure, match="failed in 37 of 37"):
        collect(suite, 48, seed=0, tasks=4)
    assert len(set(tried)) == 4


def test_an_environment_that_fails_in_each_of_the_first_episodes_is_given_up_before_the_rest_is_played(monkeypatch: pytest.MonkeyPatch):
    tried = list[str]()
    suite = failing(JOBS, 0)
    demonstrate = suite.demonstrate
    monkeypatch.setattr(suite, "demonstrate", lambda task, *rest, **options: tried.append(task.id) or demonstrate(task, *rest, **options))
    with pytest.raises(EnvironmentFailure, match="failed in 10 of 10"):
        collect(suite, JOBS, seed=0)
    assert len(tried) == FIRST


def test_worker_processes_play_no_more_of_an_environment_that_fails_in_each_of_the_first_episodes():
    counts = list[int]()

    def play(jobs: Sequence[Job]) -> list[Trajectory]:
        counts.append(len(jobs))
        return [replace(SUITE.demonstrate(*jobs[0][:2], seed=0), error="The house is locked.") for _ in jobs]

    with pytest.raises(EnvironmentFailure, match="failed in 10 of 10"):
        collect(SUITE, JOBS, seed=0, play=play)
    assert counts == [FIRST]


def test_an_error_that_is_no_failure_of_the_environment_ends_the_collection(monkeypatch: pytest.MonkeyPatch):
    def demonstrate(*_: object, **__: object) -> Trajectory:
        raise UsageError("WA_MAP is not set.")

    suite = failing(0, 0)
    monkeypatch.setattr(suite, "demonstrate", demonstrate)
    with pytest.raises(UsageError, match="WA_MAP"):
        collect(suite, JOBS, seed=0)
