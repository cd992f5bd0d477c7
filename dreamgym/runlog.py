"""The run directory: the only thing that report, evaluation and resume read.

    dreamgym.json     the marker: this is a run, and of which format
    config.toml       the resolved configuration; the same command resumes, another configuration is refused
    metrics.jsonl     one line per iteration
    episodes/*.jsonl  trajectories, one per line
    phases.json       what is finished, so that an interrupted run goes on where it was
    summary.json      the result, for machines

Whole files are replaced atomically and lines are appended whole, so a run that is killed at any moment leaves a directory that
can be read. One process owns a run at a time (`.lock`); readers need no lock. In metrics, phases and summaries a number that is
not finite is written as null, because JSON has no word for it.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import json
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from dreamgym.errors import ConfigError, DreamGymError, InvariantError, RunDirError, UsageError
from dreamgym.types import Completion, Observation, Task, Trajectory, Transition, Turn, Verdict

FORMAT = 1
MARKER, CONFIG, PHASES, SUMMARY, LOCK = "dreamgym.json", "config.toml", "phases.json", "summary.json", ".lock"
LOGS = "episodes/logs.jsonl"
TUPLE = "__tuple__"  # in the free-form `goal` and `info`, a tuple is written {"__tuple__": [...]}, so that it comes back as one
T = TypeVar("T")


class RunDir:
    """One run on disk. It owns the lock of its directory: use it in a `with` block, or close it."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path | str, config_toml: str, version: int = FORMAT, *, fill: Callable[[str], str] | None = None) -> RunDir:
        """Create the run, or reopen it to go on.

        `fill` completes a stored configuration by the defaults of keys that it does not have yet: newer ones, at the value that they
        would have had, are no difference. RunDirError when the directory is something else, has another format, another configuration,
        or another process in it.
        """
        path = Path(path)
        _require_run_or_empty(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunDirError(f"Cannot use '{path}' as a run directory: {error.strerror}. Choose another with --run.") from error
        run = cls(path, lock)
        try:
            run._take_lock()
            run._settle(config_toml, version, fill)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def view(cls, path: Path | str, version: int = FORMAT) -> RunDir:
        """A finished or running run, for reading only."""
        path = Path(path)
        if not (path / MARKER).is_file():
            raise RunDirError(f"'{path}' is not a run directory: it has no {MARKER}. Give the directory that a run has written.")
        _require_format(path, version)
        return cls(path, None)

    def close(self) -> None:
        """Give the directory back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config_toml(self) -> str:
        """The configuration that the run was created with."""
        return (self.path / CONFIG).read_text(encoding="utf-8")

    def write_atomic(self, name: str, data: str | bytes) -> Path:
        """Write a file of the run, whole or not at all."""
        target = self._target(name)
        write_atomic(target, data)
        return target

    def append_jsonl(self, name: str, record: Mapping[str, Any]) -> None:
        """Append one record to a JSON Lines file of the run, such as metrics.jsonl."""
        append_jsonl(self._target(name), record)

    def read_jsonl(self, name: str) -> list[dict[str, Any]]:
        """The records of a JSON Lines file of the run; none when it does not exist."""
        return read_jsonl(self.path / name)

    def episodes(self, name: str, trajectories: Iterable[Trajectory], *, completions: bool = True) -> Path:
        """Write `episodes/<name>.jsonl`, replacing it. Without `completions`, sampled tokens are left out: smaller, not trainable."""
        return self.write_atomic(f"episodes/{_file_name(name)}.jsonl", _lines_of(trajectories, completions))

    def read_episodes(self, name: str) -> list[Trajectory]:
        """The trajectories of `episodes/<name>.jsonl`, equal to those that were written; none when it does not exist."""
        file = f"episodes/{_file_name(name)}.jsonl"
        return [_episode(record, number, self.path / file) for number, record in enumerate(self.read_jsonl(file), start=1)]

    def episode_names(self) -> list[str]:
        """The names that `read_episodes` knows, in order."""
        return sorted(path.stem for path in (self.path / "episodes").glob("*.jsonl"))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json."""
        self.write_atomic(SUMMARY, json.dumps(_plain(summary), indent=2, allow_nan=False) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """What summary.json says, or None while there is none."""
        return _read_json(self.path / SUMMARY)

    def mark(self, phase: str, data: Mapping[str, Any] | None = None) -> None:
        """Note that a phase is finished, with whatever later phases need of it."""
        phases = {**self._phases(), phase: _plain(data or {})}
        self.write_atomic(PHASES, json.dumps(phases, indent=2, allow_nan=False) + "\n")

    def done(self, phase: str) -> bool:
        """Whether a phase is finished."""
        return phase in self._phases()

    def finished(self) -> list[str]:
        """The names of all finished phases, first to last."""
        return list(self._phases())

    def data(self, phase: str) -> dict[str, Any]:
        """What a finished phase left for later ones."""
        phases = self._phases()
        if phase not in phases:
            raise InvariantError(f"Phase '{phase}' of '{self.path}' is not finished, and its data was asked for.")
        return phases[phase]

    def _phases(self) -> dict[str, dict[str, Any]]:
        return _read_json(self.path / PHASES) or {}

    def _target(self, name: str) -> Path:
        if self._lock is None:
            raise RunDirError(f"'{self.path}' was opened for reading or is closed, so '{name}' cannot be written. Use RunDir.open.")
        return self.path / name

    def _take_lock(self) -> None:
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._lock, 20, 0).decode(errors="replace").strip() or "unknown"
            raise RunDirError(
                f"Process {holder} is working in '{self.path}'. Wait for it, stop it, or choose another directory."
            ) from error
        with _naming(self.path / LOCK):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _settle(self, config_toml: str, version: int, fill: Callable[[str], str] | None) -> None:
        """Write marker and configuration of a new run, or compare those of an old one. The marker comes first."""
        if (self.path / MARKER).exists():
            _require_format(self.path, version)
        else:
            self.write_atomic(MARKER, json.dumps({"format": version}) + "\n")
        if not (self.path / CONFIG).exists():
            self.write_atomic(CONFIG, config_toml)
        elif changes := _changes(self.config_toml, config_toml, fill):
            raise RunDirError(
                f"'{self.path}' holds a run with another configuration ('-' is stored, '+' is asked for):\n{changes}\n"
                "Ask for the stored one to resume, or choose another directory."
            )


def write_atomic(path: Path, data: str | bytes) -> None:
    """Replace `path` so that a reader, or a crash, finds the old content or the new, never a part. Makes the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _naming(path):
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
    line = _json(_plain(record), allow_nan=False).encode("utf-8") + b"\n"
    with _naming(path):
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


def write_trajectories(path: Path, trajectories: Iterable[Trajectory], *, completions: bool = True) -> None:
    """Write episodes to a file of their own, in the format of a run's, replacing it whole."""
    write_atomic(path, _lines_of(trajectories, completions))


def read_trajectories(path: Path) -> list[Trajectory]:
    """The episodes of a file that somebody names. UsageError, with the line, for whatever is not one: nothing is left out silently."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"Cannot read '{path}': {error.strerror}. Give a JSON Lines file of episodes, such as RUN/{LOGS}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is not UTF-8 text: {error}. Give a JSON Lines file of episodes, such as RUN/{LOGS}.") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"Line {number} of '{path}' is not JSON: {error}. Was it cut off? Restore the file.") from error
        found.append(_episode(record, number, path))
    if not found:
        raise UsageError(f"'{path}' holds no episode. Give a JSON Lines file of episodes, such as RUN/{LOGS}.")
    return found


def trajectory_to_json(trajectory: Trajectory, *, completions: bool = True) -> dict[str, Any]:
    """A trajectory as plain JSON values. `trajectory_from_json` gives an equal one back, but for completions left out."""
    task = trajectory.task
    return {
        **_flat(trajectory, "task", "turns"),
        "task": {**_flat(task, "goal", "parents"), "goal": _freeze(task.goal), "parents": list(task.parents)},
        "turns": [_turn_to_json(turn, completions) for turn in trajectory.turns],
    }


def trajectory_from_json(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory that `trajectory_to_json` wrote."""
    task = record["task"]
    return Trajectory(
        **{
            **record,
            "task": Task(**{**task, "goal": _thaw(task["goal"]), "parents": tuple(task["parents"])}),
            "turns": tuple(_turn_from_json(turn) for turn in record["turns"]),
        }
    )


def _episode(record: Any, number: int, path: Path) -> Trajectory:
    try:
        return trajectory_from_json(record)
    except (KeyError, TypeError, AttributeError, ValueError, UsageError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"Line {number} of '{path}' is no episode ({reason}). Expected one such as a run writes to {LOGS}.") from error


def _turn_to_json(turn: Turn, completions: bool) -> dict[str, Any]:
    transition, completion = turn.transition, turn.completion
    flat = _flat(transition, "state", "next_state", "neighbours", "verdict", "info")
    verdict = transition.verdict
    record = {
        **flat,
        "state": transition.state.text,
        "next_state": transition.next_state.text,
        "neighbours": list(transition.neighbours),
        "verdict": None if verdict is None else {"passed": verdict.passed, "reasons": list(verdict.reasons)},
        "info": _freeze(transition.info),
    }
    if completions and completion is not None:
        sequences = {name: list(getattr(completion, name)) for name in ("prompt_ids", "ids", "logprobs")}
        record["completion"] = {**_flat(completion, *sequences), **sequences}
    return record


def _turn_from_json(record: Mapping[str, Any]) -> Turn:
    values = dict(record)
    completion, verdict = values.pop("completion", None), values["verdict"]
    values["state"], values["next_state"] = Observation(values["state"]), Observation(values["next_state"])
    values["neighbours"], values["info"] = tuple(values["neighbours"]), _thaw(values["info"])
    values["verdict"] = None if verdict is None else Verdict(verdict["passed"], tuple(verdict["reasons"]))
    if completion is not None:
        sampled: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in completion.items()}
        completion = Completion(**sampled)
    return Turn(Transition(**values), completion)


