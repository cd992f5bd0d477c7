"""Dreams under the policies of a run without an environment. Their success is uncertified: nothing real confirms it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dreamgym.evals.attribution import shares
from dreamgym.evals.success import evaluate, success
from dreamgym.recipes import factory
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.audit import after, attribution, trained_on
from dreamgym.runs.rundir import RunDir


def dream_uncertified(run: RunDir, context: RunContext, policies: Sequence[str]) -> None:
    """The phase `uncertified`: each policy's sampled success in the dream, with the guard, on training tasks; at most
    `eval.paired_replays` of them. The episodes are kept as `uncertified-<policy>`."""
    block = context.config.eval
    if run.done("uncertified") or context.suite.has_env or not block.paired_replays:
        return
    tasks = trained_on(run, context, policies[-1], block.paired_replays)
    context = after(run, context, policies[-1])
    found: dict[str, Any] = {}
    for name in policies:
        dream, _ = factory.dream(context, factory.replay_in_memory(context))
        agent = context.agent(context.policy(name))
        episodes = evaluate(
            agent, dream, tasks, max_steps=context.suite.max_steps, temperature=1.0, seed=block.seed, name=f"uncertified/{name}"
        )
        found[name] = {
            "uncertified_dream_success": asdict(success(episodes)),
            "masked": sum(episode.masked for episode in episodes),
            "failed_rollouts": sum(episode.error is not None for episode in episodes),
            "decided_by": shares(attribution(episodes).to_json()),
        }
        run.episodes(f"uncertified-{name}", episodes, completions=False)
    run.mark("uncertified", found)
