"""Logs from an environment family's scripted behaviours, in its mix: what a team that holds logs of a mediocre agent would have."""

from __future__ import annotations

import random
from collections.abc import Mapping

from dreamgym.errors import UsageError, nearest
from dreamgym.protocols import Family
from dreamgym.types import Trajectory


def collect(family: Family, n: int, *, seed: int, mix: Mapping[str, float] | None = None, split: str = "train") -> list[Trajectory]:
    """`n` episodes on distinct tasks of a split where it holds that many, behaviours drawn by `mix`. Deterministic in `seed`."""
    mix = mix or family.behaviours
    if unknown := [name for name in mix if name not in family.behaviours]:
        known = ", ".join(family.behaviours)
        raise UsageError(f"'{family.name}' has no behaviour '{unknown[0]}'.{nearest(unknown[0], family.behaviours)} Known: {known}.")
    if min(mix.values()) < 0 or not any(mix.values()):
        raise UsageError(f"The shares of behaviours are {dict(mix)}: none may be below 0, and not all may be 0.")
    rng = random.Random(f"logs/{seed}")
    tasks = family.tasks(split, n, seed=seed)
    names = rng.choices(list(mix), weights=list(mix.values()), k=n)
    return [family.behave(tasks[i % len(tasks)], name, seed=seed + i // len(tasks)) for i, name in enumerate(names)]