def _lines_of(trajectories: Iterable[Trajectory], completions: bool) -> str:
    return "".join(_json(trajectory_to_json(t, completions=completions)) + "\n" for t in trajectories)


def _json(value: Any, *, allow_nan: bool = True) -> str:
    """JSON with letters as they are; with escapes where a text holds half characters, which UTF-8 has no bytes for."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=allow_nan)
    return text if text == text.encode("utf-8", "replace").decode("utf-8") else json.dumps(value, allow_nan=allow_nan)


def _flat(record: Any, *without: str) -> dict[str, Any]:
    """The fields of a dataclass by name, but for those that need care."""
    return {field.name: _scalar(getattr(record, field.name)) for field in fields(record) if field.name not in without}


def _freeze(value: Any) -> Any:
    """A free-form value as JSON that `_thaw` turns back into an equal one."""
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, str) or key == TUPLE]:
            raise InvariantError(f"Keys of goal and info must be strings other than '{TUPLE}' to survive JSON, got {bad[0]!r}.")
        return {key: _freeze(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {TUPLE: [_freeze(item) for item in value]}
    if isinstance(value, list):
        return [_freeze(item) for item in value]
    return _scalar(value)


def _thaw(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(_thaw(item) for item in value[TUPLE]) if value.keys() == {TUPLE} else {key: _thaw(item) for key, item in value.items()}
    return [_thaw(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """A value as strict JSON for people's tools: tuples are lists, paths are strings, and what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    value = str(value) if isinstance(value, Path) else _scalar(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scalar(value: Any) -> Any:
    """Numbers of numpy and torch as Python's."""
    return value.item() if hasattr(value, "item") else value


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunDirError(f"'{path}' is not JSON: {error}. Restore the file, or start in another directory.") from error


