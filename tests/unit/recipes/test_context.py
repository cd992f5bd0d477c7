"""What the phases of a run share."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fragile import house

from dreamgym.config import build
from dreamgym.envs.wrappers import connected
from dreamgym.errors import EnvironmentFailure
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.context import RunContext
from dreamgym.types import Task

OPEN: list[Room] = []


class Room:
    """Knows how many of it are open."""

    def __init__(self) -> None:
        OPEN.append(self)

    def reset(self, task: Task) -> str:
        return "a room"

    def step(self, action: str) -> tuple[dict[str, Any], float, bool]:
        return {"text": "the same room"}, 0.0, False

    def close(self) -> None:
        OPEN.remove(self)


def test_phases_share_their_connections_and_closing_ends_all_of_them(tmp_path: Path):
    suite = connected.make(suite="logs", options={"files": ["corridor"]}, connect="python:test_context:Room")
    context = RunContext(build(RunConfig, {}), tmp_path, suite, [], None, None)  # type: ignore[arg-type]
    task = Task("t", "look", "corridor")
    for phase in (context, replace(context, experience_checkpoint="experience-1")):
        phase.real_env().start([task] * 3, seed=0)
        assert phase.real_env().repeat([(task, ["look"])])
    assert len(OPEN) == 4, "three for the episodes of both, and one for what is repeated"
    context.close_real()
    until = time.monotonic() + 10
    while OPEN and time.monotonic() < until:  # connections end in threads of their own
        time.sleep(0.01)
    assert not OPEN and context.real_env().start([task], seed=0)[0].text == "a room"


def test_measures_get_the_scripted_episodes_that_the_environment_did_not_fail_in(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    tasks = house.make(length=4).tasks("train", 4)
    suite = house.make(length=4, failing={tasks[1].id: 1})
    context = RunContext(build(RunConfig, {}), tmp_path, suite, [], None, None)  # type: ignore[arg-type]
    played = context.demonstrate([(task, "expert", 0) for task in tasks])
    assert [episode.task for episode in played] == [tasks[0], *tasks[2:]] and "failed in 1 of 4 scripted episodes" in caplog.text
    with pytest.raises(EnvironmentFailure, match="failed in 1 of 1 "):
        context.demonstrate([(tasks[1], "expert", 0)])
