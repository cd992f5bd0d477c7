"""Durable logs of experience, one per file, made by `make(path=..., encoder=..., dim=..., **config)`. All follow the contract `Store`.

A row is one admitted transition with its vector. Rows are numbered from 1 in the order they were added; the number of the last
one is the log's `last_row`, which a checkpoint stores. Reading a row gives the same `Memory` as writing it did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dreamgym import plugins
from dreamgym.errors import RunDirError, UsageError
from dreamgym.runs.files import without_lone_surrogates
from dreamgym.types import Memory, Trajectory

HalfVectors = NDArray[np.float16]
LARGEST = 2**63  # what 64 bits hold


@dataclass(frozen=True, slots=True)
class Entry:
    """One trajectory to log: which of its turns are admitted, and their vectors."""

    trajectory: Trajectory
    steps: tuple[int, ...]  # positions in `trajectory.turns`
    vectors: HalfVectors  # [len(steps), dim]


class Store(Protocol):
    """Owns the file. An `append` that returned survives the death of the process."""

    encoder: str  # id of what made the vectors
    dim: int

    def __len__(self) -> int:
        """Rows in use."""
        ...

    @property
    def last_row(self) -> int:
        """Number of the last row, evicted or not; 0 when empty."""
        ...

    def append(self, entries: Sequence[Entry]) -> list[Memory]:
        """Log all entries or none; the memories carry the row numbers they were given."""
        ...

    def rows(self, after: int = 0) -> Iterator[tuple[list[Memory], HalfVectors]]:
        """Rows in use with a number above `after`, in order, in pages: memories and their vectors [n, dim]."""
        ...

    def hide_after(self, row: int) -> int:
        """Undo everything after `row` was added; returns how many evicted rows are in use again."""
        ...

    def evict(self, rows: Sequence[int]) -> None:
        """Take rows out of use for good, unless `hide_after` goes back to before they were."""
        ...

    def close(self) -> None: ...


def open_to_read(path: Path) -> Store:
    """The log at `path`, whatever built it: a folder is LanceDB's, a file is SQLite's, which is opened so that it cannot be written."""
    if path.is_dir() and not any(path.glob("*.lance")):
        raise RunDirError(f"'{path}' is a folder, and no replay log. Expected a file such as runs/quickstart/replay/dream.sqlite.")
    store = ("lance", {}) if path.is_dir() else ("sqlite", {"read_only": True})
    found: Store = plugins.make("replay.stores", store[0], path=path, **store[1])
    return found


def check(trajectory: Trajectory) -> None:
    """UsageError for what no log can hold: ids and texts that are not strings, rewards and versions that are no finite 64-bit numbers."""
    task = trajectory.task
    texts: dict[str, object] = {"id": trajectory.id, "task.id": task.id, "task.env": task.env, "task.instruction": task.instruction}
    numbers: dict[str, object] = {"policy_version": trajectory.policy_version, "model_version": trajectory.model_version}
    for step, turn in enumerate(trajectory.transitions):
        own = {"state": turn.state.text, "action": turn.action, "next_state": turn.next_state.text, "reasoning": turn.info.reasoning}
        texts |= {f"turn {step}'s {name}": text for name, text in own.items()}
        numbers[f"turn {step}'s reward"] = turn.reward
    where = f"Trajectory {str(trajectory.id)[:80]!r} cannot be logged: its"
    for name, text in texts.items():
        if not isinstance(text, str):
            raise UsageError(f"{where} {name} is {str(text)[:80]!r}, not text.")
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not abs(number) < LARGEST or not math.isfinite(number):
            raise UsageError(f"{where} {name} is {str(number)[:80]}, not a finite number below 2^63.")


def memories(entry: Entry, first: int) -> list[Memory]:
    """The rows of an entry, numbered from `first`."""
    trajectory = entry.trajectory
    return [
        Memory(
            row=first + offset,
            trajectory=without_lone_surrogates(trajectory.id),
            step=step,
            env=without_lone_surrogates(trajectory.task.env),
            instruction=without_lone_surrogates(trajectory.task.instruction),
            source=trajectory.source,
            state=without_lone_surrogates(turn.state.text),
            action=without_lone_surrogates(turn.action),
            next_state=without_lone_surrogates(turn.next_state.text),
            reward=float(turn.reward),
            terminated=bool(turn.terminated),
            success=bool(trajectory.success),
            reasoning=without_lone_surrogates(turn.info.reasoning),
            policy_version=trajectory.policy_version,
            model_version=trajectory.model_version,
            verdict=turn.info.verdict.kind if turn.info.verdict else "",
            task=without_lone_surrogates(trajectory.task.id),
        )
        for offset, step in enumerate(entry.steps)
        for turn in [trajectory.turns[step].transition]
    ]
