"""What `dreamgym compare` shows: finished runs side by side, in the layout of the paper's Tables 1 and 2.

It reads `summary.json` and `compare.json` alone and imports no torch. `recipes.compare` trains the arms that a configuration names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.errors import RunDirError, UsageError
from dreamgym.recipes import tables
from dreamgym.recipes.arms import ARMS, ablation_arm
from dreamgym.recipes.gains import gains_by_run
from dreamgym.recipes.gains import lines as describe
from dreamgym.runs.files import read_json, write_atomic
from dreamgym.runs.rundir import RunDir, unfinished
from dreamgym.statistics import seed_mean

Entry = dict[str, Any]


def of_runs(paths: Sequence[Path], *, latency_s: float) -> dict[str, Any]:
    """Finished quickstarts or trainings side by side: runs that differ in their seed alone are one row a policy, others are named.

    The folder of a comparison gives its own tables again.
    """
    if not paths:
        raise UsageError("Nothing to compare. Give run directories, or --config FILE to train the arms of one.")
    if len(paths) == 1 and (paths[0] / "compare.json").is_file():
        return add_costs(_finished(paths[0] / "compare.json"), latency_s)
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for given in paths:
        name = given.name if sum(other.name == given.name for other in paths) == 1 else str(given)
        for path in sorted(given.glob("seed-*")) or [given]:
            directory = RunDir.view(path)
            groups.setdefault(_without_seed(directory.config), []).append((name, _summary(directory)))
    table: dict[str, tuple[str, Entry | None]] = {}
    ablated: dict[str, tuple[str, Entry | None]] = {}
    for members in groups.values():
        name, summaries = members[0][0], sorted((summary for _, summary in members), key=lambda summary: list(summary["seeds"]))
        seeds = [seed for summary in summaries for seed in summary["seeds"]]
        if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
            raise UsageError(f"Seed {twice[0]} of '{name}' is given twice, by runs of the same settings. Give every run once.")
        if any(key.startswith(f"{name}/") for key in table):
            name = f"{name}, {len(table)}"
        key, of = (f"{name}/", f" ({name})") if len(groups) > 1 else ("", "")
        for row in ARMS:
            if any(summary.get(row) for summary in summaries):
                table[key + row] = (ARMS[row].label + of, tables.pool([summary.get(row) for summary in summaries]))
        for part in dict.fromkeys(part for summary in summaries for part in summary.get("ablations", {})):
            entries = [summary.get("ablations", {}).get(part) for summary in summaries]
            ablated[key + part] = (ablation_arm(part).label + of, tables.pool(entries))
    every = [summary for members in groups.values() for _, summary in members]
    return report_of(
        table,
        ablated,
        seeds=sorted({seed for summary in every for seed in summary["seeds"]}),
        commit=", ".join(dict.fromkeys(summary["commit"] for summary in every)),
        latency_s=latency_s,
    )


def save(report: Mapping[str, Any], folder: Path) -> None:
    """Write the report for machines and for people: `compare.json` and `compare.md`."""
    write_atomic(folder / "compare.json", json.dumps(report, indent=2, allow_nan=False) + "\n")
    write_atomic(folder / "compare.md", markdown(report))


def report_of(
    table: Mapping[str, tuple[str, Entry | None]],
    ablated: Mapping[str, tuple[str, Entry | None]],
    *,
    seeds: list[int],
    commit: str,
    latency_s: float,
    ablated_arm: str = "",
) -> dict[str, Any]:
    """Both tables of a comparison, from (label, entry) of every policy and ablation; None as an entry leaves it out. `ablated_arm` is the
    policy that the ablations are of, "" where their names say so."""
    whole = {name: {"label": label, **entry} for name, (label, entry) in table.items() if entry}
    less = {name: {"label": label, **entry} for name, (label, entry) in ablated.items() if entry}
    report = {"table1": whole, "table2": less, "gains": gains_by_run(whole, less), "seeds": seeds, "commit": commit}
    return add_costs(report | {"ablated": ablated_arm}, latency_s)


def add_costs(report: dict[str, Any], latency_s: float) -> dict[str, Any]:
    """The report with every arm's cost: seconds of computing, and the latency of its real training and probing steps.

    Relative to the real arm of the same algorithm or run, or else to the first real arm. Logs are the same for all and charged to none.
    """
    if not math.isfinite(latency_s):
        raise UsageError(f"The latency of a real step is {latency_s}. Expected seconds, such as 1.")
    whole, less = report["table1"], report["table2"]
    for entry in (*whole.values(), *less.values()):
        steps = entry["real_transitions_online"] + entry["real_transitions_probe"]
        entry["cost_seconds"] = entry["seconds"] + latency_s * steps
    reals = [name for name in whole if name.endswith(("-real", "real_only"))]
    ablated = report.get("ablated", "")
    for name, entry in (*whole.items(), *((ablated or name, entry) for name, entry in less.items())):
        base = next((real for real in reals if _run_or_algorithm(real) == _run_or_algorithm(name)), reals[0] if reals else None)
        entry["relative_cost"] = entry["cost_seconds"] / whole[base]["cost_seconds"] if base else None
    return report | {"latency_s": latency_s}


def _run_or_algorithm(name: str) -> str:
    """What an arm and its real counterpart share: the run they are of, or their algorithm."""
    run, slash, arm = name.rpartition("/")
    return run if slash else arm.rpartition("-")[0]


COLUMNS = (
    "policy", "greedy %", "by seed", "sampled %", "real: logs", "real: training", "real: probes", "real: hours", "dreamed",
    "wall time, s", "cost against real",
)  # fmt: skip


def cells(entry: Mapping[str, Any]) -> list[str]:
    """One row of the table, as people read it."""
    relative = entry["relative_cost"]
    return [
        entry["label"],
        tables.percent(entry, "greedy"),
        " / ".join(f"{100 * value:.1f}" for value in entry["per_seed"]),
        tables.percent(entry, "sampled"),
        *(f"{entry[f'real_transitions_{source}']:,.0f}" for source in ("offline", "online", "probe")),
        tables.hours(entry),
        f"{entry['dream_transitions']:,.0f}",
        f"{entry['seconds']:,.0f}",
        "-" if relative is None else f"{relative:.2f}",
    ]


def title(report: Mapping[str, Any]) -> str:
    """What the numbers are."""
    return (
        f"Success in the real environment on held-out tasks, % [{tables.intervals(report['seeds'])}]; seeds {report['seeds']}, "
        f"commit {report['commit']}; cost: computing plus {report['latency_s']:g} s for every real step of training and probing"
    )


def markdown(report: Mapping[str, Any]) -> str:
    """Both tables in Markdown."""
    lines = [title(report) + ".", ""]
    for name, heading in (("table1", "Ways to a policy"), ("table2", "Without a part of the method")):
        if report[name]:
            lines += [f"## {heading}", "", _line(COLUMNS), _line(["---", *["---:"] * (len(COLUMNS) - 1)])]
            lines += [*(_line(cells(entry)) for entry in report[name].values()), ""]
    for heading, columns, rows in measured(report):
        lines += [f"## {heading}", "", _line(columns), _line(["---"] * len(columns)), *map(_line, rows), ""]
    if gain_lines := describe(report.get("gains", {})):
        lines += ["## Gains over seeds", "", *(f"- {line}" for line in gain_lines), ""]
    return "\n".join(lines)


def measured(report: Mapping[str, Any]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """(title, columns, rows) of what was measured of the policies' dreams: their verifiers, and their gaps. What nothing measured is left
    out."""
    entries = {entry["label"]: entry for name in ("table1", "table2") for entry in report[name].values()}.values()
    judged = [line for entry in entries for line in _judged(entry)]
    gaps = [_gap(entry) for entry in entries if "gap" in entry]
    return [table for table in ((VERIFIED, VERIFIERS, judged), (GAP, GAPS, gaps)) if table[2]]


GAP = "Success of each policy on the same training tasks, sampled, in its own dream and in the real environment, % [t interval over seeds]"
GAPS = ("policy", "dream", "real", "dream minus real, points", "by seed", "masked dreams", "false among dreamed successes")


def _gap(entry: Mapping[str, Any]) -> list[str]:
    """A policy's line in the table of gaps."""
    found = entry["gap"]
    gap = (_seeds(found["gap"], low=-1.0), " / ".join("-" if value is None else f"{100 * value:+.1f}" for value in found["gap"]))
    return [entry["label"], *(_seeds(found[name]) for name in RATES[:2]), *gap, *(_seeds(found[name]) for name in RATES[2:])]


