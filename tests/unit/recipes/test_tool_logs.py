"""Recorded tool calls, without an environment: from the file to a finished run with its fidelity and its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tool_desk
from toy import command, shrink

from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.rundir import RunDir


def test_recorded_tool_calls_become_a_finished_run_in_two_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shrink(monkeypatch)
    write_trajectories(tmp_path / "episodes.jsonl", tool_desk.episodes(120))
    (tmp_path / "episodes.tools.json").write_text(json.dumps([{"name": name} for name in ("get_lamp", "switch", "done")]))
    code, out, _ = command(monkeypatch, capsys, "init", tmp_path / "train.toml", "--logs", tmp_path / "episodes.jsonl")
    assert code == 0 and "written" in out
    small = ["model.size=test", "model.vocab_size=512", "eval.dev_tasks=20", "rl.iterations=2", "rl.tasks_per_iter=4", "rl.group_size=4"]
    small += ["rl.train_tasks=40", *(f"{name}.epochs=3" for name in ("experience.training", "warm_start"))]
    small += [f"{name}.bf16=false" for name in ("experience.training", "warm_start")]
    code, _, err = command(monkeypatch, capsys, "train", tmp_path / "run", *small, "--config", tmp_path / "train.toml", "--json")
    assert code == 0, err
    assert RunDir.view(tmp_path / "run").config["env"]["name"] == "tools"
    summary = RunDir.view(tmp_path / "run").summary()
    assert summary and summary["fidelity"]["held_out"]["with_guard"]["state_exact_valid"]["n"] > 0
    assert "dream" in summary["uncertified"] and "evaluation" in summary["skipped"]
    compared = summary["next_actions"]
    assert compared["held_out_by"] == "task" and list(compared["by_policy"]) == ["warm_start", "dream"]
    steps = sum(len(one.turns) for one in RunDir.view(tmp_path / "run").read_episodes("held-out") if one.success)
    assert {sides["held_out"]["action_exact"]["n"] for sides in compared["by_policy"].values()} == {steps}
    code, out, _ = command(monkeypatch, capsys, "summary", tmp_path / "run")
    assert code == 0 and "without a model, from memories" in out and "recalled: " in out and "Next actions of dream in " in out
    code, out, _ = command(monkeypatch, capsys, "fidelity", tmp_path / "run")
    assert code == 0 and "What decided the steps" in out and "Next actions of warm_start in " in out
    code, _, _ = command(monkeypatch, capsys, "report", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert code == 0 and "No policy has been evaluated yet" not in page and "No audit yet" not in page
    assert page.count("the run has logs and no environment") >= 2 and "of held-out recorded steps" in page
    assert "without a model, from memories" in page and "Next actions of dream in " in page
