"""Logs from an environment suite's scripted policies, in its mix: what a team that holds logs of a mediocre agent would have."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dreamgym.envs.base import EnvSuite, attempt
from dreamgym.errors import EnvironmentFailure, UsageError, counted, nearest
from dreamgym.runs.progress import progress
from dreamgym.types import Task, Trajectory

Job = tuple[Task, str, int]
"""An episode to be played: its task, the behaviour, and the seed."""
Play = Callable[[Sequence[Job]], list[Trajectory]]
"""Plays jobs: an episode for each, in order. One that the environment fails in carries the `error`."""
FIRST = 10
"""Episodes, and tasks, after which an environment that failed in all of them is given up."""
log = logging.getLogger(__name__)


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
    `mix`. Deterministic in `seed`, less those that the environment failed in (`without_failed`). UsageError for a suite without scripted
    policies, and for a split without tasks.

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
    episodes = play_failing_fast(play or partial(played, suite), [jobs[i] for i in together])
    return without_failed([episode for _, episode in sorted(zip(together, episodes, strict=True), key=lambda one: one[0])])


def play_failing_fast(play: Play, jobs: Sequence[Job]) -> list[Trajectory]:
    """The episodes, in order. EnvironmentFailure before the others are played, where the environment fails in each of the first ones, which
    are of as many tasks as `FIRST`, or of all there are: a few broken tasks may come first."""
    ids = [task.id for task, *_ in jobs]
    tasks, seen, first = min(FIRST, len(set(ids))), set[str](), 0
    while first < len(jobs) and (first < FIRST or len(seen) < tasks):
        seen.add(ids[first])
        first += 1
    episodes = play(jobs[:first])
    if all(episode.error is not None for episode in episodes):
        without_failed(episodes)  # all failed, which it says by raising
    return episodes + play(jobs[first:]) if first < len(jobs) else episodes


def without_failed(episodes: Sequence[Trajectory]) -> list[Trajectory]:
    """The episodes that the environment did not fail in; a warning says how many are left out, and why the first one is.
    EnvironmentFailure where those are more than half."""
    failed = [episode for episode in episodes if episode.error is not None]
    if not failed:
        return list(episodes)
    what = f"The environment failed in {len(failed):,} of {counted(len(episodes), 'scripted episode')}"
    first = f"The first is '{failed[0].id}': {failed[0].error}"
    if 2 * len(failed) > len(episodes):
        raise EnvironmentFailure(f"{what}, which are too many to go on. See to it, then give the same command again. {first}")
    log.warning("%s, which are left out. %s", what, first)
    return [episode for episode in episodes if episode.error is None]


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
            episodes.append(attempt(suite, task, behaviour, seed=seed))
            advance()
    return episodes
