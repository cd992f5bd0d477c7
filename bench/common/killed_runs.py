"""Trainings on a Ray cluster of three nodes of which one is killed, beside the same trainings in one process.

Logs, experience model and warm start are made once. Each run then copies them and trains the policy in the corridor, in the dream and in
the real environment, with a seed of its own: once in this process, and once over three workers, one a node. At a random moment of the
second one a node that does not hold the driver gets SIGKILL, with every process it started.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dreamgym.config import resolve
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.context import open_context, open_run, silence_progress_bars
from dreamgym.recipes.factory import start_workers
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.phases.rl import RLPhase
from dreamgym.recipes.phases.warm_start import warm_start
from dreamgym.recipes.plan import Loop
from dreamgym.types import Trajectory

ITERATIONS, TASKS, GROUP, WORKERS = 8, 6, 4, 3
LIMIT_S = 300.0
"""A run that needs longer counts as one that hangs."""
FIT = {"optimiser": "adamw", "bf16": False}
SETTINGS: dict[str, Any] = {
    "mode": "mixed",
    "env": {"name": "corridor", "options": {"length": 4, "keys": False, "max_steps": 4}},
    "logs": {"trajectories": 40, "task_pairs": 10},
    "model": {"size": "100k", "vocab_size": 320},
    "experience": {"max_answer_tokens": 40, "training": FIT | {"epochs": 25.0, "batch_tokens": 1024}},
    "warm_start": FIT | {"epochs": 8.0, "lr": 5e-3, "batch_tokens": 512},
    "eval": {"tasks": 3, "dev_tasks": 3, "paired_replays": 0},
    "rl": {
        "iterations": ITERATIONS, "tasks_per_iter": TASKS, "group_size": GROUP, "train_tasks": 7, "probe_every": 0, "real_share": 0.5,
        "learner": {"lr": 1e-3, "minibatches": 1, "min_trajectories": 1},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Played:
    """What a training did: the trajectories of each iteration, and its workers' losses."""

    iterations: list[list[Trajectory]]
    seconds: float
    replaced: int = 0
    redone: int = 0


class Recorded(RLPhase):
    """An RL phase that keeps all its trajectories."""

    def run_loop(self) -> None:
        self.kept: list[list[Trajectory]] = []
        super().run_loop()

    def _on_iteration(self, i: int, trajectories: list[Trajectory], metrics: dict[str, float]) -> bool:
        self.kept.append(trajectories)
        return super()._on_iteration(i, trajectories, metrics)


def prepare(path: Path) -> TrainConfig:
    """Everything before RL in a run directory."""
    silence_progress_bars()
    config = resolve(TrainConfig, SETTINGS, where="bench/scale.py")
    with open_run(path, config) as run, start_workers(config.effective_env) as workers:
        context = prepare_logs(run, config, workers, None, None)
        train_experience(run, context)
        warm_start(run, context, start="tokenizer")
    return config


def train(config: TrainConfig, path: Path, *, seed: int, executor: dict[str, Any], on_start: Callable[[], None] = lambda: None) -> Played:
    """The RL phase of the run in `path`. `on_start` is called when the workers are there."""
    own = config.model_copy(update={"seed": seed, "exec": executor})
    with open_run(path, config) as run:
        context = replace(open_context(path), config=own)
        phase = Recorded(run, context, Loop("mixed", "warm_start", own.rl, "mixed", own))
        try:
            on_start()
            start = time.monotonic()
            phase.run_loop()
            pool = phase.remote.pool if phase.remote else None
            seconds = time.monotonic() - start
            return Played(phase.kept, seconds, *((pool.replaced, pool.redone) if pool else ()))
        finally:
            phase.close()


def kill_node(node: Any) -> None:
    """SIGKILL to a node of a local cluster and to every process that it started."""
    raylet = node.all_processes["raylet"][0].process.pid
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    for pid in [raylet, *map(int, children)]:
        os.kill(pid, signal.SIGKILL)


def actions(episode: Trajectory) -> tuple[Any, ...]:
    """An episode without its log-probabilities, whose last bits depend on the batch."""
    sampled = [turn.completion.ids if turn.completion else () for turn in episode.turns]
    return episode.task.id, episode.source, episode.error, episode.truncated, tuple(sampled), episode.transitions


