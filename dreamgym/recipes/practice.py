"""One call of the loop, in the dream, in the real environment, or in both at once: what it collects, counts, measures and saves."""

from __future__ import annotations

import copy
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamgym.clusters import Clustered, Clusters
from dreamgym.curriculum import TaskCurriculum
from dreamgym.episodes import trajectory_from_json, trajectory_to_json
from dreamgym.evals.gap import GapMeter
from dreamgym.evals.invented import evenly
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.prompted import PromptedExperienceModel
from dreamgym.loop import train
from dreamgym.plugins import make, named
from dreamgym.progress import progress
from dreamgym.protocols import BatchEnv, Curriculum
from dreamgym.recipes import parts as build
from dreamgym.recipes import refresh
from dreamgym.recipes.annotate import used
from dreamgym.recipes.config import RLBlock, World
from dreamgym.recipes.parts import Dreamer, Parts
from dreamgym.returns import statistics, unprecedented
from dreamgym.rollout import group_by_task, rollout
from dreamgym.runlog import RunDir
from dreamgym.train import checkpoint
from dreamgym.train.learner import Learner
from dreamgym.train.weights import restore, state_of
from dreamgym.types import Task, Trajectory


def practise(run: RunDir, parts: Parts, name: str, *, start: str, block: RLBlock, world: World) -> None:
    """One call of the loop: from checkpoint `start`, in `world`, to checkpoint `name`."""
    if run.done(name):
        return
    session = Practice(run, parts, name, start=start, block=block, world=world)
    session.run_loop()
    parts.save_policy(session.model, name)
    run.mark(name, session.result())
    session.replay.close()


