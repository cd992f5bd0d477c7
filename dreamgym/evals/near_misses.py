"""Near misses, labelled by the real environment: actions that differ little from a valid one and that it refuses.

The rules of the environment say in which ways an action misses by little (`TextRules.near_misses`) and what a refusal is
(`TextRules.refused`). Scripted policies miss in other ways (`envs.webshop.scripted_policies.invalid`), and so does the augmentation of the
training rows (`experience.augmentation.insert_invalid_actions`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dreamgym.envs.base import TextRules
from dreamgym.envs.near_misses import Miss
from dreamgym.protocols import RealEnv
from dreamgym.types import Action, Trajectory, Transition


@dataclass(frozen=True)
class NearMiss:
    """An action at step `step` of `episode` that the real environment refuses, and what it answered."""

    episode: int
    step: int
    way: str
    truth: Transition


@dataclass(frozen=True)
class Drawn:
    """Near misses, and how many tries the environment took for something else: they are dropped."""

    misses: list[NearMiss]
    took_effect: int  # the action did something after all
    lost: int  # the episode could not be repeated up to that step


def draw(episodes: Sequence[Trajectory], real: RealEnv, rules: TextRules, *, share: float, seed: int) -> Drawn:
    """One near miss at about `share` of the steps of real episodes, each tried in the real environment after the steps before it."""
    rng = random.Random(f"near-misses/{seed}")
    ways = rules.near_misses(episodes)
    tries: list[tuple[int, int, str, Action]] = []
    for i, episode in enumerate(episodes):
        for step in range(len(episode.turns)):
            if rng.random() < share and (found := _missed(ways, episode, step, rng)):
                way, action = found
                tries.append((i, step, way, rules.canonical(action)))
    walks = real.repeat(
        [(episodes[i].task, [*(past.action for past in episodes[i].transitions[:step]), action]) for i, step, _, action in tries]
    )
    misses, took_effect, lost = list[NearMiss](), 0, 0
    for (i, step, way, _), walk in zip(tries, walks, strict=True):
        if walk is None or len(walk) <= step or walk[step].state != episodes[i].transitions[step].state:
            lost += 1
        elif rules.refused(walk[step]):
            misses.append(NearMiss(i, step, way, walk[step]))
        else:
            took_effect += 1
    return Drawn(misses, took_effect, lost)


def _missed(ways: Mapping[str, Miss], episode: Trajectory, step: int, rng: random.Random) -> tuple[str, Action] | None:
    """A way of missing and its action; None where no way has any at this step."""
    left = list(ways)
    while left:
        way = left.pop(rng.randrange(len(left)))
        if action := ways[way](episode, step, rng):
            return way, action
    return None
