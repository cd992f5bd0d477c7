"""One-step and paired-replay fidelity of an experience model on held-out episodes, with one row per ablation.

    python bench/experience.py                       the corridor and a 100k model: about a minute
    python bench/experience.py --full --work DIR     the shop's quickstart and its model, three seeds: hours; DIR resumes
    ... --logs 2000 --only "without history"         short trainings, or some of the rows beside the method

One-step figures (`held_out`, the ablations) cover every step of fresh episodes on held-out tasks, and near misses. Paired replay
(`with_guard`, `without_guard`) covers dreams of a policy that was trained with RL inside the model.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import options as cli

from dreamgym.config import build, dump, merge
from dreamgym.recipes import fidelity, replayed_dreams
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.phases.audit import audit
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.phases.rl import run_rl_phase
from dreamgym.recipes.phases.warm_start import warm_start
from dreamgym.recipes.plan import Loop
from dreamgym.recipes.settings import budget_config
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import Rate, difference, wilson

MEASURES = ("state_exact_valid", "state_exact_knowable", "state_exact_invalid", "false_success", "false_failure", "unknown_elements")
HIGHER_IS_BETTER = ("state_exact_valid", "state_exact_knowable", "state_exact_invalid")
TOY: dict[str, Any] = {
    "env": {"name": "corridor", "options": {"length": 6, "keys": False}},
    "logs": {"trajectories": 100, "task_pairs": 0},
    "model": {"size": "100k", "vocab_size": 360},
    "experience": {"max_answer_tokens": 96, "training": {"epochs": 10.0, "lr": 5e-3, "batch_tokens": 1024}},
    "warm_start": {"optimiser": "adamw", "epochs": 10.0, "lr": 2e-3, "batch_tokens": 1024},
    "dream": {"iterations": 4, "tasks_per_iter": 8, "group_size": 4, "train_tasks": 60, "probe_every": 0, "learner": {"lr": 1e-3}},
    "eval": {"paired_replays": 96},
}
SMOKE = {
    "logs.trajectories": 20,
    "experience.training.epochs": 2.0,
    "experience.max_answer_tokens": 24,
    "warm_start.epochs": 1.0,
    "dream.iterations": 1,
    "dream.group_size": 2,
    "eval.paired_replays": 4,
}


def variants(config: RunConfig, *, full: bool) -> dict[str, RunConfig]:
    """The compared configurations by name: the method, and the method with one part removed or changed."""
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
        "random retrieval": config.without("random_retrieval"),
        **{f"k = {k}": _changed(config, "experience", k=k) for k in ((2, 4) if full else (2,))},
        **{name: _changed(config, "logs", **change) for name, change in sizes.items()},
    }


def _changed(config: RunConfig, block: str, **changes: Any) -> RunConfig:
    return config.model_copy(update={block: getattr(config, block).model_copy(update=changes)})


def model_alone(config: RunConfig, path: Path, held_out: int) -> dict[str, Any]:
    """Train one experience model and measure it on held-out episodes; phases finished in `path` are skipped."""
    with RunDir.open(path, dump(config)) as run:
        context = prepare_logs(run, config)
        train_experience(run, context)
        return fidelity.held_out(path, held_out) | {"training": run.data("experience"), "logs": run.data("logs")}


def replay_dreams(config: RunConfig, path: Path) -> dict[str, Any]:
    """Train a policy inside the model of `path`, and replay its dreams in the real environment, with the guard and without."""
    with RunDir.open(path, dump(config)) as run:
        context = prepare_logs(run, config)
        train_experience(run, context)
        warm_start(run, context)
        run_rl_phase(run, context, Loop("dream", "warm_start", config.dream, "dream", config))
        audit(run, replace(context), "dream")
        return replayed_dreams.audit_measures(run.data("audit"))


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
    full = "the shop's quickstart and its model, three seeds, 500 terminals of each kind"
    parser = cli.parser(__doc__, full=full, smoke="the corridor, barely trained, and one ablation")
    parser.add_argument(
        "--work", type=Path, help="the folder of the runs, from which an interrupted call resumes (default: a temporary one)"
    )
    parser.add_argument("--held-out", type=int, help="held-out episodes (default: 60; with --full: 1600)")
    parser.add_argument("--seeds", type=int, help="seeds of every row (default: 1; with --full: 3)")
    parser.add_argument("--logs", type=int, help="logged episodes that every model is trained on (default: those of the configuration)")
    parser.add_argument("--only", nargs="+", default=(), metavar="ROW", help="some of the rows, by name (default: all)")
    options = parser.parse_args()
    config = budget_config("default", "webshop") if options.full else build(RunConfig, merge(TOY, SMOKE if options.smoke else {}))
    if options.logs:
        config = _changed(config, "logs", trajectories=options.logs)
    chosen = variants(config, full=options.full)
    if unknown := set(options.only) - set(chosen):
        parser.error(f"there is no row {', '.join(sorted(unknown))}: there are {', '.join(chosen)}")
    only = options.only or (["without reasoning"] if options.smoke else list(chosen))
    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            {name: one for name, one in chosen.items() if name in ("method", *only)},
            options.work or Path(folder),
            held_out=options.held_out or (1600 if options.full else 8 if options.smoke else 60),
            seeds=options.seeds or (3 if options.full else 1),
        )
    show(found)
    cli.finish(options, found)


def measure(rows_asked: dict[str, RunConfig], work: Path, *, held_out: int, seeds: int) -> dict[str, Any]:
    """All figures as plain values."""
    started, config = time.monotonic(), rows_asked["method"]
    found: dict[str, list[dict[str, Any]]] = {}
    for name, variant in rows_asked.items():
        folder = work / name.replace(" = ", "-").replace(" ", "-")
        found[name] = [
            model_alone(variant.model_copy(update={"seed": seed, "seeds": (seed,)}), folder / f"seed-{seed}", held_out)
            for seed in range(seeds)
        ]
    first = config.model_copy(update={"seed": 0, "seeds": (0,)})
    paired = replay_dreams(first, work / "method" / "seed-0")
    method = found["method"][0]
    return paired | {
        "held_out": method["held_out"],
        "held_out_no_model": method["no_model"],
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
