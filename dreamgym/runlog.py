"""The run directory: the only thing that report, evaluation and resume read.

    dreamgym.json     the marker: this is a run, and of which format
    config.toml       the resolved configuration; the same command resumes, another configuration is refused once a phase is finished
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
import fcntl
import json
import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from dreamgym.episodes import episode_from_json, lines_of
from dreamgym.errors import ConfigError, InvariantError, RunDirError
from dreamgym.files import append_jsonl, dumps, naming, plain, read_json, read_jsonl, write_atomic
from dreamgym.types import Trajectory

FORMAT = 1
MARKER, CONFIG, PHASES, SUMMARY, LOCK = "dreamgym.json", "config.toml", "phases.json", "summary.json", ".lock"
PROCESS = "process"
"""The entry among the phases that says who works on the run; it is no work itself."""
T = TypeVar("T")


class RunDir:
    """One run on disk. It owns the lock of its directory: use it in a `with` block, or close it."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(
        cls,
        path: Path | str,
        config_toml: str,
        version: int = FORMAT,
        *,
        fill: Callable[[str], str] | None = None,
        free: Collection[str] = (),
    ) -> RunDir:
        """Create the run, or reopen it to go on. Until its first phase is finished there is nothing to lose, and any configuration will do.

        `fill` completes a stored configuration by the defaults of keys that it does not have yet: newer ones, at the value that they
        would have had, are no difference. Nor are those that `free` names (`env.workers`): they do not change results, and the last one
        that was asked for is kept. RunDirError when the directory is something else, has another format, another configuration,
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
            run._settle(config_toml, version, fill, free)
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

    def keep_lines(self, name: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the other records of a JSON Lines file, such as those that an interrupted process wrote behind its last checkpoint."""
        records = self.read_jsonl(name)
        kept = [record for record in records if wanted(record)]
        if len(kept) < len(records):
            self.write_atomic(name, "".join(dumps(record, allow_nan=False) + "\n" for record in kept))

    def episodes(self, name: str, trajectories: Iterable[Trajectory], *, completions: bool = True) -> Path:
        """Write `episodes/<name>.jsonl`, replacing it. Without `completions`, sampled tokens are left out: smaller, not trainable."""
        return self.write_atomic(f"episodes/{_file_name(name)}.jsonl", lines_of(trajectories, completions))

    def read_episodes(self, name: str) -> list[Trajectory]:
        """The trajectories of `episodes/<name>.jsonl`, equal to those that were written; none when it does not exist."""
        file = f"episodes/{_file_name(name)}.jsonl"
        return [episode_from_json(record, number, self.path / file) for number, record in enumerate(self.read_jsonl(file), start=1)]

    def episode_names(self) -> list[str]:
        """The names that `read_episodes` knows, in order."""
        return sorted(path.stem for path in (self.path / "episodes").glob("*.jsonl"))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json."""
        self.write_atomic(SUMMARY, json.dumps(plain(summary), indent=2, allow_nan=False) + "\n")

    def summary(self) -> dict[str, Any] | None:
        """What summary.json says, or None while there is none."""
        return read_json(self.path / SUMMARY)

    def mark(self, phase: str, data: Mapping[str, Any] | None = None) -> None:
        """Note that a phase is finished, with whatever later phases need of it."""
        phases = {**self._phases(), phase: plain(data or {})}
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
        return read_json(self.path / PHASES) or {}

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
        with naming(self.path / LOCK):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _settle(self, config_toml: str, version: int, fill: Callable[[str], str] | None, free: Collection[str]) -> None:
        """Write marker and configuration of a new run, or compare those of an old one. The marker comes first."""
        if (self.path / MARKER).exists():
            _require_format(self.path, version)
        else:
            self.write_atomic(MARKER, json.dumps({"format": version}) + "\n")
        done = self._phases().keys() - {PROCESS} or (self.path / SUMMARY).exists()
        begun = done and (self.path / CONFIG).exists()
        if begun and (changes := _changes(self.config_toml, config_toml, fill, free)):
            raise RunDirError(
                f"'{self.path}' holds a run with another configuration ('-' is stored, '+' is asked for):\n{changes}\n"
                "Ask for the stored one to resume, or choose another directory."
            )
        if not begun or _changes(self.config_toml, config_toml, fill):
            self.write_atomic(CONFIG, config_toml)


def _require_run_or_empty(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise RunDirError(f"'{path}' is a file, not a run directory. Choose another path.")
    if not path.exists() or (path / MARKER).exists():
        return
    others = [item.name for item in path.iterdir() if item.name != LOCK and not item.name.endswith(".tmp")]
    if others:
        raise RunDirError(f"'{path}' is not a run: it has no {MARKER}, and it holds '{min(others)}'. Choose a new or empty directory.")


def _require_format(path: Path, version: int) -> None:
    marker = read_json(path / MARKER)
    found = marker.get("format") if isinstance(marker, dict) else None
    if found != version:
        raise RunDirError(f"'{path}' has run format {found}, and this dreamgym reads format {version}. Start in another directory.")


def _changes(stored: str, asked: str, fill: Callable[[str], str] | None, free: Collection[str] = ()) -> str:
    """The lines that differ, marked - and +; empty when the two say the same."""
    old, new = ([line for line in _qualified(toml) if _key(line) not in free] for toml in (stored, asked))
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


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise InvariantError(f"'{name}' cannot name a file of episodes: use letters, digits, '-' and '_'.")
    return name
