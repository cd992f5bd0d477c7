"""The command line. Everything heavy is imported inside the command that needs it, so that `dreamgym --help` is instant."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli import envs, hosts, measures, replay, training
from dreamgym.cli._show import Json, Run, show, table
from dreamgym.errors import DreamGymError

INTERRUPTED = 130  # what typer makes of Ctrl-C
TERMINATED = 143  # the shell's code for a process that SIGTERM ended
app = typer.Typer(help="Train LLM agents inside a reasoning experience model (DreamGym, arXiv:2511.03773).", no_args_is_help=True)


@app.command()
def quickstart(
    budget: Annotated[
        str,
        typer.Option(help="small (minutes), default (20 to 40 minutes), full (three seeds and baselines; hours) or gpu (a larger model)."),
    ] = "default",
    env: Annotated[str, typer.Option(help="webshop, or alfworld (its extra installed; small and default).")] = "webshop",
    run: Annotated[Path | None, typer.Option(help="The run directory; the same one resumes.")] = None,
    as_json: Json = False,
) -> None:
    """Run the whole loop in the shop or in houses: logs, experience model, warm start, dream, sim-to-real, evaluation, report."""
    from dreamgym import report
    from dreamgym.recipes import quickstart as recipe

    config = recipe.budget_config(budget, env)
    path = run or Path("runs") / recipe.run_name(budget, env)
    summary = recipe.run_seeds(config, path, budget=budget, say=lambda text: print(text, file=sys.stderr, flush=True))
    written = [report.write(one) for one in _runs_in(path)]
    show(summary, as_json)
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
    show(found, as_json)


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
        table("dreamgym doctor", ["what", "found"], [[name, str(value)] for name, value in found.items()])


app.command()(measures.fidelity)
app.command()(training.train)
app.command()(training.compare)
app.command(name="eval")(training.evaluate)
app.command()(training.init)
app.command()(hosts.annotate)
app.command()(hosts.judge)
app.add_typer(replay.app, name="replay")
app.add_typer(envs.app, name="env")


def main() -> None:
    """Entry point: errors made on purpose are one message and exit code 2; Ctrl-C and SIGTERM say how to go on."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except DreamGymError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        code = stop.code if isinstance(stop, SystemExit) else INTERRUPTED
        if code not in (INTERRUPTED, TERMINATED):
            raise
        print("interrupted: nothing that was written is lost; the same command goes on from here.", file=sys.stderr)
        sys.exit(code)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(*_: object) -> None:
    """SIGTERM unwinds like Ctrl-C, so that files under way are put in order."""
    raise SystemExit(TERMINATED)


def _runs_in(path: Path) -> list[Path]:
    """The run itself, or the runs of its seeds."""
    return sorted(path.glob("seed-*")) or [path]
