"""Co-evolution: the experience model is fitted again, to real episodes of the policy that was trained in it.

Probes (`evals.gap`) are real episodes of the policy, and its dreamed episodes replayed. They hold the states and actions that the policy
visits, which logs need not. They were charged as probes when they were taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dreamgym.envs.base import TextRules, with_reasoning
from dreamgym.experience.augmentation import relabel_goals
from dreamgym.recipes import factory
from dreamgym.recipes.blocks import RefreshConfig
from dreamgym.recipes.context import RunContext
from dreamgym.train import sft
from dreamgym.types import Trajectory


def version_name(experience: str, phase: str, refreshes: int) -> str:
    """The checkpoint of an experience model after that many refreshes in an RL phase."""
    return f"{experience}-{phase}-{refreshes}" if refreshes else experience


def explained(episodes: Sequence[Trajectory], rules: TextRules) -> list[Trajectory]:
    """Real episodes with the scripted teacher's reasoning on every step. Those that broke are left out."""
    return [with_reasoning(episode, rules) for episode in episodes if episode.error is None and episode.turns]


def refit(context: RunContext, probed: Sequence[Trajectory], block: RefreshConfig, name: str) -> dict[str, float]:
    """Fit the experience model `context.experience_checkpoint` to probed episodes and as many tokens of the logs. Save it as checkpoint
    `name`.

    The same arguments give the same weights. Returns the last losses.
    """
    seed = context.config.seed
    tasks = list({t.task.instruction: t.task for t in context.logs}.values())
    fresh = [*probed, *relabel_goals(probed, context.suite.rules, tasks, block.relabelled_goals, seed)]
    logs = [trajectory for trajectory in context.logs if trajectory.turns and trajectory.error is None]
    random.Random(f"refresh/{seed}/{name}").shuffle(logs)
    builder = factory.row_builder(context, factory.replay_in_memory(context, probed))
    rows = builder.episodes(fresh)
    missing = sum(len(row.ids) for row in rows)
    while missing > 0 and logs:  # in chunks, because retrieving for all the logs would take longer than the training
        chunk = [logs.pop() for _ in range(min(64, len(logs)))]
        more = builder.episodes(chunk)
        rows += more
        missing -= sum(len(row.ids) for row in more)
    model: Any = context.load_experience_model(context.experience_checkpoint)
    ids, weights, segments = [row.ids for row in rows], [row.weights for row in rows], [row.segments for row in rows]
    losses = sft.train(model, ids, weights, block.training, seed=seed, segments=segments)
    context.save_experience_model(model, name)
    return losses
