"""Exact cosine search: one matrix in memory, one product per block of queries, and a partition.

Cosines are rounded to five decimals before they are ranked, and equals go by lower position. Vectors are logged as float16, so the
decimals after that say nothing; but the last bits of a BLAS product depend on where in the matrix a row stands, and without the
rounding twin rows would come back in an order that changes when the matrix grows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dreamgym.config import Config, build
from dreamgym.errors import InvariantError
from dreamgym.replay.growing import Growing
from dreamgym.replay.indexes import Positions, Vectors

DECIMALS = 5


class ExactConfig(Config):
    """Nothing here changes what is found."""

    dim: int
    capacity: int = 1024  # rows allocated at first
    block: int = 8_000_000  # cosines in memory at a time


class ExactIndex:
    """See `indexes.Index`."""

    def __init__(self, config: ExactConfig):
        self.dim = config.dim
        self._block = config.block
        self._vectors = Growing(np.float32, width=(config.dim,), capacity=config.capacity)
        self._groups = Growing(np.int64, capacity=config.capacity)

    def __len__(self) -> int:
        return len(self._vectors)

    def add(self, vectors: Vectors, groups: Positions) -> None:
        """vectors [n, dim] of length 1, groups [n]."""
        if vectors.shape != (len(groups), self.dim):
            raise InvariantError(f"Expected vectors of shape ({len(groups)}, {self.dim}), got {vectors.shape}.")
        self._vectors.append(vectors)
        self._groups.append(groups)

    def truncate(self, length: int) -> None:
        self._vectors.truncate(length)
        self._groups.truncate(length)

    def search(
        self, vectors: Vectors, *, k: int, mask: NDArray[np.bool_] | None = None, exclude: Positions | None = None
    ) -> tuple[Positions, Vectors]:
        """Queries [Q, dim] -> positions [Q, k], cosines [Q, k]; see `indexes.Index.search`."""
        positions = np.full((len(vectors), k), -1, np.int64)
        cosines = np.full((len(vectors), k), -np.inf, np.float32)
        matrix, groups = self._vectors.view, self._groups.view
        if k <= 0 or not len(matrix):
            return positions, cosines
        size = max(1, self._block // len(matrix))
        for start in range(0, len(vectors), size):
            scores = vectors[start : start + size] @ matrix.T  # [b, N]
            np.round(scores, DECIMALS, out=scores)
            np.clip(scores, -1.0, 1.0, out=scores)
            if mask is not None:
                scores[:, ~mask] = -np.inf
            for query, row in enumerate(scores, start):
                if exclude is not None and exclude[query] >= 0:
                    row[groups == exclude[query]] = -np.inf
                best = _top(row, k)
                positions[query, : len(best)] = best
                cosines[query, : len(best)] = row[best]
        return positions, cosines


def _top(scores: Vectors, k: int) -> Positions:
    """Positions of the k largest finite scores [N], largest first, equals by lower position."""
    if k < len(scores):
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        candidates = np.flatnonzero(scores >= threshold) if threshold > -np.inf else np.flatnonzero(scores > -np.inf)
    else:
        candidates = np.flatnonzero(scores > -np.inf)
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    return candidates[order]


def make(**config: object) -> ExactIndex:
    """`make("replay.indexes", "exact", dim=448)`."""
    return ExactIndex(build(ExactConfig, config, where="replay.indexes.exact"))
