"""Logs from an environment family's scripted behaviours, in its mix: what a team that holds logs of a mediocre agent would have."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dreamgym.errors import UsageError, nearest
from dreamgym.protocols import Family
from dreamgym.types import Task, Trajectory

Job = tuple[Task, str, int]
"""An episode to be played: its task, the behaviour, and the seed."""
Play = Callable[[Sequence[Job]], list[Trajectory]]


def collect(
    family: Family, n: int, *, seed: int, mix: Mapping[str, float] | None = None, split: str = "train", play: Play | None = None
) -> list[Trajectory]:
    """`n` episodes on distinct tasks of a split where it holds that many, behaviours drawn by `mix`. Deterministic in `seed`.

    `play` plays them elsewhere, as worker processes do (`WorkerPool.behave`); by default they are played here.
    """
    mix = mix or family.behaviours
    if unknown := [name for name in mix if name not in family.behaviours]:
        known = ", ".join(family.behaviours)
        raise UsageError(f"'{family.name}' has no behaviour '{unknown[0]}'.{nearest(unknown[0], family.behaviours)} Known: {known}.")
    if min(mix.values()) < 0 or not any(mix.values()):
        raise UsageError(f"The shares of behaviours are {dict(mix)}: none may be below 0, and not all may be 0.")
    rng = random.Random(f"logs/{seed}")
    tasks = family.tasks(split, n, seed=seed)
    names = rng.choices(list(mix), weights=list(mix.values()), k=n)
    jobs = [(tasks[i % len(tasks)], name, seed + i // len(tasks)) for i, name in enumerate(names)]
    together = sorted(range(n), key=lambda i: i % len(tasks))  # a world that takes long to load is loaded once for all its episodes
    episodes = (play or partial(played, family))([jobs[i] for i in together])
    return [episode for _, episode in sorted(zip(together, episodes, strict=True), key=lambda one: one[0])]


def played(family: Family, jobs: Sequence[Job]) -> list[Trajectory]:
    """The episodes, in order, played in this process."""
    return [family.behave(task, behaviour, seed=seed) for task, behaviour, seed in jobs]
