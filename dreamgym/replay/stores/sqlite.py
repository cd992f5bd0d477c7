"""The replay log as one SQLite file: append-only, one transaction per `append`, flushed to disk before `append` returns.

WAL with synchronous=FULL: a batch that was acknowledged survives kill -9 and power loss, a batch that was not leaves no trace, and
other processes may read, and append, while this one writes. Everything a row needs to be understood is in the file: text, reward,
where it came from, which policy and model versions made it, the guard's verdict, and its vector (float16).

Rows are only removed by `hide_after`, when a run resumes from a checkpoint: rows that the interrupted run appended after it are
deleted and their numbers are used again, so that the resumed run numbers its rows as an uninterrupted one would have. An evicted
row stays in the file, marked with the last row at which it was evicted, so that going back to an earlier checkpoint restores it.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from sys import intern
from typing import Any, get_args

import numpy as np

from dreamgym.config import Config, build
from dreamgym.errors import DreamGymError, InvariantError, RunDirError, UsageError
from dreamgym.protocols import Encoder
from dreamgym.replay.filesystems import network_filesystem
from dreamgym.replay.stores import Entry, HalfVectors, memories
from dreamgym.runs.files import without_lone_surrogates
from dreamgym.types import Memory, Source

logger = logging.getLogger(__name__)

SOURCES = get_args(Source)
APPLICATION = 0x44474D52  # "DGMR", so that another program's SQLite file is not taken for a log
VERSION = 2

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
    verdict TEXT NOT NULL,           -- '' for a real step, else the kind of the guard's verdict
    neighbours TEXT NOT NULL,        -- JSON list of the rows the experience model was shown
    vector BLOB NOT NULL,            -- float16, little-endian
    evicted_at INTEGER               -- the log's last row when the row was evicted; NULL while it is in use
);
"""

READ = """
SELECT t.row, e.id, t.step, e.env, e.instruction, e.source, t.state, t.action, t.next_state, t.reward, t.terminated, e.success,
       t.reasoning, e.policy_version, e.model_version, t.verdict, e.task, t.vector
FROM transitions t LEFT JOIN trajectories e ON e.number = t.trajectory
WHERE t.row > ? AND t.evicted_at IS NULL ORDER BY t.row
"""

ROWS = "SELECT (SELECT count(*) FROM transitions), (SELECT coalesce(max(row), 0) FROM transitions)"
"""Evicted rows included; neither number reads a row."""

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
    encoder: str | None = None  # id of the encoder; None: the one that built the log, which must be there
    dim: int | None = None  # numbers a vector; None with `encoder`
    read_only: bool = False  # never waits for a writer, and reads a log in a folder that cannot be written too: see `connect_to_read`
    timeout_s: float = 30.0  # how long to wait for another writer
    page: int = 512  # rows read at a time


