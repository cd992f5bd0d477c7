"""Commands that train and measure policies: `train`, `compare`, `sweep`, `transfer`, `eval` and `init`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dreamgym.cli._show import Json, Run, rate, show, table

if TYPE_CHECKING:
    from dreamgym.recipes.pilot import Planned

LARGEST = 2**63 - 1
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many tokens, how much memory and how many hours it would take.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A preset's name, or a TOML file that lists what differs from the defaults.")
]


def train(
    run: Annotated[Path, typer.Argument(help="The run directory; the same one resumes.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="KEY=VALUE settings that override the file, such as rl.algorithm.name=ppo.")
    ] = None,
    config: ConfigFile = None,
    mode: Annotated[str | None, typer.Option(help="dream, real, s2r (dream, then real) or mixed.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Train a policy in any environment, from its scripted policies or from files of logs."""
    from dreamgym.recipes.factory import checked_suite
    from dreamgym.recipes.inputs import located, read_again
    from dreamgym.recipes.settings import train_settings

    settings = train_settings(run, config, [*(overrides or ()), *([f'mode="{mode}"'] if mode else [])])
    own = located(settings, run)
    suite = checked_suite(own, acts=not dry_run)  # whatever is wrong in the settings is found before torch is imported
    if dry_run:
        estimate_first(run, [read_again(own, run, suite)], dry_run, as_json)
        return
    from dreamgym import report
    from dreamgym.errors import InvariantError
    from dreamgym.recipes import train as recipe
    from dreamgym.runs.rundir import SUMMARY

    try:
        summary = recipe.run(settings, run, suite=suite, say=_say)
    except InvariantError:  # it is finished, and nothing was learned: the report shows why
        if (run / SUMMARY).is_file():
            report.write(run)
        raise
    page = report.write(run)
    show(summary, as_json)
    if not as_json:
        print(f"report: {page}")


def compare(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|KEY=VALUE",
            help="Finished run directories to compare; with --config, settings that override the file, such as seeds=[0,1].",
        ),
    ] = None,
    config: ConfigFile = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the comparison; with --config it also holds the runs, and resumes.")
    ] = None,
    latency: Annotated[float, typer.Option(min=0, max=1e9, help="Assumed seconds of a real step, for the cost column.")] = 1.0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make Tables 1 and 2 of the paper: train the arms of a configuration, or compare finished runs."""
    from dreamgym.errors import UsageError
    from dreamgym.runs.files import reading

    overrides = [one for one in given or () if "=" in one and not os.path.exists(one)]
    runs = [Path(one) for one in given or () if one not in overrides]
    if config and runs:
        raise UsageError(
            f"'{runs[0]}' is no setting. Give either finished runs, or --config FILE and KEY=VALUE settings to train the arms of one."
        )
    if overrides and not config:
        raise UsageError(f"'{overrides[0]}' is no run directory. Settings change a configuration: give --config FILE too.")
    if config:
        result = _trained_arms(config, overrides, out, latency, dry_run, as_json)
    else:
        result = _finished_runs(runs, out, latency, dry_run)
    if result is None:
        return
    if as_json:
        print(json.dumps(result))
        return
    with reading(out or ", ".join(map(str, runs))):
        _show_comparison(result)


def _trained_arms(
    config: Path, overrides: list[str], out: Path | None, latency: float, dry_run: bool, as_json: bool
) -> dict[str, Any] | None:
    """The comparison of the arms of a configuration, which are trained; None of a dry run, which prints what they will take."""
    from dreamgym.recipes.config import CompareConfig
    from dreamgym.recipes.factory import checked_suite
    from dreamgym.recipes.inputs import located, read_again, seed_that_reads
    from dreamgym.recipes.settings import changes_of_seeds, read, require_plugins
    from dreamgym.runs.rundir import require_place_for_runs

    settings, folder = read(CompareConfig, config, changes_of_seeds(overrides)), out or Path("runs") / config.stem
    require_plugins(settings)
    seed = seed_that_reads(settings, folder)
    own = located(settings, seed)
    planned = read_again(own, seed, checked_suite(own, acts=not dry_run))
    if not dry_run:
        require_place_for_runs(folder)
    if not estimate_first(folder, [planned], dry_run, as_json):
        return None
    from dreamgym.recipes import compare as recipe

    return recipe.run(settings, folder, latency_s=latency, say=_say)


def _finished_runs(runs: list[Path], out: Path | None, latency: float, dry_run: bool) -> dict[str, Any]:
    """The comparison of finished runs, saved in `out` where it is given."""
    from dreamgym.errors import UsageError
    from dreamgym.recipes import comparison
    from dreamgym.runs.files import reading
    from dreamgym.runs.rundir import RunDir

    for one in runs:
        if not (one / "compare.json").is_file() and not any(one.glob("seed-*")):
            RunDir.view(one)
    if dry_run:
        raise UsageError("--dry-run says what training would take: give --config FILE, and no finished runs.")
    with reading(", ".join(map(str, runs))):
        result = comparison.of_runs(runs, latency_s=latency)
    if out:
        comparison.save(result, out)
    return result


def _show_comparison(result: dict[str, Any]) -> None:
    """The tables of a comparison, and the gains."""
    from dreamgym.recipes import comparison, gains

    if not result["table1"] and not result["table2"]:
        print("No policy of these runs was evaluated in a real environment, as where a run has logs alone: there is nothing to compare.")
    for name, title in (("table1", comparison.title(result)), ("table2", "Without a part of the method")):
        if result[name]:
            table(title, list(comparison.COLUMNS), [comparison.cells(entry) for entry in result[name].values()], width=180)
    for title, columns, rows in comparison.measured(result):
        table(title, list(columns), rows, width=180)
    for line in gains.lines(result.get("gains") or {}):
        print(line)


def sweep(
    varied: Annotated[list[str], typer.Argument(help="KEY=V1,V2: a setting and its values, such as logs.transitions=2000,10000.")],
    config: ConfigFile = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the sweep, with a comparison a point; it resumes.")] = None,
    held_out: Annotated[
        int,
        typer.Option(min=0, max=1_000_000, help="Real episodes on which next states are predicted, a point and seed; 0 leaves that out."),
    ] = 50,
    latency: Annotated[float, typer.Option(min=0, max=1e9, help="Assumed seconds of a real step, for the cost columns.")] = 1.0,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Repeat a comparison at several values of its settings: sizes of the logs (the paper's Figure 5), models, rates."""
    from dreamgym.errors import UsageError
    from dreamgym.recipes import sweep as recipe
    from dreamgym.runs.rundir import require_place_for_runs

    if config is None:
        raise UsageError("Give --config FILE: the comparison that is repeated, such as the preset compare-logs.")
    folder = out or Path("runs") / f"{config.stem}-sweep"
    if not dry_run:
        require_place_for_runs(folder)
    chosen = recipe.points(config, recipe.varied(varied))
    if not estimate_first(folder, [point.config for point in chosen], dry_run, as_json, held_out=held_out):
        return
    found = recipe.run(chosen, folder, held_out=held_out, latency_s=latency, say=_say)
    _show_table(found, recipe.title(found), recipe.rows(found), as_json)


