"""The files that a run is made from, so that it can be moved, and so that nobody changes them unnoticed.

When its logs are read, a run copies the files of `EnvSuite.input_files` into `inputs/`, and notes where those of `data_paths` are. Its
record is in phases.json, with the phase `logs`: for each file the option that names it, the path as given, the place that it meant, the
digest of its bytes, and the copy. Whatever opens the run has its environment made from the copies. Files of `logs.files` are episodes of
the run already, so that only their digests are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from dreamgym.envs.base import EnvSuite
from dreamgym.errors import RunDirError
from dreamgym.recipes.config import BaselineConfig, SharedConfig
from dreamgym.runs.files import copy_atomic, digest
from dreamgym.runs.rundir import MARKER, PHASES, RunDir

FOLDER = "inputs"
S = TypeVar("S", bound=SharedConfig)


def take(run: RunDir, config: SharedConfig, suite: EnvSuite) -> list[dict[str, Any]]:
    """Copy the files of recorded data into the run. Returns the record of all files."""
    record = [_entry("", file) | {"digest": digest(file)} for file in config.logs.files]
    given = [(option, file) for option, files in suite.input_files.items() for file in files if file.is_file()]
    for number, (option, file) in enumerate(given, start=1):
        name = f"{number}-{file.name}"
        record.append(_entry(option, file) | {"digest": copy_atomic(file, run.path / FOLDER / name), "copy": name})
    return record + [_entry(option, file) for option, file in suite.data_paths.items() if not file.is_absolute()]


def require_same(path: Path) -> None:
    """RunDirError where a file that the settings name is not the one that the run at `path` was made from. One that is not there is not
    missed."""
    for entry in _record(path):
        file = Path(entry["given"])
        if "digest" in entry and file.is_file() and digest(file) != entry["digest"]:
            copy = f" from the run's copy, '{path / FOLDER / entry['copy']}'" if "copy" in entry else ""
            raise RunDirError(
                f"'{file}' is not the file that '{path}' was made from: its bytes are others. For the changed file, give another run "
                f"directory. To go on with this run, restore the file{copy}, or leave out --config and what you set of env and logs."
            )


def located(config: S, path: Path) -> S:
    """The configuration of the run at `path` with the run's own copies, and with data where it was when the run was made. It is as given
    where the run has no logs yet, or was made by a version that kept no copies.

    RunDirError for a copy that is missing or changed.
    """
    places = dict[tuple[str, Path], str]()
    for entry in _record(path):
        place = Path(entry["path"])
        if "copy" in entry:
            place = (path / FOLDER / entry["copy"]).absolute()
            if not place.is_file() or digest(place) != entry["digest"]:
                raise RunDirError(
                    f"The run's copy of '{entry['given']}', '{place}', is missing or was changed after the run wrote it: it does not have "
                    f"the digest in {PHASES}. Restore it, or make the run anew in another directory."
                )
        elif not place.exists():
            continue
        places[entry["option"], Path(entry["given"])] = str(place)
    if not places:
        return config
    return config.model_copy(update={"env": config.env.model_copy(update={"options": _placed("", config.env.options, places)})})


def read_again(config: S, path: Path, suite: EnvSuite) -> S:
    """The configuration for who reads the logs of the run at `path` again, with the run's own episodes in place of `logs.files`. It is as
    given where the run has none yet, or where the suite would translate them a second time."""
    logs = _logs(path)
    if not config.logs.files or not logs:
        return config
    if any(suite.recorded(episode) != episode for episode in RunDir.view(path).read_episodes("logs")[:1]):
        return config
    names = ("logs", "held-out") if logs.get("held_out") else ("logs",)
    files = tuple(path / "episodes" / f"{name}.jsonl" for name in names)
    return config.model_copy(update={"logs": config.logs.model_copy(update={"files": files})})


def as_stored(config: S, path: Path) -> S:
    """The configuration of the run at `path` with the options that its config.toml has, which was `located` to open it."""
    env = RunDir.view(path).config.get("env")
    return config.model_copy(update={"env": config.env.model_copy(update={"options": env.get("options", {})})}) if env else config


def seed_that_reads(config: BaselineConfig, folder: Path) -> Path:
    """The run of a comparison in `folder` that still has to read its files; the first one, with its copies, where none has to."""
    seeds = [folder / f"seed-{seed}" for seed in config.seeds]
    return next((seed for seed in seeds if not _record(seed)), seeds[0])


def _entry(option: str, file: Path) -> dict[str, Any]:
    return {"option": option, "given": str(file), "path": str(file.absolute())}


def _record(path: Path) -> list[dict[str, Any]]:
    record: list[dict[str, Any]] = _logs(path).get("inputs", [])
    return record


def _logs(path: Path) -> dict[str, Any]:
    """What the phase `logs` of the run at `path` left; nothing while it is not finished."""
    if not (path / MARKER).is_file():
        return {}
    run = RunDir.view(path)
    return run.data("logs") if run.done("logs") else {}


def _placed(name: str, value: Any, places: Mapping[tuple[str, Path], str]) -> Any:
    """The value of an option, with the files in it where they are; also of options within options, as wrappers have them."""
    if isinstance(value, Mapping):
        return {key: _placed(key, inner, places) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_placed(name, inner, places) for inner in value]
    return places.get((name, Path(value)), value) if isinstance(value, str | Path) else value