class Practice:
    """Owns what one loop needs beside the shared parts, its checkpoint, and its counts of steps."""

    def __init__(self, run: RunDir, parts: Parts, name: str, *, start: str, block: RLBlock, world: World) -> None:
        self.run, self.parts, self.name, self.start, self.block, self.world = run, parts, name, start, block, world
        self.seed = parts.config.seed
        self.replay = parts.replay(name)
        self.dream: DreamBatch | None = None
        self.experience: Dreamer | None = None
        self.probed: list[Trajectory] = []  # real episodes, kept for refreshes of the experience model
        self.refreshes = 0
        if world != "real":
            self._enter_dream()
        self.real = parts.real()
        self.meter = GapMeter(parts.family, parts.real())
        self.model = parts.policy(start)
        self.agent = parts.agent(self.model, exact=not block.learner.bf16)
        algorithm = named("train.algos", block.algorithm.model_dump())
        settings = block.learner.model_copy(update={"seed": self.seed})
        self.learner = Learner(
            self.model, algorithm, settings, total_updates=block.iterations, on_publish=self._publish, closing=self.agent.closing
        )
        self.curriculum = self._curriculum()
        self.observer = self._observer()
        self.iteration, self.seconds, self.open_gaps, self.stopped = 0, 0.0, 0, ""
        self.used = {"train": 0, "real": 0, "probe": 0}  # steps; "real" ones are among "train"
        self.longest = 0  # real steps of the iteration that took most
        self.refills = 0  # of the present iteration
        self.replaced = self._replaced()  # workers, by the end of the iteration before
        self._resume()

    @property
    def dreams_with(self) -> str:
        """The checkpoint of the experience model as it is now."""
        return refresh.version_name(self.parts.experience, self.name, self.refreshes)

    def _enter_dream(self) -> None:
        """Dream with the current version of the experience model."""
        self.dream, self.experience = replace(self.parts, experience=self.dreams_with).dream(self.replay, version=1 + self.refreshes)

    def run_loop(self) -> None:
        """Iterate to the end of the block, or until a budget is spent or the gap opens."""
        self.clock = time.monotonic()
        with progress(self.block.iterations, self.name, start=self.iteration) as advance:
            self._advance = advance
            train(
                curriculum=self.observer,
                collect=self._collect,
                learner=self.learner,
                remember=self.replay.add,
                start=self.iteration,
                iterations=0 if self.stopped else self.block.iterations,
                tasks_per_iter=self.block.tasks_per_iter,
                group_size=self.block.group_size,
                on_iteration=self._on_iteration,
            )

    def result(self) -> dict[str, Any]:
        """What later phases and the summary need to know."""
        return {
            "iterations": self.iteration,
            "steps": self.used["train"],
            "real_steps": self.used["real"],
            "probe_steps": self.used["probe"],
            "seconds": self.seconds,
            "stopped": self.stopped,
            "refreshes": self.refreshes,
            "dreams_with": self.dreams_with,
            "curriculum": dict(self.curriculum.counts),
            "inventions": evenly(self.curriculum.inventions),
            "replay": self.replay.stats(),
            "dreamer": used(self.experience.chat.usage) if isinstance(self.experience, PromptedExperienceModel) else {},
        }

    def _curriculum(self) -> TaskCurriculum:
        family, block, judged = self.parts.family, self.block, self.parts.config.eval
        config = block.curriculum if self.dream else block.curriculum.model_copy(update={"synthetic_share": 0.0})
        held_out = family.tasks("dev", judged.dev_tasks, seed=build.DEV_SEED) + family.tasks("test", judged.tasks, seed=build.TEST_SEED)
        # of the logs alone: what else is real in the buffer depends on when the loop was interrupted
        pages = {m.next_state: m for m in self.replay.memories(env=family.name) if m.source == "demo"}
        return TaskCurriculum(
            family.tasks("train", block.train_tasks, seed=build.TRAIN_SEED),
            config,
            domain=family.domain,
            vary=self._vary if self.dream else None,
            memories=lambda: pages.values(),
            forbidden=[task.instruction for task in held_out],
            seed=self.seed,
        )

    def _vary(self, seeds: Sequence[Task], i: int) -> list[str]:
        assert self.experience is not None
        return self.experience.vary(seeds, seed=i)

    def _observer(self) -> Curriculum:
        """The curriculum as the loop knows it."""
        if not self.block.clusters:
            return self.curriculum
        tasks = self.parts.family.tasks("train", self.block.train_tasks, seed=build.TRAIN_SEED)
        return Clustered(self.curriculum, Clusters(tasks, self.block.clusters, make("replay.encoders", "lexical"), seed=self.seed))

    def _collect(self, tasks: Sequence[Task], i: int) -> list[Trajectory]:
        """The rollouts of an iteration, and of the further tasks that it may draw while too few groups teach."""
        trajectories = self._roll(tasks, i)
        self.refills = 0
        while self.refills < self.block.max_refills and (more := self._further(trajectories)):
            self.refills += 1
            trajectories += self._roll([task for task in more for _ in range(self.block.group_size)], i, self.refills)
        return trajectories

    def _further(self, trajectories: Sequence[Trajectory]) -> list[Task]:
        """Other tasks in the place of groups without variance; none when enough have it, or real steps would run out."""
        groups = group_by_task(trajectories, self.block.group_size)
        missing = self.block.tasks_per_iter - sum(statistics(group).kind == "mixed" for group in groups)
        seen = {group[0].task.id for group in groups}
        longest = missing * self.block.group_size * self.parts.family.max_steps
        if missing <= 0 or (self._limited and self.used["real"] + _real_steps(trajectories) + longest > self._limited):
            return []
        curriculum = copy.copy(self.curriculum)  # draws depend on (seed, iteration) alone: another seed draws other tasks
        curriculum.seed = self.seed + 1_000_003 * (self.refills + 1)
        return [task for task in curriculum.sample(missing + len(seen)) if task.id not in seen][:missing]

    def _roll(self, tasks: Sequence[Task], i: int, again: int = 0) -> list[Trajectory]:
        """One rollout per task, in order, each in the world it belongs to."""
        real = self._really(tasks)
        dreamed = [k for k in range(len(tasks)) if k not in real]
        part = 2 * again
        found: dict[int, Trajectory] = {}
        for env, places, stream in ((self.dream, dreamed, part), (self.real, sorted(real), part + (self.world == "mixed"))):
            if env is not None and places:
                found |= zip(places, self._rollout([tasks[k] for k in places], env, i, stream), strict=True)
        return [found[k] for k in range(len(tasks))]

    def _really(self, tasks: Sequence[Task]) -> set[int]:
        """The places of the rollouts that take place in the real environment, whole groups each."""
        if self.world != "mixed":
            return set(range(len(tasks))) if self.world == "real" else set()
        size = self.block.group_size
        known = [k for k in range(0, len(tasks), size) if tasks[k].source == "real"]
        n = max(1, round(self.block.real_share * len(tasks) / size))
        every = max(1, len(known) // n)
        return {first + j for first in known[::every][:n] for j in range(size)}

    def _rollout(self, tasks: Sequence[Task], env: BatchEnv, i: int, part: int) -> list[Trajectory]:
        """`part` keeps the random streams of an iteration's rollouts apart."""
        return rollout(
            self.agent,
            env,
            tasks,
            seed=1_000_000 * self.seed + 20_000 * part + i,
            max_steps=self.parts.family.max_steps,
            temperature=self.block.learner.temperature,
            name=f"{self.name}/{i}" + (f"/{part}" if part else ""),
        )

    def _on_iteration(self, i: int, trajectories: list[Trajectory], metrics: dict[str, float]) -> bool:
        self.iteration = i + 1
        real_steps = _real_steps(trajectories)
        self.used["train"] += sum(len(t.turns) for t in trajectories)
        self.used["real"] += real_steps
        self.longest = max(self.longest, real_steps)
        found: dict[str, Any] = dict(metrics) | _rollout_metrics(trajectories)
        if self.block.max_refills:
            found["refills"] = self.refills
        if self.world == "mixed":
            found |= {f"{source}_part_success": _success(trajectories, source) for source in ("dream", "real")}
        if self.dream and self.block.probe_every and self.iteration % self.block.probe_every == 0:
            found |= self._probe(trajectories)
        if self.parts.workers:
            found["workers_replaced"] = self._replaced() - self.replaced
            self.replaced = self._replaced()
        now = time.monotonic()
        self.seconds, self.clock = self.seconds + now - self.clock, now
        self.run.append_jsonl("metrics.jsonl", {"phase": self.name, "iteration": i, "seconds": self.seconds, **found})
        if i % 10 == 0 or self.iteration == self.block.iterations:
            self.run.episodes(f"{self.name}-{i:04d}", trajectories[: 4 * self.block.group_size], completions=False)
        self.stopped = self.stopped or self._spent()
        self._save()
        self._advance(note=_note(found))
        return bool(self.stopped)

    def _replaced(self) -> int:
        return self.parts.workers.restarts if self.parts.workers else 0

    def _probe(self, trajectories: list[Trajectory]) -> dict[str, Any]:
        """Measure the gap of what was dreamed; an open one (twice in a row) ends the loop, and a rollback restores the last policy that
        told the truth."""
        dreamed = [t for t in trajectories if t.source == "dream"]
        gap = self.meter.measure(self.agent, dreamed, n=self.block.probe_tasks, seed=10_000 + self.iteration)
        self.used["probe"] += gap.real_steps
        if gap.gap is None:  # every dreamed episode failed, or was of an invented task: nothing was learnt about the gap
            return gap.metrics()
        if self.block.on_gap == "refresh":
            self.probed += refresh.explained(gap.episodes, self.parts.family.domain)
            if gap.gap > self.block.max_gap:
                self._refresh()
            return gap.metrics() | {"refreshes": float(self.refreshes)}
        self.open_gaps = self.open_gaps + 1 if gap.gap > self.block.max_gap else 0
        good = f"{self.name}-good"
        if self.open_gaps == 0:
            self.parts.save_policy(self.model, good)
        elif self.open_gaps >= 2 and self.block.on_gap != "warn":
            self.stopped = f"the gap opened to {gap.gap:.2f}"
            if self.block.on_gap == "rollback":
                found = self.parts.checkpoint(good).exists()
                restore(self.model, state_of(self.parts.policy(good if found else self.start)))
                self.stopped += f", rolled back to the {'last good policy' if found else 'policy it started from'}"
        return gap.metrics()

    def _refresh(self) -> None:
        """The next version of the experience model, fitted to what was probed; the dream goes on with it, and remembers it."""
        new = refresh.version_name(self.parts.experience, self.name, self.refreshes + 1)
        refresh.refit(replace(self.parts, experience=self.dreams_with), self.probed, self.block.refresh, new)
        known = {memory.trajectory for memory in self.replay.memories(source="real")}
        self.replay.add([episode for episode in self.probed if episode.id not in known])
        self.refreshes += 1
        self.run.episodes(f"{self.name}-probed", self.probed, completions=False)
        self._enter_dream()

    def _spent(self) -> str:
        if self._limited and self.used["real"] + self.longest > self._limited:
            return "the budget of real steps has no room for another iteration"
        if self.block.max_seconds and self.seconds >= self.block.max_seconds:
            return "the budget of seconds is spent"
        return ""

    @property
    def _limited(self) -> int:
        """The most real steps that this loop may take; 0 when it takes none, or as many as it needs."""
        return self.block.max_real_steps or 0 if self.world != "dream" else 0

    @property
    def _path(self) -> Path:
        return self.run.path / "checkpoints" / f"{self.name}.pt"

    def _publish(self, version: int) -> None:
        self.agent.llm.version = version

    def _save(self) -> None:
        """Everything `_resume` needs, replaced atomically."""
        state = {
            "learner": self.learner.state_dict(),
            "curriculum": self.curriculum.state_dict(),
            "replay": self.replay.sequence,
            "iteration": self.iteration,
            "seconds": self.seconds,
            "used": self.used,
            "longest": self.longest,
            "open_gaps": self.open_gaps,
            "stopped": self.stopped,
            "refused": self.replay.refused,
            "refreshes": self.refreshes,
            "probed": json.dumps([trajectory_to_json(episode, completions=False) for episode in self.probed]),
        }
        checkpoint.save(self._path, state)

    def _resume(self) -> None:
        """Go on from the checkpoint; what was written behind it is dropped, so that every iteration is told once."""
        self._restore()
        self.run.keep_lines("metrics.jsonl", lambda line: line["phase"] != self.name or line["iteration"] < self.iteration)

    def _restore(self) -> None:
        if not self._path.exists():
            self.replay.rollback(max((m.row for m in self.replay.memories(source="demo")), default=0))  # to the logs
            shutil.rmtree(self.parts.checkpoint(f"{self.name}-good"), ignore_errors=True)  # of an attempt that was given up
            self._save()  # so that what an interrupted first iteration leaves in the replay log is not trusted either
            return
        state = checkpoint.load(self._path)
        self.learner.load_state_dict(state["learner"])
        self.curriculum.load_state_dict(state["curriculum"])
        self.replay.rollback(state["replay"])
        self.iteration, self.seconds = state["iteration"], state["seconds"]
        self.used |= {"real": 0 if self.dream else state["used"]["train"], **state["used"]}
        self.open_gaps, self.stopped, self.replay.refused = state["open_gaps"], state["stopped"], state["refused"]
        self.longest = state["longest"]
        self.probed = [trajectory_from_json(record) for record in json.loads(state.get("probed", "[]"))]
        if state.get("refreshes"):
            self.refreshes = state["refreshes"]
            self._enter_dream()


def had_gradient(run: RunDir, name: str) -> bool:
    """Whether any iteration of a loop moved the policy: not when every group was all success or all failure."""
    return any((line.get("grad_norm") or 0) > 0 for line in run.read_jsonl("metrics.jsonl") if line["phase"] == name)


def _rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    counted = [t for t in trajectories if t.error is None]
    n = len(counted) or math.nan  # a rate of nothing is not a number, and is written as null
    dreamed = [unprecedented(step) for t in counted if t.source == "dream" for step in t.transitions]
    return {
        "success": sum(t.success for t in counted) / n,
        "length": sum(len(t.turns) for t in counted) / n,
        "truncated": sum(t.truncated for t in counted) / n,
        "failed_rollouts": float(len(trajectories) - len(counted)),
        "masked": sum("masked" in (t.error or "") for t in trajectories) / max(1, len(trajectories)),
        "synthetic_share": sum(t.task.source == "synthetic" for t in trajectories) / max(1, len(trajectories)),
        **({"unprecedented": sum(dreamed) / len(dreamed)} if dreamed else {}),
    }


def _success(trajectories: Sequence[Trajectory], source: str) -> float:
    wins = [t.success for t in trajectories if t.error is None and t.source == source]
    return sum(wins) / (len(wins) or math.nan)


def _real_steps(trajectories: Sequence[Trajectory]) -> int:
    return sum(len(t.turns) for t in trajectories if t.source == "real")


def _note(found: Mapping[str, Any]) -> str:
    """What the progress says of an iteration."""
    real, failed = found.get("probe_real_success"), found["failed_in_a_row"]
    note = f"success {found['success']:.2f}" + ("" if real is None else f", real {real:.2f}")
    return note + (f", nothing earned for {failed:.0f} iterations" if failed >= 3 else "")