def compared(alone: Played, spread: Played) -> dict[str, int]:
    """Trajectories of `spread` that are missing, and those that are not what they were in one process (an error is such a difference: a
    model that answers unreadably does so in both); groups that have not `GROUP` trajectories of one task."""
    ours, theirs = ({episode.id: episode for found in one.iterations for episode in found} for one in (alone, spread))
    groups = [found[i : i + GROUP] for found in spread.iterations for i in range(0, len(found), GROUP)]
    whole = sum(len(group) == GROUP and len({episode.task.id for episode in group}) == 1 for group in groups)
    return {
        "lost": len(ours.keys() - theirs.keys()),
        "differing": sum(name not in ours or actions(episode) != actions(ours[name]) for name, episode in theirs.items()),
        "short_groups": ITERATIONS * TASKS - whole,
        "trajectories": len(ours),
    }


def kill_nodes(cluster: Any, nodes: list[Any], runs: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """`runs` trainings over the cluster's three nodes, of each of which one of the two `nodes` beside the driver's is killed."""
    executor = {"name": "ray", "workers": WORKERS}
    found: list[dict[str, Any]] = []
    late = hung = 0
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        config = prepare(base)

        def copied(name: str) -> Path:
            return Path(shutil.copytree(base, Path(folder) / name))

        span = train(config, copied("undisturbed"), seed=0, executor=executor).seconds
        while len(found) < runs and not hung:
            seed, random_ = len(found) + 1, random.Random(f"{len(found)}/{late}")
            alone = train(config, copied(f"alone-{seed}-{late}"), seed=seed, executor={})
            run = _Run(cluster, nodes, random_.randrange(len(nodes)), random_.uniform(0, 0.9 * span))
            played = run.train(config, copied(f"spread-{seed}-{late}"), seed, executor)
            if played is None:
                hung += 1
            elif not run.killed_in_time:
                late += 1
            else:
                times = {"killed_after_s": run.after_s, "seconds": played.seconds, "seconds_alone": alone.seconds}
                found.append(times | compared(alone, played) | {"redone": played.redone, "replaced": played.replaced})
                say("  ".join(f"{key}={value:.3g}" for key, value in found[-1].items()))
    return summary(found, hung=hung, late=late, span=span)


class _Run:
    """One training of which a node is killed."""

    def __init__(self, cluster: Any, nodes: list[Any], which: int, after_s: float) -> None:
        self.cluster, self.nodes, self.which, self.after_s = cluster, nodes, which, after_s
        self.ended, self.killed_in_time = threading.Event(), False
        self._killing = threading.Thread(target=self._kill, daemon=True)

    def _kill(self) -> None:
        if self.ended.wait(self.after_s):
            return
        kill_node(self.nodes[self.which])
        self.killed_in_time = not self.ended.is_set()

    def train(self, config: TrainConfig, path: Path, seed: int, executor: dict[str, Any]) -> Played | None:
        """What the training did, with a new node in the place of the killed one; None when it did not end."""
        results: list[Played] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(train(config, path, seed=seed, executor=executor, on_start=self._killing.start))
            except BaseException as error:  # a boundary: it is raised to the caller
                errors.append(error)
            finally:
                self.ended.set()

        training = threading.Thread(target=work, daemon=True)
        training.start()
        training.join(LIMIT_S)
        if errors:
            raise errors[0]
        if not results:
            return None
        self._killing.join()
        if self.killed_in_time:
            self.cluster.remove_node(self.nodes[self.which], allow_graceful=False)
            self.nodes[self.which] = self.cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
        return results[0]


def summary(found: Sequence[dict[str, Any]], *, hung: int, late: int, span: float) -> dict[str, Any]:
    """One row of all runs."""
    return {
        "kills": len(found),
        "trajectories": sum(one["trajectories"] for one in found),
        "lost_after_kill": sum(one["lost"] for one in found),
        "short_groups": sum(one["short_groups"] for one in found),
        "differing": sum(one["differing"] for one in found),
        "hung": hung,
        "kills_too_late": late,
        "runs_with_redone_jobs": sum(one["redone"] > 0 for one in found),
        "undisturbed_s": span,
        "median_s": statistics.median(one["seconds"] for one in found) if found else None,
        "longest_s": max((one["seconds"] for one in found), default=None),
        "runs": list(found),
    }
