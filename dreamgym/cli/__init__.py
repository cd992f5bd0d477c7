"""The command line. Everything heavy is imported inside the command that needs it, so that `dreamgym --help` is instant."""

from __future__ import annotations

import json
import signal
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli import instruct, label, logs, measures, models, replay, serve, training, web, webshop
from dreamgym.cli._show import Json, Run, show, table
from dreamgym.errors import explain
from dreamgym.runs.threads import limit_spinning

INTERRUPTED = 130  # typer's exit code for Ctrl-C
TERMINATED = 143  # the shell's code for a process that SIGTERM ended
app = typer.Typer(help="Train LLM agents inside an LLM experience model (DreamGym, arXiv:2511.03773).", no_args_is_help=True)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("dreamgym"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None: ...


@app.command()
def quickstart(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="KEY=VALUE settings that override the budget's, such as dream.iterations=5.")
    ] = None,
    budget: Annotated[
        str,
        typer.Option(help="small (minutes) or default (a quarter of an hour); in webshop also large (baselines; hours) and gpu."),
    ] = "default",
    env: Annotated[
        str, typer.Option(help="telecom (extra tau2; the default), webshop (no extra), alfworld (its extra) or web (small; its extra).")
    ] = "",
    model: Annotated[
        str, typer.Option(help="smollm2 (in the shop, an hour or more; see `dreamgym fetch`), in place of the small transformer.")
    ] = "",
    run: Annotated[Path | None, typer.Option(help="The run directory; the same one resumes.")] = None,
    dry_run: training.DryRun = False,
    as_json: Json = False,
) -> None:
    """Run the whole method: logs, experience model, warm start, RL in the dream, sim-to-real, evaluation, report."""
    from dreamgym.errors import MissingExtra
    from dreamgym.recipes.factory import checked_suite
    from dreamgym.recipes.settings import budget_config, run_name
    from dreamgym.runs.rundir import require_place_for_runs

    try:
        config = budget_config(budget, env, model, overrides or ())
        checked_suite(config, acts=not dry_run)
    except MissingExtra as error:
        if env or model:
            raise
        raise MissingExtra(f"{error}\nThe quickstart in the shop needs no extra: dreamgym quickstart --env webshop") from error
    path = run or Path("runs") / run_name(budget, env, model)
    if dry_run:
        training.estimate_first(path, [config], dry_run, as_json)
        return
    require_place_for_runs(path)
    from dreamgym import report
    from dreamgym.recipes import quickstart as recipe

    summary = recipe.run_seeds(config, path, budget=budget, say=lambda text: print(text, file=sys.stderr, flush=True))
    written = [report.write(one) for one in _runs_in(path)]
    show(summary, as_json)
    if not as_json:
        for page in written:
            print(f"report: {page}")


@app.command(name="report")
def report_command(run: Run) -> None:
    """Write report.html of a run, finished or not, and print its path."""
    from dreamgym import report

    for one in _runs_in(run):
        print(f"report: {report.write(one)}")


@app.command()
def summary(run: Run, as_json: Json = False) -> None:
    """Print the results table of a finished run."""
    from dreamgym.runs.files import reading
    from dreamgym.runs.rundir import SUMMARY, RunDir, unfinished

    folder = run / "all" if (run / "all").is_dir() else run
    found = RunDir.view(folder).summary()
    if found is None:
        raise unfinished(run, "has no summary.json")
    with reading(folder / SUMMARY):
        show(found, as_json)


@app.command()
def play(
    run: Run,
    instruction: Annotated[str | None, typer.Option(help="The instruction of the task; by default, that of a training task.")] = None,
) -> None:
    """Act in a dream by hand: type actions, read the reasoning and the states of the experience model."""
    from dreamgym.runs.rundir import RunDir

    RunDir.view(run)
    from dreamgym.recipes.play import play_dream

    play_dream(run, instruction)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Print versions, cores, bfloat16 support, GPU and optional packages of this machine."""
    from dreamgym.recipes.doctor import examine

    found = examine()
    if as_json:
        print(json.dumps(found))
    else:
        table("dreamgym doctor", ["what", "found"], [[name, str(value)] for name, value in found.items()])


app.command(name="import")(logs.import_logs)
app.command()(logs.mapping)
app.command(name="export")(logs.export_logs)
app.command()(measures.fidelity)
app.command()(label.label)
app.command()(serve.serve)
app.command()(training.train)
app.command()(training.compare)
app.command()(training.sweep)
app.command()(training.transfer)
app.command(name="eval")(training.evaluate)
app.command()(training.init)
app.command()(instruct.annotate)
app.command()(instruct.judge)
app.command()(models.fetch)
app.command()(models.merge)
app.add_typer(replay.app, name="replay")
app.add_typer(webshop.app, name="webshop")
app.add_typer(web.app, name="web")


def main() -> None:
    """Entry point. An error that a user can cause is one message and exit code 2. A bug is a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # lone surrogates of file names and logs are printed as escapes
            stream.reconfigure(errors="backslashreplace")
    limit_spinning()
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except Exception as error:
        if (found := explain(error)) is None:
            raise
        print(f"error: {found}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        code = stop.code if isinstance(stop, SystemExit) else INTERRUPTED
        if code not in (INTERRUPTED, TERMINATED):
            raise
        print("interrupted: nothing that was written is lost; the same command resumes.", file=sys.stderr)
        sys.exit(code)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(*_: object) -> None:
    """SIGTERM unwinds like Ctrl-C, so that open files are completed or removed."""
    raise SystemExit(TERMINATED)


def _runs_in(path: Path) -> list[Path]:
    """The run itself, or the runs of its seeds."""
    return sorted(path.glob("seed-*")) or [path]
