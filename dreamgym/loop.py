"""The method on one page (DreamGym, arXiv:2511.03773, section 4.3).

`train` receives its collaborators and names no concrete class. `collect` decides where experience comes from: a dream, the real
environment, or many machines. Sim-to-real is this function called a second time with another `collect` and no synthetic tasks.

With `prefetch`, rollouts are one iteration ahead of the learner: those of the next iteration are started, by the weights as they are,
before the gradient step, and played during it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dreamgym.protocols import Curriculum, Learner
from dreamgym.types import Task, Trajectory

Collect = Callable[[Sequence[Task], int], list[list[Trajectory]]]
"""(tasks, iteration) -> a group of rollouts per task, by the current policy; it may append groups of further tasks."""

Prefetch = Callable[[Sequence[Task], int], None]
"""(tasks, iteration): starts the rollouts that `collect` returns for that iteration. Where it starts none, or what it started is discarded,
`collect` rolls out the tasks that it is called with, which were sampled when all before was known."""

OnIteration = Callable[[int, list[Trajectory], dict[str, float]], bool]
"""(iteration, trajectories, metrics) -> whether to stop. It logs, evaluates, probes the real environment and saves checkpoints."""


def train(
    *,
    curriculum: Curriculum,
    collect: Collect,
    learner: Learner,
    remember: Callable[[Sequence[Trajectory]], int],
    start: int,
    iterations: int,
    tasks_per_iter: int,
    on_iteration: OnIteration,
    prefetch: Prefetch | None = None,
) -> None:
    """Iterations `start` to `iterations` - 1 of: sample tasks, roll out, update, remember, expand."""
    for i in range(start, iterations):
        groups = collect(curriculum.sample(tasks_per_iter), i)
        if prefetch and i + 1 < iterations:
            prefetch(curriculum.sample(tasks_per_iter, after=[group[0].task for group in groups if group]), i + 1)
        metrics = learner.update(groups)  # the gradient step
        trajectories = [trajectory for group in groups for trajectory in group]
        metrics["replay_added"] = float(remember(trajectories))  # only transitions that the guard accepted enter the buffer
        metrics |= curriculum.observe(groups)  # reward variance per task, Eq. 7
        metrics |= {f"tasks_{name}": float(n) for name, n in curriculum.expand().items()}  # variations of tasks of high value, Eq. 6
        if on_iteration(i, trajectories, metrics):
            return
