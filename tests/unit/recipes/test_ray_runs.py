"""Runs whose rollouts are played on a Ray cluster: the same runs, whatever dies in between; where ray is installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load
from toy import LOOP, SHARED, SIZE, shrink, weights

pytest.importorskip("ray")
import ray
from ray.cluster_utils import Cluster

from dreamgym.config import read
from dreamgym.errors import ConfigError, RunDirError, UsageError
from dreamgym.exec.ray import make
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.recipes import train as recipe
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.phases import remote
from dreamgym.recipes.phases.remote import split_into_shards
from dreamgym.runs.files import read_jsonl

FAST = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
RAY = {"exec": {"name": "ray", "workers": 2}}
MIXED = {"mode": "mixed", "rl.real_share": 0.5, "experience.training.epochs": 25.0, "warm_start.epochs": 8.0, "rl.iterations": 3}


def settings(folder: Path, changes: dict[str, Any]) -> TrainConfig:
    file = folder / "train.toml"
    file.write_text(f"{SHARED}\n[rl]\n{LOOP}")
    return read(TrainConfig, file, {**MIXED, **changes})


def trained(folder: Path, name: str, changes: dict[str, Any]) -> Path:
    recipe.run(settings(folder, changes), folder / name, say=lambda text: None)
    return folder / name


def measures(run: Path) -> list[dict[str, Any]]:
    """The lines of the loop's metrics, without what differs between machines."""
    lines = [line for line in read_jsonl(run / "metrics.jsonl") if line["phase"] == "mixed"]
    apart = ("seconds", "staleness", "jobs_redone", "workers_replaced")
    return [{key: value for key, value in line.items() if key not in apart and not key.endswith("_s")} for line in lines]


def episodes(run: Path) -> list[Any]:
    return [json.loads(line) for file in sorted((run / "episodes").glob("mixed-*.jsonl")) for line in file.read_text().splitlines()]


def assert_same(one: Path, other: Path) -> None:
    """The same episodes, and the same policy up to the last bits: how episodes share a batch changes how sums are rounded."""
    assert episodes(one) == episodes(other)
    assert len(measures(one)) == len(measures(other)) == 3
    for ours, theirs in zip(measures(one), measures(other), strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert theirs[key] == (pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value), key
    ours, theirs = (load(weights(run, "mixed")) for run in (one, other))
    assert ours.keys() == theirs.keys() and all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)


@pytest.mark.parametrize(
    ("n", "group", "parts", "sizes"),
    [(16, 4, 2, [8, 8]), (16, 4, 3, [4, 4, 8]), (12, 8, 2, [6, 6]), (3, 1, 8, [1, 1, 1]), (8, 8, 2, [4, 4])],
)
def test_a_rollout_is_cut_into_parts_of_whole_groups_where_there_are_enough(n: int, group: int, parts: int, sizes: list[int]):
    found = split_into_shards(n, group, parts)
    assert sorted(map(len, found)) == sizes and [number for part in found for number in part] == list(range(n))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env.connect": "python:a:b", "env.connection": {"max_calls": 9}}, "max_calls is counted in one process"),
        ({"exec": {"name": "ray", "gpus": 2}}, "exec.gpus"),
        (
            {"experience": {"name": "prompted", "engine": {"base_url": "http://localhost:1/v1", "model": "m"}}},
            "the cost of 'prompted' are counted in one process",
        ),
        (
            {"experience": {"verifier": {"name": "chat", "engine": {"base_url": "http://localhost:1/v1", "model": "m"}}}},
            "experience.verifier.engine: the requests and the cost of 'chat' are counted in one process",
        ),
    ],
)
def test_settings_that_cannot_be_played_elsewhere_are_refused(changes: dict[str, Any], words: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=words):
        settings(tmp_path, {**RAY, **changes})


