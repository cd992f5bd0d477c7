"""The gap of a trained policy: its success in the dream and, acting anew, in the real environment, on the same training tasks.

Where a dream draws what the world hides, its actions cannot be repeated in the real environment, as the audit repeats them. The policy can
act there.
"""

from __future__ import annotations

from dataclasses import asdict

from dreamgym.evals.gap import PREFIX, compare_success
from dreamgym.evals.paired_replay import replay, summarise
from dreamgym.evals.revisit_consistency import revisit_rate
from dreamgym.evals.success import evaluate
from dreamgym.recipes import factory
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.audit import after, trained_on
from dreamgym.runs.rundir import RunDir

KEPT = 40  # episodes of each side that the run keeps


def measure_gap(run: RunDir, context: RunContext, name: str) -> None:
    """The phase `gap-<name>`: that policy plays at most `eval.gap_tasks` training tasks once in the dream, with the guard, and once in the
    real environment, sampled. The first episodes are kept as `gap-<name>-dream` and `-real`. Where an environment hides things, the policy
    also plays in the control's dream without a model, which says whether its dreams contradict themselves more often. Elsewhere, if
    `eval.paired_replays` is above 0, the actions of its dreams are repeated in the real environment, which says how many of the dreamed
    successes are false."""
    phase, block, suite = PREFIX + name, context.config.eval, context.suite
    if run.done(phase) or "gap" in context.skipped or not block.gap_tasks:
        return
    tasks, dreams_of = trained_on(run, context, name, block.gap_tasks), after(run, context, name)
    hides = suite.rules.partially_observed
    dreams = {"dream": dreams_of}
    if hides and "k" in context.config.experience.settings:
        dreams["control"] = dreams_of.without("model")
    agent, real = context.agent(context.load_policy(name)), context.real_env()
    envs = {env_name: (factory.make_dream(of, factory.replay_in_memory(of))[0], len(tasks)) for env_name, of in dreams.items()}
    episodes = {
        env_name: evaluate(
            agent, env, tasks, max_steps=suite.max_steps, temperature=1.0, seed=block.seed, batch=batch, name=f"gap/{env_name}"
        )
        for env_name, (env, batch) in (envs | {"real": (real, suite.max_parallel)}).items()
    }
    replays = replay(episodes["dream"], real) if block.paired_replays and not hides else []
    context.close_real()
    revisits = {env_name: asdict(revisit_rate(episodes[env_name], suite.rules)) for env_name in dreams} if hides else {}
    control = {"revisits_no_model": revisits["control"]} if "control" in revisits else {}
    for env_name, played in episodes.items():
        run.episodes(f"{phase}-{env_name}", played[:KEPT], completions=False)
    measured = compare_success(episodes["dream"], episodes["real"])
    rates = {"revisits": revisits["dream"], **control} if hides else {"accepted_false": asdict(summarise(replays).accepted_false)}
    real_steps = sum(len(episode.turns) for episode in episodes["real"]) + sum(one.steps for one in replays)
    run.mark(phase, {"policy": name, **asdict(measured), **rates, "real_steps": real_steps})
