"""The command line. Everything heavy is imported inside the command that needs it, so that `dreamgym --help` is instant."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dreamgym.errors import DreamGymError

INTERRUPTED = 130  # what typer makes of Ctrl-C
app = typer.Typer(help="Train LLM agents inside a reasoning experience model (DreamGym, arXiv:2511.03773).", no_args_is_help=True)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Run = Annotated[Path, typer.Argument(help="A run directory, such as runs/quickstart.")]


@app.command()
def quickstart(
    budget: Annotated[
        str, typer.Option(help="small (minutes), default (under half an hour) or full (three seeds and baselines; hours).")
    ] = "default",
    run: Annotated[Path | None, typer.Option(help="The run directory; the same one resumes.")] = None,
    as_json: Json = False,
) -> None:
    """Run the whole loop on the built-in shop: logs, experience model, warm start, dream, sim-to-real, evaluation, report."""
    from dreamgym import report
    from dreamgym.recipes import quickstart as recipe

    config = recipe.budget_config(budget)
    path = run or Path("runs") / recipe.RUNS[budget]
    summary = recipe.run_seeds(config, path, budget=budget, say=lambda text: print(text, file=sys.stderr, flush=True))
    written = [report.write(one) for one in _runs_in(path)]
    _show(summary, as_json)
    if not as_json:
        for page in written:
            print(f"report: {page}")


@app.command(name="report")
def report_command(run: Run) -> None:
    """Write report.html of a run, finished or not, and print where it is."""
    from dreamgym import report

    for one in _runs_in(run):
        print(f"report: {report.write(one)}")


@app.command()
def summary(run: Run, as_json: Json = False) -> None:
    """Print the results table of a finished run."""
    from dreamgym.errors import RunDirError
    from dreamgym.runlog import RunDir

    folder = run / "all" if (run / "all").is_dir() else run
    found = RunDir.view(folder).summary()
    if found is None:
        raise RunDirError(f"'{run}' has no summary.json: the run is not finished. Give the command that made it again: it resumes.")
    _show(found, as_json)


@app.command()
def fidelity(run: Run, as_json: Json = False) -> None:
    """How far the run's dreams may be trusted: paired replay under the trained policy, with the guard and without."""
    from dreamgym.errors import RunDirError
    from dreamgym.runlog import RunDir

    folder = RunDir.view(run)
    if not folder.done("audit"):
        raise RunDirError(f"'{run}' has no audit yet: the run is not finished. Give the command that made it again: it resumes.")
    audit = folder.data("audit")
    if "bound" not in audit["with_guard"]:
        raise RunDirError(f"The audit of '{run}' was made by an older version, without bounds. Make the run anew in another directory.")
    kinds = ("with_guard", "without_guard")
    bound = audit["with_guard"]["bound"]
    if as_json:
        errors = {name: bound[name] for name in ("reward_error", "transition_error")}
        print(json.dumps({kind: _measures(audit[kind]) for kind in kinds} | errors | {"bound": bound}))
        return
    _table(
        "Dreams replayed in the real environment",
        ["", "with guard", "without guard"],
        [[name.replace("_", " "), *(_rate(audit[kind][name]) for kind in kinds)] for name in AUDIT],
    )
    print(
        f"Dream and real success of this policy differ by at most {bound['gap']:.1%} (95 % upper end of the share of episodes that part).\n"
        f"Theorem 1 of the paper, gamma {bound['gamma']}: {bound['theorem']:,.0f}"
        + (", which says nothing about success in [0, 1]." if "theorem" in bound["vacuous"] else ".")
    )


def _measures(found: dict[str, Any]) -> dict[str, Any]:
    """The audit of one kind under the names that programs read."""
    return {
        **{name: found[name] for name in ("dream_success", "real_success", "state_exact", "state_exact_valid", "state_exact_invalid")},
        **{name: found[name] for name in ("false_success", "false_failure", "unguarded_false_success", "unreadable", "masked", "gap")},
        "terminals": {"real_failures": found["false_success"]["n"], "real_successes": found["false_failure"]["n"]},
        "consistency_ratio": found["consistency"],
        "first_divergence_step": found["first_divergence"],
    }


COSTS = ("real_transitions_offline", "real_transitions_online", "real_transitions_probe", "dream_transitions", "seconds")
AUDIT = (
    "dream_success", "real_success", "false_success", "false_failure", "consistency",
    "state_exact", "state_exact_valid", "state_exact_invalid", "first_divergence",
)  # fmt: skip


replay = typer.Typer(help="Look into replay logs, and move them in and out.", no_args_is_help=True)
app.add_typer(replay, name="replay")
Log = Annotated[Path, typer.Argument(help="A replay log, such as runs/quickstart/replay/dream.sqlite.")]


