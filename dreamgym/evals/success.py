"""Success of a policy on tasks."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.protocols import BatchEnv, Policy
from dreamgym.rollout import rollout
from dreamgym.runs.progress import progress
from dreamgym.statistics import Rate, wilson
from dreamgym.types import Task, Trajectory


def success(trajectories: Sequence[Trajectory]) -> Rate:
    """Share of successful episodes among those that did not fail technically and whose outcome is known."""
    counted = [t for t in trajectories if t.error is None and t.scored]
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
    with progress(len(tasks), name) as advance:
        for start in range(0, len(tasks), batch):
            chunk = tasks[start : start + batch]
            episodes += rollout(agent, env, chunk, seed=seed + start, max_steps=max_steps, temperature=temperature, name=f"{name}/{start}")
            advance(len(chunk))
    return episodes
