"""The replay buffer: experience that the experience model is grounded in and that survives the process (section 4.1 of the paper).

A store keeps the rows on disk, an index finds neighbours in memory, an encoder says what near means. This module decides the rest:
which transitions are admitted, which neighbours are worth showing, and how a log is wound back to a checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dreamgym import plugins
from dreamgym.config import Config
from dreamgym.errors import RunDirError
from dreamgym.protocols import Encoder
from dreamgym.replay.growing import Growing
from dreamgym.replay.indexes import Index, Positions, Vectors
from dreamgym.replay.stores import Entry, HalfVectors, Store
from dreamgym.types import Memory, Neighbour, Source, Trajectory

SOURCES: tuple[Source, ...] = get_args(Source)
WIDEN = 4  # candidates fetched per neighbour wanted, and again each time that duplicates leave too few

Ranking = list[tuple[int, float]]
"""(position, cosine), best first."""


class ReplayConfig(Config):
    """Plug-ins, and what `search` does unless told otherwise."""

    store: str = "sqlite"
    index: str = "exact"
    min_similarity: float = Field(default=-1.0, ge=-1.0, le=1.0)  # neighbours further than this are not shown
    real_quota: int = Field(default=0, ge=0)  # places among the k kept for real and demo rows, if there are any
    distinct: bool = True  # drop neighbours with the action and next state of a better one


class ReplayBuffer:
    """See `protocols.ReplayBuffer`. One per process; others may append to the same log, and `refresh` takes in what they added."""

    refused: int  # transitions turned away since the buffer was opened: unjudged or failed dreams, and episodes with an error

    def __init__(self, store: Store, index: Index, encoder: Encoder, config: ReplayConfig | None = None):
        self._store = store
        self._index = index
        self._encoder = encoder
        self._config = config or ReplayConfig()
        self._memories: list[Memory] = []
        self._columns = {name: Growing(np.int64) for name in ("env", "source", "trajectory", "content")}
        self._codes: dict[str, dict[object, int]] = {name: {} for name in ("env", "trajectory", "content")}
        self.refused = 0
        self.refresh()

    @classmethod
    def open(cls, path: Path | str | None, encoder: Encoder, config: ReplayConfig | None = None) -> ReplayBuffer:
        """Open or create the log at `path` (None: in memory only). RunDirError if another encoder built it."""
        config = config or ReplayConfig()
        in_memory = path is None or str(path) == ":memory:"
        index = plugins.make("replay.indexes", config.index, dim=encoder.dim)
        store = plugins.make("replay.stores", config.store, path=None if in_memory else path, encoder=encoder.id, dim=encoder.dim)
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
    def sequence(self) -> int:
        """Number of the last row known here: what a checkpoint remembers and `rollback` takes."""
        return self._memories[-1].row if self._memories else 0

    def add(self, trajectories: Sequence[Trajectory]) -> int:
        """Log what is admitted of `trajectories`, in one transaction; returns the number of rows. They are on disk when it returns."""
        admitted = [(trajectory, _admitted(trajectory)) for trajectory in trajectories]
        pairs = [trajectory.turns[step].transition for trajectory, steps in admitted for step in steps]
        vectors = self._encoder.encode([pair.state.text for pair in pairs], [pair.action for pair in pairs]).astype(np.float16)
        entries, start = [], 0
        for trajectory, steps in admitted:
            if steps:
                entries.append(Entry(trajectory, steps, vectors[start : start + len(steps)]))
                start += len(steps)
        if entries:
            memories = self._store.append(entries)
            if memories[0].row == self.sequence + 1:
                self._take_in(memories, vectors)
            else:  # another process has appended in the meantime
                self.refresh()
        self.refused += sum(len(trajectory.turns) for trajectory in trajectories) - len(pairs)
        return len(pairs)

    def refresh(self) -> int:
        """Take in the rows that other processes have appended since; returns how many."""
        before = len(self)
        for memories, vectors in self._store.rows(after=self.sequence):
            self._take_in(memories, vectors)
        return len(self) - before

    def rollback(self, sequence: int) -> None:
        """Go back to a checkpoint: rows appended after `sequence` by the interrupted run are not trusted, and go."""
        self.refresh()
        if sequence > self.sequence:
            raise RunDirError(
                f"The checkpoint expects {sequence} rows in the replay log, which ends at row {self.sequence}. "
                "The log is older than the checkpoint, or of another run: restore the log that belongs to it."
            )
        self._store.hide_after(sequence)
        length = bisect_right(self._memories, sequence, key=lambda memory: memory.row)
        del self._memories[length:]
        self._index.truncate(length)
        for column in self._columns.values():
            column.truncate(length)

    def search(
        self,
        states: Sequence[str],
        actions: Sequence[str],
        *,
        k: int,
        env: str | None = None,
        exclude: Sequence[str] | None = None,
        min_similarity: float | None = None,
        real_quota: int | None = None,
        distinct: bool | None = None,
    ) -> list[list[Neighbour]]:
        """Top-k memories by cosine of phi(s, a), best first, equals by age.

        `exclude[i]` is a trajectory id that query i may not see. `real_quota` of the k places are kept for real and demo rows as
        long as there are any; `distinct` lets each (action, next state) appear once. None means what the configuration says.
        """
        if not len(self) or k <= 0 or not states:
            return [[] for _ in states]
        floor = self._config.min_similarity if min_similarity is None else min_similarity
        quota = min(k, self._config.real_quota if real_quota is None else real_quota)
        distinct = self._config.distinct if distinct is None else distinct

        vectors = self._encoder.encode(states, actions)  # [Q, dim]
        excluded = np.full(len(states), -1, np.int64)  # [Q]
        if exclude is not None:
            codes = self._codes["trajectory"]
            excluded[:] = [codes.get(trajectory, -1) for _, trajectory in zip(states, exclude, strict=True)]
        mask = None if env is None else self._columns["env"].view == self._codes["env"].get(env, -1)
        rankings = self._rank(vectors, k, mask, excluded, floor, distinct)

        real = self._columns["source"].view != SOURCES.index("dream")
        short = [i for i, ranking in enumerate(rankings) if sum(bool(real[position]) for position, _ in ranking) < quota]
        if short:
            reserved = self._rank(vectors[short], quota, real if mask is None else real & mask, excluded[short], floor, distinct)
            for i, kept in zip(short, reserved, strict=True):
                rankings[i] = self._merge(kept, rankings[i], k, distinct)
        return [[Neighbour(self._memories[position], similarity) for position, similarity in ranking] for ranking in rankings]

    def memories(
        self,
        *,
        env: str | None = None,
        source: Source | Sequence[Source] | None = None,
        trajectory: str | None = None,
        success: bool | None = None,
        after: int = 0,
    ) -> Iterator[Memory]:
        """The rows in order, past `after`, that match every filter that is given."""
        sources = SOURCES if source is None else (source,) if isinstance(source, str) else tuple(source)
        for memory in self._memories[bisect_right(self._memories, after, key=lambda memory: memory.row) :]:
            if (
                (env is None or memory.env == env)
                and memory.source in sources
                and (trajectory is None or memory.trajectory == trajectory)
                and (success is None or memory.success == success)
            ):
                yield memory

    def fetch(self, rows: Sequence[int]) -> list[Memory]:
        """The memories with these numbers, as `Transition.neighbours` holds them, in order; KeyError for a row that is not here."""
        positions = [bisect_right(self._memories, row, key=lambda memory: memory.row) - 1 for row in rows]
        for row, position in zip(rows, positions, strict=True):
            if position < 0 or self._memories[position].row != row:
                raise KeyError(row)
        return [self._memories[position] for position in positions]

    def stats(self) -> dict[str, float]:
        """Rows altogether and by source, distinct (action, next state) contents, trajectories, refusals, and the share of dreams."""
        by_source = Counter(memory.source for memory in self._memories)
        return {
            "rows": len(self),
            **{source: by_source[source] for source in SOURCES},
            "dream_share": by_source["dream"] / max(1, len(self)),
            "contents": len(np.unique(self._columns["content"].view)),
            "trajectories": len(np.unique(self._columns["trajectory"].view)),
            "refused": self.refused,
        }

    def _take_in(self, memories: Sequence[Memory], vectors: HalfVectors) -> None:
        """Index rows that the store holds. Vectors [n, dim] come as float16 always, so that reopening finds what it found before."""
        self._memories += memories
        codes = {
            "env": [self._code("env", memory.env) for memory in memories],
            "source": [SOURCES.index(memory.source) for memory in memories],
            "trajectory": [self._code("trajectory", memory.trajectory) for memory in memories],
            "content": [self._code("content", (memory.action, memory.next_state)) for memory in memories],
        }
        for name, values in codes.items():
            self._columns[name].append(np.array(values, np.int64))
        self._index.add(vectors.astype(np.float32), np.array(codes["trajectory"], np.int64))

    def _code(self, column: str, value: object) -> int:
        codes = self._codes[column]
        return codes.setdefault(value, len(codes))

    def _rank(
        self, vectors: Vectors, k: int, mask: NDArray[np.bool_] | None, exclude: Positions, floor: float, distinct: bool
    ) -> list[Ranking]:
        """At most k per query [Q, dim]. Fetches more where duplicates used up the candidates, until there are k or no more."""
        rankings: list[Ranking] = [[] for _ in vectors]
        pending, fetch = np.arange(len(vectors)), k * WIDEN if distinct else k
        while len(pending):
            fetch = min(fetch, len(self))
            positions, cosines = self._index.search(vectors[pending], k=fetch, mask=mask, exclude=exclude[pending])
            enough = (positions >= 0) & (cosines >= floor)  # [pending, fetch]
            for query, found, places, values in zip(pending, enough, positions, cosines, strict=True):
                candidates = list(zip(places[found].tolist(), values[found].tolist(), strict=True))
                rankings[query] = self._first(candidates, k, distinct)
            more = [len(rankings[query]) < k and found.all() and fetch < len(self) for query, found in zip(pending, enough, strict=True)]
            pending, fetch = pending[np.array(more, bool)], fetch * WIDEN
        return rankings

    def _first(self, candidates: Ranking, k: int, distinct: bool) -> Ranking:
        """The first k, each content once if `distinct`."""
        if not distinct:
            return candidates[:k]
        content = self._columns["content"].view
        best: dict[int, tuple[int, float]] = {}
        for position, similarity in candidates:
            best.setdefault(int(content[position]), (position, similarity))
            if len(best) == k:
                break
        return list(best.values())

    def _merge(self, reserved: Ranking, others: Ranking, k: int, distinct: bool) -> Ranking:
        """The reserved places and then the best others, k in all, best first."""
        taken = {position for position, _ in reserved}
        merged = self._first(reserved + [pair for pair in others if pair[0] not in taken], k, distinct)
        return sorted(merged, key=lambda pair: (-pair[1], pair[0]))


def _admitted(trajectory: Trajectory) -> tuple[int, ...]:
    """The turns worth remembering: none of an episode that broke, and of a dream only those that the guard passed."""
    if trajectory.error is not None:
        return ()
    if trajectory.source != "dream":
        return tuple(range(len(trajectory.turns)))
    verdicts = [turn.transition.verdict for turn in trajectory.turns]
    return tuple(step for step, verdict in enumerate(verdicts) if verdict is not None and verdict.passed)
