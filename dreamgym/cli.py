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


BaseUrl = Annotated[str, typer.Option("--base-url", help="The host's OpenAI-compatible address, such as http://localhost:8000/v1.")]
Model = Annotated[str, typer.Option(help="The model's name at that host.")]
KeyEnv = Annotated[str, typer.Option(help="The environment variable that holds the key; it may be unset for hosts that want none.")]
PriceIn = Annotated[float, typer.Option(min=0, help="Dollars per million tokens of prompt.")]
PriceOut = Annotated[float, typer.Option(min=0, help="Dollars per million tokens of reply.")]
MaxDollars = Annotated[float | None, typer.Option(min=0, help="Send no request that could take the cost above this; needs prices.")]
MaxTokens = Annotated[int, typer.Option(min=16, help="Of one reply, thinking included.")]
Form = Annotated[str, typer.Option("--format", help="What the host can be held to: json_schema, json_object or none.")]
Temperature = Annotated[float, typer.Option(min=0, help="Some hosted models take 1 only.")]
Seeds = Annotated[bool, typer.Option("--seeds/--no-seeds", help="Whether requests carry a seed; some hosts refuse the field.")]
Host = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE: any further option of the engine, such as timeout_s=60 or max_tokens_key=max_completion_tokens."),
]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests under way at once.")]
PerMinute = Annotated[int | None, typer.Option(help="The host's limit of requests per minute.")]
TokensPerMinute = Annotated[int | None, typer.Option(help="The host's limit of tokens per minute.")]


@app.command()
def annotate(
    logs: Annotated[Path, typer.Argument(help="Episodes as a run writes them, such as runs/quickstart/episodes/logs.jsonl.")],
    out: Annotated[Path, typer.Option(help="Where the annotated episodes go. The replies are kept beside it; the same command goes on.")],
    base_url: BaseUrl,
    model: Model,
    api_key_env: KeyEnv = "OPENAI_API_KEY",
    price_input: PriceIn = 0.0,
    price_output: PriceOut = 0.0,
    max_dollars: MaxDollars = None,
    max_tokens: MaxTokens = 4096,
    temperature: Temperature = 0.0,
    seeds: Seeds = True,
    form: Form = "json_schema",
    concurrency: Concurrency = 16,
    requests_per_minute: PerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    host: Host = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the estimate of tokens and dollars, and send nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Let an instruct model explain logged episodes: a tutorial, and a reasoning trace for every step."""
    from dreamgym.recipes import chat_host
    from dreamgym.recipes.annotate import annotate as run

    address = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "concurrency": concurrency}
    limits = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    prices = {"price_per_million_input": price_input, "price_per_million_output": price_output}
    how = chat_host.asking(max_tokens=max_tokens, temperature=temperature, seeds=seeds, format=form, max_cost=max_dollars)
    with chat_host.opened(host or (), **address, **limits, **prices) as chat:
        found = run(chat, logs, out, how, dry_run=dry_run)
    if as_json:
        print(json.dumps(found))
        return
    _values("estimate", found["estimate"])
    if not dry_run:
        _values(f"written: {found['written']} of {found['episodes']} episodes to {found['out']}", found["counts"] | found["used"])
        for name, problem in list(found["problems"].items())[:5]:
            print(f"left out: {name}: {problem[:200]}")


@app.command()
def judge(
    run: Run,
    base_url: BaseUrl,
    model: Model,
    n: Annotated[int, typer.Option("--n", min=1, help="Dreamed transitions to judge.")] = 100,
    controls: Annotated[int, typer.Option(min=0, help="Real transitions, and as many corrupted ones, that are mixed in.")] = 30,
    dreams: Annotated[str | None, typer.Option(help="Which of the run's episodes, such as dream-0050; by default the audit's.")] = None,
    api_key_env: KeyEnv = "OPENAI_API_KEY",
    price_input: PriceIn = 0.0,
    price_output: PriceOut = 0.0,
    max_dollars: MaxDollars = None,
    max_tokens: MaxTokens = 1024,
    temperature: Temperature = 0.0,
    seeds: Seeds = True,
    form: Form = "json_schema",
    concurrency: Concurrency = 16,
    requests_per_minute: PerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    host: Host = None,
    seed: Annotated[int, typer.Option(help="Draws the transitions and the order of the questions.")] = 0,
    as_json: Json = False,
) -> None:
    """Let an instruct model score dreamed transitions, beside real and corrupted ones that say whether to believe it."""
    from dreamgym.evals.judge import KINDS, QUESTIONS, JudgeConfig
    from dreamgym.recipes import chat_host
    from dreamgym.recipes.judge import judge_run

    address = {"base_url": base_url, "model": model, "api_key_env": api_key_env, "concurrency": concurrency}
    limits = {"requests_per_minute": requests_per_minute, "tokens_per_minute": tokens_per_minute}
    prices = {"price_per_million_input": price_input, "price_per_million_output": price_output}
    how = chat_host.asking(max_tokens=max_tokens, temperature=temperature, seeds=seeds, format=form, max_cost=max_dollars)
    with chat_host.opened(host or (), **address, **limits, **prices) as chat:
        found = judge_run(chat, run, JudgeConfig(n=n, controls=controls, seed=seed, ask=how), dreams=dreams)
    if as_json:
        print(json.dumps(found))
        return
    rows = [[name, *(_score(found[kind][f"judge_{name}"]) for kind in KINDS)] for name in QUESTIONS]
    _table(f"{found['judge']} on {found['dreams']}: 0 to 2, higher is better [95 % interval]", ["", *KINDS], rows)
    print(f"controls: {found['controls']['reason'] or 'passed'}")
    _values("agreement with the environment", found["agreement"]["dream"] | {"unreadable": found["judge_unreadable"], **found["used"]})


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


def _score(value: dict[str, Any]) -> str:
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}] of {value['n']}" if value["n"] else "-"


def _values(title: str, values: dict[str, Any]) -> None:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"

    _table(title, ["what", "value"], [[name.replace("_", " "), shown(value)] for name, value in values.items()])


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
