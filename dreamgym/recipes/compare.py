"""`dreamgym compare --config`: several ways to a policy from one start, trained and evaluated over seeds.

Every seed is one run directory. Logs, tokenizer, experience model and warm start are made once in it, and every arm starts from them; an
arm is a phase of that run, so an interrupted comparison goes on where it was, and arms may be added later. Tables are those of
`recipes.comparison`, which reads finished runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dreamgym.envs.worker_pool import WorkerPool
from dreamgym.evals.gap import PREFIX
from dreamgym.recipes import comparison, context, inputs, plan, tables
from dreamgym.recipes.ablations import ablated
from dreamgym.recipes.arms import OFFLINE_ARMS, ablation_arm, arm_of
from dreamgym.recipes.comparison import Entry
from dreamgym.recipes.config import CompareConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.factory import start_workers
from dreamgym.recipes.phases.baselines import converge_sft, train_dpo
from dreamgym.recipes.phases.evaluate import evaluate_policies
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.gap import measure_gap
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.phases.rl import run_ablation, run_rl_phase
from dreamgym.recipes.phases.warm_start import warm_start
from dreamgym.runs.rundir import PROCESS, RunDir

Rows = dict[str, Entry | None]


def run(config: CompareConfig, path: Path, *, latency_s: float, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All arms over all seeds; writes `compare.json` and `compare.md` into `path` and returns what they say.

    `latency_s` is what a real step would take in an environment that is slower than the one at hand. The same call goes on where it was.
    """
    context.silence_progress_bars()
    rows_by_seed: list[tuple[Rows, Rows]] = []
    commits: dict[str, None] = {}
    for seed in config.seeds:
        seed_config = config.model_copy(update={"seed": seed})
        stored = seed_config.model_copy(update={"seeds": (seed,), "arms": (), "ablations": ()})  # it names no arms: others may come later
        opened = context.open_run(path / f"seed-{seed}", stored)
        with opened as directory, start_workers(inputs.located(seed_config, directory.path).effective_env) as workers:
            train_arms(directory, seed_config, say, workers)
            rows_by_seed.append(rows(directory, seed_config))
            commits |= dict.fromkeys(directory.data(PROCESS)["commits"])
    table = {name: (arm_of(name).label, tables.pool([whole[name] for whole, _ in rows_by_seed])) for name in rows_by_seed[0][0]}
    ablated = {}
    for name in rows_by_seed[0][1]:
        arm = ablation_arm(name, config.ablated) if name else arm_of(config.ablated)
        ablated[name] = arm.label, tables.pool([less[name] for _, less in rows_by_seed])
    report = comparison.report_of(
        table, ablated, seeds=list(config.seeds), commit=", ".join(commits), latency_s=latency_s, ablated_arm=config.ablated
    )
    comparison.save(report, path)
    return report


def train_arms(directory: RunDir, config: CompareConfig, say: Callable[[str], None], workers: WorkerPool | None) -> None:
    """What all arms of a seed share, and then every arm and ablation that is not evaluated yet."""
    names = ["warm_start", *config.arms, *([config.ablated] if config.ablations else [])]
    if all(_finished(directory, config, policy) for policy in [*names, *(ablated(config.ablated, name) for name in config.ablations)]):
        return
    context.record_commit(directory)
    say(f"seed {config.seed}: logs{', experience model' if config.dreams else ''} and warm start, once for all arms")
    shared = prepare_logs(directory, config, workers)
    if config.dreams:
        train_experience(directory, shared)
    warm_start(directory, shared)
    evaluate_policies(directory, shared, ["warm_start"])
    loops = {loop.name: loop for loop in plan.loops_of(config)}
    for name in names[1:]:
        train_arm(directory, shared, config, name, say, loops)
    for loop in loops.values():
        if loop.ablation and not _finished(directory, config, loop.name):
            say(f"  {config.ablated} without {loop.ablation}")
            run_ablation(directory, shared, loop)


def _finished(directory: RunDir, config: CompareConfig, policy: str) -> bool:
    """Whether a policy is evaluated, and its gap measured where it has one."""
    has_gap = config.eval.gap_tasks and arm_of(policy).source != "real"
    return directory.done(f"eval-{policy}") and (not has_gap or directory.done(PREFIX + policy))


def rows(directory: RunDir, config: CompareConfig) -> tuple[Rows, Rows]:
    """(the entries of the warm start and of every arm, those of the ablated arm, named "", and of every ablation)."""
    whole = {name: tables.entry(directory, name, arm_of(name)) for name in ("warm_start", *config.arms)}
    if not config.ablations:
        return whole, {}
    less: Rows = {name: tables.ablation(directory, name, config.ablated) for name in config.ablations}
    return whole, {"": tables.entry(directory, config.ablated, arm_of(config.ablated)), **less}


def train_arm(
    directory: RunDir, shared: RunContext, config: CompareConfig, name: str, say: Callable[[str], None], loops: Mapping[str, plan.Loop]
) -> None:
    """Everything from the warm start to the arm's evaluation; whatever is finished is not done again. `loops` are those of the run."""
    if _finished(directory, config, name):
        return
    say(f"  {name}")
    if name in OFFLINE_ARMS:
        converge_sft(directory, shared, config.sft, patience=config.sft_patience)
        if name == "dpo":
            train_dpo(directory, shared, config.dpo)
    for loop in (loops[phase] for phase in arm_of(name).phases if phase in loops):
        run_rl_phase(directory, shared, loop)
    if arm_of(name).source != "real":
        measure_gap(directory, shared, name)
    evaluate_policies(directory, shared, [name])
