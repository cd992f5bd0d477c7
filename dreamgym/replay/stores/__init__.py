"""Durable logs of experience, one per file, made by `make(path=..., encoder=..., dim=..., **config)`. All keep the contract `Store`.

A row is one admitted transition with its vector. Rows are numbered from 1 in the order they were added; the number of the last
one is the log's `sequence`, which a checkpoint remembers. Reading a row gives the same `Memory` as writing it did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dreamgym import plugins
from dreamgym.types import Memory, Trajectory, Verdict

HalfVectors = NDArray[np.float16]


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
    def sequence(self) -> int:
        """Number of the last row, evicted or not; 0 when empty."""
        ...

    def append(self, entries: Sequence[Entry]) -> list[Memory]:
        """Log all entries or none; the memories carry the row numbers they were given."""
        ...

    def rows(self, after: int = 0) -> Iterator[tuple[list[Memory], HalfVectors]]:
        """Rows in use with a number above `after`, in order, in pages: memories and their vectors [n, dim]."""
        ...

    def hide_after(self, row: int) -> int:
        """Make it as if no row above `row` had been added; returns how many evicted rows are in use again for it."""
        ...

    def evict(self, rows: Sequence[int]) -> None:
        """Take rows out of use for good, unless `hide_after` goes back to before they were."""
        ...

    def close(self) -> None: ...


def open_to_read(path: Path) -> Store:
    """The log at `path`, whatever built it: a folder is LanceDB's, a file is SQLite's, which is opened so that it cannot be written."""
    store = ("lance", {}) if path.is_dir() else ("sqlite", {"read_only": True})
    found: Store = plugins.make("replay.stores", store[0], path=path, **store[1])
    return found


def memories(entry: Entry, first: int) -> list[Memory]:
    """The rows of an entry, numbered from `first`."""
    trajectory = entry.trajectory
    return [
        Memory(
            row=first + offset,
            trajectory=storable(trajectory.id),
            step=step,
            env=storable(trajectory.task.env),
            instruction=storable(trajectory.task.instruction),
            source=trajectory.source,
            state=storable(turn.state.text),
            action=storable(turn.action),
            next_state=storable(turn.next_state.text),
            reward=float(turn.reward),
            terminated=bool(turn.terminated),
            success=bool(trajectory.success),
            reasoning=storable(turn.reasoning),
            policy_version=trajectory.policy_version,
            model_version=trajectory.model_version,
            verdict=storable(verdict_text(turn.verdict)),
        )
        for offset, step in enumerate(entry.steps)
        for turn in [trajectory.turns[step].transition]
    ]


def verdict_text(verdict: Verdict | None) -> str:
    """Empty when nobody judged, "passed", or the reasons against."""
    if verdict is None:
        return ""
    return "passed" if verdict.passed else "; ".join(verdict.reasons) or "refused"


def storable(text: str) -> str:
    """`text` with lone surrogates (json.loads can make them, UTF-8 cannot hold them) replaced by '?'."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
