"""The policy that RL starts from."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dreamgym.errors import UsageError, counted
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.fit import finish, fit
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Trajectory

log = logging.getLogger(__name__)


def warm_start(run: RunDir, context: RunContext, *, start: str = "experience") -> None:
    """The policy that RL starts from: the experience model's weights (or those of another checkpoint), or a backbone, fitted to
    the successful logs."""
    if run.done("warm_start"):
        return
    model = context.policies.initial_model(context.checkpoint(start))
    if not context.config.warm_start.epochs:
        context.save_policy(model, "warm_start")
        run.mark("warm_start", {"demonstrations": 0, "tokens": 0, "seconds": 0.0})
        return
    ids, weights = demonstrations(context)
    losses = fit(run, "warm_start", model, ids, weights, context.config.warm_start, seed=context.config.seed)
    context.save_policy(model, "warm_start")
    finish(run, "warm_start", losses | {"demonstrations": len(ids), "tokens": sum(len(row) for row in ids)})


def demonstrations(context: RunContext) -> tuple[list[list[int]], list[list[float]]]:
    """Ids and weights of every successful logged episode that the policy can be shown, as it reads it."""
    shown, _ = showable(context, _wins(context))
    rows = [row for episode in shown for row in context.policies.demonstrations(episode)]
    return [ids for ids, _ in rows], [weights for _, weights in rows]


def check_demonstrations(context: RunContext) -> None:
    """Say before anything is fitted which successes the policy cannot be shown. UsageError where it can be shown none."""
    shown, why = showable(context, wins := _wins(context))
    if wins and not shown:
        raise UsageError(
            f"{why}, and no success is left without them. Expected calls with JSON objects as arguments, or texts without tags such as "
            "<action> and <think>. Repair the logs, or set policy.tool_calls = 'text' where the environment has tools."
        )
    if why:
        log.warning("%s. The policy is not shown them; the experience model learns from them.", why)


def showable(context: RunContext, episodes: Sequence[Trajectory]) -> tuple[list[Trajectory], str]:
    """(the episodes whose actions the policy's template can write, how many are not so and the first of their actions; "" for none)."""
    shown, first = list[Trajectory](), ""
    for episode in episodes:
        action = context.policies.unwritable(episode)
        if action is None:
            shown.append(episode)
        else:
            first = first or f"{action!r:.200} of '{episode.id}'"
    gone = len(episodes) - len(shown)
    return shown, first and (
        f"{counted(gone, 'episode holds', 'episodes hold')} an action that the policy's chat template cannot write and read back, of "
        f"{len(episodes):,} (the first: {first})"
    )


def _wins(context: RunContext) -> list[Trajectory]:
    return [episode for episode in context.logs if episode.success and episode.error is None]
