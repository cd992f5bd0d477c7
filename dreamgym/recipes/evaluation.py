"""Measuring policies and dreams at the end of a run: held-out tasks in the real environment, and dreams replayed in it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dreamgym.evals.bound import measure
from dreamgym.evals.replayed import Fidelity, replay, summarise
from dreamgym.evals.success import evaluate, success
from dreamgym.experience.guard import GuardConfig
from dreamgym.recipes import parts as build
from dreamgym.recipes.parts import Parts
from dreamgym.runlog import RunDir


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
            | {"bound": measure(replays).to_json(), "real_steps": sum(one.steps for one in replays)}
        )
        run.episodes(f"audit-{kind}", episodes[:40], completions=False)
    run.mark("audit", found)


def fidelity_json(measured: Fidelity) -> dict[str, Any]:
    """A Fidelity as nested plain values."""
    return {name: value for name, value in json.loads(json.dumps(asdict(measured))).items()} | {"gap": measured.gap}
