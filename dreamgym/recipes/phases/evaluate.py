"""Success of policies in the real environment, on held-out tasks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dreamgym.errors import UsageError, counted
from dreamgym.evals.success import evaluate, success
from dreamgym.recipes.context import RunContext, open_context
from dreamgym.recipes.factory import TASK_SEED, start_workers
from dreamgym.recipes.phases.audit import after
from dreamgym.recipes.phases.verifier_audit import real_episodes_json
from dreamgym.recipes.settings import policy_of
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Task, Trajectory


def evaluate_policies(run: RunDir, context: RunContext, names: Sequence[str]) -> None:
    """Greedy and sampled success of each policy in the real environment, on the same held-out tasks for all.

    Where a learned verifier judged a policy's dreams, its verdicts on the sampled episodes are kept beside: they cost no step more.
    """
    if "evaluation" in context.skipped:
        return
    block = context.config.eval
    tasks = context.suite.tasks("test", block.tasks, seed=TASK_SEED)
    for name in names:
        if run.done(f"eval-{name}"):
            continue
        start = time.monotonic()
        rates, episodes, steps = judge_policy(context, name, tasks, block.seed)
        for decoding, those in episodes.items():
            run.episodes(f"eval-{name}-{decoding}", those[:40], completions=False)
        if run.done(name) and "judged_with" in run.data(name):  # a learned verifier judged its dreams, and has seen none of these episodes
            rates["verifiers"] = real_episodes_json(after(run, context, name), episodes["sampled"])
        run.mark(f"eval-{name}", rates | {"real_steps": steps, "seconds": time.monotonic() - start})


def evaluate_policy(path: Path, policy: str | None, *, split: str, tasks: int | None, seed: int) -> dict[str, Any]:
    """Greedy and sampled success of one of a run's policies on a split of its environment's tasks, and the real steps that took.

    By default the policy that came last and is no ablation, and 300 tasks, or fewer where fewer were held out. UsageError for a policy that
    the run does not have, and for more held-out tasks than it kept from logs and curriculum, or any where it kept none.
    """
    context = open_context(path)
    block = context.config.eval
    setting = {"dev": "eval.dev_tasks", "test": "eval.tasks"}.get(split)
    kept_out = {"dev": block.dev_tasks, "test": block.tasks}.get(split)
    if kept_out == 0:
        raise UsageError(
            f"This run kept no {split} tasks away from its training ({setting} = 0), so none is unseen. Set {setting} in a new run, or "
            "give another split."
        )
    if tasks is not None and kept_out is not None and tasks > kept_out:
        kept = counted(kept_out, f"{split} task")
        raise UsageError(f"This run kept {kept} away from its training, and {tasks:,} are asked for. Ask for no more.")
    tasks = tasks or min(300, kept_out or 300)
    name = policy_of(path, policy)
    chosen = context.suite.tasks(split, tasks, seed=TASK_SEED)
    with start_workers(context.config.effective_env, context.suite) as workers:
        rates, _, steps = judge_policy(replace(context, workers=workers), name, chosen, seed)
    return {"policy": name, "split": split, "tasks": len(chosen), **rates, "real_steps": steps}


def judge_policy(
    context: RunContext, name: str, tasks: Sequence[Task], seed: int
) -> tuple[dict[str, Any], dict[str, list[Trajectory]], int]:
    """(the rates of greedy and sampled episodes, the episodes, the real steps that they took)."""
    agent, real, rates, episodes = context.agent(context.load_policy(name)), context.real_env(), {}, {}
    before = real.steps
    for decoding, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        episodes[decoding] = evaluate(
            agent,
            real,
            tasks,
            max_steps=context.suite.max_steps,
            temperature=temperature,
            seed=seed,
            batch=context.suite.max_parallel,
            name=f"{name}/{decoding}",
        )
        rates[decoding] = asdict(success(episodes[decoding]))
    context.close_real()
    return rates, episodes, real.steps - before