class SqliteStore:
    """See `stores.Store`."""

    def __init__(self, config: SqliteConfig):
        self.path = str(config.path or ":memory:")
        self._page = config.page
        self._db = self._connect(config)
        try:
            self._open(config)
        except BaseException:
            self._db.close()
            raise

    def __len__(self) -> int:
        return self._number("SELECT count(*) FROM transitions WHERE evicted_at IS NULL")

    @property
    def last_row(self) -> int:
        """Number of the last row, 0 when empty."""
        return self._number("SELECT coalesce(max(row), 0) FROM transitions")

    def append(self, entries: Sequence[Entry]) -> list[Memory]:
        """Log all entries in one transaction; when this returns they are on disk."""
        logged: list[Memory] = []
        with self._writing():
            self._check_encoder(self.encoder, self.dim)  # another process may have encoded the log anew
            row = self.last_row + 1
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
        """Rows with a number above `after`, in pages. They are one query, and so what other processes write meanwhile is not seen:
        all pages show the log as it was when the first was read.
        """
        with self._explained():
            found = self._db.execute(READ, (after,))
        while True:
            with self._explained():
                page = found.fetchmany(self._page)
            if not page:
                return
            yield self._parsed(page)

    def _parsed(self, page: Sequence[tuple[Any, ...]]) -> tuple[list[Memory], HalfVectors]:
        """Rows of READ as memories and vectors [n, dim]. RunDirError names the first row that is damaged."""
        found = []
        vectors = np.empty((len(page), self.dim), np.float16)
        for i, columns in enumerate(page):
            try:
                found.append(_memory(*columns[:-1]))
                vectors[i] = np.frombuffer(columns[-1], "<f2").reshape(self.dim)
            except (TypeError, ValueError, OverflowError) as error:
                raise self._damaged(f"row {columns[0]}: {error}") from error
        if not (sound := np.isfinite(vectors).all(axis=1)).all():
            raise self._damaged(f"row {page[int(sound.argmin())][0]}: its vector holds a number that is not finite")
        return found, vectors

    def _damaged(self, what: str) -> RunDirError:
        return RunDirError(f"Replay log '{self.path}' is damaged: {what}. Restore the file from a backup, or start a new run directory.")

    def hide_after(self, row: int) -> int:
        """Delete the rows above `row`, which an interrupted run appended after its last checkpoint; their numbers are used again.

        Rows that were evicted after `row` was the last are in use again: their number is returned.
        """
        with self._writing():
            self._db.execute("DELETE FROM transitions WHERE row > ?", (row,))
            self._db.execute("DELETE FROM trajectories WHERE first_row > ?", (row,))
            return self._db.execute("UPDATE transitions SET evicted_at = NULL WHERE evicted_at > ?", (row,)).rowcount

    def evict(self, rows: Sequence[int]) -> None:
        """Take these rows out of use; `rows` and `len` no longer count them. They stay in the file."""
        with self._writing():
            marks = [(self.last_row, row) for row in rows]
            self._db.executemany("UPDATE transitions SET evicted_at = ? WHERE row = ? AND evicted_at IS NULL", marks)

    def reencode(self, encoder: Encoder, *, batch: int = 1024) -> int:
        """Replace every vector, evicted rows included, in one transaction; returns the number of rows.

        Other processes go on reading the old vectors until it is done, and cannot append with them afterwards.
        """
        query = "SELECT row, state, action FROM transitions WHERE row > ? ORDER BY row LIMIT ?"
        done = last = 0
        with self._writing():
            while rows := self._db.execute(query, (last, batch)).fetchall():
                numbers, states, actions = zip(*rows, strict=True)
                vectors = encoder.encode(states, actions).astype("<f2")
                if vectors.shape != (len(rows), encoder.dim):
                    raise InvariantError(f"Encoder '{encoder.id}' gave vectors of shape {vectors.shape} for {len(rows)} rows.")
                blobs = [(vector.tobytes(), number) for number, vector in zip(numbers, vectors, strict=True)]
                self._db.executemany("UPDATE transitions SET vector = ? WHERE row = ?", blobs)
                last, done = numbers[-1], done + len(rows)
            self._db.executemany("UPDATE meta SET value = ? WHERE key = ?", [(encoder.id, "encoder"), (str(encoder.dim), "dim")])
        self.encoder, self.dim = encoder.id, encoder.dim
        return done

    def close(self) -> None:
        """Close the file; what was appended is on disk already."""
        self._db.close()

    def _connect(self, config: SqliteConfig) -> sqlite3.Connection:
        with self._explained():
            if config.path is None:
                return sqlite3.connect(":memory:", isolation_level=None)
            if (kind := network_filesystem(config.path)) is not None:
                logger.warning(
                    "Replay log '%s' is on a network filesystem (%s), where SQLite's locks and shared memory are not dependable: "
                    "let one process use it at a time, or put the run directory on a local disk.", self.path, kind,
                )  # fmt: skip
            if _is_cut_off(config.path):
                raise RunDirError(f"'{self.path}' is no readable replay log: it is cut off. Restore it, or start a new run.")
            if config.read_only:
                if not config.path.is_file():
                    raise RunDirError(
                        f"No replay log '{self.path}'. Expected the path of a log, such as runs/quickstart/replay/dream.sqlite."
                    )
                return connect_to_read(config.path, timeout_s=config.timeout_s)
            config.path.parent.mkdir(parents=True, exist_ok=True)
            return sqlite3.connect(self.path, timeout=config.timeout_s, isolation_level=None)

    def _open(self, config: SqliteConfig) -> None:
        current = self._number("PRAGMA application_id") == APPLICATION and self._number("PRAGMA user_version") == VERSION
        if config.read_only or current:  # without the lock, for which a reader would have to wait in a crowd of writers
            with self._explained():
                self._check(config)
        else:
            with self._writing():  # one process creates the tables, and none sees half of them
                if not self._number("PRAGMA application_id") and not self._number("SELECT count(*) FROM sqlite_master"):
                    self._create(config)
                self._check(config)
        if config.read_only:
            return
        with self._explained():  # only now that the file is known to be ours
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")

    def _check(self, config: SqliteConfig) -> None:
        if self._number("PRAGMA application_id") != APPLICATION:
            raise RunDirError(f"'{self.path}' is not a replay log. Expected a file written by dreamgym, or a path with no file.")
        version = self._number("PRAGMA user_version")
        if version != VERSION:
            raise RunDirError(
                f"Replay log '{self.path}' has schema version {version}; this dreamgym reads version {VERSION}. "
                "Use the dreamgym that wrote it, or start a new run directory."
            )
        self.encoder, self.dim = self._check_encoder(config.encoder, config.dim)
        rows, last = self._db.execute(ROWS).fetchone()
        if rows != last:
            raise self._damaged(f"it holds {rows:,} rows, and the last has the number {last:,}")

    def _check_encoder(self, encoder: str | None, dim: int | None) -> tuple[str, int]:
        """The id and the dimensions that the log was built with; refuses others (None: any)."""
        meta = dict(self._db.execute("SELECT key, value FROM meta"))
        try:
            built, size = str(meta["encoder"]), int(meta["dim"])
        except (KeyError, ValueError) as error:
            raise self._damaged(f"its table 'meta' has no valid encoder and dim, but {meta}") from error
        if encoder not in (None, built) or dim not in (None, size):
            raise RunDirError(
                f"Replay log '{self.path}' was built with encoder '{built}' ({size} numbers a row), not with "
                f"'{encoder}' ({dim} numbers a row), and vectors of two encoders cannot be compared. Configure the encoder it was built "
                f"with, encode it anew (dreamgym replay reencode {self.path}), or start a new run directory."
            )
        return built, size

    def _create(self, config: SqliteConfig) -> None:
        if config.encoder is None or config.dim is None:
            raise UsageError(f"There is no replay log at '{self.path}', and a new one needs the id and the dimensions of its encoder.")
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


