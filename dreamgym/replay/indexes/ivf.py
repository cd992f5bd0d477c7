"""Approximate cosine search for logs past a million rows: faiss's inverted lists (extra `faiss`), rebuilt in the background.

Rows are sorted into about 4 * sqrt(N) cells; a query looks into the `probes` nearest ones. Filters are exact: a hidden row is never found.
Recall is not: raise `probes` for more. The newest rows, and all of them until there are `train_from`, are searched exactly beside the cells
and move into them when a rebuild is done, which a thread does while searches go on. `exact` is the better choice below a million rows.
"""

from __future__ import annotations

from threading import Thread
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dreamgym.config import Config, build
from dreamgym.errors import InvariantError
from dreamgym.replay.growable_array import GrowableArray
from dreamgym.replay.indexes import Positions, Vectors, exact
from dreamgym.replay.indexes._groups import Groups

REBUILD_SHARE = 0.2  # rows outside the cells, of those inside, at which they are built anew


class IvfConfig(Config):
    """When and how the cells are built."""

    dim: int
    train_from: int = Field(default=200_000, ge=1)  # rows from which on there are cells
    probes: int = Field(default=32, ge=1)  # cells that a query looks into
    background: bool = True  # False: a search that finds a rebuild due waits for it
    seed: int = 0


