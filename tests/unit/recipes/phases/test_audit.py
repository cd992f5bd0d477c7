"""What an audit measures beside the replays."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import tool_desk

from dreamgym.config import build
from dreamgym.envs import corridor, tools
from dreamgym.envs.env_pool import EnvPool
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases import audit
from dreamgym.recipes.phases.audit import _partial_observability_json
from dreamgym.runs.episodes import write_trajectories
from dreamgym.types import Trajectory


def test_without_scripted_policies_no_step_is_determined_and_revisits_are_measured_all_the_same(tmp_path: Path):
    episodes = tool_desk.episodes(40)
    write_trajectories(tmp_path / "episodes.jsonl", episodes)
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "get_lamp", "annotations": {"readOnlyHint": True}}, {"name": "switch"}]))
    suite = tools.make(files=(tmp_path / "episodes.jsonl",), tools=tmp_path / "tools.json")
    context = RunContext(build(RunConfig, {}), tmp_path, suite, episodes, None, None)  # type: ignore[arg-type]
    assert suite.rules.partially_observed and not suite.scripted_policies
    found = _partial_observability_json(context, None, episodes)  # type: ignore[arg-type]  # the model is asked nothing
    assert found["determined"]["exact"]["n"] == found["determined_real_steps"] == 0 and "faithful" in found["revisits"]


@pytest.mark.parametrize(("horizon", "share"), [(2, 1.0), (24, 0.0)])
def test_dreams_that_their_horizon_cuts_count_as_parted_in_the_bound(horizon: int, share: float, monkeypatch: pytest.MonkeyPatch):
    """Each step agrees, and the real policy would go on to success."""
    suite = corridor.make(length=8, keys=False)
    tasks = [task for task in suite.tasks("train", 60) if len(suite.demonstrate(task, "expert", seed=0).turns) > 3]
    whole = [suite.demonstrate(task, "expert", seed=0) for task in tasks]
    cut = [Trajectory(t.id, t.task, "dream", t.turns[:2], success=False, truncated=True) for t in whole]
    monkeypatch.setattr(audit, "evaluate", lambda *args, **options: cut)
    dream = SimpleNamespace(horizon=horizon), SimpleNamespace(answers_by="generated", counts=Counter())
    monkeypatch.setattr(audit.factory, "make_dream", lambda *args, **options: dream)
    monkeypatch.setattr(audit.factory, "replay_in_memory", lambda context: None)
    monkeypatch.setattr(audit, "verifiers_json", lambda *args: {})
    real = EnvPool(suite.env, suite.rules)
    context = SimpleNamespace(
        agent=lambda policy: None, load_policy=lambda name: None, without=lambda name: None, suite=suite, config=build(RunConfig, {}),
        real_env=lambda: real, close_real=lambda: None,
    )  # fmt: skip
    assert suite.max_steps == 24
    _, measured, _ = next(audit.replay_arms(context, "dream", tasks, seed=0))  # type: ignore[arg-type]
    assert measured["state_exact"]["value"] == 1.0 and measured["bound"]["differs"]["value"] == share