def _is_cut_off(path: Path) -> bool:
    """Whether a log at rest ends within a page: SQLite would read the missing bytes as zeros, or take a stump for a new file."""
    if not path.is_file() or _in_use(path):  # in use, a page may be half there as long as its journal holds it
        return False
    with path.open("rb") as file:
        header = file.read(100)
    if not header or (len(header) == 100 and not header.startswith(b"SQLite format 3\0")):
        return False  # new, or no database at all, which SQLite says itself
    page = int.from_bytes(header[16:18], "big")
    return len(header) < 100 or path.stat().st_size % (65536 if page == 1 else page) > 0


def _in_use(path: Path) -> bool:
    journal = path.with_name(path.name + "-wal")
    return journal.is_file() and journal.stat().st_size > 0


def connect_to_read(path: Path, *, timeout_s: float = 5.0) -> sqlite3.Connection:
    """A connection that cannot write, and sees a consistent log whatever others write. sqlite3.Error where the log cannot be opened.

    SQLite keeps an empty journal and a shared-memory file beside the log, which the next writer removes. In a folder where it cannot make
    them, a log at rest is read without locks ("immutable"): somebody who may write there must not do so meanwhile. A log whose journal
    still holds rows is refused there, because they would be missing.
    """
    uri = f"{path.resolve().as_uri()}?mode=ro"
    db = sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None)
    try:
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the file is opened only now
    except sqlite3.Error as error:
        db.close()
        if _in_use(path) or not getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
        return sqlite3.connect(f"{uri}&immutable=1", uri=True, timeout=timeout_s, isolation_level=None)
    return db


def _trajectory(entry: Entry, number: int, first_row: int) -> tuple[object, ...]:
    """A row of `trajectories`, in the order of the schema."""
    it = entry.trajectory
    texts = map(without_lone_surrogates, (it.id, it.task.env, it.task.id, it.task.instruction, it.source, it.behaviour))
    numbers = it.policy_version, it.model_version, it.success, it.truncated, len(it.turns), float(it.total_reward), first_row
    return number, *texts, *numbers


def _transition(entry: Entry, memory: Memory, number: int, i: int) -> tuple[object, ...]:
    """A row of `transitions`, in the order of the schema; `i` counts the entry's admitted turns."""
    texts = memory.state, memory.action, memory.next_state
    outcome = memory.reward, memory.terminated, memory.reasoning, memory.verdict
    neighbours = json.dumps(entry.trajectory.turns[memory.step].transition.info.neighbours)
    return memory.row, number, memory.step, *texts, *outcome, neighbours, entry.vectors[i].astype("<f2").tobytes(), None


def _memory(
    row: int, trajectory: str, step: int, env: str, instruction: str, source: Source, state: str, action: str, next_state: str,
    reward: float, terminated: int, success: int, reasoning: str, policy_version: int, model_version: int, verdict: str, task: str,
) -> Memory:  # fmt: skip
    """A row of READ. Interned, because a text is the next state of one row, the state of the following one, and both of many more.

    TypeError or ValueError where a column holds something else: SQLite does not enforce the types of columns.
    """
    try:
        sound = math.isfinite(row + step + reward + terminated + success + policy_version + model_version)
    except TypeError:
        sound = False
    if not sound:  # one look at the sum is faster than one at each
        for number in (row, step, reward, terminated, success, policy_version, model_version):
            if not isinstance(number, int | float) or not math.isfinite(number):
                raise ValueError(f"expected a finite number, found {number!r:.80}")
    if source not in SOURCES:
        raise ValueError(f"expected a source of {', '.join(SOURCES)}, found {source!r:.80}")
    return Memory(
        row, intern(trajectory), step, intern(env), intern(instruction), source, intern(state), intern(action), intern(next_state),
        float(reward), bool(terminated), bool(success), intern(reasoning), policy_version, model_version, intern(verdict), intern(task),
    )  # fmt: skip


def make(**config: object) -> SqliteStore:
    """`make("replay.stores", "sqlite", path=Path("replay.sqlite"), encoder=encoder.id, dim=encoder.dim)`."""
    return SqliteStore(build(SqliteConfig, config, where="replay.stores.sqlite"))
