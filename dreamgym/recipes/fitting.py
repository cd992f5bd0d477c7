"""What is fitted to logs: the tokenizer, the experience model, the policy that RL starts from, and the offline baselines.

Each function is a phase: finished, it is marked in the run directory and never run again; interrupted, it goes on from its checkpoint.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamgym.envs._workers import WorkerPool
from dreamgym.episodes import read_trajectories
from dreamgym.errors import InvariantError, UsageError
from dreamgym.evals.success import evaluate, success
from dreamgym.experience.coverage import RELABELLED, with_other_goals
from dreamgym.llm import backbones, tiny
from dreamgym.progress import progress
from dreamgym.protocols import Family
from dreamgym.recipes import parts as build
from dreamgym.recipes.config import SharedConfig
from dreamgym.recipes.parts import Parts
from dreamgym.runlog import RunDir
from dreamgym.train import dpo, sft
from dreamgym.types import Trajectory, Transition, Turn

log = logging.getLogger(__name__)

Watch = Callable[[int, float, dict[str, float]], bool]
"""(step, share done, losses) -> whether to stop."""


def gather(run: RunDir, config: SharedConfig, workers: WorkerPool | None = None) -> Parts:
    """Offline trajectories, and the tokenizer of their texts. `workers` are what `parts.hire` gives for the configuration.

    ConfigError for settings that cannot be right in this environment.
    """
    if config.env.workers and workers is None:
        raise InvariantError(f"env.workers = {config.env.workers}, and nobody hired them. Use `with parts.hire(config.env) as workers:`.")
    backbones.device(config.model.device)  # a GPU that is not here is told before anything is made
    family = build.begin(config)
    if not run.done("logs"):
        files = config.logs.files
        logs = build.sized(read_logs(files, family), config) if files else build.offline(family, config, workers)
        logs, kept_out = without_held_out(logs, family, config)
        run.episodes("logs", logs)
        steps, wins = sum(len(t.turns) for t in logs), sum(t.success for t in logs)
        if not wins:
            raise InvariantError("No logged trajectory succeeds, so there is nothing to start a policy from. Collect more, or better ones.")
        found = {"trajectories": len(logs), "transitions": steps, "successes": wins, "held_out": kept_out}
        run.mark("logs", found | ({"workers_replaced": workers.restarts} if workers else {}))
    logs = build.logs_of(run)
    path = run.path / "checkpoints" / "tokenizer"
    if not run.done("tokenizer"):
        tokenizer = build.learn_tokenizer(logs, family.domain, config.model.vocab_size)
        tiny.save(tiny.build(tokenizer, config.model.size, seed=config.seed), tokenizer, path)
        run.mark("tokenizer", {"vocabulary": len(tokenizer)})
    tokenizer = tiny.load(path)[1]
    parts = Parts(config, run.path, family, logs, tokenizer, build.vocabulary(tokenizer), workers=workers)
    _ = parts.policies  # a backbone that is not here is told now, and not when the experience model has been fitted
    return parts


def without_held_out(logs: Sequence[Trajectory], family: Family, config: SharedConfig) -> tuple[list[Trajectory], int]:
    """The logs without episodes on tasks that policies will be judged by, and how many those were: nothing may learn from them."""
    judged = config.eval
    held_out = family.tasks("dev", judged.dev_tasks, seed=build.DEV_SEED) + family.tasks("test", judged.tasks, seed=build.TEST_SEED)
    names = {task.id for task in held_out}  # in houses the same sentence is another task in every other room
    kept = [episode for episode in logs if episode.task.id not in names]
    if gone := len(logs) - len(kept):
        log.warning("%d of %d logged episodes are on held-out tasks. They are left out.", gone, len(logs))
    return kept, gone


def read_logs(files: Sequence[Path], family: Family) -> list[Trajectory]:
    """The episodes of files as logs: whoever acted, they are demonstrations now, without tokens of their own.

    A step without reasoning is explained by the family's scripted teacher. UsageError for a dream, another environment, a name given twice,
    and a name that says it is a copy.
    """
    found: dict[str, Trajectory] = {}
    for file in files:
        for episode in read_trajectories(file):
            if episode.task.env != family.name:
                raise UsageError(f"'{file}' holds an episode of '{episode.task.env}', and the run is of '{family.name}'. Set env.name.")
            if episode.source == "dream":
                raise UsageError(f"'{file}' holds a dream, '{episode.id}'. Logs are real: leave out what an experience model made up.")
            if episode.id in found:
                raise UsageError(f"Two logged episodes are called '{episode.id}' (the second in '{file}'). Give every one its own id.")
            if RELABELLED in episode.id:
                raise UsageError(
                    f"A logged episode is called '{episode.id}' (in '{file}'), and '{RELABELLED}' marks our own copies. Rename it."
                )
            found[episode.id] = _logged(episode, family)
    return list(found.values())


def _logged(episode: Trajectory, family: Family) -> Trajectory:
    past: list[Transition] = []
    for step in episode.transitions:
        reasoning = step.reasoning or family.domain.explain(episode.task, past, step)
        past.append(replace(step, reasoning=reasoning))
    return replace(episode, source="demo", turns=tuple(Turn(step) for step in past))


def train_experience(run: RunDir, parts: Parts) -> None:
    """Eq. 5: fit the experience model to the logs, with memories retrieved as at inference."""
    name = parts.experience
    if run.done(name) or parts.config.dreamer:
        return
    rows = build.experience_rows(parts, parts.remembered())
    model = parts.load("tokenizer")
    ids, weights, segments = [row.ids for row in rows], [row.weights for row in rows], [row.segments for row in rows]
    losses = _fit(run, name, model, ids, weights, parts.config.experience_training, segments)
    parts.save(model, name)
    _finish(run, name, losses | {"rows": len(rows), "tokens": sum(len(row) for row in ids)})


def warm_start(run: RunDir, parts: Parts, *, start: str = "experience") -> None:
    """The policy that RL starts from: the experience model's weights (or those of another checkpoint), or a backbone, briefly fitted to
    the successful logs."""
    if run.done("warm"):
        return
    model = parts.policies.first(parts.checkpoint(start))
    if not parts.config.policy.warm_start:
        parts.save_policy(model, "warm")
        run.mark("warm", {"demonstrations": 0, "tokens": 0, "seconds": 0.0})
        return
    ids, weights = build.demonstrations(parts)
    losses = _fit(run, "warm", model, ids, weights, parts.config.warm)
    parts.save_policy(model, "warm")
    _finish(run, "warm", losses | {"demonstrations": len(ids), "tokens": sum(len(row) for row in ids)})


def converge_sft(run: RunDir, parts: Parts, config: sft.SFTConfig, *, patience: int) -> None:
    """The offline baseline: the same start and the same logs, trained until success on development tasks stops rising."""
    if run.done("sft"):
        return
    model = parts.policies.first(parts.checkpoint("experience"))
    agent, real = parts.agent(model), parts.real()
    dev = parts.family.tasks("dev", parts.config.eval.dev_tasks, seed=build.DEV_SEED)
    ids, weights = build.demonstrations(parts)
    steps_per_epoch = max(1, sum(len(row) for row in ids) // config.batch_tokens)
    curve: list[dict[str, float]] = run.data("sft-curve")["curve"] if run.done("sft-curve") else []

    def judge(step: int) -> bool:
        """Measure, keep the best, and say whether it has stopped rising; what an interrupted training measured from here on goes."""
        epoch, before = step / steps_per_epoch, real.steps
        curve[:] = [seen for seen in curve if seen["epoch"] < epoch]
        rates = [success(evaluate(agent, real, dev, max_steps=parts.family.max_steps, temperature=t, seed=7)).value for t in (0.0, 1.0)]
        if all(rates[0] > seen["greedy"] for seen in curve):
            parts.save_policy(model, "sft")
        spent = (curve[-1]["real_steps"] if curve else 0) + real.steps - before
        curve.append({"epoch": epoch, "greedy": rates[0], "sampled": rates[1], "real_steps": spent})
        run.mark("sft-curve", {"curve": curve})
        best = max(range(len(curve)), key=lambda k: curve[k]["greedy"])
        return len(curve) - 1 - best >= patience

    losses = _fit(run, "sft", model, ids, weights, config, on_step=lambda step: step % (2 * steps_per_epoch) == 0 and judge(step))
    if not curve:
        judge(int(losses["steps"]))
    found = {"dev_success": max(seen["greedy"] for seen in curve), "curve": curve, "real_steps_dev": curve[-1]["real_steps"]}
    _finish(run, "sft", losses | found)


def prefer(run: RunDir, parts: Parts, config: dpo.DPOConfig) -> None:
    """The other offline baseline: from converged SFT, DPO on logged successes and failures of the same task."""
    if run.done("dpo"):
        return
    pairs = dpo.dpo_pairs(preferences(parts), parts.config.seed)
    if not pairs:
        raise UsageError("DPO needs logs in which a task was solved once and missed once. Log tasks more than once, or leave DPO out.")
    chosen, rejected = ([_whole(parts, pair[side]) for pair in pairs] for side in (0, 1))
    model = parts.policy("sft")
    with _watched(run, "dpo") as watch:
        found = dpo.train(model, chosen, rejected, config, on_step=watch, checkpoint=run.path / "checkpoints" / "dpo.pt")
    parts.save_policy(model, "dpo")
    _finish(run, "dpo", found | {"demonstrations": len(pairs), "tokens": sum(len(ids) for ids, _ in (*chosen, *rejected))})


def _whole(parts: Parts, episode: Trajectory) -> tuple[list[int], list[float]]:
    """An episode as one row; InvariantError when a window cuts it."""
    rows = parts.policies.demonstrations(episode)
    if len(rows) != 1:
        raise InvariantError(
            f"DPO compares whole episodes, and policy.window = {parts.config.policy.window} cuts '{episode.id}' into rows."
        )
    return rows[0]


def preferences(parts: Parts) -> list[Trajectory]:
    """The logs, and for each success an episode of another task under this one's instruction: scripted logs seldom try a task twice.

    The copy is a failure by the family's text check, as in the experience model's own training.
    """
    seed, domain = parts.config.seed, parts.family.domain
    ended = [t for t in parts.logs if t.error is None and t.turns and t.transitions[-1].terminated]
    wins = [t for t in parts.logs if t.success]
    rng = random.Random(f"preferences/{seed}")
    copies = []
    for win in wins if ended else ():
        other = rng.choice(ended)
        if other.task.id != win.task.id:
            copies += with_other_goals([other], domain, [win.task], 1.0, seed)
    return [*parts.logs, *copies]


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
    """Supervised training that is watched, with a checkpoint to resume from."""
    with _watched(run, name, on_step) as watch:
        return sft.train(model, ids, weights, config, segments=segments, on_step=watch, checkpoint=run.path / "checkpoints" / f"{name}.pt")


@contextmanager
def _watched(run: RunDir, name: str, on_step: Callable[[int], bool] | None = None) -> Iterator[Watch]:
    """A function for a trainer to call after every step: it shows a progress bar and writes a metrics line every 25 steps."""
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

        yield watch
