"""The replay log as one SQLite file: append-only, one transaction per `append`, flushed to disk before `append` returns.

WAL with synchronous=FULL: a batch that was acknowledged survives kill -9 and power loss, a batch that was not leaves no trace, and
other processes may read, and append, while this one writes. Everything a row needs to be understood is in the file: text, reward,
where it came from, which policy and model versions made it, what the guard said, and its vector (float16).

Rows are only ever removed by `hide_after`, when a run resumes from a checkpoint: what the interrupted run appended after it is
deleted and its numbers are given out again, so that the resumed run numbers its rows as an uninterrupted one would have.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from sys import intern

import numpy as np

from dreamgym.config import Config, build
from dreamgym.errors import DreamGymError, InvariantError, RunDirError
from dreamgym.replay.stores import Entry, HalfVectors, memories, storable
from dreamgym.types import Memory, Source

APPLICATION = 0x44474D52  # "DGMR", so that another program's SQLite file is not taken for a log
VERSION = 1

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE trajectories (
    number INTEGER PRIMARY KEY,      -- ours; ids need not be unique
    id TEXT NOT NULL,
    env TEXT NOT NULL,
    task TEXT NOT NULL,
    instruction TEXT NOT NULL,
    source TEXT NOT NULL CHECK (source IN ('real', 'dream', 'demo')),
    behaviour TEXT NOT NULL,
    policy_version INTEGER NOT NULL,
    model_version INTEGER NOT NULL,
    success INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    turns INTEGER NOT NULL,          -- of the episode; fewer may have been admitted
    total_reward REAL NOT NULL,
    first_row INTEGER NOT NULL
);
CREATE TABLE transitions (
    row INTEGER PRIMARY KEY,         -- 1, 2, 3, ... without gaps
    trajectory INTEGER NOT NULL REFERENCES trajectories (number),
    step INTEGER NOT NULL,           -- in the episode
    state TEXT NOT NULL,
    action TEXT NOT NULL,
    next_state TEXT NOT NULL,
    reward REAL NOT NULL,
    terminated INTEGER NOT NULL,
    reasoning TEXT NOT NULL,
    verdict TEXT NOT NULL,           -- '' when nobody judged, 'passed', or reasons
    neighbours TEXT NOT NULL,        -- JSON list of the rows the experience model was shown
    vector BLOB NOT NULL             -- float16, little-endian
);
"""

READ = """
SELECT t.row, e.id, t.step, e.env, e.instruction, e.source, t.state, t.action, t.next_state, t.reward, t.terminated, e.success,
       t.reasoning, e.policy_version, e.model_version, t.verdict, t.vector
FROM transitions t JOIN trajectories e ON e.number = t.trajectory WHERE t.row > ? ORDER BY t.row LIMIT ?
"""

ADVICE = {
    "SQLITE_FULL": "The disk is full. Free some space and give the same command again; batches acknowledged before are safe.",
    "SQLITE_BUSY": "Another process is writing to it. Stop that process, or wait for it, and try again.",
    "SQLITE_LOCKED": "Another connection is writing to it. Stop that process, or wait for it, and try again.",
    "SQLITE_READONLY": "It cannot be written. Check its permissions and those of its folder.",
    "SQLITE_CANTOPEN": "It cannot be opened. Expected the path of a file in a folder that can be written.",
    "SQLITE_IOERR": "The disk did not do as asked. Check that it is not full or failing, then try again.",
}


class SqliteConfig(Config):
    """Where the log is and what its vectors mean."""

    path: Path | None = None  # None: in memory, gone with the process
    encoder: str  # id of the encoder
    dim: int
    timeout_s: float = 30.0  # how long to wait for another writer
    page: int = 2048  # rows read at a time