@replay.command(name="stats")
def replay_stats(log: Log, as_json: Json = False) -> None:
    """What is in a replay log: rows by environment and source, rewards, verdicts, size."""
    from dreamgym.replay.statistics import statistics

    found = statistics(log)
    if as_json:
        print(json.dumps(found))
        return
    columns = ["env", "source", "rows", "trajectories", "contents", "mean reward", "rewarded", "punished", "terminal"]
    rows = [[f"{one[key]:.3f}" if key == "mean_reward" else str(one[key]) for key in (c.replace(" ", "_") for c in columns)]
            for one in found["groups"]]  # fmt: skip
    _table(f"{found['rows']:,} rows in use, {found['evicted']:,} evicted, {found['bytes'] / 1e6:,.1f} MB", columns, rows)
    print(f"encoder: {found['encoder']} ({found['dim']} numbers a row)")
    print("verdicts: " + ", ".join(f"{verdict or 'not judged'} {n:,}" for verdict, n in found["verdicts"].items()))


@replay.command(name="export")
def replay_export(log: Log, to: Annotated[Path, typer.Argument(help="A file to write: .jsonl or .parquet.")]) -> None:
    """Write the rows of a replay log to a file that `datasets` and pandas read."""
    from dreamgym.replay import interchange
    from dreamgym.replay.stores import sqlite

    print(f"{interchange.export(sqlite.make(path=log, read_only=True), to):,} rows: {to}")


@replay.command(name="import")
def replay_import(
    log: Log, file: Annotated[Path, typer.Argument(help="A file that `replay export` wrote, or one with its columns.")]
) -> None:
    """Add the rows of a file to a replay log over the lexical encoder, which is made if it is not there. All are added, or none."""
    from dreamgym.replay import interchange
    from dreamgym.replay.buffer import ReplayBuffer
    from dreamgym.replay.encoders import lexical

    trajectories = list(interchange.read(file))
    with ReplayBuffer.open(log, lexical.make()) as buffer:
        print(f"{buffer.add(trajectories):,} rows added, {buffer.refused:,} refused: {log}")


@replay.command(name="reencode")
def replay_reencode(
    log: Log, encoder: Annotated[str, typer.Option(help="An encoder of dreamgym/replay/encoders, or a dotted module name.")] = "lexical"
) -> None:
    """Encode every row of a replay log anew, with the encoder's default settings, so that a run with that encoder can use it."""
    from dreamgym import plugins
    from dreamgym.replay.stores import sqlite

    if not log.is_file():
        raise DreamGymError(f"There is no replay log '{log}'. Expected a file such as runs/quickstart/replay/dream.sqlite.")
    made = plugins.make("replay.encoders", encoder)
    print(f"{sqlite.make(path=log).reencode(made):,} rows encoded with {made.id}: {log}")


@app.command()
def play(
    run: Run,
    instruction: Annotated[str | None, typer.Option(help="What to ask for; without it, a training task.")] = None,
) -> None:
    """Step through a dream by hand: type actions, read what the experience model reasons and shows."""
    from dreamgym.recipes.play import play_dream

    play_dream(run, instruction)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine offers: versions, cores, bfloat16, GPU, optional packages."""
    from dreamgym.recipes.doctor import examine

    found = examine()
    if as_json:
        print(json.dumps(found))
    else:
        _table("dreamgym doctor", ["what", "found"], [[name, str(value)] for name, value in found.items()])


def main() -> None:
    """Entry point: errors made on purpose are one message and exit code 2; Ctrl-C says how to go on."""
    try:
        app()
    except DreamGymError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != INTERRUPTED:
            raise
        print("interrupted: nothing that was written is lost; the same command goes on from here.", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _runs_in(path: Path) -> list[Path]:
    """The run itself, or the runs of its seeds."""
    return sorted(path.glob("seed-*")) or [path]


def _show(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    rows = []
    entries = {name: summary.get(name) for name in ("warm_start", "sft", "dream", "s2r", "real_only")}
    entries |= {f"dream without {name}": entry for name, entry in summary.get("ablations", {}).items()}
    for name, entry in entries.items():
        if entry:
            sampled = entry["sampled"]
            rows.append([
                name,
                f"{100 * entry['real_success']:.1f} [{100 * entry['ci95'][0]:.1f}, {100 * entry['ci95'][1]:.1f}]",
                f"{100 * sampled['value']:.1f} [{100 * sampled['low']:.1f}, {100 * sampled['high']:.1f}]",
                *(f"{entry[key]:,.0f}" for key in COSTS),
            ])  # fmt: skip
    _table(
        f"Success in the real environment on held-out tasks, % [95 % interval]; seeds {summary['seeds']}, commit {summary['commit']}",
        ["policy", "greedy", "sampled", "real: logs", "real: training", "real: probes", "dreamed", "seconds"],
        rows,
    )
    if isinstance(audit := summary.get("audit"), dict):
        print("Dreams of the trained policy, replayed in the real environment (with guard | without):")
        for name in AUDIT:
            print(f"  {name.replace('_', ' '):<20}{_rate(audit['with_guard'].get(name)):<28}{_rate(audit['without_guard'].get(name))}")


def _rate(value: Any) -> str:
    if isinstance(value, dict):
        return f"{100 * value['value']:.1f} % [{100 * value['low']:.1f}, {100 * value['high']:.1f}] of {value['n']}"
    return "-" if value is None else f"{value:.2f}"


def _table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=max(120, Console().width)).print(table)


if __name__ == "__main__":
    main()
