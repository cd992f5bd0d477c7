"""Runs whose real episodes are played by worker processes: the same runs, whatever dies in between, and nothing is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from documents import fidelity_keys, fidelity_rows, unexplained_keys
from fragile.processes import vanish
from toy import LOOP, SHARED, SIZE, object_in, shrink, weights
from toy import command as dreamgym

from dreamgym.cli.measures import UNMEASURED
from dreamgym.config import dump, read
from dreamgym.envs.worker_pool import WorkerPool
from dreamgym.errors import InvariantError
from dreamgym.recipes import context
from dreamgym.recipes import train as recipe
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.factory import make_suite, start_workers
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.replayed_dreams import audit_measures
from dreamgym.runs.files import read_jsonl
from dreamgym.runs.rundir import RunDir

HOUSE = "fragile.house"
OPTIONS = {"length": 4, "keys": False, "max_steps": 4}
EVERYWHERE = {
    "mode": "mixed",
    "rl.real_share": 0.5,
    "rl.probe_every": 1,
    "rl.on_gap": "warn",
    "eval.paired_replays": 6,
    "experience.training.epochs": 25.0,
}
REAL = {"mode": "real", "start": "scratch"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)


def settings(folder: Path, changes: dict[str, Any]) -> TrainConfig:
    file = folder / "train.toml"
    file.write_text(f"{SHARED}\n[rl]\n{LOOP}")
    return read(TrainConfig, file, {"env.name": HOUSE, "env.options": OPTIONS, **changes})


def trained(folder: Path, name: str, changes: dict[str, Any]) -> RunDir:
    """The run of that name, trained to its end."""
    recipe.run(settings(folder, changes), folder / name, say=lambda text: None)
    assert multiprocessing.active_children() == []
    return RunDir.view(folder / name)


def told(run: RunDir) -> list[dict[str, Any]]:
    """The lines of metrics of its loops, without what depends on the machine's speed."""
    lines = [line for line in run.read_jsonl("metrics.jsonl") if line["phase"] in ("mixed", "real_only")]
    return [{key: value for key, value in line.items() if key not in ("seconds", "workers_replaced")} for line in lines]


def assert_same(one: RunDir, other: RunDir, policy: str) -> None:
    """Two runs learned the same from the same episodes, at the same cost."""
    assert weights(one.path, policy) == weights(other.path, policy)
    assert one.read_episodes("logs") == other.read_episodes("logs")
    assert told(one) == told(other)
    for name in one.finished():
        if name.startswith(("eval-", "audit")):
            assert {**one.data(name), "seconds": 0} == {**other.data(name), "seconds": 0}, name
    costs = [{key: value for key, value in run.data(policy).items() if "seconds" not in key} for run in (one, other)]
    assert costs[0] == costs[1]


@pytest.mark.slow
def test_a_run_in_worker_processes_is_the_run_in_one_process_and_plays_nothing_in_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    diary = tmp_path / "diary"
    alone = trained(tmp_path, "alone", EVERYWHERE)
    many = trained(tmp_path, "many", {**EVERYWHERE, "env.workers": 2, "env.options": {**OPTIONS, "diary": str(diary)}})
    assert_same(alone, many, "mixed")
    assert any(line["probe_real_success"] is not None for line in told(alone)) and alone.data("audit")["with_guard"]["real_steps"]
    assert many.data("logs")["workers_replaced"] == 0 and "workers_replaced" not in alone.data("logs")
    assert {line["workers_replaced"] for line in many.read_jsonl("metrics.jsonl") if line["phase"] == "mixed"} == {0}
    assert str(os.getpid()) not in diary.read_text().split()

    judged = [dreamgym(monkeypatch, capsys, "eval", run.path, "--tasks", "2", "--json") for run in (alone, many)]
    assert object_in(judged[0][1]) == object_in(judged[1][1])
    measured = [dreamgym(monkeypatch, capsys, "fidelity", run.path, "--held-out", "4", "--json") for run in (alone, many)]
    assert object_in(measured[0][1])["held_out"] == object_in(measured[1][1])["held_out"]
    assert fidelity_keys(object_in(measured[0][1])) <= fidelity_rows()
    unmeasured = object_in(dreamgym(monkeypatch, capsys, "fidelity", many.path, "--json")[1])
    assert set(unmeasured) == set(object_in(measured[0][1])) == {*UNMEASURED, *audit_measures(None)}, "the same keys for every run"
    assert not unexplained_keys(many.path)
    assert unmeasured["with_guard"]["premature_failure"]["n"] >= 0 and unmeasured["next_actions"] is None

    larger = [object_in(dreamgym(monkeypatch, capsys, "fidelity", run.path, "--replays", "8", "--json")[1]) for run in (alone, many)]
    assert larger[0]["with_guard"] == larger[1]["with_guard"] and larger[0]["no_model"]
    kept = alone.path / "fidelity" / "replays-8.json"
    arms = json.loads(kept.read_text())
    kept.write_text(json.dumps({name: value for name, value in arms.items() if name != "no_model"}) + "\n")
    again = object_in(dreamgym(monkeypatch, capsys, "fidelity", alone.path, "--replays", "8", "--json")[1])
    assert again == larger[0] and json.loads(kept.read_text()) == arms, "an interrupted audit makes the arms that are missing"
    assert str(os.getpid()) not in diary.read_text().split() and multiprocessing.active_children() == []


