"""Files that are found whole, whatever happened while they were written: atomic replacement, appended lines, strict JSON."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dreamgym.errors import DreamGymError, RunDirError


def write_atomic(path: Path, data: str | bytes) -> None:
    """Replace `path` so that a reader, or a crash, finds the old content or the new, never a part. Makes the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with naming(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(data.encode("utf-8") if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself
        finally:
            os.close(folder)


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line, whole or not at all; a torn last line that a crash left behind is cut off first."""
    line = dumps(plain(record), allow_nan=False).encode("utf-8") + b"\n"
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            end = _end_of_whole_lines(file)
            os.ftruncate(file, end)
            try:
                written = 0
                while written < len(line):
                    written += os.pwrite(file, line[written:], end + written)
            except BaseException:
                os.ftruncate(file, end)
                raise
        finally:
            os.close(file)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON Lines file, without a torn last line; none when there is no file. RunDirError for a broken line."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is torn, or nothing
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise RunDirError(f"Line {number} of '{path}' is not JSON: {error}. Restore the file, or remove that line.") from error
    return records


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunDirError(f"'{path}' is not JSON: {error}. Restore the file, or start in another directory.") from error


def dumps(value: Any, *, allow_nan: bool = True) -> str:
    """JSON with letters as they are; with escapes where a text holds half characters, which UTF-8 has no bytes for."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=allow_nan)
    return text if text == text.encode("utf-8", "replace").decode("utf-8") else json.dumps(value, allow_nan=allow_nan)


def plain(value: Any) -> Any:
    """A value as strict JSON for people's tools: tuples are lists, paths are strings, and what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    value = str(value) if isinstance(value, Path) else scalar(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def scalar(value: Any) -> Any:
    """Numbers of numpy and torch as Python's."""
    return value.item() if hasattr(value, "item") else value


def _end_of_whole_lines(file: int) -> int:
    """The length of a file up to and with its last newline."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65536)
        if (found := os.pread(file, end - start, start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say which file did not fit when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DreamGymError(
                f"No space left on the disk for '{path}'. Free some, then give the same command again: it resumes."
            ) from error
        raise
