"""Logs from an environment suite's scripted policies, in its mix: what a team that holds logs of a mediocre agent would have."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dreamgym.envs.base import EnvSuite
from dreamgym.errors import UsageError, nearest
from dreamgym.runs.progress import progress
from dreamgym.types import Task, Trajectory

Job = tuple[Task, str, int]
"""An episode to be played: its task, the behaviour, and the seed."""
Play = Callable[[Sequence[Job]], list[Trajectory]]


def collect(
    suite: EnvSuite,
    n: int,
    *,
    seed: int,
    tasks: int | None = None,
    mix: Mapping[str, float] | None = None,
    split: str = "train",
    play: Play | None = None,
) -> list[Trajectory]:
    """`n` episodes on `tasks` distinct tasks of a split (None: as many as there are, up to one an episode), scripted policies drawn by
    `mix`. Deterministic in `seed`. UsageError for a suite without scripted policies, and for a split without tasks.

    `play` plays them elsewhere, as worker processes do (`WorkerPool.demonstrate`); by default they are played here.
    """
    mix = mix or suite.scripted_policies
    if not mix:
        raise UsageError(
            f"The environment suite '{suite.name}' has no scripted policies to play episodes. Set logs.files to recorded ones; for "
            "`dreamgym fidelity --held-out`, name one of the run's own policies with --policy."
        )
    check_mix(suite, mix)
    rng = random.Random(f"logs/{seed}")
    known = suite.tasks(split, min(n, tasks or n), seed=seed)
    if not known:
        raise UsageError(f"The environment suite '{suite.name}' has no {split} tasks to play episodes on. Take another split.")
    names = rng.choices(list(mix), weights=list(mix.values()), k=n)
    jobs = [(known[i % len(known)], name, seed + i // len(known)) for i, name in enumerate(names)]
    together = sorted(range(n), key=lambda i: i % len(known))  # a world that takes long to load is loaded once for all its episodes
    episodes = (play or partial(played, suite))([jobs[i] for i in together])
    return [episode for _, episode in sorted(zip(together, episodes, strict=True), key=lambda one: one[0])]


def check_mix(suite: EnvSuite, mix: Mapping[str, float]) -> None:
    """UsageError for shares of scripted policies that the suite does not have, or that are no shares. Empty: the suite's own."""
    if unknown := [name for name in mix if name not in suite.scripted_policies]:
        known = ", ".join(suite.scripted_policies)
        raise UsageError(f"'{suite.name}' has no behaviour '{unknown[0]}'.{nearest(unknown[0], suite.scripted_policies)} Known: {known}.")
    if mix and (min(mix.values()) < 0 or not any(mix.values())):
        raise UsageError(f"The shares of scripted policies are {dict(mix)}: none may be below 0, and not all may be 0.")


def played(suite: EnvSuite, jobs: Sequence[Job]) -> list[Trajectory]:
    """The episodes, in order, played in this process."""
    episodes = list[Trajectory]()
    with progress(len(jobs), "scripted episodes") as advance:
        for task, behaviour, seed in jobs:
            episodes.append(suite.demonstrate(task, behaviour, seed=seed))
            advance()
    return episodes