def test_workers_killed_in_the_midst_of_a_run_are_replaced_counted_and_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trap = tmp_path / "trap"
    trap.touch()  # for whoever collects the first logs
    act, calls = WorkerPool.submit, []

    def submit(self: WorkerPool, slots: Sequence[int], actions: Sequence[str]) -> Any:
        calls.append(slots)
        if len(calls) == 3:  # within the first rollout
            worker = self.workers[0]
            assert worker is not None and worker.process.pid
            os.kill(worker.process.pid, signal.SIGKILL)
        return act(self, slots, actions)

    monkeypatch.setattr(WorkerPool, "submit", submit)
    alone = trained(tmp_path, "alone", REAL)
    broken = trained(tmp_path, "broken", {**REAL, "env.workers": 2, "env.options": {**OPTIONS, "trap": str(trap)}})
    assert_same(alone, broken, "real_only")
    assert broken.data("logs")["workers_replaced"] == 1
    counted = [line["workers_replaced"] for line in broken.read_jsonl("metrics.jsonl") if line["phase"] == "real_only"]
    assert counted == [1, 0]


def test_a_run_that_fails_leaves_no_worker_behind(tmp_path: Path):
    config = settings(tmp_path, {**REAL, "env.workers": 2, "env.options": {**OPTIONS, "cursed": "corridor4-1-3-0"}})
    assert any(task.id == "corridor4-1-3-0" for task in make_suite(config).tasks("train", 7))
    with pytest.raises(InvariantError, match=r"'fragile\.house', task 'corridor4-1-3-0': 3 workers in a row died"):
        recipe.run(config, tmp_path / "run", say=lambda text: None)
    assert multiprocessing.active_children() == []


def test_a_run_made_before_there_were_workers_goes_on_in_this_process(tmp_path: Path):
    config = settings(tmp_path, REAL)
    older = "\n".join(line for line in dump(config).splitlines() if not line.startswith("workers = "))
    RunDir.open(tmp_path / "run", older).close()
    with context.open_run(tmp_path / "run", config) as run, start_workers(config.env) as workers:
        assert workers is None and prepare_logs(run, config, workers).logs


def test_workers_that_were_asked_for_and_not_started_are_an_error(tmp_path: Path):
    config = settings(tmp_path, {**REAL, "env.workers": 2})
    with context.open_run(tmp_path / "run", config) as run, pytest.raises(InvariantError, match=r"factory\.start_workers"):
        prepare_logs(run, config)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_stopped_command_leaves_no_process_behind_and_goes_on_later(tmp_path: Path, number: int, code: int):
    diary, here = tmp_path / "diary", Path(__file__)
    config = settings(tmp_path, {**REAL, "env.workers": 2, "env.options": {**OPTIONS, "diary": str(diary)}, "rl.iterations": 8})
    (tmp_path / "whole.toml").write_text(dump(config))
    script = textwrap.dedent(f"""
        import sys, torch
        from dreamgym import cli
        from dreamgym.llm import sizes
        torch.set_num_threads(1)
        sizes.SIZES["test"] = {SIZE!r}
        sys.argv = ["dreamgym", "train", {str(tmp_path / "run")!r}, "--config", {str(tmp_path / "whole.toml")!r}]
        cli.main()
    """)

    def start() -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": f"{here.parents[3]}:{here.parents[2] / 'support'}"}
        return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)

    first = start()
    while first.poll() is None and not any(line["phase"] == "real_only" for line in read_jsonl(tmp_path / "run" / "metrics.jsonl")):
        time.sleep(0.05)
    first.send_signal(number)
    assert first.wait(timeout=300) == code
    assert start().wait(timeout=300) == 0
    assert vanish([int(line) for line in diary.read_text().split()])
