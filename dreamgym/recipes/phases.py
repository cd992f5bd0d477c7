"""The phases of a run, each a function of the shared parts and the run directory. A finished phase is marked and never run again;
an interrupted one goes on from its last checkpoint."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dreamgym.agent import Agent
from dreamgym.curriculum import TaskCurriculum
from dreamgym.errors import InvariantError
from dreamgym.evals.bound import measure
from dreamgym.evals.gap import GapMeter
from dreamgym.evals.replayed import Fidelity, replay, summarise
from dreamgym.evals.revisits import revisits
from dreamgym.evals.settled import settled
from dreamgym.evals.success import evaluate, success
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import GuardConfig
from dreamgym.experience.model import ExperienceModel
from dreamgym.llm import tiny
from dreamgym.logs.scripted import collect as collect_logs
from dreamgym.loop import train
from dreamgym.plugins import make
from dreamgym.progress import progress
from dreamgym.protocols import BatchEnv, Glimpsed
from dreamgym.recipes import parts as build
from dreamgym.recipes.config import RLBlock, RunConfig
from dreamgym.recipes.parts import Parts
from dreamgym.rollout import rollout
from dreamgym.runlog import RunDir
from dreamgym.train import checkpoint, sft
from dreamgym.train.learner import Learner
from dreamgym.types import Task, Trajectory


def gather(run: RunDir, config: RunConfig) -> Parts:
    """Offline trajectories, and the tokenizer of their texts."""
    family = build.make_family(config)
    if not run.done("logs"):
        logs = collect_logs(family, config.logs.trajectories, seed=config.seed)
        run.episodes("logs", logs)
        steps, wins = sum(len(t.turns) for t in logs), sum(t.success for t in logs)
        if not wins:
            raise InvariantError("No logged trajectory succeeds, so there is nothing to start a policy from. Collect more, or better ones.")
        run.mark("logs", {"trajectories": len(logs), "transitions": steps, "successes": wins})
    logs = run.read_episodes("logs")
    path = run.path / "checkpoints" / "tokenizer"
    if not run.done("tokenizer"):
        tokenizer = build.learn_tokenizer(logs, family.domain, config.model.vocab_size)
        tiny.save(tiny.build(tokenizer, config.model.size, seed=config.seed), tokenizer, path)
        run.mark("tokenizer", {"vocabulary": len(tokenizer)})
    tokenizer = tiny.load(path)[1]
    return Parts(config, run.path, family, logs, tokenizer, build.vocabulary(tokenizer))


def train_experience(run: RunDir, parts: Parts) -> None:
    """Eq. 5: fit the experience model to the logs, with memories retrieved as at inference."""
    name = parts.experience
    if run.done(name):
        return
    rows = build.experience_rows(parts, build.open_replay(None, parts.logs))
    model = parts.load("tokenizer")
    ids, weights, segments = [row.ids for row in rows], [row.weights for row in rows], [row.segments for row in rows]
    losses = _fit(run, name, model, ids, weights, parts.config.experience_training, segments)
    parts.save(model, name)
    _finish(run, name, losses | {"rows": len(rows), "tokens": sum(len(row) for row in ids)})


def warm_start(run: RunDir, parts: Parts) -> None:
    """The policy that RL starts from: the experience model's weights, briefly fitted to the successful logs."""
    if run.done("warm"):
        return
    model = parts.load("experience")
    ids, weights = build.demonstrations(parts)
    losses = _fit(run, "warm", model, ids, weights, parts.config.warm)
    parts.save(model, "warm")
    _finish(run, "warm", losses | {"demonstrations": len(ids), "tokens": sum(len(row) for row in ids)})


