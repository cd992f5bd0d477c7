"""The experience model against held-out reality: a model trained here, a memory of the same logs, and one row per ablation.

    python bench/experience.py                       the corridor, a toy that its 100k model learns: about a minute
    python bench/experience.py --full --work DIR     the shop of the quickstart and its model, three seeds: hours; DIR resumes
    ... --logs 2000 --only "without history"         short trainings, or some of the rows; the method is always there

Teacher-forced figures (`held_out`, the ablations) are of every step of fresh episodes on held-out tasks, and of near misses. Paired
replay (`with_guard`, `without_guard`) is of dreams of a policy that was trained with RL inside the model.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamgym.config import build, dump
from dreamgym.evals.success import Rate, difference, wilson
from dreamgym.recipes import evaluation, fidelity, fitting, practice, quickstart
from dreamgym.recipes.config import RunConfig
from dreamgym.runlog import RunDir

MEASURES = ("state_exact_valid", "state_exact_knowable", "state_exact_invalid", "false_success", "false_failure", "invented_items")
HIGHER_IS_BETTER = ("state_exact_valid", "state_exact_knowable", "state_exact_invalid")
TOY: dict[str, Any] = {
    "env": {"name": "corridor", "options": {"length": 6, "keys": False}},
    "logs": {"trajectories": 100, "task_pairs": 0},
    "model": {"size": "100k", "vocab_size": 360},
    "experience": {"max_answer_tokens": 96},
    "experience_training": {"epochs": 10.0, "lr": 5e-3, "batch_tokens": 1024},
    "warm": {"epochs": 10.0, "lr": 2e-3, "batch_tokens": 1024},
    "dream": {"iterations": 4, "tasks_per_iter": 8, "group_size": 4, "train_tasks": 60, "probe_every": 0, "learner": {"lr": 1e-3}},
    "eval": {"paired": 96},
}


def variants(config: RunConfig, *, full: bool) -> dict[str, RunConfig]:
    """What is compared, by name: the method, and the method with one thing taken away or changed."""
    half = config.logs.trajectories // 2
    sizes = (
        {f"transitions = {n}": {"transitions": n} for n in (2000, 5000, 10000, 20000)}
        if full
        else {"half the logs": {"trajectories": half}}
    )
    return {
        "method": config,
        "without reasoning": config.without("reasoning"),
        "without history": config.without("history"),
        "without retrieval": config.without("replay"),
        "shuffled retrieval": config.without("shuffled"),
        **({"without things": _changed(config, "experience", things=False)} if full else {}),  # the corridor lists nothing
        **{f"k = {k}": _changed(config, "experience", k=k) for k in ((2, 4) if full else (2,))},
        **{name: _changed(config, "logs", **change) for name, change in sizes.items()},
    }


def _changed(config: RunConfig, block: str, **changes: Any) -> RunConfig:
    return config.model_copy(update={block: getattr(config, block).model_copy(update=changes)})


def model_alone(config: RunConfig, path: Path, held_out: int) -> dict[str, Any]:
    """Train one experience model and measure it on held-out episodes; what is finished in `path` is not done again."""
    with RunDir.open(path, dump(config)) as run:
        parts = fitting.gather(run, config)
        fitting.train_experience(run, parts)
        return fidelity.held_out(path, held_out) | {"training": run.data("experience"), "logs": run.data("logs")}


def practised(config: RunConfig, path: Path) -> dict[str, Any]:
    """Train a policy inside the model of `path`, and replay its dreams in the real environment, with the guard and without."""
    with RunDir.open(path, dump(config)) as run:
        parts = fitting.gather(run, config)
        fitting.train_experience(run, parts)
        fitting.warm_start(run, parts)
        practice.practise(run, parts, "dream", start="warm", block=config.dream, world="dream")
        evaluation.audit(run, replace(parts), "dream")
        return fidelity.audited(run.data("audit"))


def rows(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row per variant, seeds pooled, each figure with its interval, each seed's value, and the difference from the method.

    "no guard" is the method's own model with the guard off.
    """
    sides = {name: [one["held_out"]["with_guard"] for one in runs] for name, runs in found.items()}
    sides["no guard"] = [one["held_out"]["without_guard"] for one in found["method"]]
    table = []
    for name, seeds in sides.items():
        row: dict[str, Any] = {"name": name, "seeds": len(seeds), "hurts": []}
        for measure in MEASURES:
            rate, whole = pooled([one[measure] for one in seeds]), pooled([one[measure] for one in sides["method"]])
            value, low, high = difference(rate, whole)
            row[measure] = {
                "value": rate.value,
                "ci95": [rate.low, rate.high],
                "n": rate.n,
                "per_seed": [one[measure]["value"] for one in seeds],
            }
            row[measure]["difference"] = {"value": value, "ci95": [low, high]}
            if (high < 0) if measure in HIGHER_IS_BETTER else (low > 0):
                row["hurts"].append(measure)
        table.append(row)
    return table


