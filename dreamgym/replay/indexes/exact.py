"""Exact cosine search over one matrix in memory.

Few rows are searched by one float32 product per block of queries and a partition; many, where the processor or a GPU computes in
bfloat16, in two passes that find the same (`_coarse`).

Cosines are rounded to five decimals before they are ranked, and equals go by lower position. Vectors are logged as float16, so the
further decimals carry no information; the last bits of a BLAS product depend on the position of a row in the matrix, and without
rounding the order of equal rows would change when the matrix grows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dreamgym.config import Config, build
from dreamgym.errors import ConfigError, InvariantError
from dreamgym.replay.growable_array import GrowableArray
from dreamgym.replay.indexes import Positions, Vectors
from dreamgym.replay.indexes._groups import GATHER, Groups, within

if TYPE_CHECKING:
    from dreamgym.replay.indexes._coarse import CoarseMatrix

DECIMALS = 5
COARSE_FROM = 50_000  # rows
COARSE_QUERIES = 64
"""Queries that share one pass over the coarse matrix, which is read from memory once for all of them: with eight at a time a million rows
take four times as long. Their scores take 128 bytes a row, a twentieth of what a row takes."""
STRETCH = 64  # scores in a row, of which the largest represents all


class ExactConfig(Config):
    """Nothing here changes what is found."""

    dim: int
    capacity: int = 1024  # rows allocated at first
    block: int = Field(default=8_000_000, ge=1)  # cosines in memory at a time
    device: str = "auto"  # of the coarse pass: "cpu", "cuda", "cuda:1"; auto: a GPU when there is one
    coarse: Literal["auto", "always", "never"] = "auto"  # the bfloat16 pass; auto: where it is fast and there are `COARSE_FROM` rows


class Part(NamedTuple):
    """A block of queries [Q, dim] and where its answers go. `hidden` are pairs (query, position) that may not be found."""

    queries: Vectors
    k: int
    mask: NDArray[np.bool_] | None  # [N]
    hidden: tuple[Positions, Positions]
    positions: Positions  # [Q, k], filled in
    cosines: Vectors  # [Q, k], filled in


class ExactIndex:
    """See `indexes.Index`."""

    def __init__(self, config: ExactConfig):
        self.dim = config.dim
        self._config = config
        self._block = config.block
        self._vectors = GrowableArray(np.float32, width=(config.dim,), capacity=config.capacity)
        self._groups = Groups(config.capacity)
        self._coarse: CoarseMatrix | None = None
        self._device = config.device
        self._fast: bool | None = None  # whether bfloat16 is fast here; None: nobody has asked yet

    def __len__(self) -> int:
        return len(self._vectors)

    def add(self, vectors: Vectors, groups: Positions) -> None:
        """vectors [n, dim] of length 1, groups [n]."""
        if vectors.shape != (len(groups), self.dim):
            raise InvariantError(f"Expected vectors of shape ({len(groups)}, {self.dim}), got {vectors.shape}.")
        if self._vectors.dtype == np.float16 and not _fits_half(vectors):
            self._vectors = self._vectors.astype(np.float32)
        self._vectors.append(vectors)
        self._groups.append(groups)

    def reserve(self, rows: int) -> None:
        """Allocate room for `rows` rows in all."""
        self._vectors.reserve(rows)
        self._groups.reserve(rows)

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on."""
        self._vectors.truncate(length)
        self._groups.truncate(length)
        if self._coarse is not None:
            self._coarse.truncate(length)

    def retain(self, keep: NDArray[np.bool_]) -> None:
        """Forget the positions that are False in `keep` [N]; the others move up."""
        self._vectors.retain(keep)
        self._groups.retain(keep)
        self._coarse = None  # made again from what is left by the next search

    def search(
        self, vectors: Vectors, *, k: int, mask: NDArray[np.bool_] | None = None, exclude: Positions | None = None
    ) -> tuple[Positions, Vectors]:
        """Queries [Q, dim] -> positions [Q, k], cosines [Q, k]; see `indexes.Index.search`."""
        positions = np.full((len(vectors), k), -1, np.int64)
        cosines = np.full((len(vectors), k), -np.inf, np.float32)
        if k <= 0 or not len(self):
            return positions, cosines
        coarse = self._two_passes(k)
        search = self._search_coarse if coarse else self._search_plain
        size = max(COARSE_QUERIES if coarse else 1, self._block // len(self))
        for start in range(0, len(vectors), size):
            rows = slice(start, start + size)
            hidden = self._groups.pairs(None if exclude is None else exclude[rows])
            search(Part(vectors[rows], k, mask, hidden, positions[rows], cosines[rows]))
        return positions, cosines

    def _search_plain(self, part: Part) -> None:
        """One product and a partition per query."""
        matrix, mask, hidden = self._vectors.view, part.mask, part.hidden
        kept = None
        if mask is not None and mask.sum() < GATHER * len(mask):
            kept = np.flatnonzero(mask)
            matrix, hidden, mask = matrix[kept], within(kept, len(matrix), hidden), None
        scores = part.queries @ np.asarray(matrix, np.float32).T  # [Q, N]
        np.round(scores, DECIMALS, out=scores)
        np.clip(scores, -1.0, 1.0, out=scores)
        if mask is not None:
            scores[:, ~mask] = -np.inf
        scores[hidden] = -np.inf
        for query, row in enumerate(scores):
            best = _top(row, part.k)
            part.positions[query, : len(best)] = best if kept is None else kept[best]
            part.cosines[query, : len(best)] = row[best]

    def _search_coarse(self, part: Part) -> None:
        """Candidates by the coarse matrix, then their cosines in float64, which do not depend on a row's position."""
        assert self._coarse is not None
        query, position = self._coarse.candidates(part.queries, k=part.k, mask=part.mask, hidden=part.hidden)
        scores = np.empty(len(query), np.float32)
        size = max(1, self._block // (4 * self.dim))
        for start in range(0, len(query), size):
            some = slice(start, start + size)
            rows = self._vectors.view[position[some]].astype(np.float64)
            scores[some] = np.clip(np.round(np.einsum("nd,nd->n", rows, part.queries[query[some]]), DECIMALS), -1.0, 1.0)
        order = np.lexsort((position, -scores, query))
        query, position, scores = query[order], position[order], scores[order]
        place = np.arange(len(query)) - np.searchsorted(query, query)  # rank within its query
        first = place < part.k
        part.positions[query[first], place[first]] = position[first]
        part.cosines[query[first], place[first]] = scores[first]

    def _two_passes(self, k: int) -> bool:
        """Whether to search in two passes; if so the coarse matrix holds every row. Most rows wanted means that one pass is enough."""
        config = self._config
        if config.coarse == "never" or (config.coarse == "auto" and (len(self) < COARSE_FROM or 16 * k > len(self))):
            return False
        from dreamgym.replay.indexes._coarse import CoarseMatrix, has_fast_bf16

        if self._fast is None:
            self._device = _device(config.device)
            self._fast = has_fast_bf16(self._device)
        if config.coarse == "auto" and not self._fast:
            return False
        if self._coarse is None:
            self._coarse = CoarseMatrix(self.dim, self._device)
            if self._vectors.dtype == np.float32 and _fits_half(self._vectors.view):  # both copies then take what one took before
                self._vectors = self._vectors.astype(np.float16)
        self._coarse.append(self._vectors.view[len(self._coarse) :])
        return True


def _fits_half(vectors: Vectors) -> bool:
    """Whether float16 holds the rows [n, dim] without loss, as it does for all that come from a log."""
    parts = (vectors[start : start + 65536] for start in range(0, len(vectors), 65536))
    return all(bool((part.astype(np.float16) == part).all()) for part in parts)


def _device(name: str) -> str:
    """The device of that name, "auto" resolved; ConfigError for a GPU that is not there."""
    import torch

    there = torch.cuda.is_available()
    if name.startswith("cuda") and not there:
        raise ConfigError(f"The exact index was asked for device '{name}', but this torch sees no GPU. Use device = 'cpu'.")
    return ("cuda" if there else "cpu") if name == "auto" else name


def _top(scores: Vectors, k: int) -> Positions:
    """Positions of the k largest finite scores [N], largest first, equals by lower position.

    The k-th largest of the peaks of stretches is no larger than the k-th largest score, and few scores reach it: to look for it among the
    peaks takes a tenth of the time that a partition of all takes.
    """
    peaks = scores[: len(scores) // STRETCH * STRETCH].reshape(-1, STRETCH).max(1)
    floor = np.partition(peaks, len(peaks) - k)[len(peaks) - k] if k <= len(peaks) else -np.inf
    candidates = np.flatnonzero(scores >= floor) if floor > -np.inf else np.flatnonzero(scores > -np.inf)
    order = np.argsort(-scores[candidates], kind="stable")[:k]
    return candidates[order]


def make(**config: object) -> ExactIndex:
    """`make("replay.indexes", "exact", dim=448)`."""
    return ExactIndex(build(ExactConfig, config, where="replay.indexes.exact"))