def _require_run_or_empty(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise RunDirError(f"'{path}' is a file, not a run directory. Choose another path.")
    if not path.exists() or (path / MARKER).exists():
        return
    others = [item.name for item in path.iterdir() if item.name != LOCK and not item.name.endswith(".tmp")]
    if others:
        raise RunDirError(f"'{path}' is not a run: it has no {MARKER}, and it holds '{min(others)}'. Choose a new or empty directory.")


def _require_format(path: Path, version: int) -> None:
    marker = _read_json(path / MARKER)
    found = marker.get("format") if isinstance(marker, dict) else None
    if found != version:
        raise RunDirError(f"'{path}' has run format {found}, and this dreamgym reads format {version}. Start in another directory.")


def _changes(stored: str, asked: str, fill: Callable[[str], str] | None) -> str:
    """The lines that differ, marked - and +; empty when the two say the same."""
    old, new = _qualified(stored), _qualified(asked)
    if fill and old != new:
        with suppress(ConfigError):  # a stored key that is no longer known: the lines below name it
            known = {_key(line) for line in old}
            old = sorted({*old, *(line for line in _qualified(fill(stored)) if _key(line) not in known and line in new)})
    return "\n".join(line for line in difflib.ndiff(old, new) if line[:2] in ("- ", "+ "))


def _key(line: str) -> str:
    return line.partition(" = ")[0]


def _qualified(toml: str) -> list[str]:
    """One line a value, with its block's name in front: `dream.seed = 0`. The order of a file says nothing, so they are sorted."""
    try:
        return sorted(_settings("", tomllib.loads(toml)))
    except tomllib.TOMLDecodeError as error:
        raise RunDirError(f"{CONFIG} of the run is no TOML: {error}. Restore it, or choose another directory.") from error


def _settings(prefix: str, table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key} = {json.dumps(value, default=str)}"


def _end_of_whole_lines(file: int) -> int:
    """The length of a file up to and with its last newline."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65536)
        if (found := os.pread(file, end - start, start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise InvariantError(f"'{name}' cannot name a file of episodes: use letters, digits, '-' and '_'.")
    return name


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say which file did not fit when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DreamGymError(
                f"No space left on the disk for '{path}'. Free some, then give the same command again: it resumes."
            ) from error
        raise
