"""What the curriculum's synthetic tasks are worth: how many proposals are new tasks, and how many accepted ones can really be done.

The curriculum sees texts alone, so it may accept what the world does not hold. Where `EnvSuite.can_ground_tasks`, the expert tries the
synthetic tasks in the real environment, and real training tasks beside them: what the expert misses of those, it misses for want of skill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dreamgym.envs.base import EnvSuite
from dreamgym.statistics import Rate, wilson
from dreamgym.types import Task, Trajectory

ATTEMPTS = 3
"""Scripted experts search with some luck: a task is solvable when one of these episodes solves it."""
TRIED = 200
"""Inventions that are tried, and as many real tasks."""
EXPERT = "expert"

Demonstrate = Callable[[Sequence[tuple[Task, str, int]]], list[Trajectory]]
"""(task, behaviour, seed) of each episode -> the episodes; `recipes.context.RunContext.demonstrate`."""


@dataclass(frozen=True)
class SyntheticTasks:
    """Rates with 95 % intervals."""

    new: Rate
    """Of the proposals, those worded as a task that was neither known nor held out."""
    accepted: Rate
    """Of the proposals, those that memory did not speak against either."""
    solved: Rate
    """Of the accepted, those that the expert solves in the real environment; one that nothing real meets is not solved. One that the
    environment failed in at every attempt is not counted."""
    real_solved: Rate
    """The same of real training tasks."""
    real_steps: int


def measure_synthetic_tasks(
    counts: Mapping[str, int], instructions: Sequence[str], real: Sequence[Task], suite: EnvSuite, demonstrate: Demonstrate
) -> SyntheticTasks:
    """Measure proposals by the curriculum's `counts`, and up to TRIED of the accepted instructions, evenly taken, by the expert."""
    proposed = counts.get("proposed", 0)
    old = sum(counts.get(reason, 0) for reason in ("malformed", "duplicate", "held_out"))
    tasks = [Task(f"synthetic/{i}", text, real[0].env, source="synthetic") for i, text in enumerate(evenly(instructions))] if real else []
    met = [found for task in tasks if (found := suite.ground_task(task))]
    solved, played, steps = _solved(met, demonstrate)
    usual, known, more = _solved(real[:TRIED], demonstrate)
    return SyntheticTasks(
        wilson(proposed - old, proposed),
        wilson(counts.get("accepted", 0), proposed),
        wilson(solved, len(tasks) - len(met) + played),
        wilson(usual, known),
        steps + more,
    )


def evenly(instructions: Sequence[str]) -> list[str]:
    """Up to TRIED of them, taken at even distances."""
    n = len(instructions)
    return [instructions[i * n // TRIED] for i in range(TRIED)] if n > TRIED else list(instructions)


def _solved(tasks: Sequence[Task], demonstrate: Demonstrate) -> tuple[int, int, int]:
    """(tasks that an attempt of the expert solves, tasks with an attempt that the environment did not fail in, the real steps of all)."""
    episodes = demonstrate([(task, EXPERT, attempt) for task in tasks for attempt in range(ATTEMPTS)])
    won = {episode.task.id for episode in episodes if episode.success}
    return len(won), len({episode.task.id for episode in episodes}), sum(len(episode.turns) for episode in episodes)