class SqliteStore:
    """See `stores.Store`."""

    def __init__(self, config: SqliteConfig):
        self.path = str(config.path or ":memory:")
        self.dim = config.dim
        self._page = config.page
        with self._explained():
            if config.path is not None:
                config.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=config.timeout_s, isolation_level=None)
        try:
            self._open(config)
        except BaseException:
            self._db.close()
            raise

    def __len__(self) -> int:
        return self._number("SELECT count(*) FROM transitions")

    @property
    def sequence(self) -> int:
        """Number of the last row, 0 when empty."""
        return self._number("SELECT coalesce(max(row), 0) FROM transitions")

    def append(self, entries: Sequence[Entry]) -> list[Memory]:
        """Log all entries in one transaction; when this returns they are on disk."""
        logged: list[Memory] = []
        with self._writing():
            row = self.sequence + 1
            last = self._number("SELECT coalesce(max(number), 0) FROM trajectories")
            for number, entry in enumerate(entries, last + 1):
                if entry.vectors.shape != (len(entry.steps), self.dim):
                    raise InvariantError(f"Expected vectors of shape ({len(entry.steps)}, {self.dim}), got {entry.vectors.shape}.")
                added = memories(entry, row)
                self._insert("trajectories", [_trajectory(entry, number, row)])
                self._insert("transitions", [_transition(entry, memory, number, i) for i, memory in enumerate(added)])
                logged += added
                row += len(added)
        return logged

    def rows(self, after: int = 0) -> Iterator[tuple[list[Memory], HalfVectors]]:
        """Rows with a number above `after`, in pages; each page is a query of its own, so appending in between is fine."""
        while True:
            with self._explained():
                page = self._db.execute(READ, (after, self._page)).fetchall()
            if not page:
                return
            vectors = np.frombuffer(b"".join(columns[-1] for columns in page), "<f2").reshape(len(page), self.dim)
            yield [_memory(*columns[:-1]) for columns in page], vectors.astype(np.float16)
            after = page[-1][0]

    def hide_after(self, row: int) -> None:
        """Delete the rows above `row`, which an interrupted run appended after its last checkpoint. Their numbers are used again."""
        with self._writing():
            self._db.execute("DELETE FROM transitions WHERE row > ?", (row,))
            self._db.execute("DELETE FROM trajectories WHERE first_row > ?", (row,))

    def close(self) -> None:
        """Close the file; what was appended is on disk already."""
        self._db.close()

    def _open(self, config: SqliteConfig) -> None:
        with self._writing():  # one process creates the tables, and none sees half of them
            self._check_or_create(config)
        with self._explained():  # only now that the file is known to be ours
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")

    def _check_or_create(self, config: SqliteConfig) -> None:
        application, version = self._number("PRAGMA application_id"), self._number("PRAGMA user_version")
        if not application and not self._number("SELECT count(*) FROM sqlite_master"):
            self._create(config)
            return
        if application != APPLICATION:
            raise RunDirError(f"'{self.path}' is not a replay log. Expected a file written by dreamgym, or a path with no file.")
        if version != VERSION:
            raise RunDirError(
                f"Replay log '{self.path}' has schema version {version}; this dreamgym reads version {VERSION}. "
                "Use the dreamgym that wrote it, or start a new run directory."
            )
        meta = dict(self._db.execute("SELECT key, value FROM meta"))
        if (meta["encoder"], meta["dim"]) != (config.encoder, str(config.dim)):
            raise RunDirError(
                f"Replay log '{self.path}' was built with encoder '{meta['encoder']}' ({meta['dim']} numbers a row), not with "
                f"'{config.encoder}' ({config.dim} numbers a row), and vectors of two encoders cannot be compared. "
                "Configure the encoder it was built with, or start a new run directory."
            )

    def _create(self, config: SqliteConfig) -> None:
        for statement in SCHEMA.split(";\n"):
            self._db.execute(statement)
        self._insert("meta", [("encoder", config.encoder), ("dim", str(config.dim))])
        self._db.execute(f"PRAGMA application_id = {APPLICATION}")
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    def _insert(self, table: str, rows: list[tuple[object, ...]]) -> None:
        if rows:
            self._db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def _number(self, query: str) -> int:
        with self._explained():
            return int(self._db.execute(query).fetchone()[0])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._explained():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has rolled back by itself after some errors
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's and the system's errors as ours, naming the file."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise InvariantError(f"Replay log '{self.path}' refused a row: {error}. A reward that is not a number does this.") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorname", "")
            if code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
                raise RunDirError(f"'{self.path}' is no readable replay log: {error}. Restore it, or start a new run.") from error
            advice = next((text for prefix, text in ADVICE.items() if code.startswith(prefix)), "")
            raise DreamGymError(f"Replay log '{self.path}': {error} ({code}). {advice}".strip()) from error
        except OSError as error:
            raise DreamGymError(f"Replay log '{self.path}': {error}. Expected a path in a folder that can be written.") from error


def _trajectory(entry: Entry, number: int, first_row: int) -> tuple[object, ...]:
    """A row of `trajectories`, in the order of the schema."""
    it = entry.trajectory
    texts = storable(it.id), storable(it.task.env), storable(it.task.id), storable(it.task.instruction), it.source, storable(it.behaviour)
    numbers = it.policy_version, it.model_version, it.success, it.truncated, len(it.turns), it.total_reward, first_row
    return number, *texts, *numbers


def _transition(entry: Entry, memory: Memory, number: int, i: int) -> tuple[object, ...]:
    """A row of `transitions`, in the order of the schema; `i` counts the entry's admitted turns."""
    texts = memory.state, memory.action, memory.next_state
    outcome = memory.reward, memory.terminated, memory.reasoning, memory.verdict
    neighbours = json.dumps(entry.trajectory.turns[memory.step].transition.neighbours)
    return memory.row, number, memory.step, *texts, *outcome, neighbours, entry.vectors[i].astype("<f2").tobytes()


def _memory(
    row: int, trajectory: str, step: int, env: str, instruction: str, source: Source, state: str, action: str, next_state: str,
    reward: float, terminated: int, success: int, reasoning: str, policy_version: int, model_version: int, verdict: str,
) -> Memory:  # fmt: skip
    """A row of READ. Interned, because a text is the next state of one row, the state of the following one, and both of many more."""
    return Memory(
        row, intern(trajectory), step, intern(env), intern(instruction), source, intern(state), intern(action), intern(next_state),
        reward, bool(terminated), bool(success), reasoning, policy_version, model_version, verdict,
    )  # fmt: skip


def make(**config: object) -> SqliteStore:
    """`make("replay.stores", "sqlite", path=Path("replay.sqlite"), encoder=encoder.id, dim=encoder.dim)`."""
    return SqliteStore(build(SqliteConfig, config, where="replay.stores.sqlite"))
