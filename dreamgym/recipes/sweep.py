"""`dreamgym sweep`: a comparison at several values of its settings, such as the sizes of the logs (the paper's Figure 5) or backbones.

Every point of the grid is a comparison in a folder of its own (`recipes.compare`), with the same seeds. Beside the success of its policies
stand the next states that its experience model and the control without a model predict exactly on held-out episodes. An interrupted sweep
goes on where it was, and points may be added later, beside those that its folder has.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dreamgym.config import assignments
from dreamgym.errors import ConfigError, UsageError, counted
from dreamgym.recipes import tables
from dreamgym.recipes.config import CompareConfig
from dreamgym.recipes.factory import checked_suite
from dreamgym.recipes.settings import read, require_plugins
from dreamgym.runs.files import read_json, reading, write_atomic
from dreamgym.statistics import seed_mean

COLUMNS = ("model: next states exact, %", "control: next states exact, %")
PREDICTORS = ("held_out", "no_model")
MOST_POINTS = 1000


@dataclass(frozen=True)
class Point:
    """A comparison of the sweep: the settings that it has, by dotted name, and its folder."""

    at: Mapping[str, Any]
    config: CompareConfig
    file: Path
    """The configuration over which the settings are laid."""

    @property
    def folder(self) -> str:
        """A name that a file system takes: `logs.transitions=2000,model.size=1m`."""
        return re.sub(r"[^\w.=,+-]+", "-", ",".join(f"{key}={value}" for key, value in self.at.items()))


def varied(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """`["logs.transitions=2000,10000", "model.size=100k,1m"]` as values by setting: each is read as TOML, and as text when it is none."""
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        key, _, text = pair.partition("=")
        (name, values), *_ = assignments([f"{key}=[{text}]"]).items()
        found[name] = values if isinstance(values, list) else [one.strip() for one in text.split(",")]
        if len(set(map(str, found[name]))) < len(found[name]) or not text:
            raise ConfigError(f"'{pair}' gives no value, or one twice. Write KEY=V1,V2, such as logs.transitions=2000,10000.")
    if "seed" in found:
        raise ConfigError("'seed' is the setting of a single run, and every point runs several: write seeds = [0, 1] in the configuration.")
    if not found:
        raise UsageError("A sweep varies at least one setting. Write KEY=V1,V2, such as logs.transitions=2000,10000.")
    return found


def points(config: Path, values: Mapping[str, Sequence[Any]]) -> list[Point]:
    """All combinations of the values laid over a configuration. Whatever is wrong in one of them is found before anything is trained."""
    if (asked := math.prod(map(len, values.values()))) > MOST_POINTS:
        raise UsageError(
            f"The values of {', '.join(values)} make {asked:,} points, and each is a comparison. Give at most {MOST_POINTS:,}."
        )
    found = [_point(config, dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())]
    names = [point.folder for point in found]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise ConfigError(f"Two points of the sweep would share the folder '{twice}'. Give values that differ in more than signs.")
    return found


def _point(file: Path, at: Mapping[str, Any]) -> Point:
    point = Point(at, read(CompareConfig, file, dict(at)), file)
    require_plugins(point.config)
    checked_suite(point.config)
    return point


def _with_stored(sweep: Sequence[Point], stored: Sequence[Mapping[str, Any]], path: Path) -> list[Point]:
    """The points that the folder of a sweep has, and then the new ones. UsageError where those vary other settings."""
    varies = sorted(sweep[0].at)
    if other := next((at for at in stored if sorted(at) != varies), None):
        raise UsageError(
            f"'{path}' holds a sweep of {', '.join(other)}, and this one is of {', '.join(varies)}: they share no table. Give another "
            "folder with --out."
        )
    every = [*(_point(sweep[0].file, at) for at in stored), *sweep]
    return list({point.folder: point for point in every}.values())


def run(sweep: Sequence[Point], path: Path, *, held_out: int, latency_s: float, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All comparisons; writes `sweep.json` and `sweep.md` into `path` and returns what they say. The same call goes on where it was.
    Points that the folder has stay in its table: they are read again, and what they lack is made.

    `held_out` are the real episodes of the development split on which next states are predicted, for every point and seed; 0 leaves that
    out.
    """
    from dreamgym.recipes import compare, fidelity  # here, because settings are checked without torch

    with reading(path / "sweep.json"):
        stored = [dict(one["at"]) for one in (read_json(path / "sweep.json") or {}).get("points", [])]
    sweep = _with_stored(sweep, stored, path)
    if held_out and (other := next((one.config.experience.name for one in sweep if not one.config.experience.fitted), "")):
        raise UsageError(f"The experience model '{other}' is fitted to nothing, so its next states are not compared. Give --held-out 0.")
    found: list[dict[str, Any]] = []
    for i, point in enumerate(sweep, start=1):
        say(f"{i} of {len(sweep)}: {', '.join(f'{key} = {value}' for key, value in point.at.items())}")
        report = compare.run(point.config, path / point.folder, latency_s=latency_s, say=say)
        measured: dict[str, Any] = {}
        if held_out:
            seeds = [fidelity.held_out(path / point.folder / f"seed-{seed}", held_out) for seed in point.config.seeds]
            measured = {arm: _exact([one[arm] for one in seeds]) for arm in PREDICTORS}
        found.append({"at": dict(point.at), "folder": point.folder, "next_states_exact": measured, **report})
        result = {"points": found, "of": len(sweep), "seeds": report["seeds"], "held_out": held_out}
        if len(found) >= len(stored):  # else an interruption would leave a shorter table than there was
            write_atomic(path / "sweep.json", json.dumps(result, indent=2, allow_nan=False, default=str) + "\n")
            write_atomic(path / "sweep.md", tables.markdown(title(result), *rows(result)))
    return result


def _exact(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The share of valid steps whose next state is exact, with the guard: of each seed, their mean, and its t interval."""
    shares = [one["with_guard"]["state_exact_valid"]["value"] for one in found]
    mean = seed_mean(shares)
    return {"mean": mean.mean, "interval": mean.interval, "per_seed": shares}


def title(result: Mapping[str, Any]) -> str:
    """What the numbers are."""
    exact = f"; next states of {result['held_out']} held-out episodes" if result["held_out"] else ""
    return (
        f"Greedy success in the real environment on held-out tasks, % [{tables.intervals(result['seeds'])}]{exact}; "
        f"seeds {result['seeds']}; {len(result['points'])} of {counted(result['of'], 'point')}"
    )


def rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(headings, a line a point) as people read them."""
    points = [{**one["table1"], **{f"without {name}": entry for name, entry in one["table2"].items() if name}} for one in result["points"]]
    names = list(dict.fromkeys(name for policies in points for name in policies))
    varies = list(result["points"][0]["at"])
    head = [*varies, *(COLUMNS if result["held_out"] else ()), *names]
    lines = []
    for point, policies in zip(result["points"], points, strict=True):
        exact = [_share(point["next_states_exact"][arm]) for arm in PREDICTORS] if result["held_out"] else []
        success = [tables.percent(policies[name], "greedy") if name in policies else "-" for name in names]
        lines.append([*(str(point["at"][key]) for key in varies), *exact, *success])
    return head, lines


def _share(found: Mapping[str, Any]) -> str:
    interval = found["interval"]
    return f"{100 * found['mean']:.1f}" + (f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else "")
