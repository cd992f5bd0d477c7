"""The run directory: the only thing that report, evaluation and resume read.

    dreamgym.json     the marker: this is a run, of which format, and the digest of every configuration that it was given
    config.toml       the resolved configuration; the same command resumes, another configuration is refused once a phase is finished
    metrics.jsonl     one line per iteration
    episodes/*.jsonl  trajectories, one per line
    inputs/           copies of the files that its environment was made from
    phases.json       what is finished, so that an interrupted run goes on where it was
    summary.json      the result, for machines

Whole files are replaced atomically and lines are appended whole, so a run that is killed at any moment leaves a directory that
can be read. One process owns a run at a time (`.lock`); readers need no lock. In metrics, phases and summaries a number that is
not finite is written as null, because JSON has no word for it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dreamgym.config import parse, parse_text
from dreamgym.errors import InvariantError, RunDirError, UsageError, explain_errors
from dreamgym.runs.episodes import episode_from_json, lines_of
from dreamgym.runs.files import append_jsonl, dumps, plain, read_json, read_jsonl, remove_unfinished, write_atomic
from dreamgym.types import Trajectory

FORMAT = 3
MARKER, CONFIG, PHASES, SUMMARY, LOCK = "dreamgym.json", "config.toml", "phases.json", "summary.json", ".lock"
PROCESS = "process"
"""The entry among the phases that says who works on the run; it is no work itself."""


def unfinished(path: Path, lacks: str) -> RunDirError:
    """The error for a run that is not finished; `lacks` says what it has not yet: "has no policy yet"."""
    return RunDirError(f"'{path}' {lacks}: the run is not finished. Give the command that made it again: it resumes.")


class RunDir:
    """One run on disk. It owns the lock of its directory: use it in a `with` block, or close it."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock
        self.changed: list[str] = []  # settings that a resume changed

    @classmethod
    def open(
        cls, path: Path | str, config_toml: str, version: int = FORMAT, *, read_by: Callable[[str], Sequence[str]] = lambda _: ("*",)
    ) -> RunDir:
        """Create the run, or reopen it to resume, with the same configuration or another one.

        `read_by` names the phases that read a setting, as patterns. A changed setting is stored and listed in `changed` when none of them
        has begun. RunDirError when one has, and when the directory is something else, has another format, or is in use by another process.
        """
        path = Path(path)
        with explain_errors(path):
            _require_run_or_empty(path)
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        run = cls(path, lock)
        try:
            run._take_lock()
            remove_unfinished(path)
            run._begin(config_toml, version, read_by)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def view(cls, path: Path | str, version: int = FORMAT) -> RunDir:
        """A finished or running run, for reading only."""
        path = Path(path)
        with explain_errors(path):
            if not (path / MARKER).is_file():
                raise RunDirError(f"'{path}' is not a run directory: it has no {MARKER}. Give the directory that a run has written.")
            _config_digests(path, version)
        run = cls(path, None)
        if (path / CONFIG).exists():
            _ = run.config  # one that is damaged is told at once
        return run

    @classmethod
    def check(cls, path: Path, config_toml: str, read_by: Callable[[str], Sequence[str]]) -> None:
        """Raise what `open` would of the place and of another configuration, without taking the run: before anything is imported that
        takes seconds."""
        with explain_errors(path):
            _require_run_or_empty(path)
            _require_writable(path)
        if (path / MARKER).is_file():
            cls.view(path)._compare(config_toml, read_by)

    def close(self) -> None:
        """Give the directory back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close. A configuration that was refused before any phase began is not kept: a later command would take it as the run's own."""
        if kind is not None and issubclass(kind, UsageError) and not self.begun():
            (self.path / CONFIG).unlink(missing_ok=True)
        self.close()

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that the run was created with, as plain values. RunDirError where the file was changed or cut off: what is
        missing would be taken from the defaults."""
        stored = parse(self.path / CONFIG)
        if _digest_of((self.path / CONFIG).read_bytes()) not in _config_digests(self.path):
            raise RunDirError(
                f"'{self.path / CONFIG}' was changed after the run wrote it: its bytes have no digest in {MARKER}. Restore it. To change a "
                "setting, give it to the command that made the run."
            )
        return stored

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
        return self.trajectories(f"episodes/{_file_name(name)}.jsonl")

    def trajectories(self, file: str) -> list[Trajectory]:
        """The trajectories in a JSON Lines file of the run; none when it does not exist."""
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
        """Note that a phase is finished, with whatever later phases need of it and the digest of the checkpoint of its name, if any."""
        folder = self.path / "checkpoints" / phase
        data = {**(data or {}), **({"digest": _digest(folder)} if folder.is_dir() else {})}
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
        phases = read_json(self.path / PHASES) or {}
        if wrong := [name for name, data in phases.items() if not isinstance(data, dict)]:
            raise RunDirError(f"'{self.path / PHASES}' holds no object for phase '{wrong[0]}'. Restore the file.")
        return phases

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
        with explain_errors(self.path / LOCK):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _begin(self, config_toml: str, version: int, read_by: Callable[[str], Sequence[str]]) -> None:
        """Write marker and configuration of a new run, or compare those of an old one. The marker comes first, so that a run that is killed
        between the two has the digest of either configuration."""
        known = _config_digests(self.path, version) if (self.path / MARKER).exists() else []
        self._compare(config_toml, read_by)
        if (digest := _digest_of(config_toml.encode("utf-8", "replace"))) not in known:
            self.write_atomic(MARKER, json.dumps({"format": version, "config": [*known, digest]}) + "\n")
        self.write_atomic(CONFIG, config_toml)

    def _compare(self, config_toml: str, read_by: Callable[[str], Sequence[str]]) -> None:
        """Note the settings that differ from the stored ones. RunDirError where phases that read them have begun, and where any has
        begun and nothing says with which settings."""
        begun = self.begun()
        if begun and not (self.path / CONFIG).exists():
            raise RunDirError(
                f"'{self.path}' has begun ({', '.join(begun[:5])}), and '{CONFIG}' with its settings is missing. Restore it, or choose "
                "another directory."
            )
        if begun:
            stored, asked = (dict(_settings("", values)) for values in (self.config, parse_text(config_toml, "the configuration")))
            self.changed = sorted(name for name in {*stored, *asked} if stored.get(name) != asked.get(name))
            refused = {name: [one for one in begun if any(fnmatchcase(one, like) for like in read_by(name))] for name in self.changed}
            refused = {name: phases for name, phases in refused.items() if phases}
            if refused:
                lines = [f"- {name} = {stored[name]}" for name in refused if name in stored]
                lines += [f"+ {name} = {asked[name]}" for name in refused if name in asked]
                raise RunDirError(
                    f"'{self.path}' holds a run with another configuration ('-' is stored, '+' is asked for):\n"
                    + "\n".join(sorted(lines, key=lambda line: line[2:]))
                    + f"\nPhases that read these settings have begun: {', '.join(sorted(set().union(*refused.values())))}. "
                    "Ask for the stored values to resume, or choose another directory."
                )

    def begun(self) -> list[str]:
        """The phases that are finished, or that an interrupted process left a checkpoint or metrics of."""
        found = [name for name in self._phases() if name != PROCESS]
        found += [file.stem for file in sorted((self.path / "checkpoints").glob("*.pt"))]
        found += [str(line.get("phase")) for line in self.read_jsonl("metrics.jsonl")]
        found += ["summary"] if (self.path / SUMMARY).exists() else []
        return list(dict.fromkeys(found))

    def require_unchanged(self, checkpoint: str) -> None:
        """RunDirError where the files of a checkpoint are not those that its phase wrote."""
        digest = self._phases().get(checkpoint, {}).get("digest")
        path = self.path / "checkpoints" / checkpoint
        if digest is not None and digest != _digest(path):
            raise RunDirError(
                f"The checkpoint '{path}' was changed after its phase finished: its bytes do not have the digest in {PHASES}. "
                "Restore it, or make the run anew in another directory."
            )


def _require_run_or_empty(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise RunDirError(f"'{path}' is a file, not a run directory. Choose another path.")
    if not path.exists() or (path / MARKER).exists():
        return
    others = [item.name for item in path.iterdir() if item.name != LOCK and not item.name.endswith(".tmp")]
    if others:
        raise RunDirError(f"'{path}' is not a run: it has no {MARKER}, and it holds '{min(others)}'. Choose a new or empty directory.")


def _require_writable(path: Path) -> None:
    """RunDirError where nothing can be made in the nearest folder that exists: it is tried, and what was made is removed."""
    place = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not place.is_dir():
        raise RunDirError(f"'{place}' is a file, not a folder. Choose another path.")
    try:
        with TemporaryDirectory(suffix=".tmp", dir=place):  # permissions alone do not say what a file system allows
            pass
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunDirError(f"'{place}' cannot be written: {error.strerror}. Check its permissions, or choose another path.") from error


def require_place_for_runs(path: Path) -> None:
    """RunDirError where no run, and no folder with runs in it, can be made, or where a folder holds other things: before anything is
    imported that takes seconds."""
    with explain_errors(path):
        _require_writable(path)
        others = [item.name for item in path.iterdir() if not item.name.startswith(".")] if path.is_dir() else []
        if others and not any(next(path.glob(f"{below}{MARKER}"), None) for below in ("", "*/", "*/*/")):
            raise RunDirError(f"'{path}' holds '{min(others)}', and no run. Choose a new or empty directory.")


def _config_digests(path: Path, version: int | None = None) -> list[str]:
    """The digests in the marker. RunDirError for a damaged one, and for a run of another format than `version` (None: any)."""
    marker = read_json(path / MARKER) or {}
    if version is not None and (found := marker.get("format")) != version:
        raise RunDirError(
            f"'{path}' has run format {found}, and this dreamgym reads format {version}. Use the version that made it, or start in another "
            "directory."
        )
    if not isinstance(digests := marker.get("config"), list):
        raise RunDirError(f"'{path / MARKER}' is damaged: its 'config' is no list of digests. Restore the file.")
    return digests


def _settings(prefix: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(dotted name, value as JSON) of every setting."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", json.dumps(value, default=str)


def _digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _digest(folder: Path) -> str:
    """A digest of the names and bytes of a folder's files."""
    found = hashlib.blake2b(digest_size=16)
    for file in sorted(file for file in folder.glob("*") if file.is_file()):
        found.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as data:
            while block := data.read(1 << 20):
                found.update(block)
    return found.hexdigest()


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or any(character in name for character in "/\\\0"):
        raise InvariantError(f"'{name}' cannot name a file of episodes: use letters, digits, '-' and '_'.")
    return name
