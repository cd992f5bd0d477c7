"""Dreams of a run without an environment: recorded episodes repeated in them, and the success of policies, which nothing real confirms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from dreamgym.evals.attribution import shares
from dreamgym.evals.recorded_actions import repeat
from dreamgym.evals.success import evaluate, success
from dreamgym.recipes import factory
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.audit import after, attribution, trained_on
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import wilson

MOST = 64  # recorded successes that are repeated in the dream, and failures


def repeat_recorded(run: RunDir, context: RunContext) -> None:
    """The phase `recorded_replay`: recorded successes and failures of the training tasks, their actions taken again in the dream."""
    if run.done("recorded_replay") or context.suite.has_env or not context.config.dreams:
        return
    chosen = [
        *islice((t for t in context.logs if t.scored and t.success), MOST),
        *islice((t for t in context.logs if t.scored and not t.success), MOST),
    ]
    dream, _ = factory.make_dream(context, factory.replay_in_memory(context))
    run.mark("recorded_replay", asdict(repeat(chosen, dream, context.suite.rules, seed=context.config.eval.seed)))


def contradicts_its_logs(run: RunDir) -> str:
    """Why a policy should not be trained in the dream of a run without an environment; "" where nothing speaks against it. A success that
    was left out did not succeed there: RL would not see it either."""
    replay: dict[str, Any] = run.data("recorded_replay") if run.done("recorded_replay") else {"successes_reproduced": {"n": 0}}
    reproduced, left_out = replay["successes_reproduced"], replay.get("successes_left_out", 0)
    n: int = reproduced["n"] + left_out
    succeeded = wilson(round(reproduced["value"] * reproduced["n"]) if reproduced["n"] else 0, n)
    if not n or succeeded.high >= 0.5:
        return ""
    masked = f" ({left_out} were masked or could not be read)" if left_out else ""
    return (
        f"of {n} recorded successes {100 * succeeded.value:.0f} % succeed when their actions are taken again in the dream{masked}, so that "
        "RL in it would unlearn what was right"
    )


def dream_uncertified(run: RunDir, context: RunContext, policies: Sequence[str]) -> None:
    """The phase `uncertified`: each policy's sampled success in the dream, with the guard, on training tasks; at most
    `eval.uncertified_dreams` of them. The episodes are kept as `uncertified-<policy>`."""
    block = context.config.eval
    if run.done("uncertified") or context.suite.has_env or not block.uncertified_dreams:
        return
    tasks = trained_on(run, context, policies[-1], block.uncertified_dreams)
    context = after(run, context, policies[-1])
    by_policy: dict[str, Any] = {}
    for name in policies:
        dream, _ = factory.make_dream(context, factory.replay_in_memory(context))
        agent = context.agent(context.load_policy(name))
        episodes = evaluate(
            agent, dream, tasks, max_steps=context.suite.max_steps, temperature=1.0, seed=block.seed, name=f"uncertified/{name}"
        )
        by_policy[name] = {
            "uncertified_dream_success": asdict(success(episodes)),
            "masked": sum(episode.masked for episode in episodes),
            "failed_rollouts": sum(episode.error is not None for episode in episodes),
            "decided_by": shares(attribution(episodes).to_json()),
        }
        run.episodes(f"uncertified-{name}", episodes, completions=False)
    run.mark("uncertified", by_policy)