def converge_sft(run: RunDir, parts: Parts) -> None:
    """The offline baseline: the same start and the same logs, trained until success on development tasks stops rising."""
    if run.done("sft"):
        return
    config, model = parts.config, parts.load("experience")
    agent, real = parts.agent(model), parts.real()
    dev = parts.family.tasks("dev", config.eval.dev_tasks, seed=build.DEV_SEED)
    ids, weights = build.demonstrations(parts)
    steps_per_epoch = max(1, sum(len(row) for row in ids) // config.sft.batch_tokens)
    curve: list[dict[str, float]] = run.data("sft-curve")["curve"] if run.done("sft-curve") else []

    def judge(step: int) -> bool:
        """Measure, keep the best, and say whether it has stopped rising; what an interrupted training measured from here on goes."""
        epoch, before = step / steps_per_epoch, real.steps
        curve[:] = [seen for seen in curve if seen["epoch"] < epoch]
        rates = [success(evaluate(agent, real, dev, max_steps=parts.family.max_steps, temperature=t, seed=7)).value for t in (0.0, 1.0)]
        if all(rates[0] > seen["greedy"] for seen in curve):
            parts.save(model, "sft")
        spent = (curve[-1]["real_steps"] if curve else 0) + real.steps - before
        curve.append({"epoch": epoch, "greedy": rates[0], "sampled": rates[1], "real_steps": spent})
        run.mark("sft-curve", {"curve": curve})
        best = max(range(len(curve)), key=lambda k: curve[k]["greedy"])
        return len(curve) - 1 - best >= config.sft_patience

    losses = _fit(run, "sft", model, ids, weights, config.sft, on_step=lambda step: step % (2 * steps_per_epoch) == 0 and judge(step))
    if not curve:
        judge(int(losses["steps"]))
    found = {"dev_success": max(seen["greedy"] for seen in curve), "curve": curve, "real_steps_dev": curve[-1]["real_steps"]}
    _finish(run, "sft", losses | found)


def practise(run: RunDir, parts: Parts, name: str, *, start: str, block: RLBlock, dreaming: bool) -> None:
    """One call of the loop: from checkpoint `start`, in the dream or in the real environment, to checkpoint `name`."""
    if run.done(name):
        return
    session = Practice(run, parts, name, start=start, block=block, dreaming=dreaming)
    session.run_loop()
    parts.save(session.model, name)
    run.mark(name, session.result())


class Practice:
    """Owns what one loop needs beside the shared parts, its checkpoint, and its counts of steps."""

    def __init__(self, run: RunDir, parts: Parts, name: str, *, start: str, block: RLBlock, dreaming: bool) -> None:
        self.run, self.parts, self.name, self.start, self.block = run, parts, name, start, block
        self.seed = parts.config.seed
        self.replay = parts.replay(name)
        self.dream: DreamBatch | None = None
        self.experience: ExperienceModel | None = None
        if dreaming:
            self.dream, self.experience = parts.dream(self.replay)
        self.real = parts.real()
        self.env: BatchEnv = self.dream or self.real
        self.meter = GapMeter(parts.family, parts.real())
        self.model = parts.load(start)
        self.agent: Agent = parts.agent(self.model)
        algorithm = make("train.algos", **block.algorithm.model_dump())
        settings = block.learner.model_copy(update={"seed": self.seed})
        self.learner = Learner(
            self.model, algorithm, settings, total_updates=block.iterations, on_publish=self._publish, closing=self.agent.closing
        )
        self.curriculum = self._curriculum()
        self.iteration, self.seconds, self.open_gaps, self.stopped = 0, 0.0, 0, ""
        self.used = {"train": 0, "probe": 0}
        self.longest = 0  # steps of the longest iteration
        self._resume()

    def run_loop(self) -> None:
        """Iterate to the end of the block, or until a budget is spent or the gap opens."""
        self.clock = time.monotonic()
        with progress(self.block.iterations, self.name, start=self.iteration) as advance:
            self._advance = advance
            train(
                curriculum=self.curriculum,
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
            "probe_steps": self.used["probe"],
            "seconds": self.seconds,
            "stopped": self.stopped,
            "curriculum": dict(self.curriculum.counts),
            "replay": self.replay.stats(),
        }

    def _curriculum(self) -> TaskCurriculum:
        family, block, judged, experience = self.parts.family, self.block, self.parts.config.eval, self.experience
        config = block.curriculum if self.dream else block.curriculum.model_copy(update={"synthetic_share": 0.0})
        held_out = family.tasks("dev", judged.dev_tasks, seed=build.DEV_SEED) + family.tasks("test", judged.tasks, seed=build.TEST_SEED)
        pages = {m.next_state: m for m in self.replay.memories(env=family.name) if m.source != "dream"}
        return TaskCurriculum(
            family.tasks("train", block.train_tasks, seed=build.TRAIN_SEED),
            config,
            domain=family.domain,
            vary=(lambda seeds, i: experience.vary(seeds, seed=i)) if experience else None,
            memories=lambda: pages.values(),
            forbidden=[task.instruction for task in held_out],
            seed=self.seed,
        )

    def _collect(self, tasks: Sequence[Task], i: int) -> list[Trajectory]:
        return rollout(
            self.agent,
            self.env,
            tasks,
            seed=1_000_000 * self.seed + i,
            max_steps=self.parts.family.max_steps,
            temperature=self.block.learner.temperature,
            name=f"{self.name}/{i}",
        )

    def _on_iteration(self, i: int, trajectories: list[Trajectory], metrics: dict[str, float]) -> bool:
        self.iteration = i + 1
        steps = sum(len(t.turns) for t in trajectories)
        self.used["train"] += steps
        self.longest = max(self.longest, steps)
        found: dict[str, Any] = dict(metrics) | _rollout_metrics(trajectories)
        if self.dream and self.block.probe_every and self.iteration % self.block.probe_every == 0:
            found |= self._probe(trajectories)
        now = time.monotonic()
        self.seconds, self.clock = self.seconds + now - self.clock, now
        self.run.append_jsonl("metrics.jsonl", {"phase": self.name, "iteration": i, "seconds": self.seconds, **found})
        if i % 10 == 0 or self.iteration == self.block.iterations:
            self.run.episodes(f"{self.name}-{i:04d}", trajectories[: 4 * self.block.group_size], completions=False)
        self.stopped = self.stopped or self._spent()
        self._save()
        real = found.get("probe_real_success")
        self._advance(note=f"success {found['success']:.2f}" + ("" if real is None else f", real {real:.2f}"))
        return bool(self.stopped)

    def _probe(self, trajectories: list[Trajectory]) -> dict[str, Any]:
        """Measure the gap; an open one (twice in a row) ends the loop, and a rollback restores the last policy that told the truth."""
        gap = self.meter.measure(self.agent, trajectories, n=self.block.probe_tasks, seed=10_000 + self.iteration)
        self.used["probe"] += gap.real_steps
        if gap.gap is None:  # every dreamed episode failed, or was of an invented task: nothing was learnt about the gap
            return gap.metrics()
        self.open_gaps = self.open_gaps + 1 if gap.gap > self.block.max_gap else 0
        good = f"{self.name}-good"
        if self.open_gaps == 0:
            self.parts.save(self.model, good)
        elif self.open_gaps >= 2 and self.block.on_gap != "warn":
            self.stopped = f"the gap opened to {gap.gap:.2f}"
            if self.block.on_gap == "rollback":
                found = self.parts.checkpoint(good).exists()
                self.model.load_state_dict(self.parts.load(good if found else self.start).state_dict())
                self.stopped += f", rolled back to the {'last good policy' if found else 'policy it started from'}"
        return gap.metrics()

    def _spent(self) -> str:
        limit = self.block.max_real_steps
        if limit and not self.dream and self.used["train"] + self.longest > limit:
            return "the budget of real steps has no room for another iteration"
        if self.block.max_seconds and self.seconds >= self.block.max_seconds:
            return "the budget of seconds is spent"
        return ""

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
        }
        checkpoint.save(self._path, state)

    def _resume(self) -> None:
        if not self._path.exists():
            self.replay.rollback(max((m.row for m in self.replay.memories(source="demo")), default=0))  # to the logs
            self._save()  # so that what an interrupted first iteration leaves in the replay log is not trusted either
            return
        state = checkpoint.load(self._path)
        self.learner.load_state_dict(state["learner"])
        self.curriculum.load_state_dict(state["curriculum"])
        self.replay.rollback(state["replay"])
        self.iteration, self.seconds, self.used = state["iteration"], state["seconds"], state["used"]
        self.open_gaps, self.stopped, self.replay.refused = state["open_gaps"], state["stopped"], state["refused"]
        self.longest = state["longest"]