class SmallNode:
    """A `remote.ContextSpec` on a node whose memory is smaller than the policy, which nobody downloads."""

    def open(self) -> Any:
        from dreamgym.llm import backbones, memory

        memory.machine_memory = lambda: 1_000
        backbones.outline = lambda config: torch.nn.Linear(1_000, 1_000, device="meta")
        policy = SimpleNamespace(backbone=BackboneConfig(model="huge", device="cpu"))
        config = {
            "policy": policy,
            "experience": SimpleNamespace(backbone=None, settings={}, verifier=None),
            "dreams": True,
            "policy_served": False,
            "dream_served": False,
        }
        return SimpleNamespace(config=SimpleNamespace(**config))


@pytest.mark.slow
def test_a_node_too_small_for_the_policy_is_said_to_the_driver_before_the_policy_is_loaded():
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    executor = make(workers=1)
    try:
        with pytest.raises(UsageError, match=r"policy.backbone 'huge' 0\.0 GiB \(weights\)") as caught:
            executor.pool(partial(remote._Worker, SmallNode(), None, None), name="test")  # type: ignore[arg-type]
        assert any("node of the Ray cluster" in note for note in caught.value.__notes__)
    finally:
        executor.close()
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_run_over_workers_is_the_run_of_one_process_and_two_drivers_cannot_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    alone, spread = trained(tmp_path, "alone", {}), trained(tmp_path, "spread", RAY)
    assert_same(alone, spread)
    lines = [line for line in read_jsonl(spread / "metrics.jsonl") if line["phase"] == "mixed"]
    assert all(line["staleness"] == 0 and line["workers_replaced"] == 0 for line in lines)
    script = f"""
        import time
        from pathlib import Path
        from dreamgym.runs.rundir import RunDir
        run = RunDir.open({str(spread)!r}, Path({str(spread / "config.toml")!r}).read_text())
        print(1, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "1\n"
        try:
            with pytest.raises(RunDirError, match=f"Process {other.pid} is working in"):
                trained(tmp_path, "spread", RAY)
        finally:
            other.kill()


@pytest.mark.slow
def test_rollouts_ahead_of_the_learner_are_those_of_workers_that_play_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    ahead = {"rl.async_rollouts": True, "rl.learner.old_logprobs": "sampler"}
    in_turn = trained(tmp_path, "in-turn", {**ahead, "exec": {"name": "outside.worker_threads"}})
    spread = trained(tmp_path, "spread", {**ahead, **RAY})
    assert_same(in_turn, spread)
    assert [line["staleness"] for line in read_jsonl(spread / "metrics.jsonl") if line["phase"] == "mixed"] == [0, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_node_killed_in_the_middle_of_a_run_changes_nothing(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    alone = trained(tmp_path, "alone", {"seed": seed})
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": FAST})
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=80_000_000) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False)

        def kill() -> None:
            while not (tmp_path / "spread/metrics.jsonl").exists() or not measures(tmp_path / "spread"):
                time.sleep(0.01)
            cluster.remove_node(nodes[seed % 2], allow_graceful=False)

        killing = threading.Thread(target=kill, daemon=True)
        killing.start()
        spread = trained(tmp_path, "spread", {"seed": seed, "exec": {"name": "ray", "workers": 3}})
        killing.join()
        assert_same(alone, spread)
        assert all(count["workers_replaced"] <= 1 for count in read_jsonl(spread / "metrics.jsonl") if count["phase"] == "mixed")
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_a_driver_that_is_killed_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    alone = trained(tmp_path, "alone", {})
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[2] / "support")!r})
        from pathlib import Path
        from dreamgym.config import read
        from dreamgym.llm import sizes
        from dreamgym.recipes import train
        from dreamgym.recipes.config import TrainConfig
        sizes.SIZES["test"] = {SIZE!r}
        config = read(TrainConfig, Path({str(tmp_path / "train.toml")!r}), { ({**MIXED, **RAY})!r})
        train.run(config, Path({str(tmp_path / "spread")!r}), say=lambda text: None)
    """
    settings(tmp_path, RAY)
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], start_new_session=True)
    try:
        while not (tmp_path / "spread/metrics.jsonl").exists() or len(measures(tmp_path / "spread")) < 2:
            assert driver.poll() is None
            time.sleep(0.01)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert_same(alone, trained(tmp_path, "spread", RAY))
