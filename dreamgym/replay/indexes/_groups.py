"""Which positions belong to a group (a trajectory): found without a pass over all positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dreamgym.replay.growable_array import GrowableArray

Positions = NDArray[np.int64]
GATHER = 0.3  # a filter that keeps less than this share of the rows is searched in a copy of them


class Groups:
    """Owns the group number of every position, and the runs of positions that each group has."""

    def __init__(self, capacity: int = 1024):
        self._numbers = GrowableArray(np.int64, capacity=capacity)
        self._runs: dict[int, list[tuple[int, int]]] = {}  # group -> [start, stop) of each run
        self._known = 0  # positions that are in `_runs`

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def view(self) -> Positions:
        """Group of every position [N]."""
        return self._numbers.view

    def append(self, groups: Positions) -> None:
        """groups [n] of the next n positions."""
        self._numbers.append(groups)

    def reserve(self, rows: int) -> None:
        """Allocate room for `rows` positions in all."""
        self._numbers.reserve(rows)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on."""
        self._numbers.truncate(length)
        self._forget_runs()

    def retain(self, keep: NDArray[np.bool_]) -> None:
        """Forget the positions that are False in `keep` [N]."""
        self._numbers.retain(keep)
        self._forget_runs()

    def pairs(self, exclude: Positions | None) -> tuple[Positions, Positions]:
        """(query, position) of everything that is hidden, for the groups `exclude` [Q] or [Q, E] of each query (-1: none)."""
        queries: list[Positions] = [np.zeros(0, np.int64)]
        positions: list[Positions] = [np.zeros(0, np.int64)]
        if exclude is not None:
            self._find_runs()
            for query, groups in enumerate(exclude.reshape(len(exclude), -1).tolist()):
                for group in groups:
                    for start, stop in self._runs.get(group, ()) if group >= 0 else ():
                        positions.append(np.arange(start, stop))
                        queries.append(np.full(stop - start, query))
        return np.concatenate(queries), np.concatenate(positions)

    def _find_runs(self) -> None:
        new = self._numbers.view[self._known :]
        if len(new):
            starts = np.flatnonzero(np.concatenate([[True], new[1:] != new[:-1]]))
            stops = np.append(starts[1:], len(new))
            for group, start, stop in zip(
                new[starts].tolist(), (starts + self._known).tolist(), (stops + self._known).tolist(), strict=True
            ):
                self._runs.setdefault(group, []).append((start, stop))
            self._known = len(self._numbers)

    def _forget_runs(self) -> None:
        self._runs, self._known = {}, 0


def within(kept: Positions, length: int, hidden: tuple[Positions, Positions]) -> tuple[Positions, Positions]:
    """`hidden` pairs (query, position) of `length` rows as pairs of places in `kept`, the rows that are searched; others are dropped."""
    places = np.full(length, -1, np.int64)
    places[kept] = np.arange(len(kept))
    seen = places[hidden[1]] >= 0
    return hidden[0][seen], places[hidden[1][seen]]