def judge_policies(run: RunDir, parts: Parts, names: Sequence[str]) -> None:
    """Greedy and sampled success of each policy in the real environment, on the same held-out tasks for all."""
    block = parts.config.eval
    tasks = parts.family.tasks("test", block.tasks, seed=build.TEST_SEED)
    for name in names:
        if run.done(f"eval-{name}"):
            continue
        agent, real, found = parts.agent(parts.load(name)), parts.real(), {}
        start = time.monotonic()
        for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            episodes = evaluate(
                agent, real, tasks, max_steps=parts.family.max_steps, temperature=temperature, seed=block.seed, name=f"{name}/{kind}"
            )
            found[kind] = asdict(success(episodes))
            run.episodes(f"eval-{name}-{kind}", episodes[:40], completions=False)
        run.mark(f"eval-{name}", found | {"real_steps": real.steps, "seconds": time.monotonic() - start})


def audit(run: RunDir, parts: Parts, name: str) -> None:
    """Paired replay of fresh dreams under the trained policy, with the guard and without it."""
    if run.done("audit"):
        return
    block = parts.config.eval
    tasks = parts.family.tasks("train", block.paired, seed=build.TRAIN_SEED)
    agent = parts.agent(parts.load(name))
    guards = {"with_guard": parts.config.guard, "without_guard": GuardConfig(admissibility=False, grounding=False)}
    found: dict[str, Any] = {}
    for kind, guard in guards.items():
        dream, experience = parts.dream(build.open_replay(None, parts.logs), guard)
        episodes = evaluate(agent, dream, tasks, max_steps=parts.family.max_steps, temperature=1.0, seed=block.seed, name=f"audit/{kind}")
        replays = replay(episodes, parts.family.env, parts.family.domain)
        counts = {"unreadable": experience.counts["unreadable"], "masked": experience.guard.counts["failure_disputed"]}
        found[kind] = (
            fidelity_json(summarise(replays))
            | counts
            | _glimpses_json(parts, experience, episodes)
            | {"bound": measure(replays).to_json(), "real_steps": sum(one.steps for one in replays)}
        )
        run.episodes(f"audit-{kind}", episodes[:40], completions=False)
    run.mark("audit", found)


