"""`dreamgym compare`: several ways to a policy side by side, in the layout of the paper's Tables 1 and 2.

Every seed is one run directory. Logs, tokenizer, experience model and warm start are made once in it, and every arm starts from them; an
arm is a phase of that run, so an interrupted comparison goes on where it was, and arms may be added later. Finished quickstarts are
compared by their summaries.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.envs._workers import WorkerPool
from dreamgym.errors import RunDirError, UsageError
from dreamgym.files import write_atomic
from dreamgym.recipes import fitting, parts, results
from dreamgym.recipes.config import OFFLINE, Ablation, CompareConfig, World
from dreamgym.recipes.evaluation import judge_policies
from dreamgym.recipes.parts import Parts
from dreamgym.recipes.practice import practise
from dreamgym.runlog import PROCESS, RunDir

LABELS = {
    "warm": "Warm start",
    "warm_start": "Warm start",
    "sft": "SFT",
    "dpo": "DPO",
    "dream": "Dream",
    "s2r": "Dream, then real (S2R)",
    "real": "Real",
    "real_only": "Real",
    "mixed": "Mixed",
}
ALGORITHMS = {"gigpo": "GiGPO"}
WORLDS: Mapping[str, World] = {"dream": "dream", "real": "real", "mixed": "mixed"}
QUICKSTART = ("warm_start", "sft", "dream", "s2r", "real_only", "mixed")
Entry = dict[str, Any]
Rows = dict[str, Entry | None]


def run(config: CompareConfig, path: Path, *, latency_s: float, say: Callable[[str], None] = print) -> dict[str, Any]:
    """All arms over all seeds; writes `compare.json` and `compare.md` into `path` and returns what they say.

    `latency_s` is what a real step would take in an environment that is slower than the one at hand. The same call goes on where it was.
    """
    parts.quiet()
    found: list[tuple[Rows, Rows]] = []
    commits: dict[str, None] = {}
    for seed in config.seeds:
        one = config.model_copy(update={"seed": seed})
        stored = one.model_copy(update={"seeds": (seed,), "arms": (), "ablations": ()})  # it names no arms: others may come later
        with parts.open_run(path / f"seed-{seed}", stored) as directory, parts.hire(one.env) as workers:
            train_arms(directory, one, say, workers)
            found.append(rows(directory, one))
            commits |= dict.fromkeys(directory.data(PROCESS)["commits"])
    table = {arm: (_label(arm), results.pool([whole[arm] for whole, _ in found])) for arm in found[0][0]}
    ablated = {
        name: (_label(config.ablated) + (f", without {name}" if name else ""), results.pool([less[name] for _, less in found]))
        for name in found[0][1]
    }
    report = _report(table, ablated, seeds=list(config.seeds), commit=", ".join(commits), latency_s=latency_s)
    save(report, path)
    return report


def train_arms(directory: RunDir, config: CompareConfig, say: Callable[[str], None], workers: WorkerPool | None) -> None:
    """What all arms of a seed share, and then every arm and ablation that is not evaluated yet."""
    arms = ["warm", *config.arms, *([config.ablated] if config.ablations else [])]
    if all(directory.done(f"eval-{policy}") for policy in [*arms, *(f"{config.ablated}-no-{name}" for name in config.ablations)]):
        return
    parts.sign(directory)
    say(f"seed {config.seed}: logs, experience model and warm start, once for all arms")
    shared = fitting.gather(directory, config, workers)
    fitting.train_experience(directory, shared)
    fitting.warm_start(directory, shared)
    judge_policies(directory, shared, ["warm"])
    for arm in arms[1:]:
        train_arm(directory, shared, config, arm, say)
    for name in config.ablations:
        train_ablation(directory, shared, config, name, say)


def rows(directory: RunDir, config: CompareConfig) -> tuple[Rows, Rows]:
    """(the entries of the warm start and of every arm, those of the ablated arm, named "", and of every ablation)."""
    whole = {arm: results.row(directory, arm, made_of(arm)) for arm in ("warm", *config.arms)}
    if not config.ablations:
        return whole, {}
    less: Rows = {name: results.ablation(directory, name, config.ablated) for name in config.ablations}
    return whole, {"": results.row(directory, config.ablated, made_of(config.ablated)), **less}


def train_arm(directory: RunDir, shared: Parts, config: CompareConfig, arm: str, say: Callable[[str], None]) -> None:
    """Everything from the warm start to the arm's evaluation; whatever is finished is not done again."""
    if directory.done(f"eval-{arm}"):
        return
    say(f"  {arm}")
    if arm in OFFLINE:
        fitting.converge_sft(directory, shared, config.sft, patience=config.sft_patience)
        if arm == "dpo":
            fitting.prefer(directory, shared, config.dpo)
    else:
        name, _, mode = arm.rpartition("-")
        block = config.block(arm)
        if mode == "s2r":
            practise(directory, shared, f"{name}-dream", start="warm", block=block, world="dream")
            practise(directory, shared, arm, start=f"{name}-dream", block=config.s2r.after(block), world="real")
        else:
            practise(directory, shared, arm, start="warm", block=block, world=WORLDS[mode])
    judge_policies(directory, shared, [arm])


