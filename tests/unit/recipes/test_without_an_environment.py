"""Runs that no real environment measures, and the choice of the offline baseline."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import tool_desk
from documents import fidelity_keys, fidelity_rows, unexplained_keys
from toy import LOOP, SHARED, command, object_in, shrink

from dreamgym.cli.measures import UNMEASURED
from dreamgym.config import build, dump
from dreamgym.envs import corridor
from dreamgym.errors import ConfigError
from dreamgym.evals.recorded_actions import RecordedReplay
from dreamgym.evals.success import success
from dreamgym.recipes import factory
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.factory import TASK_SEED
from dreamgym.recipes.fidelity import recorded_episodes
from dreamgym.recipes.phases import baselines, uncertified
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.phases.warm_start import warm_start
from dreamgym.recipes.replayed_dreams import audit_measures
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import wilson

SETTINGS = {
    "env": {"name": "corridor", "options": {"length": 4, "keys": False, "max_steps": 4}},
    "logs": {"trajectories": 60, "task_pairs": 10},
    "model": {"size": "test", "vocab_size": 320},
    "experience": {"max_answer_tokens": 40, "training": {"epochs": 4.0, "batch_tokens": 1024, "bf16": False}},
    "warm_start": {"epochs": 25.0, "lr": 5e-3, "batch_tokens": 512, "bf16": False},
    "sft": {"epochs": 2.0, "lr": 1e-6, "batch_tokens": 512, "bf16": False},
    "eval": {"dev_tasks": 6},
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def test_a_run_from_logs_alone_finishes_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    longer = {"env": {"name": "corridor", "options": {"length": 8, "keys": False, "max_steps": 8}}, "logs": {"trajectories": 150}}
    config = build(RunConfig, {**SETTINGS, **longer})
    with RunDir.open(tmp_path / "source", dump(config)) as run:
        prepare_logs(run, config)
    logs, file = tmp_path / "source" / "episodes" / "logs.jsonl", tmp_path / "run.toml"
    shared = SHARED[SHARED.index("[logs]") :].replace("trajectories = 40\n", "")
    file.write_text(f'mode = "dream"\n[env]\nname = "logs"\noptions = {{files = ["{logs}"]}}\n{shared}\n[rl]\n{LOOP}')
    shared_settings = ("eval.dev_tasks=20", "eval.uncertified_dreams=6", "experience.replayed_starts=true")
    code, _, err = command(monkeypatch, capsys, "train", tmp_path / "run", *shared_settings, "--config", file, "--json")
    assert code == 0, err
    found: Any = RunDir.view(tmp_path / "run").summary()
    assert found["warm_start"] is None and found["dream"] is None and "audit" not in found
    assert found["skipped"].keys() == {"evaluation", "probes", "audit", "gap", "choice of SFT on development tasks"}
    assert "logs and no environment" in found["skipped"]["probes"]
    assert RunDir.view(tmp_path / "run").done("dream")
    run = RunDir.view(tmp_path / "run")
    held, kept = run.read_episodes("held-out"), run.read_episodes("logs")
    asked = [{" ".join(episode.task.instruction.lower().split()) for episode in side} for side in (held, kept)]
    assert len(held) == run.data("logs")["held_out"] > 0 and not asked[0] & asked[1]
    measured = found["fidelity"]["held_out"]
    assert measured["recorded"] and "near_misses" not in measured and measured["with_guard"]["decided_by"]["steps"] > 0
    assert found["fidelity"]["no_model"]["with_guard"]["state_exact_valid"]["n"] == measured["with_guard"]["state_exact_valid"]["n"]
    assert found["uncertified"]["dream"]["uncertified_dream_success"]["n"] <= 6
    assert found["recorded_replay"]["successes_reproduced"]["n"] + found["recorded_replay"]["failures_accepted"]["n"] > 0
    code, out, err = command(monkeypatch, capsys, "fidelity", run.path)
    assert code == 0 and "uncertified" in out and "near misses are left out" in out, err
    code, out, err = command(monkeypatch, capsys, "fidelity", run.path, "--held-out", "2", "--json")
    assert code == 0 and '"near_misses": "left out' in out, err
    assert fidelity_keys(object_in(out)) <= fidelity_rows() and set(object_in(out)) == {*UNMEASURED, *audit_measures(None)}
    assert not unexplained_keys(run.path), "docs/metrics.md names every key that a run writes"
    code, _, err = command(monkeypatch, capsys, "fidelity", run.path, "--held-out", "2", "--split", "tset")
    assert code == 2 and "Did you mean 'test'" in err
    typed = iter(["dance", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(typed))
    code, out, _ = command(monkeypatch, capsys, "play", run.path)
    assert code == 0 and "decided by: " in out
    assert command(monkeypatch, capsys, "report", run.path)[0] == 0
    page = (run.path / "report.html").read_text("utf-8")
    assert "What was learned from the logs" in page and "uncertified" in page and "What the dream only guesses" in page


def test_no_policy_is_trained_in_a_dream_in_which_recorded_successes_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    config = build(RunConfig, {**SETTINGS, "logs": {"trajectories": 60}})
    with RunDir.open(tmp_path / "source", dump(config)) as run:
        prepare_logs(run, config)
    few = RecordedReplay(wilson(3, 30), wilson(0, 30), wilson(200, 300), left_out=0, successes_left_out=0, reasons={})
    monkeypatch.setattr(uncertified, "repeat", lambda *_, **__: few)
    logs, file = tmp_path / "source" / "episodes" / "logs.jsonl", tmp_path / "run.toml"
    shared = SHARED[SHARED.index("[logs]") :].replace("trajectories = 40\n", "")
    file.write_text(f'mode = "dream"\n[env]\nname = "logs"\noptions = {{files = ["{logs}"]}}\n{shared}\n[rl]\n{LOOP}')
    code, out, err = command(monkeypatch, capsys, "train", tmp_path / "run", "eval.uncertified_dreams=6", "--config", file)
    run = RunDir.view(tmp_path / "run")
    assert code == 0 and "3 of 30 recorded successes succeed there too, and 0 of 30 recorded failures; 0 episodes were left out" in out, err
    warning = (run.summary() or {})["warnings"][0]
    assert "of 30 recorded successes 10 % succeed" in warning and "experience.training.epochs" in warning and warning in err
    said = "dream: no RL, of 30 recorded successes 10 % succeed"
    assert err.index(said) < err.index("fidelity: recorded episodes"), "before what takes minutes"
    assert not any(line["phase"] == "dream" for line in run.read_jsonl("metrics.jsonl"))
    weights = [(run.path / "checkpoints" / name / "model.safetensors").read_bytes() for name in ("warm_start", "dream")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("reproduced", "of", "left_out", "stops"), [(0, 0, 20, True), (7, 7, 19, True), (7, 7, 5, False), (0, 0, 0, False), (20, 40, 0, False)]
)
def test_successes_that_were_left_out_of_the_dream_did_not_succeed_there(
    reproduced: int, of: int, left_out: int, stops: bool, tmp_path: Path
):
    with RunDir.open(tmp_path / "run", "seed = 0\n") as run:
        run.mark("recorded_replay", asdict(RecordedReplay(wilson(reproduced, of), wilson(0, 9), wilson(1, 2), left_out + 3, left_out, {})))
        reason = uncertified.contradicts_its_logs(run)
    assert bool(reason) is stops and (not stops or f"of {of + left_out} recorded successes" in reason)


def test_few_recorded_tasks_are_held_out_by_episode(tmp_path: Path):
    config = build(RunConfig, {**SETTINGS, "logs": {"trajectories": 60}})
    with RunDir.open(tmp_path / "source", dump(config)) as run:
        prepare_logs(run, config)
        first = run.read_episodes("logs")[0].task
        same = [replace(episode, task=first) for episode in run.read_episodes("logs")]
        run.episodes("same", same)
    file = str(tmp_path / "source" / "episodes" / "same.jsonl")
    config = build(RunConfig, {**SETTINGS, "env": {"name": "logs", "options": {"files": [file]}}, "logs": {}})
    with RunDir.open(tmp_path / "run", dump(config)) as run:
        context = prepare_logs(run, config)
        assert run.data("logs")["held_out_by"] == "episode" and len(context.suite.tasks("train", 9)) == 1
        held = {episode.id for episode in run.read_episodes("held-out")}
        assert held and held.isdisjoint(episode.id for episode in context.logs)
        assert {episode.id for episode in recorded_episodes(context, 99)} == held


def test_training_in_the_real_environment_is_refused_where_there_is_none():
    config = build(RunConfig, {**SETTINGS, "s2r": {"iterations": 1}})

    class Recorded(corridor.CorridorSuite):
        has_env = False

    suite = Recorded(corridor.CorridorConfig(length=4))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match=r"has no environment to act in, and s2r\.iterations"):
        patch.setattr(factory, "make_suite", lambda config: suite)
        factory.checked_suite(config)


def test_an_evaluation_of_no_tasks_and_an_audit_of_no_dreams_are_skipped_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "run.toml"
    file.write_text(f'mode = "real"\nstart = "scratch"\n{SHARED}\n[rl]\n{LOOP}')
    code, out, _ = command(monkeypatch, capsys, "train", tmp_path / "run", "eval.tasks=0", "--config", file)
    assert code in (0, 2) and out.count("skipped: evaluation, because eval.tasks = 0") == 1
    assert (RunDir.view(tmp_path / "run").summary() or {})["skipped"] == {
        "evaluation": "eval.tasks = 0",
        "audit": "eval.paired_replays = 0",
    }


def test_converged_imitation_is_never_below_its_warm_start_on_development_tasks(tmp_path: Path):
    config = build(RunConfig, SETTINGS)
    with RunDir.open(tmp_path / "run", dump(config)) as run:
        context = prepare_logs(run, config)
        train_experience(run, context)
        warm_start(run, context)
        baselines.converge_sft(run, context, config.sft, patience=1)  # at a rate at which it learns nothing
        curve = run.data("sft")["curve"]
        assert curve[0]["epoch"] == 0 and curve[0]["greedy"] == max(seen["greedy"] for seen in curve)
        dev = context.suite.tasks("dev", 6, seed=TASK_SEED)
        agent = context.agent(context.load_policy("sft"))
        rate = success(baselines.evaluate(agent, context.real_env(), dev, max_steps=4, temperature=0.0, seed=7)).value
        assert rate == curve[0]["greedy"] == run.data("sft")["dev_success"]


def test_tasks_to_evaluate_on_take_no_training_data_where_there_is_no_environment(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write_trajectories(tmp_path / "episodes.jsonl", tool_desk.episodes(60))
    settings = {**SETTINGS, "env": {"name": "tools", "options": {"files": [str(tmp_path / "episodes.jsonl")]}}, "logs": {}}
    held = []
    for tasks in (0, 10):
        config = build(RunConfig, settings | {"eval": {"dev_tasks": 6, "tasks": tasks}})
        caplog.clear()
        with RunDir.open(tmp_path / f"run-{tasks}", dump(config)) as run:
            prepare_logs(run, config)
            held.append([episode.id for episode in run.read_episodes("held-out")])
    assert held[0] == held[1] != []
    assert "eval.tasks = 10 is not used" in caplog.text and "Set eval.tasks = 0" in caplog.text