def _glimpses_json(parts: Parts, model: ExperienceModel, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Of worlds seen in glimpses: whether dreamed places stay as they were, and whether the model knows what follows from what was seen."""
    domain, block = parts.family.domain, parts.config.eval
    if not isinstance(domain, Glimpsed):
        return {}
    tasks = parts.family.tasks("dev", min(64, block.dev_tasks), seed=build.DEV_SEED)
    usual = max(parts.family.behaviours, key=lambda name: parts.family.behaviours[name])
    real = [parts.family.behave(task, usual, seed=0) for task in tasks]
    steps = sum(len(episode.turns) for episode in real)
    return {"revisits": asdict(revisits(episodes, domain)), "settled": asdict(settled(model, real, domain)), "settled_real_steps": steps}


def fidelity_json(measured: Fidelity) -> dict[str, Any]:
    """A Fidelity as nested plain values."""
    return {name: value for name, value in json.loads(json.dumps(asdict(measured))).items()} | {"gap": measured.gap}


def _rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    counted = [t for t in trajectories if t.error is None]
    n = len(counted) or math.nan  # a rate of nothing is not a number, and is written as null
    return {
        "success": sum(t.success for t in counted) / n,
        "length": sum(len(t.turns) for t in counted) / n,
        "truncated": sum(t.truncated for t in counted) / n,
        "failed_rollouts": float(len(trajectories) - len(counted)),
        "masked": sum("masked" in (t.error or "") for t in trajectories) / max(1, len(trajectories)),
        "synthetic_share": sum(t.task.source == "synthetic" for t in trajectories) / max(1, len(trajectories)),
    }


def _finish(run: RunDir, name: str, found: dict[str, Any]) -> None:
    """Mark a fitted model as done, and only then drop what an interrupted training would have gone on from."""
    run.mark(name, found)
    (run.path / "checkpoints" / f"{name}.pt").unlink(missing_ok=True)


def _fit(
    run: RunDir,
    name: str,
    model: Any,
    ids: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]],
    config: sft.SFTConfig,
    segments: Sequence[Sequence[str]] | None = None,
    on_step: Callable[[int], bool] | None = None,
) -> dict[str, float]:
    """Supervised training with a progress bar, a metrics line every 25 steps, and a checkpoint to resume from."""
    with progress(1000, name) as advance:
        shown = 0

        def watch(step: int, done: float, losses: dict[str, float]) -> bool:
            nonlocal shown
            if step % 25 == 0:
                run.append_jsonl("metrics.jsonl", {"phase": name, "iteration": step, "done": done, **losses})
            if int(done * 1000) > shown:
                advance(int(done * 1000) - shown, f"loss {losses['loss']:.3f}")
                shown = int(done * 1000)
            return bool(on_step and on_step(step))

        return sft.train(model, ids, weights, config, segments=segments, on_step=watch, checkpoint=run.path / "checkpoints" / f"{name}.pt")