class IvfIndex:
    """See `indexes.Index`. `search` and `add` are called from one thread."""

    def __init__(self, config: IvfConfig):
        self.dim = config.dim
        self._config = config
        self._vectors = GrowableArray(np.float32, width=(config.dim,))
        self._groups = Groups()
        self._cells: Any = None  # faiss index of the positions below `_inside`
        self._inside = 0
        self._rest = exact.make(dim=config.dim)  # the positions from `_inside` on
        self._built: list[tuple[Any, int]] = []  # what the thread leaves: cells, and how many rows they hold
        self._thread: Thread | None = None

    def __len__(self) -> int:
        return len(self._vectors)

    def add(self, vectors: Vectors, groups: Positions) -> None:
        """vectors [n, dim] of length 1, groups [n]."""
        if vectors.shape != (len(groups), self.dim):
            raise InvariantError(f"Expected vectors of shape ({len(groups)}, {self.dim}), got {vectors.shape}.")
        self._vectors.append(vectors)
        self._groups.append(groups)
        self._rest.add(vectors, groups)

    def reserve(self, rows: int) -> None:
        """Allocate room for `rows` rows in all."""
        for part in (self._vectors, self._groups, self._rest):
            part.reserve(rows)

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on. Cells that held one are built anew by the next search."""
        self._vectors.truncate(length)
        self._groups.truncate(length)
        if length < self._inside or self._thread is not None:
            self._start_over()
        else:
            self._rest.truncate(length - self._inside)

    def retain(self, keep: NDArray[np.bool_]) -> None:
        """Forget the positions that are False in `keep` [N]; the others move up."""
        self._vectors.retain(keep)
        self._groups.retain(keep)
        self._start_over()

    def search(
        self, vectors: Vectors, *, k: int, mask: NDArray[np.bool_] | None = None, exclude: Positions | None = None
    ) -> tuple[Positions, Vectors]:
        """Queries [Q, dim] -> positions [Q, k], cosines [Q, k]; see `indexes.Index.search`."""
        self._rebuild_when_due()
        tail = None if mask is None else mask[self._inside :]
        positions, cosines = self._rest.search(vectors, k=k, mask=tail, exclude=exclude)
        if self._cells is None or k <= 0 or not len(vectors):
            return positions, cosines
        positions[positions >= 0] += self._inside
        found, near = self._search_cells(vectors, k, None if mask is None else mask[: self._inside], exclude)
        positions, cosines = np.concatenate([found, positions], axis=1), np.concatenate([near, cosines], axis=1)  # [Q, 2k]
        order = np.lexsort((np.where(positions < 0, len(self), positions), -cosines), axis=1)[:, :k]
        return np.take_along_axis(positions, order, 1), np.take_along_axis(cosines, order, 1)

    def wait(self) -> None:
        """Let a rebuild that is under way finish, and use it."""
        if self._thread is not None:
            self._thread.join()
        self._take_built()

    def _search_cells(
        self, queries: Vectors, k: int, mask: NDArray[np.bool_] | None, exclude: Positions | None
    ) -> tuple[Positions, Vectors]:
        """Positions and cosines [Q, k] from the cells. A query that hides rows is searched by itself, over what it may see."""
        hidden_query, hidden = self._groups.pairs(exclude)
        inside = hidden < self._inside
        hidden_query, hidden = hidden_query[inside], hidden[inside]
        positions, cosines = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32)
        free = np.setdiff1d(np.arange(len(queries)), hidden_query)
        if len(free):
            positions[free], cosines[free] = self._ask(queries[free], k, mask)
        allowed = np.ones(self._inside, bool) if mask is None else mask.copy()
        for query in np.unique(hidden_query):
            own = hidden[hidden_query == query]
            before = allowed[own]
            allowed[own] = False
            positions[query], cosines[query] = (one[0] for one in self._ask(queries[query : query + 1], k, allowed))
            allowed[own] = before
        return positions, cosines

    def _ask(self, queries: Vectors, k: int, mask: NDArray[np.bool_] | None) -> tuple[Positions, Vectors]:
        bits = None if mask is None else np.packbits(mask, bitorder="little")  # must live as long as the search
        selector = None if bits is None else faiss.IDSelectorBitmap(bits)
        parameters = faiss.SearchParametersIVF(nprobe=min(self._config.probes, self._cells.nlist), sel=selector)
        cosines, positions = self._cells.search(np.ascontiguousarray(queries), k, params=parameters)
        cosines = np.clip(np.round(cosines, exact.DECIMALS), -1.0, 1.0)
        cosines[positions < 0] = -np.inf
        return positions, cosines

    def _rebuild_when_due(self) -> None:
        self._take_built()
        due = len(self) >= self._config.train_from and len(self) - self._inside > REBUILD_SHARE * self._inside
        if due and self._thread is None:
            rows = self._vectors.view.copy()  # the block may move while the thread reads
            built = self._built = []
            self._thread = Thread(target=lambda: built.append((_cells(rows, self._config.seed), len(rows))), daemon=True)
            self._thread.start()
            if not self._config.background:
                self.wait()

    def _take_built(self) -> None:
        if self._thread is None or self._thread.is_alive():
            return
        self._thread = None
        if not self._built:
            raise InvariantError("Building the cells of the faiss index failed; the thread's message is above.")
        self._cells, self._inside = self._built.pop()
        self._rest = exact.make(dim=self.dim)
        self._rest.add(self._vectors.view[self._inside :], self._groups.view[self._inside :])

    def _start_over(self) -> None:
        """All rows outside the cells, until the next rebuild; one that is under way holds rows that are gone, and is not used."""
        self._cells, self._inside, self._thread, self._built = None, 0, None, []
        self._rest = exact.make(dim=self.dim)
        self._rest.add(self._vectors.view, self._groups.view)


def _cells(rows: Vectors, seed: int) -> Any:
    """Inverted lists over rows [N, dim]; positions are the ids."""
    count = max(1, min(int(4 * len(rows) ** 0.5), len(rows) // 39))  # faiss asks for 39 training rows a cell
    cells = faiss.IndexIVFFlat(faiss.IndexFlatIP(rows.shape[1]), rows.shape[1], count, faiss.METRIC_INNER_PRODUCT)
    cells.cp.seed = seed + 1
    sample = np.random.default_rng(seed).permutation(len(rows))[: 64 * count]
    cells.train(rows[np.sort(sample)])
    cells.add(rows)
    return cells


def make(**config: object) -> IvfIndex:
    """`make("replay.indexes", "ivf", dim=448, probes=64)`."""
    return IvfIndex(build(IvfConfig, config, where="replay.indexes.ivf"))
