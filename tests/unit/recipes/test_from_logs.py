"""Settings for recorded episodes alone: they are taken as they stand, and what the logs are too few for is said."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tool_desk
from toy import command, shrink

from dreamgym.config import build
from dreamgym.envs import corridor
from dreamgym.errors import UsageError
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.from_logs import settings_for
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.rundir import RunDir


def test_episodes_of_tool_calls_get_the_tools_suite_and_the_schemas_beside_them(tmp_path: Path):
    logs = tmp_path / "episodes.jsonl"
    write_trajectories(logs, tool_desk.episodes(60))
    (tmp_path / "episodes.tools.json").write_text(json.dumps([{"name": "get_lamp"}]))
    text = settings_for(logs)
    config = build(TrainConfig, tomllib.loads(text))
    assert config.env.name == "tools" and config.env.options["tools"].endswith("episodes.tools.json")
    assert config.eval.tasks == 0 and config.rl.probe_every == 0 and config.rl.curriculum.synthetic_share == 0
    assert "60 episodes" in text and "one policy" in text


def test_episodes_of_text_actions_get_the_logs_suite(tmp_path: Path):
    logs = tmp_path / "episodes.jsonl"
    write_trajectories(logs, collect(corridor.make(length=4), 60, seed=0))
    config = build(TrainConfig, tomllib.loads(settings_for(logs)))
    assert config.env.name == "logs" and config.experience.settings["reasoning"] is True


def test_logs_without_outcomes_or_without_a_success_are_refused_and_all_successes_are_named(tmp_path: Path):
    logs, episodes = tmp_path / "episodes.jsonl", tool_desk.episodes(60)
    write_trajectories(logs, [replace(one, scored=False, success=False) for one in episodes])
    with pytest.raises(UsageError, match="known outcome.*--success"):
        settings_for(logs)
    write_trajectories(logs, [one for one in episodes if not one.success])
    with pytest.raises(UsageError, match="succeeds"):
        settings_for(logs)
    write_trajectories(logs, [one for one in episodes if one.success])
    assert "sees no failure" in settings_for(logs)


def test_logs_become_a_finished_run_in_two_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    shrink(monkeypatch)
    write_trajectories(tmp_path / "episodes.jsonl", tool_desk.episodes(120))
    code, out, _ = command(monkeypatch, capsys, "init", tmp_path / "train.toml", "--logs", tmp_path / "episodes.jsonl")
    assert code == 0 and "next: dreamgym train" in out
    small = ["model.size=test", "model.vocab_size=512", "eval.dev_tasks=20", "rl.iterations=2", "rl.tasks_per_iter=4", "rl.group_size=4"]
    small += ["rl.train_tasks=40", *(f"{name}.epochs=3" for name in ("experience.training", "warm_start"))]
    small += [f"{name}.bf16=false" for name in ("experience.training", "warm_start")]
    code, _, err = command(monkeypatch, capsys, "train", tmp_path / "run", *small, "--config", tmp_path / "train.toml", "--json")
    assert code == 0 or "no iteration of 'dream' had a gradient" in err
    summary = RunDir.view(tmp_path / "run").summary()
    assert summary and summary["fidelity"]["held_out"]["with_guard"]["state_exact_valid"]["n"] > 0
    assert summary["uncertified"]["why"] and "evaluation" in summary["skipped"]
    code, out, _ = command(monkeypatch, capsys, "fidelity", tmp_path / "run")
    assert code == 0 and "What decided the steps" in out
    code, _, _ = command(monkeypatch, capsys, "report", tmp_path / "run")
    assert code == 0 and (tmp_path / "run" / "report.html").is_file()