def transfer(
    configs: Annotated[
        list[Path], typer.Argument(help="Two or more configurations of `dreamgym train`, presets or files, of different environments.")
    ],
    out: Annotated[Path, typer.Option(help="The folder, with a run for each environment; it resumes.")] = Path("runs/transfer"),
    held_out: Annotated[
        int, typer.Option(min=2, max=1_000_000, help="Real episodes of each environment on which next states are predicted.")
    ] = 50,
    universal: Annotated[bool, typer.Option("--universal", help="Also fit one experience model to the logs of all.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Train in the dream of each environment, and try every policy and experience model in the others (the paper's Figure 3)."""
    from dreamgym.recipes import transfer as recipe
    from dreamgym.recipes.config import TrainConfig
    from dreamgym.recipes.inputs import located
    from dreamgym.recipes.settings import read
    from dreamgym.runs.rundir import require_place_for_runs

    settings = [read(TrainConfig, config) for config in configs]
    recipe.check(settings, out, all_in_one=universal)
    own = [located(one, out / one.env.name) for one in settings]
    if not dry_run:
        require_place_for_runs(out)
    if not estimate_first(out, own, dry_run, as_json, held_out=held_out, transfer=True, universal=universal):
        return
    found = recipe.run(settings, out, held_out=held_out, all_in_one=universal, say=_say)
    _show_table(found, recipe.title(found), recipe.rows(found), as_json)


def evaluate(
    run: Run,
    policy: Annotated[
        str | None, typer.Option(help="Which of the run's policies, such as warm_start or dream; by default the last.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    tasks: Annotated[int | None, typer.Option(min=1, help="How many tasks, greedy and sampled; 300 where so many were held out.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST, help="Seed of the sampled episodes.")] = 1,
    as_json: Json = False,
) -> None:
    """Measure the success of a run's policy in the real environment. The run is not changed."""
    from dreamgym.envs.base import check_split
    from dreamgym.errors import UsageError, counted
    from dreamgym.recipes.settings import require_policy
    from dreamgym.runs.rundir import RunDir

    check_split(split)
    folder = RunDir.view(run)
    if folder.done("logs") and not folder.data("logs").get("has_env", True):
        raise UsageError(
            f"'{run}' was made from logs alone: there is no environment to act in. `dreamgym fidelity {run}` says what is known."
        )
    if policy:
        require_policy(run, policy)
    from dreamgym.recipes.phases.evaluate import evaluate_policy

    found = evaluate_policy(run, policy, split=split, tasks=tasks, seed=seed)
    if as_json:
        print(json.dumps(found))
        return
    title = f"{found['policy']} on {counted(found['tasks'], f'{split} task')}, {counted(found['real_steps'], 'real step')}"
    table(title, ["", "success"], [[kind, rate(found[kind])] for kind in ("greedy", "sampled")])


def init(
    file: Annotated[
        Path | None,
        typer.Argument(help="The file to write, such as train.toml; an existing one is kept. With --logs: by default, printed."),
    ] = None,
    logs: Annotated[
        list[Path] | None, typer.Option(help="Recorded episodes to make the settings from; repeat it for several files.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="With --logs: the suite, tools or logs; by default as the actions are.")] = None,
    size: Annotated[str, typer.Option(help="With --logs: the size of a model from scratch, such as 4m; 1m where it is not given.")] = "",
    backbone: Annotated[
        str, typer.Option(help="With --logs: a pretrained model that acts and dreams: a directory, a name on the hub, or smollm2.")
    ] = "",
    download: Annotated[bool, typer.Option("--download", help="With --backbone: fetch from the hub what is not here yet.")] = False,
) -> None:
    """Write all settings of `dreamgym train` with their defaults, commented out, or those that fit recorded episodes."""
    from dreamgym.config import template
    from dreamgym.errors import UsageError
    from dreamgym.recipes.config import TrainConfig
    from dreamgym.runs.files import write_atomic

    if file and file.exists():
        more = " Several files of logs are given as --logs A --logs B." if logs else ""
        raise UsageError(f"'{file}' exists, and is left as it is. Give another name.{more}")
    if (size or backbone) and not logs:
        raise UsageError("--size and --backbone go with --logs. Set model.size or policy.backbone in the file.")
    if size and backbone:
        raise UsageError("--size is of a model from scratch, and --backbone is pretrained. Give one of them.")
    if download and not backbone:
        raise UsageError("--download goes with --backbone: nothing else is fetched.")
    if logs:
        text = _settings_from_logs(logs, env, size or "1m", backbone, download)
    elif file is None:
        raise UsageError("Give the file to write, such as train.toml, or --logs FILE.")
    else:
        head = "## Settings of `dreamgym train` at their defaults: uncomment a setting and the name of its block to change it.\n\n"
        text = head + template(TrainConfig())
    if file is None:
        print(text, end="")
    else:
        write_atomic(file, text)
        print(f"written: {file}")


def _settings_from_logs(logs: list[Path], env: str | None, size: str, backbone: str, download: bool) -> str:
    """The settings that fit recorded episodes, as TOML; what the episodes hold is said on standard error."""
    from dreamgym.llm.backbone_settings import BackboneConfig, check_backbone
    from dreamgym.llm.sizes import shape_of
    from dreamgym.recipes.init_logs import settings
    from dreamgym.recipes.log_survey import examine

    shape_of(size)
    model = BackboneConfig(model=backbone, download=download) if backbone else None
    check_backbone(model)
    account = examine(logs, env=env, backbone=model)
    text = settings(logs, account, size=size, backbone=model)
    _say(f"logs: {account}")
    for warning in account.warnings():
        _say(f"warning: {warning}")
    return text


def _show_table(found: Mapping[str, Any], title: str, rows: tuple[list[str], list[list[str]]], as_json: bool) -> None:
    """What a recipe found, as one JSON object or as its table."""
    if as_json:
        print(json.dumps(found))
    else:
        table(title, *rows, width=180)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def estimate_first(folder: Path, configs: Sequence[Planned], dry_run: bool, as_json: bool, **beside: Any) -> bool:
    """Say what an experiment will take, unless its folder holds some of it already. Whether it shall begin. `beside`: what is measured
    beside the runs, as `estimate.estimate_cost` takes it."""
    from dreamgym.recipes import estimate

    if dry_run:
        found = estimate.estimate_cost(configs, **beside)
        print(json.dumps(asdict(found)) if as_json else f"estimate: {found}")
    elif not folder.is_dir():
        _say(f"estimate: {estimate.estimate_cost(configs, **beside)}")
    return not dry_run
