"""Rollouts one iteration ahead of the learner: what is sampled by which weights, and that stopping leaves no trace there either."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from outside import worker_threads
from toy import LOOP, SHARED, shrink, weights

from dreamgym.config import read
from dreamgym.curriculum.task_curriculum import CurriculumConfig, TaskCurriculum
from dreamgym.envs import corridor
from dreamgym.errors import ConfigError, EnvironmentFailure, RunDirError
from dreamgym.loop import train
from dreamgym.recipes import train as recipe
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.phases.collect import Collector
from dreamgym.recipes.phases.rl import RLPhase
from dreamgym.runs.files import read_jsonl
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

ASYNC = {
    "exec": {"name": "outside.worker_threads"}, "rl.async_rollouts": True, "rl.learner.old_logprobs": "sampler", "rl.iterations": 4,
    "experience.training.epochs": 25.0, "warm_start.epochs": 8.0,
}  # fmt: skip
APART = ("seconds", "workers_replaced")


def settings(folder: Path, changes: dict[str, Any]) -> TrainConfig:
    file = folder / "train.toml"
    file.write_text(f"{SHARED}\n[rl]\n{LOOP}")
    return read(TrainConfig, file, {**ASYNC, **changes})


def trained(folder: Path, name: str, **changes: Any) -> Path:
    recipe.run(settings(folder, changes), folder / name, say=lambda text: None)
    return folder / name


def measures(run: Path) -> list[dict[str, Any]]:
    lines = read_jsonl(run / "metrics.jsonl")
    return [
        {key: value for key, value in line.items() if key not in APART and not key.endswith("_s")}
        for line in lines
        if line["phase"] == "dream"
    ]


class Killed(BaseException): ...


def test_the_next_iterations_rollouts_are_begun_before_the_update_and_collected_after_it():
    log: list[str] = []

    class Curriculum:
        def sample(self, n: int, *, after: Sequence[Task] | None = None) -> list[Task]:
            log.append("sample" if after is None else f"sample after {len(after)}")
            return [Task("a", "go", "test")] * n

        def observe(self, groups: Any) -> dict[str, float]:
            return {}

        def expand(self) -> dict[str, int]:
            return {}

    class Learner:
        def update(self, groups: Any) -> dict[str, float]:
            log.append("update")
            return {}

    def collect(tasks: Sequence[Task], i: int) -> list[list[Trajectory]]:
        log.append(f"collect {i}")
        return [[Trajectory(str(i), task, "dream", (), success=False)] for task in tasks]

    train(
        curriculum=Curriculum(), collect=collect, learner=Learner(), remember=len, start=0, iterations=2, tasks_per_iter=1,
        on_iteration=lambda i, trajectories, metrics: False, prefetch=lambda tasks, i: log.append(f"begin {i} with {len(tasks)}"),
    )  # fmt: skip
    assert log == ["sample", "collect 0", "sample after 1", "begin 1 with 1", "update", "sample", "collect 1", "update"]


def test_where_rollouts_that_were_begun_are_discarded_the_next_iteration_is_that_of_a_resumed_loop():
    suite = corridor.make(length=9)
    tasks = suite.tasks("train", 40)

    def played(start: int, saved: dict[str, Any] | None = None) -> tuple[list[list[str]], dict[str, Any]]:
        curriculum, used, states = TaskCurriculum(tasks, CurriculumConfig(synthetic_share=0.0), rules=suite.rules), [], []
        if saved:
            curriculum.load_state_dict(saved)

        def collect(drawn: Sequence[Task], i: int) -> list[list[Trajectory]]:
            used.append([task.id for task in drawn])
            turn = Turn(Transition(Observation("s"), "open", Observation("n"), 1.0, True))
            return [[Trajectory(str(k), task, "dream", (turn,) * k, success=bool(k)) for k in range(2)] for task in drawn]

        class Still:
            def update(self, groups: Any) -> dict[str, float]:
                return {}

        train(
            curriculum=curriculum, collect=collect, learner=Still(), remember=len, start=start, iterations=3, tasks_per_iter=8,
            on_iteration=lambda i, trajectories, metrics: states.append(json.loads(json.dumps(curriculum.state_dict()))),
            prefetch=lambda drawn, i: None,
        )  # fmt: skip
        return used, states[0]

    whole, saved = played(0)
    assert played(1, saved)[0] == whole[1:]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"exec": {}}, "rl.async_rollouts plays rollouts elsewhere.*exec = {name"),
        ({"rl.learner.old_logprobs": "learner"}, "importance weights.*learner.old_logprobs = 'sampler', or algorithm.importance_cap"),
        ({"rl.max_refills": 1}, "max_refills = 0"),
    ],
)
def test_what_cannot_be_weighed_or_played_ahead_is_refused(changes: dict[str, Any], words: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=words):
        settings(tmp_path, changes)


def test_a_cap_of_importance_weights_will_do_for_the_learners_own_log_probabilities(tmp_path: Path):
    changes = {"rl.learner.old_logprobs": "learner", "rl.algorithm": {"name": "grpo", "importance_cap": 2.0}}
    assert settings(tmp_path, changes).rl.async_rollouts


def test_rollouts_are_one_version_behind_the_weights_that_learn_from_them_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shrink(monkeypatch)
    threads: set[str] = set()
    run_in = worker_threads.Pool.run

    def run(pool: Any, *arguments: Any, **options: Any) -> Any:
        threads.add(threading.current_thread().name.partition("_")[0])
        return run_in(pool, *arguments, **options)

    monkeypatch.setattr(worker_threads.Pool, "run", run)
    done = trained(tmp_path, "run", seed=2, **{"warm_start.epochs": 10.0})
    lines = measures(done)
    assert [line["staleness"] for line in lines] == [0.0, 1.0, 1.0, 1.0]
    away = [
        line["logprob_mismatch"] for line in lines if "logprob_mismatch" in line
    ]  # from the weights that sampled, before the first step
    assert len(away) > 1 and away[0] < 1e-5 < 1e-3 < min(away[1:])
    assert threads == {"MainThread", "rollouts"} and not list((done / "checkpoints").glob("*prefetched*"))


def test_a_loop_that_is_killed_goes_on_with_the_rollouts_that_were_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    whole = trained(tmp_path, "whole")
    played: list[int] = []
    roll, on_iteration = Collector.roll, RLPhase._on_iteration

    def noted(collector: Collector, tasks: Sequence[Task], i: int, *arguments: Any, **options: Any) -> list[Trajectory]:
        played.append(i)
        return roll(collector, tasks, i, *arguments, **options)

    def killed(phase: RLPhase, i: int, *arguments: Any) -> bool:
        stop = on_iteration(phase, i, *arguments)
        if i == 1:
            raise Killed
        return stop

    monkeypatch.setattr(Collector, "roll", noted)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RLPhase, "_on_iteration", killed)
        trained(tmp_path, "resumed")
    assert played == [0, 1, 2]
    (kept,) = (tmp_path / "resumed" / "checkpoints").glob("*-prefetched-2.jsonl")
    content = kept.read_text()
    kept.unlink()
    with pytest.raises(RunDirError, match="dream-prefetched-2.jsonl' is missing or empty"):
        trained(tmp_path, "resumed")
    kept.write_text(content)
    resumed = trained(tmp_path, "resumed")
    assert played == [0, 1, 2, 3]  # those of iteration 2 were kept
    assert measures(resumed) == measures(whole) and weights(resumed, "dream") == weights(whole, "dream")


def test_after_an_outage_of_the_real_environment_the_same_command_plays_the_failed_rollouts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shrink(monkeypatch)
    roll, away = Collector.roll, [True]

    def broken(collector: Collector, tasks: Sequence[Task], i: int, *arguments: Any, **options: Any) -> list[Trajectory]:
        return [replace(t, error="the site is away") if away[0] else t for t in roll(collector, tasks, i, *arguments, **options)]

    monkeypatch.setattr(Collector, "roll", broken)
    with pytest.raises(EnvironmentFailure, match="the site is away"):
        trained(tmp_path, "run", mode="real", start="scratch")
    away[0] = False
    run = trained(tmp_path, "run", mode="real", start="scratch")
    assert [line["failed_rollouts"] for line in read_jsonl(run / "metrics.jsonl")] == [16.0, 0.0, 0.0, 0.0]


def test_real_steps_of_rollouts_that_nobody_uses_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    stop = RLPhase._on_iteration

    def stopped(phase: RLPhase, i: int, trajectories: list[Trajectory], metrics: dict[str, float]) -> bool:
        phase.gap_probes.stop_reason = "told to"
        return stop(phase, i, trajectories, metrics)

    monkeypatch.setattr(RLPhase, "_on_iteration", stopped)
    run = trained(tmp_path, "run", mode="real", start="scratch")
    (line,) = read_jsonl(run / "metrics.jsonl")
    summary = json.loads((run / "phases.json").read_text())["real_only"]
    assert summary["iterations"] == 1 and summary["real_steps"] > line["episode_length"] * 16
