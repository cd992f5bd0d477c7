"""Success on tasks, with Wilson intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from dreamgym.protocols import BatchEnv, Policy
from dreamgym.rollout import rollout
from dreamgym.types import Task, Trajectory


@dataclass(frozen=True)
class Rate:
    """A share of `n` with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]" if self.n else "-"


def wilson(successes: int, n: int, *, confidence: float = 0.95) -> Rate:
    """Wilson's score interval of a proportion (Wilson 1927); (0, 0, 1) for no trials."""
    if n == 0:
        return Rate(0.0, 0.0, 1.0, 0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Rate(p, max(0.0, centre - half), min(1.0, centre + half), n)


def difference(one: Rate, other: Rate) -> tuple[float, float, float]:
    """one - other, with its 95 % interval (Newcombe 1998, method 10: from the two Wilson intervals)."""
    value = one.value - other.value
    low = value - math.hypot(one.value - one.low, other.high - other.value)
    high = value + math.hypot(one.high - one.value, other.value - other.low)
    return value, low, high


def success(trajectories: Sequence[Trajectory]) -> Rate:
    """Share of successful episodes among those that did not fail technically."""
    counted = [t for t in trajectories if t.error is None]
    return wilson(sum(t.success for t in counted), len(counted))


def evaluate(
    agent: Policy,
    env: BatchEnv,
    tasks: Sequence[Task],
    *,
    max_steps: int,
    temperature: float,
    seed: int,
    batch: int = 256,
    name: str = "eval",
) -> list[Trajectory]:
    """One episode per task, in batches; temperature 0 is greedy."""
    episodes: list[Trajectory] = []
    for start in range(0, len(tasks), batch):
        chunk = tasks[start : start + batch]
        episodes += rollout(agent, env, chunk, seed=seed + start, max_steps=max_steps, temperature=temperature, name=f"{name}/{start}")
    return episodes
