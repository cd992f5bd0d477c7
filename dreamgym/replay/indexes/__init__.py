"""Nearest-neighbour indexes, one per file, made by `make(dim=..., **config)`. All of them keep the contract `Index`.

An index knows positions (0, 1, 2, ... in the order of `add`), never row ids or texts: the buffer translates.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Positions = NDArray[np.int64]


class Index(Protocol):
    """Owns the vectors in memory."""

    dim: int

    def __len__(self) -> int: ...

    def add(self, vectors: Vectors, groups: Positions) -> None:
        """Append unit rows [n, dim]; `groups` [n] are the numbers that `exclude` refers to (one per trajectory)."""
        ...

    def reserve(self, rows: int) -> None:
        """Allocate room for `rows` rows in all."""
        ...

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""
        ...

    def retain(self, keep: NDArray[np.bool_]) -> None:
        """Forget the positions that are False in `keep` [N]; the others move up, in order."""
        ...

    def search(
        self, vectors: Vectors, *, k: int, mask: NDArray[np.bool_] | None = None, exclude: Positions | None = None
    ) -> tuple[Positions, Vectors]:
        """Positions [Q, k] and cosines [Q, k] for queries [Q, dim], best first; -1 and -inf where nothing is left.

        `mask` [N] keeps the positions that are True; `exclude`, [Q] or [Q, E], hides groups from each query (-1: none).
        """
        ...