def pooled(rates: list[dict[str, Any]]) -> Rate:
    """Several seeds' shares as one."""
    return wilson(sum(round(rate["value"] * rate["n"]) for rate in rates), sum(rate["n"] for rate in rates))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--full", action="store_true", help="the quickstart's shop and model, three seeds, 500 terminals of each kind")
    parser.add_argument(
        "--work", type=Path, help="where the models are kept, so that an interrupted run goes on (default: a temporary folder)"
    )
    parser.add_argument("--held-out", type=int, help="held-out episodes (default: 60; with --full: 1600)")
    parser.add_argument("--seeds", type=int, help="seeds of every row (default: 1; with --full: 3)")
    parser.add_argument("--logs", type=int, help="logged episodes that every model is trained on (default: those of the configuration)")
    parser.add_argument("--only", nargs="+", default=(), metavar="ROW", help="some of the rows, by name (default: all)")
    options = parser.parse_args()
    config = quickstart.budget_config("default") if options.full else build(RunConfig, TOY)
    if options.logs:
        config = _changed(config, "logs", trajectories=options.logs)
    chosen = variants(config, full=options.full)
    if unknown := set(options.only) - set(chosen):
        parser.error(f"there is no row {', '.join(sorted(unknown))}: there are {', '.join(chosen)}")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            {name: one for name, one in chosen.items() if not options.only or name in ("method", *options.only)},
            options.work or Path(folder),
            held_out=options.held_out or (1600 if options.full else 60),
            seeds=options.seeds or (3 if options.full else 1),
        )
    show(found)
    if options.json:
        print(json.dumps(found))


def measure(rows_asked: dict[str, RunConfig], work: Path, *, held_out: int, seeds: int) -> dict[str, Any]:
    """Everything, as plain values under the names that programs read."""
    started, config = time.monotonic(), rows_asked["method"]
    found: dict[str, list[dict[str, Any]]] = {}
    for name, variant in rows_asked.items():
        folder = work / name.replace(" = ", "-").replace(" ", "-")
        found[name] = [
            model_alone(variant.model_copy(update={"seed": seed, "seeds": (seed,)}), folder / f"seed-{seed}", held_out)
            for seed in range(seeds)
        ]
    first = config.model_copy(update={"seed": 0, "seeds": (0,)})
    paired = practised(first, work / "method" / "seed-0")
    method = found["method"][0]
    return paired | {
        "held_out": method["held_out"],
        "lookup_baseline": method["lookup_baseline"],
        "ablations": rows(found),
        "seeds": list(range(seeds)),
        "env": config.env.name,
        "model": config.model.size,
        "transitions": method["logs"]["transitions"],
        "seconds": time.monotonic() - started,
    }


def show(found: dict[str, Any]) -> None:
    """The tables for a person."""
    from dreamgym.cli._show import table
    from dreamgym.cli.measures import show_held_out

    def cell(row: dict[str, Any], name: str) -> str:
        return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * x for x in (row[name]["value"], *row[name]["ci95"])))

    print(f"{found['env']}, model {found['model']}, {found['transitions']:,} logged transitions, seeds {found['seeds']}")
    for kind in ("with_guard", "without_guard"):
        shares = {name: f"{100 * found[kind][name]['value']:.1f} %" for name in ("false_success", "false_failure", "consistency_ratio")}
        print(f"  paired replay {kind.replace('_', ' ')}: {shares}, terminals {found[kind]['terminals']}")
    show_held_out(found)
    title = "Ablations, held-out transitions with the guard, % [95 %]"
    lines = [[row["name"], *(cell(row, name) for name in MEASURES), ", ".join(row["hurts"]) or "-"] for row in found["ablations"]]
    table(title, ["", *(name.replace("_", " ") for name in MEASURES), "worse than the method in"], lines)


if __name__ == "__main__":
    main()
