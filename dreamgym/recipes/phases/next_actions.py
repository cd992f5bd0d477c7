"""The phase `next_actions` of a run without an environment: whether its policies act on tasks that they have not seen as the logs do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.evals.next_actions import compare_actions, identifier_arguments
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.fidelity import recorded_episodes
from dreamgym.recipes.phases.warm_start import showable
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Trajectory

MOST = 64  # recorded successes that were held out, and as many of the training tasks


def measure_next_actions(run: RunDir, context: RunContext, policies: Sequence[str]) -> None:
    """Compare the next actions of each policy with those of recorded successes, held out and trained on; once."""
    if run.done("next_actions") or context.suite.has_env:
        return
    measured = dict[str, Any]()
    chosen = {"held_out": _held_out(context), "training": _successes(context, context.logs)}
    if chosen["held_out"]:
        known = identifier_arguments(context.logs, context.suite.rules)
        for policy in policies:
            agent = context.agent(context.load_policy(policy))
            measured[policy] = {
                which: compare_actions(agent, episodes, known, name=f"next actions/{policy}/{which}").to_json()
                for which, episodes in chosen.items()
            }
    run.mark("next_actions", {"held_out_by": run.data("logs").get("held_out_by", "task"), "by_policy": measured})


def _held_out(context: RunContext) -> list[Trajectory]:
    try:
        return _successes(context, recorded_episodes(context, len(context.logs)))
    except UsageError:  # none was held out
        return []


def _successes(context: RunContext, episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """At most `MOST` successes that the policy's template can write, drawn the same way each time."""
    won = [episode for episode in episodes if episode.scored and episode.success and episode.error is None and episode.turns]
    random.Random("next actions").shuffle(won)
    return showable(context, won)[0][:MOST]
