"""The replay buffer: experience that grounds the experience model and outlives the process (section 4.1 of the paper).

A store keeps transitions on disk, an index finds nearest neighbours in memory, and an encoder defines the distance. This module decides
which transitions are admitted, which neighbours are returned, and how a log is rolled back to a checkpoint.
"""

from __future__ import annotations

import gc
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dreamgym import plugins
from dreamgym.config import Config
from dreamgym.errors import RunDirError
from dreamgym.protocols import Encoder
from dreamgym.replay.eviction import select_evicted
from dreamgym.replay.growable_array import GrowableArray
from dreamgym.replay.indexes import Index, Positions, Vectors
from dreamgym.replay.stores import Entry, HalfVectors, Store, check
from dreamgym.types import Memory, Neighbour, Source, Trajectory

SOURCES: tuple[Source, ...] = get_args(Source)
COLUMNS = {"env": np.int64, "source": np.int64, "trajectory": np.int64, "content": np.int64, "reward": np.float64}
WIDEN = 4  # candidates fetched per neighbour, and the factor of every further fetch when duplicates leave too few

Ranking = list[tuple[int, float]]
"""(position, cosine), best first."""


class ReplayBufferConfig(Config):
    """Plug-ins and their settings, and the size of the buffer."""

    store: str = "sqlite"
    """What holds the rows: a plug-in of `replay/stores`."""
    index: str = "exact"
    """What finds the nearest vectors: a plug-in of `replay/indexes`."""
    max_rows: int = Field(default=0, ge=0)
    """Largest number of rows, 0 for no limit; above it dreamed rows are evicted (`eviction`), never real ones."""
    index_options: dict[str, Any] = {}
    """Settings of the index, such as `{device = "cuda"}`."""
    store_options: dict[str, Any] = {}
    """Settings of the store, such as `{timeout_s = 5.0}`."""


