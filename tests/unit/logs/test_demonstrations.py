"""Logs from scripted policies: which episodes there are, and in which order they are played."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from dreamgym.envs import corridor, logs
from dreamgym.errors import UsageError
from dreamgym.logs.demonstrations import Job, collect, played
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
