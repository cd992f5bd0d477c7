"""The command line. Everything heavy is imported inside the command that needs it, so that `dreamgym --help` is instant."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from dreamgym.errors import DreamGymError

INTERRUPTED = 130  # what typer makes of Ctrl-C
app = typer.Typer(help="Train LLM agents inside a reasoning experience model (DreamGym, arXiv:2511.03773).", no_args_is_help=True)
env_app = typer.Typer(help="The environments themselves: replay actions in them, score purchases.", no_args_is_help=True)
app.add_typer(env_app, name="env")
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


Env = Annotated[str, typer.Argument(help="The environment: webshop.")]
Items = Annotated[Path, typer.Option(help="The original's items_shuffle*.json.")]
Attributes = Annotated[Path, typer.Option(help="The items_ins_v2*.json that belongs to it.")]
Human = Annotated[Path | None, typer.Option(help="items_human_ins.json, for human goals.")]
Seed = Annotated[int, typer.Option(help="random.seed(N) before the original loads: prices of ranged products, then price bounds.")]
Corrected = Annotated[bool, typer.Option("--corrected", help="Score options by name and value, so that every goal can be met.")]
Tagger = Annotated[str, typer.Option(help="Who finds nouns for the title score: spacy, rule, or auto (spaCy if a model is installed).")]


@env_app.command()
def replay(
    env: Env,
    items: Items,
    attributes: Attributes,
    human: Human = None,
    goals: Annotated[str, typer.Option(help="synthetic or human.")] = "synthetic",
    seed: Seed = 0,
    mode: Annotated[str, typer.Option(help="text or text_rich.")] = "text",
    actions: Annotated[Path | None, typer.Option(help='Lines {"goal": index, "actions": [...]}; standard input without it.')] = None,
    corrected: Corrected = False,
    tagger: Tagger = "auto",
) -> None:
    """Play scripted actions and print a JSON line of observations, rewards, dones and available actions for each script."""
    _webshop(env, goals=goals, mode=mode, tagger=tagger)
    from dreamgym.envs.webshop import replay as player

    loaded = player.load(items, attributes, human=human, kind=goals, seed=seed)  # type: ignore[arg-type]
    scoring = player.scored(corrected=corrected, name=tagger)  # type: ignore[arg-type]
    with _lines(actions) as lines:
        for record in player.replay(loaded, lines, mode=mode, scoring=scoring, source=str(actions or "standard input")):  # type: ignore[arg-type]
            print(json.dumps(record), flush=True)


@env_app.command()
def reward(
    env: Env,
    items: Items,
    attributes: Attributes,
    human: Human = None,
    goals: Annotated[str, typer.Option(help="As for replay; scores do not depend on it.")] = "synthetic",
    seed: Seed = 0,
    purchases: Annotated[
        Path | None, typer.Option(help='Lines {"goal": {...}, "asin": ..., "options": {...}, "price": ...}; standard input without it.')
    ] = None,
    corrected: Corrected = False,
    tagger: Tagger = "auto",
) -> None:
    """Score purchases and print a JSON line of the reward and the original's sub-scores for each."""
    _webshop(env, goals=goals, tagger=tagger)
    from dreamgym.envs.webshop import files, products
    from dreamgym.envs.webshop import replay as player

    loaded = products.load(files.items(items), files.by_asin(attributes), seed=seed, file=items)
    scoring = player.scored(corrected=corrected, name=tagger)  # type: ignore[arg-type]
    with _lines(purchases) as lines:
        for record in player.rewards(loaded, lines, scoring=scoring, source=str(purchases or "standard input")):
            print(json.dumps(record), flush=True)


@env_app.command()
def build(
    env: Env,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    items: Annotated[Path | None, typer.Option(help="The original's items_shuffle*.json.")] = None,
    attributes: Annotated[Path | None, typer.Option(help="The items_ins_v2*.json that belongs to it.")] = None,
    size: Annotated[int | None, typer.Option(help="Generate a catalogue of this many products instead, 100 to 1,000,000.")] = None,
    seed: Annotated[int, typer.Option(help="Names the generated catalogue.")] = 0,
) -> None:
    """Build a catalogue and its search index once, so that it opens in moments (built = "FOLDER" in the configuration)."""
    _webshop(env)
    from dreamgym.envs.webshop import lifelike, store
    from dreamgym.errors import UsageError

    if (size is None) == (items is None) or (items is None) != (attributes is None):
        raise UsageError("Give either --items and --attributes, or --size.")
    if size is not None:
        items, attributes = lifelike.write(out, size, seed)
    assert items and attributes, "checked above"
    print(f"{store.build(items, attributes, out):,} products: {out}")


CHOICES = {"goals": ("synthetic", "human"), "mode": ("text", "text_rich"), "tagger": ("auto", "rule", "spacy")}


def _webshop(env: str, **chosen: str) -> None:
    """Refuse what these commands do not know, and let the log speak on standard error."""
    import logging

    from dreamgym.errors import UsageError, nearest

    if env != "webshop":
        raise UsageError(f"No replay for environment '{env}'.{nearest(env, ['webshop'])} Known: webshop.")
    for name, value in chosen.items():
        if value not in CHOICES[name]:
            raise UsageError(f"--{name} '{value}' is none of {', '.join(CHOICES[name])}.{nearest(value, CHOICES[name])}")
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("dreamgym").setLevel(logging.INFO)


def _lines(path: Path | None) -> AbstractContextManager[Iterable[str]]:
    """The lines of a file, or of standard input."""
    from dreamgym.errors import UsageError

    if path is None:
        return nullcontext(sys.stdin)
    try:
        return path.open(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot read '{path}': {error.strerror}. Give a file of JSON lines.") from error


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
