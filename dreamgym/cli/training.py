"""Commands that train and measure policies: `train`, `compare`, `eval` and `init`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli._show import Json, Run, rate, show, table

ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file that lists what differs from the defaults.")]


def train(
    run: Annotated[Path, typer.Argument(help="The run directory; the same one goes on where it was interrupted.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="KEY=VALUE laid over the file, such as rl.algorithm.name=ppo.")] = None,
    config: ConfigFile = None,
    mode: Annotated[str | None, typer.Option(help="dream, real, s2r (dream, then real) or mixed.")] = None,
    as_json: Json = False,
) -> None:
    """Train a policy in any environment, from its scripted behaviours or from files of logs."""
    from dreamgym import report
    from dreamgym.recipes import train as recipe

    settings = recipe.settings(run, config, [*(overrides or ()), *([f'mode="{mode}"'] if mode else [])])
    summary = recipe.run(settings, run, say=_say)
    page = report.write(run)
    show(summary, as_json)
    if not as_json:
        print(f"report: {page}")


def compare(
    runs: Annotated[list[Path] | None, typer.Argument(help="Finished run directories to compare; none with --config.")] = None,
    config: ConfigFile = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the comparison; with --config it holds the runs too, and resumes.")
    ] = None,
    latency: Annotated[float, typer.Option(min=0, help="Seconds that a real step is said to take, in the column of costs.")] = 1.0,
    as_json: Json = False,
) -> None:
    """The paper's Tables 1 and 2: train the arms of a configuration, or compare finished runs."""
    from dreamgym.config import read
    from dreamgym.errors import UsageError
    from dreamgym.recipes import compare as recipe
    from dreamgym.recipes.config import CompareConfig

    if config and runs:
        raise UsageError("Give either finished runs, or --config FILE to train the arms of one.")
    if config:
        found = recipe.run(read(CompareConfig, config), out or Path("runs") / config.stem, latency_s=latency, say=_say)
    else:
        found = recipe.of_runs(runs or (), latency_s=latency)
        if out:
            recipe.save(found, out)
    if as_json:
        print(json.dumps(found))
        return
    for name, title in (("table1", recipe.title(found)), ("table2", "Without a part of the method")):
        if found[name]:
            table(title, list(recipe.COLUMNS), [recipe.cells(entry) for entry in found[name].values()], width=180)


def evaluate(
    run: Run,
    policy: Annotated[str | None, typer.Option(help="Which of the run's policies, such as warm or dream; by default the last.")] = None,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    tasks: Annotated[int | None, typer.Option(min=1, help="How many tasks, greedy and sampled; 300 where so many were held out.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sampled episodes.")] = 1,
    as_json: Json = False,
) -> None:
    """Success of a run's policy in the real environment. Changes nothing in the run."""
    from dreamgym.errors import UsageError, nearest
    from dreamgym.recipes.evaluation import evaluate_policy

    if split not in (known := ("train", "dev", "test")):
        raise UsageError(f"No split '{split}'.{nearest(split, known)} Known: {', '.join(known)}.")
    found = evaluate_policy(run, policy, split=split, tasks=tasks, seed=seed)
    if as_json:
        print(json.dumps(found))
        return
    title = f"{found['policy']} on {found['tasks']} {split} tasks, {found['real_steps']:,} real steps"
    table(title, ["", "success"], [[kind, rate(found[kind])] for kind in ("greedy", "sampled")])


def init(
    file: Annotated[Path, typer.Argument(help="The file to write, such as train.toml. An existing one is left alone.")],
) -> None:
    """Write every setting of `dreamgym train` with its default, commented out, to change what should differ."""
    from dreamgym.config import template
    from dreamgym.errors import UsageError
    from dreamgym.files import write_atomic
    from dreamgym.recipes.config import TrainConfig

    if file.exists():
        raise UsageError(f"'{file}' exists, and is left as it is. Give another name.")
    head = "# Settings of `dreamgym train`, all at their defaults: remove the # of a block's name and of what should differ.\n\n"
    try:
        write_atomic(file, head + template(TrainConfig()))
    except OSError as error:
        raise UsageError(f"Cannot write '{file}': {error.strerror}. Give another name.") from error
    print(f"written: {file}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
