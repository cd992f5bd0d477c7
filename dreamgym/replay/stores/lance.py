"""The replay log as a LanceDB table (extra `lancedb`): a local folder, or object storage such as s3://bucket/run.

An append is one commit: all of it is there or none of it. On object storage an acknowledged commit is durable. In a local folder it
survives kill -9, but LanceDB leaves flushing to the system, so a power failure may lose the newest batches: `sqlite` does not. Local
processes take turns by a lock file; on object storage let one process append. Every append adds files, which slow reading down, so the
table is compacted after every `COMPACT_EVERY` of them; versions older than an hour are deleted then.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from pydantic import Field

from dreamgym.config import Config, build
from dreamgym.errors import DreamGymError, InvariantError, RunDirError, UsageError
from dreamgym.replay.stores import Entry, HalfVectors, memories
from dreamgym.runs.files import without_lone_surrogates
from dreamgym.types import Memory

VERSION = 2
KEPT = timedelta(hours=1)  # so that a reader may finish with the version it began with
COLUMNS = [field.name for field in fields(Memory)]
ARROW = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
_unnamed = count()


COMPACT_EVERY = 64  # appends of this process


class LanceConfig(Config):
    """Where the table is and what its vectors mean."""

    path: Path | str | None = None  # a folder, or the URI of one; None: in memory
    encoder: str | None = None  # id of the encoder; None: the one that built the log, which must be there
    dim: int | None = None  # numbers a vector; None with `encoder`
    page: int = Field(default=16_384, ge=1)  # row numbers read at a time


class LanceStore:
    """See `stores.Store`."""

    def __init__(self, config: LanceConfig):
        self.path = f"memory://dreamgym-{next(_unnamed)}" if config.path is None else str(config.path)
        self._config = config
        self._appends = 0
        self._lock = None if "://" in self.path else Path(self.path) / "dreamgym.lock"
        with self._explained():
            if self._lock is not None:
                self._lock.parent.mkdir(parents=True, exist_ok=True)
            self._db = lancedb.connect(self.path)
        with self._writing():
            self._open()
        self._known = (0, 0)  # version of the table and the row it ends with

    def __len__(self) -> int:
        with self._explained():
            self._rows.checkout_latest()
            return int(self._rows.count_rows("evicted_at IS NULL"))

    @property
    def last_row(self) -> int:
        """Number of the last row, evicted or not; 0 when empty."""
        with self._explained():
            self._rows.checkout_latest()
            version = self._rows.version
            if self._known[0] != version:
                numbers = self._rows.search().select(["row"]).to_arrow()["row"].to_numpy()
                self._known = version, int(numbers.max(initial=0))
        return self._known[1]

    def append(self, entries: Sequence[Entry]) -> list[Memory]:
        """Log all entries in one commit."""
        logged: list[Memory] = []
        neighbours: list[str] = []
        with self._writing():
            self._check()  # another process may have made the log anew
            for entry in entries:
                if entry.vectors.shape != (len(entry.steps), self.dim):
                    raise InvariantError(f"Expected vectors of shape ({len(entry.steps)}, {self.dim}), got {entry.vectors.shape}.")
            row = self.last_row + 1
            for entry in entries:
                added = memories(entry, row + len(logged))
                logged += added
                neighbours += [json.dumps(entry.trajectory.turns[memory.step].transition.info.neighbours) for memory in added]
            if any(memory.reward != memory.reward for memory in logged):
                raise InvariantError(f"Replay log '{self.path}' refused a row: a reward is not a number.")
            if logged:
                vectors = np.concatenate([entry.vectors for entry in entries]).astype(np.float16)
                self._rows.add(self._table(logged, neighbours, vectors))
                self._known = self._rows.version, logged[-1].row
                self._appends += 1
            if self._appends >= COMPACT_EVERY:
                self._rows.optimize(cleanup_older_than=KEPT)
                self._appends = 0
        return logged

    def rows(self, after: int = 0) -> Iterator[tuple[list[Memory], HalfVectors]]:
        """Rows in use with a number above `after`, in order, in pages."""
        end = self.last_row
        for start in range(after, end, self._config.page):
            last = min(end, start + self._config.page)
            with self._explained():
                found = self._rows.search().where(f"row > {start} AND row <= {last} AND evicted_at IS NULL").to_arrow().sort_by("row")
            if len(found):
                column = found["vector"].combine_chunks()
                vectors = np.asarray(column.flatten(), np.float16).reshape(len(found), self.dim)
                yield [Memory(**row) for row in found.select(COLUMNS).to_pylist()], vectors

    def hide_after(self, row: int) -> int:
        """Delete the rows above `row`; those that were evicted after it was the last are in use again, and counted."""
        with self._writing():
            self._rows.checkout_latest()
            self._rows.delete(f"row > {int(row)}")
            where = f"evicted_at > {int(row)}"
            restored = int(self._rows.count_rows(where))
            if restored:
                self._rows.update(where=where, values_sql={"evicted_at": "NULL"})
        return restored

    def evict(self, rows: Sequence[int]) -> None:
        """Take these rows out of use; they stay in the table."""
        if rows:
            with self._writing():
                last_row, numbers = self.last_row, ", ".join(str(int(row)) for row in rows)
                self._rows.update(where=f"evicted_at IS NULL AND row IN ({numbers})", values_sql={"evicted_at": str(last_row)})

    def close(self) -> None:
        """Nothing is left to write."""

    def _open(self) -> None:
        """The table, made if it is not there; `meta` comes last and says that `rows` is whole."""
        names = set(self._db.list_tables().tables)
        if "meta" not in names:
            encoder, dim = self._config.encoder, self._config.dim
            if encoder is None or dim is None:
                raise UsageError(f"There is no replay log at '{self.path}', and a new one needs the id and the dimensions of its encoder.")
            types = [pa.field(f.name, ARROW.get(str(f.type), pa.string())) for f in fields(Memory)]
            vector = pa.field("vector", pa.list_(pa.float16(), dim))
            schema = pa.schema([*types, pa.field("neighbours", pa.string()), pa.field("evicted_at", pa.int64()), vector])
            self._db.create_table("rows", schema=schema, mode="overwrite")
            meta = {"key": ["version", "encoder", "dim"], "value": [str(VERSION), encoder, str(dim)]}
            self._db.create_table("meta", pa.table(meta))
        self._check()
        self._rows: Any = self._db.open_table("rows")

    def _check(self) -> None:
        meta = {row["key"]: row["value"] for row in self._db.open_table("meta").search().to_arrow().to_pylist()}
        if meta.get("version") != str(VERSION):
            raise RunDirError(
                f"Replay log '{self.path}' has schema version {meta.get('version')}; this dreamgym reads version {VERSION}. "
                "Use the dreamgym that wrote it, or start a new run directory."
            )
        self.encoder, self.dim = meta["encoder"], int(meta["dim"])
        asked = self._config.encoder, self._config.dim
        if asked[0] not in (None, self.encoder) or asked[1] not in (None, self.dim):
            raise RunDirError(
                f"Replay log '{self.path}' was built with encoder '{self.encoder}' ({self.dim} numbers a row), not with "
                f"'{asked[0]}' ({asked[1]} numbers a row), and vectors of two encoders cannot be compared. Configure the encoder it "
                "was built with, export its rows and import them into a new log, or start a new run directory."
            )

    def _table(self, logged: Sequence[Memory], neighbours: list[str], vectors: HalfVectors) -> Any:
        rows = [
            asdict(memory) | {"neighbours": without_lone_surrogates(text), "evicted_at": None}
            for memory, text in zip(logged, neighbours, strict=True)
        ]
        schema = self._rows.schema
        table = pa.Table.from_pylist(rows, schema=schema.remove(schema.get_field_index("vector")))
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dim)
        return table.append_column(schema.field("vector"), column)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Alone among the local processes that write here."""
        with self._explained():
            if self._lock is None:
                yield
                return
            with self._lock.open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # let go when the file is closed, also by the death of the process
                yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """LanceDB's and the system's errors as ours, naming the log."""
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:
            raise DreamGymError(
                f"Replay log '{self.path}': {error}. Check that it is a LanceDB folder, can be written and has space."
            ) from error


def make(**config: object) -> LanceStore:
    """`make("replay.stores", "lance", path=Path("replay.lance"), encoder=encoder.id, dim=encoder.dim)`."""
    return LanceStore(build(LanceConfig, config, where="replay.stores.lance"))
