"""The gap of a trained policy: its success in the dream and, acting anew, in the real environment, on the same training tasks.

Where a dream draws what the world hides, its actions cannot be repeated in the real environment, as the audit repeats them. The policy can
act there.
"""

from __future__ import annotations

from dataclasses import asdict

from dreamgym.evals.gap import compare_success
from dreamgym.evals.revisit_consistency import revisit_rates
from dreamgym.evals.success import evaluate
from dreamgym.recipes import factory
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.audit import after, trained_on
from dreamgym.runs.rundir import RunDir

KEPT = 40  # episodes of each side that the run keeps


def measure_gap(run: RunDir, context: RunContext, name: str) -> None:
    """The phase `gap`: the policy `name` plays at most `eval.gap_tasks` training tasks once in the dream, with the guard, and once in the
    real environment, sampled. The first episodes are kept as `gap-dream` and `gap-real`."""
    block, suite = context.config.eval, context.suite
    if run.done("gap") or "gap" in context.skipped or not block.gap_tasks:
        return
    tasks, dreams_of = trained_on(run, context, name, block.gap_tasks), after(run, context, name)
    dream, _ = factory.dream(dreams_of, factory.replay_in_memory(dreams_of))
    agent, real = context.agent(context.policy(name)), context.real()
    episodes = {
        kind: evaluate(agent, env, tasks, max_steps=suite.max_steps, temperature=1.0, seed=block.seed, batch=batch, name=f"gap/{kind}")
        for kind, env, batch in (("dream", dream, len(tasks)), ("real", real, suite.max_parallel))
    }
    context.close_real()
    for kind, played in episodes.items():
        run.episodes(f"gap-{kind}", played[:KEPT], completions=False)
    measured = compare_success(episodes["dream"], episodes["real"], seed=block.seed)
    rates = {"revisits": asdict(revisit_rates(episodes["dream"], suite.rules).faithful)} if suite.rules.partially_observed else {}
    run.mark("gap", {"policy": name, **asdict(measured), **rates, "real_steps": sum(len(one.turns) for one in episodes["real"])})
