"""The quickstart: every phase in order, the results table, and the checks that no phase did nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dreamgym.errors import InvariantError
from dreamgym.recipes import context, inputs, plan, tables
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.factory import start_workers
from dreamgym.recipes.gains import gains
from dreamgym.recipes.phases.audit import audit
from dreamgym.recipes.phases.baselines import converge_sft
from dreamgym.recipes.phases.evaluate import evaluate_policies
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.gap import measure_gap
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.phases.rl import failures, had_gradient, run_ablation, run_rl_phase
from dreamgym.recipes.phases.warm_start import warm_start
from dreamgym.runs.rundir import RunDir

ROWS = ("warm_start", "sft", "dream", "s2r", "real_only", "real_equal")
BEGINNINGS = {
    "dream": "4/7 dream: {} inside the experience model, without one real training step",
    "s2r": "5/7 sim-to-real: {} in the real environment from the dream's policy, a small budget",
    "real_only": "   real only: {} in the real environment from the warm start, a large budget",
    "real_equal": "   real only, equal budget: {} in the real environment, with the dream's transitions and optimiser steps",
}
"""What is printed when a loop begins; {} is its algorithm."""


def run_seeds(config: RunConfig, path: Path, *, budget: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """One run per seed, each in its own directory when there are several, and a summary over all of them."""
    if len(config.seeds) == 1:
        return run_one(config.model_copy(update={"seed": config.seeds[0]}), path, budget=budget, say=say)
    summaries = []
    for seed in config.seeds:
        seed_config = config.model_copy(update={"seed": seed, "seeds": (seed,)})
        summaries.append(run_one(seed_config, path / f"seed-{seed}", budget=budget, say=say))
    with context.open_run(path / "all", config) as run:
        summary = pooled(summaries)
        run.write_summary(summary)
    return summary


def run_one(config: RunConfig, path: Path, *, budget: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All phases of one seed in one run directory. The same call on the same directory resumes."""
    context.silence_progress_bars()
    with context.open_run(path, config) as run, start_workers(inputs.located(config, path).effective_env) as workers:
        context.record_commit(run)
        context.report_changed_settings(run, say)
        say("1/7 logs: scripted policies of mixed skill in the real environment")
        shared = prepare_logs(run, config, workers)
        say("2/7 experience model: reasoning, next state, reward and end, from whole logged trajectories (Eq. 5)")
        train_experience(run, shared)
        say("3/7 warm start: the policy imitates the successful logs")
        warm_start(run, shared)
        rows = ["warm_start"]
        if config.sft.epochs:
            say("   SFT: the same logs until success on development tasks stops rising")
            converge_sft(run, shared, config.sft, patience=config.sft_patience)
            rows.append("sft")
        loops = list(plan.loops_of(config))
        for loop in (loop for loop in loops if not loop.ablation):
            say(BEGINNINGS[loop.name].format(loop.block.algorithm.name))
            run_rl_phase(run, shared, loop)
            rows.append(loop.name)
        say("6/7 evaluation: held-out tasks in the real environment, the same for every row")
        evaluate_policies(run, shared, rows)
        say("7/7 audit: the trained policy in the dream and in the real environment")
        audit(run, shared, "dream")
        measure_gap(run, shared, "dream")
        for loop in (loop for loop in loops if loop.ablation):
            say(f"   ablation: the dream without {loop.ablation}, from the same warm start at the same budget")
            run_ablation(run, shared, loop)
        summary = summarise(run, shared, config, budget)
        run.write_summary(summary)
        require_work(run, shared, config)
    return summary


def summarise(run: RunDir, shared: RunContext, config: RunConfig, budget: str) -> dict[str, Any]:
    """summary.json: one entry per row of the table, real transitions by kind, and the audit."""
    measured = {"ablations": {name: tables.ablation(run, name) for name in config.ablations}}
    measured |= {phase: run.data(phase) for phase in ("audit", "experience") if run.done(phase)}
    measured |= {"gap": run.data("gap-dream")} if run.done("gap-dream") else {}
    about = tables.about(run, [config.seed]) | {"budget": budget, "skipped": shared.skipped}
    table = tables.table(run, ROWS)
    return table | {"gains": gains(table, measured["ablations"].get("model"))} | measured | about


def pooled(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Several seeds as one summary: episodes pooled, with each seed's own value beside them."""
    rows: dict[str, Any] = {row: tables.pool([summary[row] for summary in summaries]) for row in ROWS}
    last = summaries[-1]
    rows["ablations"] = {name: tables.pool([summary["ablations"][name] for summary in summaries]) for name in last["ablations"]}
    rows["gains"] = gains({row: rows[row] for row in ROWS}, rows["ablations"].get("model"))
    return rows | {
        **{phase: [summary[phase] for summary in summaries if phase in summary] for phase in ("audit", "gap")},
        "skipped": last["skipped"],
        "seeds": [seed for summary in summaries for seed in summary["seeds"]],
        "commit": ", ".join(dict.fromkeys(summary["commit"] for summary in summaries)),
        "budget": last["budget"],
        "peak_rss_mb": max(summary["peak_rss_mb"] for summary in summaries),
    }


def require_work(run: RunDir, shared: RunContext, config: RunConfig) -> None:
    """InvariantError when a phase ran and did nothing."""
    dream = run.data("dream")
    problems = []
    if errors := failures(run, "dream"):
        problems.append(f"every rollout of the dream failed, most of the first with: {errors.most_common(1)[0][0]}")
    elif config.dream.iterations and not had_gradient(run, "dream"):
        problems.append("no dream iteration had a gradient: every group was all success or all failure")
    if config.dream.iterations and not dream["replay"]["dream"]:
        problems.append("the replay buffer did not grow: no dreamed transition passed the guard")
    has_room = int(config.dream.tasks_per_iter * config.dream.curriculum.synthetic_share) > 0  # also where no refill was needed
    invents = has_room and "curriculum.synthetic_share" not in config.unread(config.dream)
    if invents and config.dream.iterations and not dream["curriculum"].get("proposed"):
        problems.append("the curriculum proposed nothing: no group had any variance of returns")
    if "probes" not in shared.skipped and 0 < config.dream.probe_every <= dream["iterations"] and not dream["probe_steps"]:
        problems.append("the gap meter never probed the real environment")
    if problems:
        raise InvariantError(f"'{run.path}' finished, but " + "; ".join(problems) + f". Look at {run.path}/metrics.jsonl.")