class ReplayBuffer:
    """See `protocols.ReplayBuffer`. One per process; other processes may append to the same log, and `refresh` reads what they added."""

    def __init__(self, store: Store, index: Index, encoder: Encoder, config: ReplayBufferConfig | None = None):
        self._store = store
        self._index = index
        self._encoder = encoder
        self._config = config or ReplayBufferConfig()
        self._memories: list[Memory] = []
        self._columns = {name: GrowableArray(dtype) for name, dtype in COLUMNS.items()}
        self._codes: dict[str, dict[object, int]] = {name: {} for name in ("env", "trajectory", "content")}
        self._last_row = 0
        self.refused = 0  # transitions not admitted since the buffer was opened: dreams without a passed verdict, failed episodes
        self.rollbacks = 0  # how often `rollback` was called since the buffer was opened
        self.refresh()

    @classmethod
    def open(cls, path: Path | str | None, encoder: Encoder, config: ReplayBufferConfig | None = None) -> ReplayBuffer:
        """Open or create the log at `path` (None: in memory only). RunDirError if another encoder built it."""
        config = config or ReplayBufferConfig()
        in_memory = path is None or str(path) == ":memory:"
        index = plugins.make("replay.indexes", config.index, dim=encoder.dim, **config.index_options)
        where = {"path": None if in_memory else path, "encoder": encoder.id, "dim": encoder.dim}
        store = plugins.make("replay.stores", config.store, **where, **config.store_options)
        return cls(store, index, encoder, config)

    def __len__(self) -> int:
        return len(self._memories)

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

    @property
    def last_row(self) -> int:
        """Number of the last row that was read, evicted or not: what a checkpoint stores and `rollback` takes."""
        return self._last_row

    def add(self, trajectories: Sequence[Trajectory]) -> int:
        """Log the admitted transitions in one transaction; returns how many. They are on disk when it returns."""
        admitted = [(trajectory, _admitted(trajectory)) for trajectory in trajectories]
        for trajectory, steps in admitted:
            if steps:
                check(trajectory)
        pairs = [trajectory.turns[step].transition for trajectory, steps in admitted for step in steps]
        vectors = self._encoder.encode([pair.state.text for pair in pairs], [pair.action for pair in pairs]).astype(np.float16)
        entries, start = [], 0
        for trajectory, steps in admitted:
            if steps:
                entries.append(Entry(trajectory, steps, vectors[start : start + len(steps)]))
                start += len(steps)
        if entries:
            memories = self._store.append(entries)
            if memories[0].row == self.last_row + 1:
                self._index_rows(memories, vectors)
            else:  # another process has appended in the meantime
                self.refresh()
            self._evict()
        self.refused += sum(len(trajectory.turns) for trajectory in trajectories) - len(pairs)
        return len(pairs)

    def refresh(self) -> int:
        """Read the rows that other processes appended; returns how many. Rows that they evicted stay until the log is reopened."""
        before, end = len(self), self._store.last_row
        if (coming := before + end - self._last_row) > 2 * before:  # a log that is opened, not one that grows
            self._index.reserve(coming)
            for column in self._columns.values():
                column.reserve(coming)
        with _without_garbage_collection():
            for memories, vectors in self._store.rows(after=self.last_row):
                self._index_rows(memories, vectors)
        self._last_row = max(self._last_row, end)  # the last rows may be evicted ones
        return len(self) - before

    def rollback(self, row: int) -> None:
        """Go back to a checkpoint: delete the rows above `row`, and restore those that were evicted after it."""
        self.refresh()
        if row > self.last_row:
            raise RunDirError(
                f"The checkpoint expects {row} rows in the replay log, which ends at row {self.last_row}. "
                "The log is older than the checkpoint, or of another run: restore the log that belongs to it."
            )
        restored = self._store.hide_after(row)
        self.rollbacks += 1
        self._last_row = row
        self._truncate(0 if restored else row)
        if restored:  # restored rows are between others: read everything in order
            self._last_row = 0
            self.refresh()

    def _truncate(self, row: int) -> None:
        """Remove the rows above `row` from memory."""
        length = bisect_right(self._memories, row, key=lambda memory: memory.row)
        del self._memories[length:]
        self._index.truncate(length)
        for column in self._columns.values():
            column.truncate(length)

    def search(
        self, states: Sequence[str], actions: Sequence[str], *, k: int, env: str | None = None, exclude: Sequence[str] | None = None
    ) -> list[list[Neighbour]]:
        """Top-k memories by cosine of phi(s, a), best first, ties by age. Each (action, next state) appears once.

        `env` restricts all queries to one environment; `exclude[i]` is the trajectory that query i may not see.
        """
        if not len(self) or k <= 0 or not states:
            return [[] for _ in states]
        vectors = self._encoder.encode(states, actions)  # [Q, dim]
        mask = None if env is None else self._columns["env"].view == self._codes["env"].get(env, -1)  # [N]
        codes = self._codes["trajectory"]
        hidden = np.array([codes.get(own, -1) for own in exclude or [""] * len(states)], np.int64)  # [Q]
        rankings = self._rank(vectors, k, mask, hidden)
        return [[Neighbour(self._memories[position], similarity) for position, similarity in ranking] for ranking in rankings]

    def memories(self, *, env: str | None = None, source: Source | None = None, after: int = 0) -> Iterator[Memory]:
        """The memories in order, of one environment and one source where they are given, and of the rows above `after`."""
        first = bisect_right(self._memories, after, key=lambda memory: memory.row) if after > 0 else 0
        for memory in itertools.islice(self._memories, first, None):
            if env in (None, memory.env) and source in (None, memory.source):
                yield memory

    def stats(self) -> dict[str, float]:
        """Rows in all and by source, distinct (action, next state) contents, trajectories, refused transitions, and the share of dreams."""
        by_source = Counter(memory.source for memory in self._memories)
        return {
            "rows": len(self),
            **{source: by_source[source] for source in SOURCES},
            "dream_share": by_source["dream"] / max(1, len(self)),
            "contents": len(np.unique(self._columns["content"].view)),
            "trajectories": len(np.unique(self._columns["trajectory"].view)),
            "refused": self.refused,
        }

    def _index_rows(self, memories: Sequence[Memory], vectors: HalfVectors) -> None:
        """Index rows of the store. Vectors [n, dim] are float16 always, so that a reopened log finds the same neighbours."""
        self._memories += memories
        self._last_row = max(self._last_row, memories[-1].row)
        codes: dict[str, list[int] | list[float]] = {
            "env": [self._code("env", memory.env) for memory in memories],
            "source": [SOURCES.index(memory.source) for memory in memories],
            "trajectory": [self._code("trajectory", memory.trajectory) for memory in memories],
            "content": [self._code("content", (memory.action, memory.next_state)) for memory in memories],
            "reward": [memory.reward for memory in memories],
        }
        for name, values in codes.items():
            self._columns[name].append(np.array(values, COLUMNS[name]))
        self._index.add(vectors.astype(np.float32), np.array(codes["trajectory"], np.int64))

    def _evict(self) -> None:
        """Evict dreams until there are at most `max_rows` rows, or no dreams."""
        if not self._config.max_rows or len(self) <= self._config.max_rows:
            return
        columns = self._columns
        dream = columns["source"].view == SOURCES.index("dream")
        out = select_evicted(len(self) - self._config.max_rows, dream, columns["content"].view, columns["reward"].view)
        self._store.evict([self._memories[position].row for position in out])
        keep = np.ones(len(self), bool)
        keep[out] = False
        self._memories = [memory for memory, kept in zip(self._memories, keep, strict=True) if kept]
        self._index.retain(keep)
        for column in columns.values():
            column.retain(keep)
        if len(self._codes["content"]) > 2 * max(len(self), self._config.max_rows):  # of evicted rows, whose texts would stay for ever
            self._codes["content"] = {}
            columns["content"].view[:] = [self._code("content", (memory.action, memory.next_state)) for memory in self._memories]

    def _code(self, column: str, value: object) -> int:
        codes = self._codes[column]
        return codes.setdefault(value, len(codes))

    def _rank(self, vectors: Vectors, k: int, mask: NDArray[np.bool_] | None, exclude: Positions) -> list[Ranking]:
        """At most k per query [Q, dim]. Fetches more where duplicates used up the candidates, until there are k or no more."""
        rankings: list[Ranking] = [[] for _ in vectors]
        pending, fetch = np.arange(len(vectors)), k * WIDEN
        while len(pending):
            fetch = min(fetch, len(self))
            positions, cosines = self._index.search(vectors[pending], k=fetch, mask=mask, exclude=exclude[pending])
            found = positions >= 0  # [pending, fetch]
            for query, own, places, values in zip(pending, found, positions, cosines, strict=True):
                rankings[query] = self._distinct(zip(places[own].tolist(), values[own].tolist(), strict=True), k)
            more = [len(rankings[query]) < k and own.all() and fetch < len(self) for query, own in zip(pending, found, strict=True)]
            pending, fetch = pending[np.array(more, bool)], fetch * WIDEN
        return rankings

    def _distinct(self, candidates: Iterable[tuple[int, float]], k: int) -> Ranking:
        """The first k of different contents."""
        content = self._columns["content"].view
        best: dict[int, tuple[int, float]] = {}
        for position, similarity in candidates:
            best.setdefault(int(content[position]), (position, similarity))
            if len(best) == k:
                break
        return list(best.values())


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Rows hold no cycles, and looking for some takes a quarter of the time in which a log is read."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _admitted(trajectory: Trajectory) -> tuple[int, ...]:
    """The turns that are admitted: none of a failed episode, of a dream those whose verdict passed but no
    errors that a rule wrote, and no end whose reward is unknown."""
    if trajectory.error is not None:
        return ()
    if trajectory.source != "dream":
        known = trajectory.scored
        return tuple(step for step, transition in enumerate(trajectory.transitions) if known or not transition.terminated)
    return tuple(
        step
        for step, transition in enumerate(trajectory.transitions)
        if transition.info.has_verdict("passed") and (transition.is_answer or transition.next_state == transition.state)
    )
