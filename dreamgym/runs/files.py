"""Files that are found whole, whatever happened while they were written: atomic replacement, appended lines, strict JSON."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from dreamgym.errors import RunDirError, UsageError, explain_errors, reason_of, unreadable


def without_lone_surrogates(text: str) -> str:
    """The text with question marks for lone surrogates: json.loads can make them, and no file, tokenizer or server takes them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def write_atomic(path: Path, data: str | bytes) -> None:
    """Replace `path` so that a reader, or a crash, finds the old content or the new, never a part. Makes the folder. Half characters, which
    UTF-8 has no bytes for, become question marks."""
    with _replacing(path) as file:
        file.write(data.encode("utf-8", "replace") if isinstance(data, str) else data)


@contextmanager
def writing_lines(path: Path) -> Iterator[Callable[[str], None]]:
    """A function that writes a line to a file which replaces `path` when the block ends, and leaves it as it was when the block fails."""
    with _replacing(path) as file:

        def write(line: str) -> None:
            file.write(line.encode("utf-8", "replace") + b"\n")

        yield write


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends, and is removed when the block fails. A symbolic link stays: the file that
    it leads to is replaced."""
    with explain_errors(path):
        path = _linked(path)
        if path.exists() and not path.is_file():  # a device such as /dev/null would be replaced by a file
            raise IsADirectoryError(errno.EISDIR, "Not a regular file", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with explain_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                yield file
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


def remove_unfinished(folder: Path) -> None:
    """Remove what processes of this machine that were killed while they wrote have left in a folder and below. Files of processes that live
    stay. Call it where no process of another machine writes: its number says nothing here."""
    for file in folder.rglob(".*.tmp"):
        process = file.name.split(".")[-2]
        if process.isdecimal() and not _lives(int(process)):
            with suppress(OSError):
                file.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # of another user; no number of a process
        return True
    return True


def _linked(path: Path) -> Path:
    """Where the symbolic links of a path lead. OSError where that is in a circle."""
    if not path.is_symlink():
        return path
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return real


def digest(path: Path) -> str:
    """A digest of a file's bytes."""
    with explain_errors(path), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def copy_atomic(source: Path, target: Path) -> str:
    """Replace `target` by a copy of `source`, as `write_atomic` does, however large it is. Returns the copy's digest."""
    with explain_errors(source), source.open("rb") as data, _replacing(target) as file:
        shutil.copyfileobj(data, file, 1 << 20)
    return digest(target)


def require_space(folder: Path, size: int) -> None:
    """UsageError where the disk of a folder has fewer than `size` bytes left."""
    with explain_errors(folder):
        free = shutil.disk_usage(folder).free
    if free < size:
        raise UsageError(
            f"The checkpoints in '{folder}' need about {size / 1e6:,.0f} MB, and {free / 1e6:,.0f} MB of the disk are free. "
            "Free some, or give a directory on another disk."
        )


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Append one line, whole or not at all; a torn last line that a crash left behind is cut off first."""
    line = dumps(plain(record), allow_nan=False).encode("utf-8") + b"\n"
    with explain_errors(path):
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
    lines = (_bytes(path) or b"").split(b"\n")[:-1]  # what follows the last newline is torn, or nothing
    return [_record(line, f"Line {number} of '{path}'") for number, line in enumerate(lines, start=1)]


def read_given_jsonl(path: Path, expected: str) -> Iterator[tuple[int, Any]]:
    """(line number, value) of a JSON Lines file that somebody names: blank lines are skipped, and the last one may lack its newline.
    UsageError, with the line or with what is `expected` of the file, for one that cannot be read."""
    try:
        with explain_errors(path):
            lines = path.read_text(encoding="utf-8").split("\n")
    except UsageError as error:
        raise UsageError(f"{error} Expected {expected}.") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"Line {number} of '{path}' is not JSON: {unreadable(error)} Restore the file.") from error
            yield number, value


def read_json(path: Path) -> dict[str, Any] | None:
    """The object of a JSON file; None when there is no file. RunDirError when it holds anything else."""
    text = _bytes(path)
    return None if text is None else _record(text, f"'{path}'")


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """For code that uses what a file of a run holds: RunDirError where a value is missing or of another kind."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError, AssertionError) as error:
        raise RunDirError(
            f"'{path}' is damaged, or another version of dreamgym wrote it ({reason_of(error)}). Restore it, or make the run anew "
            "elsewhere."
        ) from error


def _bytes(path: Path) -> bytes | None:
    with explain_errors(path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def _record(text: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, not UTF-8, nested too deeply, an integer of thousands of digits
        raise RunDirError(f"{name} is not JSON: {reason_of(error)}. Restore the file, or start in another directory.") from error
    if not isinstance(found, dict):
        raise RunDirError(f"{name} is no JSON object: {str(found)[:60]!r}. Restore the file, or start in another directory.")
    return found


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value of JSON is a number that a float can hold: finite, and no integer of hundreds of digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def dumps(value: Any, *, allow_nan: bool = True) -> str:
    """JSON with letters as they are; with escapes where a text holds lone surrogates, which UTF-8 has no bytes for."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=allow_nan)
    return text if text == text.encode("utf-8", "replace").decode("utf-8") else json.dumps(value, allow_nan=allow_nan)


def plain(value: Any) -> Any:
    """A value as strict JSON for people's tools: tuples are lists, paths are strings, and what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    value = str(value) if isinstance(value, Path) else scalar(value)
    return None if isinstance(value, float) and not is_number(value) else value


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
