"""Episodes as other tools read them: nothing that an agent saw or did is lost, and an import gives it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dreamgym.logs.export import export_episodes
from dreamgym.logs.importing import import_logs
from dreamgym.runs.episodes import read_trajectories, write_trajectories
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

every_form = pytest.mark.parametrize("form", ["openai", "atif"])


def exported(folder: Path, episodes: list[Trajectory], form: str) -> list[list[tuple[str, Any]]]:
    """Of each episode, who says what, in order."""
    write_trajectories(folder / "made.jsonl", episodes)
    export_episodes(folder / "made.jsonl", folder / "export.jsonl", form)
    records = [json.loads(line) for line in (folder / "export.jsonl").read_text().splitlines()]
    if form == "openai":
        return [[(one["role"], one["content"]) for one in record["messages"]] for record in records]
    return [[(one["source"], one["message"]) for one in record["steps"]] for record in records]


def again(folder: Path, form: str) -> list[Trajectory]:
    """The exported episodes as an import reads them."""
    import_logs([folder / "export.jsonl"], folder / "again.jsonl", form=form, redact=False)
    return read_trajectories(folder / "again.jsonl")


@every_form
def test_the_first_state_of_an_environment_that_is_no_conversation_follows_the_instruction(tmp_path: Path, form: str):
    step = Transition(Observation("You are in room 1."), "go east", Observation("You are in room 2."), 1.0, True)
    episode = Trajectory("a", Task("t", "Reach room 2.", "corridor"), "demo", (Turn(step),), True)
    (said,) = exported(tmp_path, [episode], form)
    assert [text for _, text in said] == ["Reach room 2.", "You are in room 1.", "go east", "You are in room 2."]
    (read,) = again(tmp_path, form)
    assert read.task.instruction == "Reach room 2.\nYou are in room 1."
