"""The policy that RL starts from."""

from __future__ import annotations

from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.fit import finish, fit
from dreamgym.runs.rundir import RunDir


def warm_start(run: RunDir, context: RunContext, *, start: str = "experience") -> None:
    """The policy that RL starts from: the experience model's weights (or those of another checkpoint), or a backbone, fitted to
    the successful logs."""
    if run.done("warm_start"):
        return
    model = context.policies.first(context.checkpoint(start))
    if not context.config.warm_start.epochs:
        context.save_policy(model, "warm_start")
        run.mark("warm_start", {"demonstrations": 0, "tokens": 0, "seconds": 0.0})
        return
    ids, weights = demonstrations(context)
    losses = fit(run, "warm_start", model, ids, weights, context.config.warm_start, seed=context.config.seed)
    context.save_policy(model, "warm_start")
    finish(run, "warm_start", losses | {"demonstrations": len(ids), "tokens": sum(len(row) for row in ids)})


def demonstrations(context: RunContext) -> tuple[list[list[int]], list[list[float]]]:
    """Ids and weights of every successful logged episode, as the policy reads it."""
    shown = [episode for episode in context.logs if episode.success and episode.error is None]
    rows = [row for episode in shown for row in context.policies.demonstrations(episode)]
    return [ids for ids, _ in rows], [weights for _, weights in rows]
