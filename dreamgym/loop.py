"""The method on one page (DreamGym, arXiv:2511.03773, section 4.3).

`train` receives its collaborators and names no concrete class. Where experience comes from is `collect`'s affair: a dream, the
real environment, or many machines. Sim-to-real is this function called a second time with another `collect` and no invented tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dreamgym.protocols import Curriculum, Learner
from dreamgym.rollout import group_by_task
from dreamgym.types import Task, Trajectory

Collect = Callable[[Sequence[Task], int], list[Trajectory]]
"""(tasks, iteration) -> one trajectory per task, by the current policy; whole groups of further tasks may follow."""

OnIteration = Callable[[int, list[Trajectory], dict[str, float]], bool]
"""(iteration, trajectories, metrics) -> whether to stop. Logs, evaluates, probes the real environment, checkpoints."""


def train(
    *,
    curriculum: Curriculum,
    collect: Collect,
    learner: Learner,
    remember: Callable[[Sequence[Trajectory]], int],
    start: int,
    iterations: int,
    tasks_per_iter: int,
    group_size: int,
    on_iteration: OnIteration,
) -> None:
    """Iterations `start` to `iterations` - 1 of: sample tasks, roll out, update, remember, expand."""
    for i in range(start, iterations):
        tasks = [task for task in curriculum.sample(tasks_per_iter) for _ in range(group_size)]
        trajectories = collect(tasks, i)
        groups = group_by_task(trajectories, group_size)
        metrics = learner.update(groups)  # the gradient step
        metrics["remembered"] = float(remember(trajectories))  # the buffer grows with the policy, past the guard
        metrics |= curriculum.observe(groups)  # reward variance per task, Eq. 7
        metrics |= {f"tasks_{name}": float(n) for name, n in curriculum.expand().items()}  # new variations of valuable tasks, Eq. 6
        if on_iteration(i, trajectories, metrics):
            return