RATES = ("dream_success", "real_success", "masked_share", "accepted_false")


def _seeds(values: Sequence[float | None], *, low: float = 0.0) -> str:
    """The mean over seeds in percent, with its t interval where there are several, no wider than from `low` to 1; "-" where a seed has no
    value."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    mean = seed_mean(known)
    interval = f" [{100 * max(low, mean.interval[0]):.1f}, {100 * min(1.0, mean.interval[1]):.1f}]" if mean.interval else ""
    return f"{100 * mean.mean:.1f}{interval}"


VERIFIED = (
    "Verifiers on real episodes of held-out tasks that the policies ended, each taken for a claim of success [95 % interval over the "
    "episodes of all seeds, which says nothing of other seeds]"
)
VERIFIERS = ("policy", "verifier", "failures accepted, %", "of", "successes kept, %", "of")


def _judged(entry: Mapping[str, Any]) -> list[list[str]]:
    """A line for every verifier of a policy's dreams; `logs` was fitted to logs alone, `probes` is the last one."""
    return [
        [entry["label"], name, *(text for rate in ("false_success", "true_positive_rate") for text in _rate(rates[rate]))]
        for name, rates in entry.get("verifiers", {}).items()
        if name != "accept_all"
    ]


def _rate(rate: Mapping[str, Any]) -> tuple[str, str]:
    interval = f"{100 * rate['value']:.1f} [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"
    return (interval if rate["n"] else "-", str(rate["n"]))


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _summary(directory: RunDir) -> dict[str, Any]:
    """A finished run's summary; RunDirError, which says what to do, for one that has none."""
    summary = directory.summary()
    if summary is not None:
        return summary
    if directory.path.name.startswith("seed-") and (directory.path.parent / "compare.json").is_file():
        raise RunDirError(f"'{directory.path.parent}' is a comparison, and not a run. Give its folder alone to see its tables.")
    raise unfinished(directory.path, "has no summary.json")


def _finished(file: Path) -> dict[str, Any]:
    """The tables of a finished comparison; RunDirError for a file that holds none."""
    report = read_json(file)
    if not report or not {"table1", "table2", "seeds", "commit"} <= report.keys():
        raise RunDirError(f"'{file}' is no comparison. Give the command that made it again, or the run directories themselves.")
    return report


def _without_seed(config: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in config.items() if key not in ("seed", "seeds")}, sort_keys=True, default=str)