def train_ablation(directory: RunDir, shared: Parts, config: CompareConfig, name: Ablation, say: Callable[[str], None]) -> None:
    """The ablated arm without one part of the method, from the same warm start at the same budget."""
    policy = f"{config.ablated}-no-{name}"
    if directory.done(f"eval-{policy}"):
        return
    say(f"  {config.ablated} without {name}")
    reduced, block = shared.without(name), config.block(config.ablated).without(name)
    fitting.train_experience(directory, reduced)
    practise(directory, reduced, policy, start="warm", block=block, world="dream")
    judge_policies(directory, shared, [policy])


def made_of(arm: str) -> tuple[str, ...]:
    """The phases that make an arm's policy."""
    if arm in ("warm", "sft"):
        return results.MADE_OF[arm]
    if arm == "dpo":
        return ("experience", "sft", "dpo")
    name, _, mode = arm.rpartition("-")
    return ("experience", "warm", *([f"{name}-dream"] if mode == "s2r" else []), arm)


def of_runs(paths: Sequence[Path], *, latency_s: float) -> dict[str, Any]:
    """Finished quickstarts or trainings side by side: runs that differ in their seed alone are one row a policy, others are named.

    The folder of a comparison gives its own tables again.
    """
    if not paths:
        raise UsageError("Nothing to compare. Give run directories, or --config FILE to train the arms of one.")
    if len(paths) == 1 and (paths[0] / "compare.json").is_file():
        return costed(_finished(paths[0] / "compare.json"), latency_s)
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for given in paths:
        name = given.name if sum(other.name == given.name for other in paths) == 1 else str(given)
        for path in sorted(given.glob("seed-*")) or [given]:
            directory = RunDir.view(path)
            groups.setdefault(_without_seed(directory.config_toml), []).append((name, _summary(directory)))
    table: dict[str, tuple[str, Entry | None]] = {}
    ablated: dict[str, tuple[str, Entry | None]] = {}
    for members in groups.values():
        name, summaries = members[0][0], [summary for _, summary in members]
        seeds = [seed for summary in summaries for seed in summary["seeds"]]
        if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
            raise UsageError(f"Seed {twice[0]} of '{name}' is given twice, by runs of the same settings. Give every run once.")
        if any(key.startswith(f"{name}/") for key in table):
            name = f"{name}, {len(table)}"
        key, of = (f"{name}/", f" ({name})") if len(groups) > 1 else ("", "")
        for row in QUICKSTART:
            if any(summary.get(row) for summary in summaries):
                table[key + row] = (LABELS[row] + of, results.pool([summary.get(row) for summary in summaries]))
        for part in dict.fromkeys(part for summary in summaries for part in summary.get("ablations", {})):
            entries = [summary.get("ablations", {}).get(part) for summary in summaries]
            ablated[key + part] = (f"Dream, without {part}{of}", results.pool(entries))
    every = [summary for members in groups.values() for _, summary in members]
    return _report(
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


def _report(
    table: Mapping[str, tuple[str, Entry | None]],
    ablated: Mapping[str, tuple[str, Entry | None]],
    *,
    seeds: list[int],
    commit: str,
    latency_s: float,
) -> dict[str, Any]:
    whole = {name: {"label": label, **entry} for name, (label, entry) in table.items() if entry}
    less = {name: {"label": label, **entry} for name, (label, entry) in ablated.items() if entry}
    return costed({"table1": whole, "table2": less, "seeds": seeds, "commit": commit}, latency_s)


def costed(report: dict[str, Any], latency_s: float) -> dict[str, Any]:
    """The report with every arm's cost: seconds of computing, and the latency of its real training and probing steps.

    Relative to the real arm of the same algorithm or run, or else to the first real arm. Logs are the same for all and charged to none.
    """
    whole, less = report["table1"], report["table2"]
    for entry in (*whole.values(), *less.values()):
        steps = entry["real_transitions_online"] + entry["real_transitions_probe"]
        entry["cost_seconds"] = entry["seconds"] + latency_s * steps
    reals = [name for name in whole if name.endswith(("-real", "real_only"))]
    for name, entry in (*whole.items(), *less.items()):
        kin = next((real for real in reals if _kin(real) == _kin(name)), reals[0] if reals else None)
        entry["relative_cost"] = entry["cost_seconds"] / whole[kin]["cost_seconds"] if kin else None
    return report | {"latency_s": latency_s}


def _kin(name: str) -> str:
    """What an arm and its real counterpart share: the run they are of, or their algorithm."""
    run, slash, arm = name.rpartition("/")
    return run if slash else arm.rpartition("-")[0]


COLUMNS = (
    "policy", "greedy %", "by seed", "sampled %", "real: logs", "real: training", "real: probes", "dreamed", "wall time, s",
    "cost against real",
)  # fmt: skip


def cells(entry: Mapping[str, Any]) -> list[str]:
    """One row of the table, as people read it."""
    sampled = entry["sampled"]
    relative = entry["relative_cost"]
    return [
        entry["label"],
        _rate(entry["real_success"], *entry["ci95"]),
        " / ".join(f"{100 * value:.1f}" for value in entry["per_seed"]),
        _rate(sampled["value"], sampled["low"], sampled["high"]),
        *(f"{entry[f'real_transitions_{kind}']:,.0f}" for kind in ("offline", "online", "probe")),
        f"{entry['dream_transitions']:,.0f}",
        f"{entry['seconds']:,.0f}",
        "-" if relative is None else f"{relative:.2f}",
    ]


def title(report: Mapping[str, Any]) -> str:
    """What the numbers are."""
    return (
        f"Success in the real environment on held-out tasks, % [95 % interval over episodes]; seeds {report['seeds']}, "
        f"commit {report['commit']}; cost: computing plus {report['latency_s']:g} s for every real step of training and probing"
    )


def markdown(report: Mapping[str, Any]) -> str:
    """Both tables in Markdown."""
    lines = [title(report) + ".", ""]
    for name, heading in (("table1", "Ways to a policy"), ("table2", "Without a part of the method")):
        if report[name]:
            lines += [f"## {heading}", "", _line(COLUMNS), _line(["---", *["---:"] * (len(COLUMNS) - 1)])]
            lines += [*(_line(cells(entry)) for entry in report[name].values()), ""]
    return "\n".join(lines)


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _rate(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _label(arm: str) -> str:
    name, dash, mode = arm.rpartition("-")
    return LABELS[arm] if not dash else f"{ALGORITHMS.get(name, name.upper())}, {LABELS[mode].lower().replace('s2r', 'S2R')}"


def _summary(directory: RunDir) -> dict[str, Any]:
    """A finished run's summary; RunDirError, which says what to do, for one that has none."""
    summary = directory.summary()
    if summary is not None:
        return summary
    if directory.path.name.startswith("seed-") and (directory.path.parent / "compare.json").is_file():
        raise RunDirError(f"'{directory.path.parent}' is a comparison, and not a run. Give its folder alone to see its tables.")
    raise RunDirError(f"'{directory.path}' has no summary.json: the run is not finished. Give the command that made it again: it resumes.")


def _finished(file: Path) -> dict[str, Any]:
    """The tables of a finished comparison; RunDirError for a file that holds none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunDirError(f"'{file}' is not JSON: {error}. Give the command that made it again.") from error
    if not isinstance(found, dict) or not {"table1", "table2", "seeds", "commit"} <= found.keys():
        raise RunDirError(f"'{file}' is no comparison. Give the command that made it again, or the run directories themselves.")
    return found


def _without_seed(toml: str) -> str:
    values = tomllib.loads(toml)
    return json.dumps({key: value for key, value in values.items() if key not in ("seed", "seeds")}, sort_keys=True, default=str)
