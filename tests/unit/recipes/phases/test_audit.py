"""What an audit measures beside the replays."""

from __future__ import annotations

import json
from pathlib import Path

import tool_desk

from dreamgym.config import build
from dreamgym.envs import tools
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.audit import _partial_observability_json
from dreamgym.runs.episodes import write_trajectories


def test_without_scripted_policies_no_step_is_determined_and_revisits_are_measured_all_the_same(tmp_path: Path):
    episodes = tool_desk.episodes(40)
    write_trajectories(tmp_path / "episodes.jsonl", episodes)
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "get_lamp", "annotations": {"readOnlyHint": True}}, {"name": "switch"}]))
    suite = tools.make(files=(tmp_path / "episodes.jsonl",), tools=tmp_path / "tools.json")
    context = RunContext(build(RunConfig, {}), tmp_path, suite, episodes, None, None)  # type: ignore[arg-type]
    assert suite.rules.partially_observed and not suite.scripted_policies
    found = _partial_observability_json(context, None, episodes)  # type: ignore[arg-type]  # the model is asked nothing
    assert found["determined"]["exact"]["n"] == found["determined_real_steps"] == 0 and "faithful" in found["revisits"]
