"""Co-evolution: where the dream was caught telling stories, the experience model learns from what really happened.

Probes are real episodes: fresh ones of the policy, and its dreams relived (`evals.gap`). They are the very states and actions that the
policy has found, so a few hundred of them are worth more than as many logs. They were charged as probes when they were taken.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dreamgym.experience.coverage import with_other_goals
from dreamgym.protocols import Domain
from dreamgym.recipes import parts as build
from dreamgym.recipes.config import RefreshBlock
from dreamgym.recipes.parts import Parts
from dreamgym.train import sft
from dreamgym.types import Trajectory, Transition


def version_name(experience: str, practice: str, refreshes: int) -> str:
    """The checkpoint of an experience model after so many refreshes within a practice."""
    return f"{experience}-{practice}-{refreshes}" if refreshes else experience


def explained(episodes: Sequence[Trajectory], domain: Domain) -> list[Trajectory]:
    """Real episodes with the scripted teacher's reasoning on every step. Those that broke are left out."""
    return [_explained(episode, domain) for episode in episodes if episode.error is None and episode.turns]


def refit(parts: Parts, probed: Sequence[Trajectory], block: RefreshBlock, name: str) -> dict[str, float]:
    """Fit the experience model `parts.experience` to probed episodes and as many tokens of the logs, and save it as checkpoint `name`.

    The same arguments give the same weights. Returns the last losses.
    """
    seed = parts.config.seed
    tasks = list({t.task.instruction: t.task for t in parts.logs}.values())
    fresh = [*probed, *with_other_goals(probed, parts.family.domain, tasks, block.other_goals, seed)]
    logs = [trajectory for trajectory in parts.logs if trajectory.turns and trajectory.error is None]
    random.Random(f"refresh/{seed}/{name}").shuffle(logs)
    recall = build.recall_of(parts, parts.remembered(probed))
    rows = build.episode_rows(parts, fresh, recall)
    wanted = sum(len(row.ids) for row in rows)
    while wanted > 0 and logs:  # in bites, because retrieving for all the logs would take longer than the training
        bite = [logs.pop() for _ in range(min(64, len(logs)))]
        more = build.episode_rows(parts, bite, recall)
        rows += more
        wanted -= sum(len(row.ids) for row in more)
    model: Any = parts.load(parts.experience)
    ids, weights, segments = [row.ids for row in rows], [row.weights for row in rows], [row.segments for row in rows]
    losses = sft.train(model, ids, weights, block.training, segments=segments)
    parts.save(model, name)
    return losses


def _explained(episode: Trajectory, domain: Domain) -> Trajectory:
    turns, past = [], list[Transition]()
    for turn in episode.turns:
        transition = replace(turn.transition, reasoning=domain.explain(episode.task, past, turn.transition))
        turns.append(replace(turn, transition=transition))
        past.append(transition)
    return replace(episode, turns=tuple(turns))
