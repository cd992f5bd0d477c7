"""Export and import of replay logs as JSON Lines or Parquet: one flat row per memory, for pandas, DuckDB and Hugging Face `datasets`.

The columns are the fields of `types.Memory`. Vectors are not exported: an import encodes the rows again. Imported rows are admitted like
all others: dreams without a passed verdict are refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from dreamgym.errors import MissingExtra, UsageError, nearest, reason_of
from dreamgym.replay.buffer import SOURCES
from dreamgym.replay.stores import LARGEST, Store
from dreamgym.types import Memory, Observation, StepInfo, Task, Trajectory, Transition, Turn, Verdict, VerdictKind

KINDS = {"row": int, "step": int, "reward": float, "terminated": bool, "success": bool, "policy_version": int, "model_version": int}
COLUMNS = {field.name: KINDS.get(field.name, str) for field in fields(Memory)}
REQUIRED = ("trajectory", "step", "env", "instruction", "source", "state", "action", "next_state", "reward", "terminated", "success")
VERDICTS = get_args(VerdictKind)
PAGE = 1024
MOST_STEPS = 1_000_000  # of one episode: the steps that a file leaves out take memory too
GAP = Turn(Transition(Observation(""), "", Observation(""), 0.0, False, StepInfo(verdict=Verdict("refused", ("not in the file",)))))


def export(store: Store, path: Path) -> int:
    """Write the rows in use to `path`, .jsonl or .parquet; returns how many. The file is whole or not there at all."""
    write: Callable[[Store, Path], int] = _by_suffix(path, _write_jsonl, _write_parquet)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            rows = write(store, unfinished)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"Cannot write '{path}': {error.strerror or error}. Give a path in a folder that can be written, with space."
        ) from error
    return rows


def read(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a file that `export` wrote, or of any with its columns; `ReplayBuffer.add` takes them.

    Rows of one trajectory are consecutive. Missing steps, which were not admitted, become turns that are not admitted again.
    """
    rows_of: Callable[[Path], Iterator[tuple[int, dict[str, Any]]]] = _by_suffix(path, _read_jsonl, _read_parquet)
    if not path.is_file():
        raise UsageError(f"There is no file '{path}'. Expected one that `dreamgym replay export` wrote.")
    memories = (_memory(row, number, path) for number, row in rows_of(path))
    for _, group in groupby(
        memories, key=lambda m: (m.trajectory, m.env, m.task, m.instruction, m.source, m.policy_version, m.model_version)
    ):
        steps: list[Memory] = []
        for memory in group:
            if steps and memory.step <= steps[-1].step:  # another one of the same id: ids need not be unique
                yield _trajectory(steps, path)
                steps = []
            steps.append(memory)
        yield _trajectory(steps, path)


def _by_suffix(path: Path, jsonl: Callable[..., Any], parquet: Callable[..., Any]) -> Any:
    kinds = {".jsonl": jsonl, ".parquet": parquet}
    if path.suffix not in kinds:
        raise UsageError(f"'{path}' ends in '{path.suffix}'.{nearest(path.suffix, kinds)} Expected a name that ends in .jsonl or .parquet.")
    return kinds[path.suffix]


def _write_jsonl(store: Store, path: Path) -> int:
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        for memories, _ in store.rows():
            file.writelines(json.dumps(asdict(memory), ensure_ascii=False) + "\n" for memory in memories)
            rows += len(memories)
    return rows


def _write_parquet(store: Store, path: Path) -> int:
    arrow, parquet = _pyarrow()
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    schema = arrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    rows = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for memories, _ in store.rows():
            writer.write_table(arrow.Table.from_pylist([asdict(memory) for memory in memories], schema=schema))
            rows += len(memories)
    return rows


def _read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
                    raise UsageError(f"'{path}', line {number}: {reason_of(error)}. Expected one JSON object a line, in UTF-8.") from error
                if not isinstance(row, dict):
                    raise UsageError(
                        f"'{path}', line {number}: expected a JSON object, got {line.strip()[:60].decode(errors='replace')!r}."
                    )
                yield number, row


def _read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    arrow, parquet = _pyarrow()
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PAGE):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:  # a page that is damaged is met only when it is read
        reason = " ".join(str(error).split())  # Arrow writes several lines
        raise UsageError(
            f"'{path}' is no readable Parquet file, past row {number:,}: {reason.rstrip('.')}. Expected a whole one: take another copy, or "
            "write it again with `dreamgym replay export`."
        ) from error


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("Parquet files need pyarrow. Install it with: pip install 'dreamgym[parquet]', or use .jsonl.") from error
    return pyarrow, pyarrow.parquet


def _memory(row: dict[str, Any], number: int, path: Path) -> Memory:
    """A row of a file as a memory; UsageError names the row and the column."""
    where = f"'{path}', row {number}"
    for name in REQUIRED:
        if row.get(name) is None:
            raise UsageError(f"{where}: no '{name}'.{nearest(name, row)} Expected the columns {', '.join(REQUIRED)}.")
    if row["source"] not in SOURCES:
        raise UsageError(f"{where}: source {row['source']!r}.{nearest(str(row['source']), SOURCES)} Expected {', '.join(SOURCES)}.")
    values: dict[str, Any] = {"row": number}
    for name, kind in COLUMNS.items():
        value = row.get(name)
        if name == "row" or value is None:
            continue
        if not isinstance(value, (int, float) if kind is float else kind) or (kind is not bool and isinstance(value, bool)):
            raise UsageError(f"{where}: {name} is {value!r}. Expected {kind.__name__}.")
        if isinstance(value, int | float) and not abs(value) < LARGEST:
            raise UsageError(f"{where}: {name} is {value!r}. Expected a finite number below 2^63.")
        values[name] = value
    if (verdict := values.get("verdict")) and verdict not in VERDICTS:
        raise UsageError(
            f"{where}: verdict {verdict!r:.100}.{nearest(verdict, VERDICTS)} Expected one of {', '.join(VERDICTS)}, or nothing."
        )
    if not 0 <= values["step"] < MOST_STEPS:
        raise UsageError(f"{where}: step is {values['step']}. Expected 0 or more, and less than {MOST_STEPS:,}.")
    return Memory(**values)


def _trajectory(memories: list[Memory], path: Path) -> Trajectory:
    first = memories[0]
    turns = [GAP] * (max(memory.step for memory in memories) + 1)
    for memory in memories:
        turns[memory.step] = Turn(_transition(memory))
    if GAP in turns and first.source != "dream":
        raise UsageError(f"'{path}': trajectory '{first.trajectory}' lacks step {turns.index(GAP)}. Only dreams may have gaps.")
    task = Task(first.task or first.trajectory, first.instruction, first.env)
    return Trajectory(
        first.trajectory, task, first.source, tuple(turns), first.success,
        policy_version=first.policy_version, model_version=first.model_version,
    )  # fmt: skip


def _transition(memory: Memory) -> Transition:
    info = StepInfo(memory.reasoning, verdict=Verdict(memory.verdict) if memory.verdict else None)  # type: ignore[arg-type]
    return Transition(
        Observation(memory.state), memory.action, Observation(memory.next_state), float(memory.reward), memory.terminated, info
    )  # fmt: skip
