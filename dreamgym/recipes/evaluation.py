"""Measuring policies and dreams at the end of a run: held-out tasks in the real environment, and dreams replayed in it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dreamgym.errors import RunDirError, UsageError, nearest
from dreamgym.evals.bound import measure
from dreamgym.evals.invented import invented
from dreamgym.evals.replayed import Fidelity, by_grounds, disputed, replay, summarise
from dreamgym.evals.revisits import revisits
from dreamgym.evals.settled import settled
from dreamgym.evals.success import evaluate, success
from dreamgym.protocols import Glimpsed, Grounds
from dreamgym.recipes import parts as build
from dreamgym.recipes.config import UNGUARDED
from dreamgym.recipes.parts import Parts
from dreamgym.runlog import RunDir
from dreamgym.types import Task, Trajectory


def judge_policies(run: RunDir, parts: Parts, names: Sequence[str]) -> None:
    """Greedy and sampled success of each policy in the real environment, on the same held-out tasks for all."""
    block = parts.config.eval
    tasks = parts.family.tasks("test", block.tasks, seed=build.TEST_SEED)
    for name in names:
        if run.done(f"eval-{name}"):
            continue
        start = time.monotonic()
        found, episodes, steps = _judged(parts, name, tasks, block.seed)
        for kind, those in episodes.items():
            run.episodes(f"eval-{name}-{kind}", those[:40], completions=False)
        run.mark(f"eval-{name}", found | {"real_steps": steps, "seconds": time.monotonic() - start})


def audit(run: RunDir, parts: Parts, name: str) -> None:
    """Paired replay of fresh dreams under the trained policy, with the guard and without it."""
    if run.done("audit"):
        return
    block = parts.config.eval
    tasks = parts.family.tasks("train", block.paired, seed=build.TRAIN_SEED)
    agent = parts.agent(parts.policy(name))
    parts = replace(parts, experience=run.data(name).get("dreams_with", parts.experience))
    guards = {"with_guard": parts.config.guard, "without_guard": UNGUARDED}
    found: dict[str, Any] = {}
    for kind, guard in guards.items():
        dream, experience = parts.dream(parts.remembered(), guard)
        episodes = evaluate(agent, dream, tasks, max_steps=parts.family.max_steps, temperature=1.0, seed=block.seed, name=f"audit/{kind}")
        replays = replay(episodes, parts.real())
        left_out = disputed(episodes, parts.real())
        doubted = experience.guard.counts["failure_disputed"] + experience.guard.counts["success_doubted"]
        counts = {"unreadable": experience.counts["unreadable"], "masked": doubted}
        found[kind] = (
            fidelity_json(summarise(replays, left_out))
            | {name: fidelity_json(part) | {"share": asdict(share)} for name, (part, share) in by_grounds(replays, left_out).items()}
            | counts
            | _glimpses_json(parts, experience, episodes)
            | {
                "bound": measure(replays, left_out=len(episodes) - len(replays)).to_json(),
                "real_steps": sum(one.steps for one in [*replays, *left_out]),
            }
        )
        run.episodes(f"audit-{kind}", episodes[:40], completions=False)
    run.mark("audit", found | _inventions_json(parts, run.data(name), tasks))


def _inventions_json(parts: Parts, practised: dict[str, Any], tasks: Sequence[Task]) -> dict[str, Any]:
    """Whether the curriculum's inventions are new and can be done, where the family can tell and some were accepted."""
    if not isinstance(parts.family, Grounds) or not parts.family.grounds or not practised.get("inventions"):
        return {}
    measured = invented(practised["curriculum"], practised["inventions"], tasks, parts.family, parts.behave)
    return {"invented": asdict(measured)}


def _glimpses_json(parts: Parts, model: build.Dreamer, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """Of worlds seen in glimpses: whether dreamed places stay as they were, and whether the model knows what follows from what was seen."""
    domain, block = parts.family.domain, parts.config.eval
    if not isinstance(domain, Glimpsed):
        return {}
    tasks = parts.family.tasks("dev", min(64, block.dev_tasks), seed=build.DEV_SEED)
    usual = max(parts.family.behaviours, key=lambda name: parts.family.behaviours[name])
    real = parts.behave([(task, usual, 0) for task in tasks])
    steps = sum(len(episode.turns) for episode in real)
    return {"revisits": asdict(revisits(episodes, domain)), "settled": asdict(settled(model, real, domain)), "settled_real_steps": steps}


def fidelity_json(measured: Fidelity) -> dict[str, Any]:
    """A Fidelity as nested plain values."""
    return {name: value for name, value in json.loads(json.dumps(asdict(measured))).items()} | {"gap": measured.gap}


def evaluate_policy(path: Path, policy: str | None, *, split: str, tasks: int | None, seed: int) -> dict[str, Any]:
    """Greedy and sampled success of one of a run's policies on a split of its environment's tasks, and the real steps that took.

    By default the policy that came last and is no ablation, and 300 tasks, or fewer where fewer were held out. UsageError for a policy that
    the run does not have, and for more held-out tasks than it kept from logs and curriculum.
    """
    parts = build.open_parts(path)
    block = parts.config.eval
    kept_out = {"dev": block.dev_tasks, "test": block.tasks}.get(split)
    if tasks is not None and kept_out is not None and tasks > kept_out:
        raise UsageError(f"This run kept {kept_out} {split} tasks away from its training, and {tasks} are asked for. Ask for no more.")
    tasks = tasks or min(300, kept_out or 300)
    known = policies(path)
    if not known:
        raise RunDirError(f"'{path}' has no policy yet. Give the command that made it again: it resumes.")
    name = policy or next((name for name in reversed(known) if "-no-" not in name), known[-1])
    if name not in known:
        raise UsageError(f"'{path}' has no policy '{name}'.{nearest(name, known)} Known: {', '.join(known)}.")
    chosen = parts.family.tasks(split, tasks, seed=build.TEST_SEED)
    with build.hire(parts.config.env) as workers:
        found, _, steps = _judged(replace(parts, workers=workers), name, chosen, seed)
    return {"policy": name, "split": split, "tasks": len(chosen), **found, "real_steps": steps}


def policies(path: Path) -> list[str]:
    """The policies whose training is finished, in the order in which that happened."""
    run = RunDir.view(path)
    return [name for name in run.finished() if not name.startswith(("experience", "tokenizer")) and (path / "checkpoints" / name).is_dir()]


def _judged(parts: Parts, name: str, tasks: Sequence[Task], seed: int) -> tuple[dict[str, Any], dict[str, list[Trajectory]], int]:
    """(the rates of greedy and sampled episodes, the episodes, the real steps that they took)."""
    agent, real, found, episodes = parts.agent(parts.policy(name)), parts.real(), {}, {}
    before = real.steps
    for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        episodes[kind] = evaluate(
            agent, real, tasks, max_steps=parts.family.max_steps, temperature=temperature, seed=seed, name=f"{name}/{kind}"
        )
        found[kind] = asdict(success(episodes[kind]))
    return found, episodes, real.steps - before
