"""The replay buffer: experience that the experience model is grounded in and that survives the process (section 4.1 of the paper).

A store keeps the rows on disk, an index finds neighbours in memory, an encoder says what near means. This module decides the rest:
which transitions are admitted, which neighbours are worth showing, and how a log is wound back to a checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
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
from dreamgym.replay.eviction import Policy, surplus
from dreamgym.replay.growing import Growing
from dreamgym.replay.indexes import Index, Positions, Vectors
from dreamgym.replay.stores import Entry, HalfVectors, Store
from dreamgym.types import Memory, Neighbour, Source, Trajectory

SOURCES: tuple[Source, ...] = get_args(Source)
COLUMNS = {"env": np.int64, "source": np.int64, "trajectory": np.int64, "content": np.int64, "verdict": np.int64, "reward": np.float64}
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
    diversity: float = Field(default=0.0, ge=0.0, le=1.0)  # weight of being unlike the neighbours already chosen; 0: nearest only
    max_rows: int = Field(default=0, ge=0)  # dreams are evicted beyond this many rows; real and demo rows never are. 0: no limit
    evict: Policy = "balanced"  # which dreams go first: see `eviction`
    index_options: dict[str, Any] = {}  # such as {"device": "cuda"}
    store_options: dict[str, Any] = {}  # such as {"timeout_s": 5.0}


class ReplayBuffer:
    """See `protocols.ReplayBuffer`. One per process; others may append to the same log, and `refresh` takes in what they added."""

    rollbacks: int  # how often it was wound back since it was opened
    refused: int  # transitions turned away since the buffer was opened: unjudged or failed dreams, and episodes with an error

    def __init__(self, store: Store, index: Index, encoder: Encoder, config: ReplayConfig | None = None):
        self._store = store
        self._index = index
        self._encoder = encoder
        self._config = config or ReplayConfig()
        self._memories: list[Memory] = []
        self._columns = {name: Growing(dtype) for name, dtype in COLUMNS.items()}
        self._codes: dict[str, dict[object, int]] = {name: {} for name in ("env", "trajectory", "content", "verdict")}
        self._sequence = 0
        self.refused = self.rollbacks = 0
        self.refresh()

    @classmethod
    def open(cls, path: Path | str | None, encoder: Encoder, config: ReplayConfig | None = None) -> ReplayBuffer:
        """Open or create the log at `path` (None: in memory only). RunDirError if another encoder built it."""
        config = config or ReplayConfig()
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
    def sequence(self) -> int:
        """Number of the last row known here, evicted or not: what a checkpoint remembers and `rollback` takes."""
        return self._sequence

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
            self._evict()
        self.refused += sum(len(trajectory.turns) for trajectory in trajectories) - len(pairs)
        return len(pairs)

    def refresh(self) -> int:
        """Take in the rows that others have appended since; returns how many. What they evicted stays until the log is reopened."""
        before, end = len(self), self._store.sequence
        if (coming := before + end - self._sequence) > 2 * before:  # a log that is opened, not one that grows
            self._index.reserve(coming)
            for column in self._columns.values():
                column.reserve(coming)
        for memories, vectors in self._store.rows(after=self.sequence):
            self._take_in(memories, vectors)
        self._sequence = max(self._sequence, end)  # the last rows may be evicted ones
        return len(self) - before

    def rollback(self, sequence: int) -> None:
        """Go back to a checkpoint: rows appended after `sequence` by the interrupted run are not trusted, and go.

        Rows that were evicted to make room for them come back.
        """
        self.refresh()
        if sequence > self.sequence:
            raise RunDirError(
                f"The checkpoint expects {sequence} rows in the replay log, which ends at row {self.sequence}. "
                "The log is older than the checkpoint, or of another run: restore the log that belongs to it."
            )
        restored = self._store.hide_after(sequence)
        self.rollbacks += 1
        self._sequence = sequence
        self._truncate(0 if restored else sequence)
        if restored:  # they belong between others: read everything in order
            self._sequence = 0
            self.refresh()

    def _truncate(self, sequence: int) -> None:
        """Forget the rows above `sequence`."""
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
        source: Source | Collection[Source] | None = None,
        min_reward: float | None = None,
        verdict: str | None = None,
        exclude: Sequence[str | Collection[str]] | None = None,
        held_out: Collection[str] = (),
        min_similarity: float | None = None,
        real_quota: int | None = None,
        distinct: bool | None = None,
        diversity: float | None = None,
    ) -> list[list[Neighbour]]:
        """Top-k memories by cosine of phi(s, a), best first, equals by age.

        Filters for all queries: environment, sources, the least reward, the guard's verdict as `Memory.verdict` has it, and `held_out`
        trajectories that nobody may see. `exclude[i]` is the trajectory, or the set of them, that query i may not see.
        `real_quota` of the k places are kept for real and demo rows as long as there are any; `distinct` lets each (action, next
        state) appear once; `diversity` weighs nearness against likeness to neighbours already chosen. None: as configured.
        """
        if not len(self) or k <= 0 or not states:
            return [[] for _ in states]
        floor = self._config.min_similarity if min_similarity is None else min_similarity
        quota = min(k, self._config.real_quota if real_quota is None else real_quota)
        distinct = self._config.distinct if distinct is None else distinct

        diversity = self._config.diversity if diversity is None else diversity

        vectors = self._encoder.encode(states, actions)  # [Q, dim]
        mask = self._mask(env, source, min_reward, verdict, held_out)
        excluded = self._excluded(exclude, len(states))
        rankings = self._choose(vectors, k, mask, excluded, floor, distinct, diversity)

        real = self._columns["source"].view != SOURCES.index("dream")
        short = [i for i, ranking in enumerate(rankings) if sum(bool(real[position]) for position, _ in ranking) < quota]
        if short:
            allowed = real if mask is None else real & mask
            reserved = self._choose(vectors[short], quota, allowed, excluded[short], floor, distinct, diversity)
            for i, kept in zip(short, reserved, strict=True):
                rankings[i] = self._merge(kept, rankings[i], k, distinct)
        return [[Neighbour(self._memories[position], similarity) for position, similarity in ranking] for ranking in rankings]

    def _mask(
        self,
        env: str | None,
        source: Source | Collection[Source] | None,
        min_reward: float | None,
        verdict: str | None,
        held_out: Collection[str],
    ) -> NDArray[np.bool_] | None:
        """Positions [N] that pass the filters; None: all of them."""
        columns = {name: column.view for name, column in self._columns.items()}
        tests: list[NDArray[np.bool_]] = []
        if env is not None:
            tests.append(columns["env"] == self._codes["env"].get(env, -1))
        if source is not None:
            wanted = (source,) if isinstance(source, str) else source
            tests.append(np.isin(columns["source"], [SOURCES.index(one) for one in wanted]))
        if min_reward is not None:
            tests.append(columns["reward"] >= min_reward)
        if verdict is not None:
            tests.append(columns["verdict"] == self._codes["verdict"].get(verdict, -1))
        if held_out:
            tests.append(~np.isin(columns["trajectory"], self._trajectory_codes(held_out)))
        return np.logical_and.reduce(tests) if tests else None

    def _excluded(self, exclude: Sequence[str | Collection[str]] | None, n: int) -> Positions:
        """Codes of the trajectories that each of `n` queries may not see: [n, most per query], -1 where there are fewer."""
        if exclude is None:
            return np.full((n, 1), -1, np.int64)
        sets = [self._trajectory_codes((one,) if isinstance(one, str) else one) for one in exclude]
        codes = np.full((n, max(map(len, sets), default=1)), -1, np.int64)
        for row, found in zip(codes, sets, strict=True):
            row[: len(found)] = found
        return codes

    def _trajectory_codes(self, trajectories: Collection[str]) -> list[int]:
        codes = self._codes["trajectory"]
        return [codes[one] for one in trajectories if one in codes]

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
        self._sequence = max(self._sequence, memories[-1].row)
        codes: dict[str, list[int] | list[float]] = {
            "env": [self._code("env", memory.env) for memory in memories],
            "source": [SOURCES.index(memory.source) for memory in memories],
            "trajectory": [self._code("trajectory", memory.trajectory) for memory in memories],
            "content": [self._code("content", (memory.action, memory.next_state)) for memory in memories],
            "verdict": [self._code("verdict", memory.verdict) for memory in memories],
            "reward": [memory.reward for memory in memories],
        }
        for name, values in codes.items():
            self._columns[name].append(np.array(values, COLUMNS[name]))
        self._index.add(vectors.astype(np.float32), np.array(codes["trajectory"], np.int64))

    def _evict(self) -> None:
        """Take dreams out of use until there are no more than `max_rows` rows, or no dreams."""
        if not self._config.max_rows or len(self) <= self._config.max_rows:
            return
        columns = self._columns
        dream = columns["source"].view == SOURCES.index("dream")
        out = surplus(self._config.evict, len(self) - self._config.max_rows, dream, columns["content"].view, columns["reward"].view)
        self._store.evict([self._memories[position].row for position in out])
        keep = np.ones(len(self), bool)
        keep[out] = False
        self._memories = [memory for memory, kept in zip(self._memories, keep, strict=True) if kept]
        self._index.retain(keep)
        for column in columns.values():
            column.retain(keep)

    def _choose(
        self, vectors: Vectors, k: int, mask: NDArray[np.bool_] | None, exclude: Positions, floor: float, distinct: bool, diversity: float
    ) -> list[Ranking]:
        """At most k per query [Q, dim]: the nearest, or with `diversity` the best of a wider choice."""
        if diversity == 0.0:
            return self._rank(vectors, k, mask, exclude, floor, distinct)
        return [self._diverse(ranking, k, diversity) for ranking in self._rank(vectors, k * WIDEN, mask, exclude, floor, distinct)]

    def _diverse(self, ranking: Ranking, k: int, diversity: float) -> Ranking:
        """Maximal marginal relevance (Carbonell and Goldstein 1998): next is the highest of

            (1 - diversity) * cosine to the query - diversity * largest cosine to those chosen,

        equals by rank. What is chosen is returned best first.
        """
        if len(ranking) <= 1:
            return ranking[:k]
        vectors = self._index.vectors(np.array([position for position, _ in ranking], np.int64))  # [n, dim]
        alike = np.round((vectors @ vectors.T).astype(np.float64), 5)
        relevance = (1.0 - diversity) * np.array([similarity for _, similarity in ranking])
        chosen, likeness = [0], alike[0]
        while len(chosen) < min(k, len(ranking)):
            gain = relevance - diversity * likeness
            gain[chosen] = -np.inf
            chosen.append(int(gain.argmax()))
            likeness = np.maximum(likeness, alike[chosen[-1]])
        return [ranking[i] for i in sorted(chosen)]

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
