"""Options and tables that several commands share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dreamgym.evals import held_out, next_actions
from dreamgym.evals.gap import gap_sentence
from dreamgym.evals.recorded_actions import sentence
from dreamgym.recipes import early_stops, gains
from dreamgym.recipes.arms import ARMS
from dreamgym.recipes.tables import AUDITED_DREAMS, hours, intervals, percent

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Run = Annotated[Path, typer.Argument(help="A run directory, such as runs/quickstart.")]
KINDS = ("with_guard", "without_guard")
COSTS = ("real_transitions_offline", "real_transitions_online", "real_transitions_probe", "dream_transitions", "seconds")
AUDIT = (
    "dream_success", "real_success", "false_success", "false_failure", "false_failure_at_most", "masked_share", "consistency",
    "accepted_false", "state_exact", "state_exact_valid", "state_exact_invalid", "state_exact_generated", "first_divergence",
)  # fmt: skip


def show(summary: dict[str, Any], as_json: bool) -> None:
    """Print the summary of a run: as one JSON object, or as tables and sentences."""
    if as_json:
        print(json.dumps(summary))
        return
    if rows := _policy_rows(summary):  # without an environment there are none, and a line below says so
        table(
            f"Success in the real environment on held-out tasks, % [{intervals(summary['seeds'])}]; "
            f"seeds {summary['seeds']}, commit {summary['commit']}",
            ["policy", "greedy", "sampled", "real: logs", "real: training", "real: probes", "dreamed", "seconds", "real: hours"],
            rows,
        )
    for line in _lines(summary):
        print(line)
    if isinstance(audit := summary.get("audit"), dict):
        show_audit(audit)
        if guarded := audit["with_guard"].get("revisits"):
            print(f"  {'consistent revisits':<24}{rate(guarded['faithful'])}")
            print(f"  {'determined steps exact':<24}{rate(audit['with_guard']['determined']['exact'])}")
        if synthetic := audit.get("synthetic_tasks"):
            print("Synthetic tasks (share of new proposals, share of accepted ones that the expert solves in the real environment):")
            print(f"  {rate(synthetic['new'])}, {rate(synthetic['solved'])}; real training tasks: {rate(synthetic['real_solved'])}")


def _policy_rows(summary: dict[str, Any]) -> list[list[str]]:
    """A row for each policy that was measured: success and costs."""
    return [
        [
            name + early_stops.mark(entry),
            percent(entry, "greedy"),
            percent(entry, "sampled"),
            *(f"{entry[key]:,.0f}" for key in COSTS),
            hours(entry),
        ]
        for name, entry in _entries(summary).items()
        if entry
    ]


def _entries(summary: dict[str, Any]) -> dict[str, Any]:
    """What a summary says of each policy, by the name of its row; None for policies that the run does not have."""
    entries = {name: summary.get(name) for name in ARMS}
    return entries | {f"dream without {name}": entry for name, entry in summary.get("ablations", {}).items()}


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    """What a summary says beside its tables: early ends of RL, gains, skipped phases, measures without an environment, recall, warnings."""
    yield from early_stops.lines(_entries(summary))
    yield from gains.lines(summary.get("gains") or {})
    for phase, reason in (summary.get("skipped") or {}).items():
        yield f"skipped: {phase}, because {reason}"
    if repeated := summary.get("recorded_replay"):
        yield sentence(repeated)
    for policy, dreams in (summary.get("uncertified") or {}).items():
        yield f"uncertified dream success of {policy}, which no environment confirms: {rate(dreams['uncertified_dream_success'])}"
    if compared := summary.get("next_actions"):
        yield from next_actions.sentences(compared)
    if isinstance(fidelity := summary.get("fidelity"), dict):
        yield held_out.sentence(fidelity)
    yield from summary.get("recall") or ()
    if isinstance(labelled := summary.get("labelled"), dict):
        yield f"labelled by a person, false among claimed successes: {rate(labelled['false_success_among_accepted'])}"
    for warning in summary.get("warnings") or ():
        yield f"warning: {warning}"
    if isinstance(gap := summary.get("gap"), dict):
        yield gap_sentence(gap)


def show_audit(audit: dict[str, Any]) -> None:
    """Print the tables of an audit: the replayed dreams by arm, and what decided their steps."""
    table(
        "The trained policy's dreams, replayed in the real environment",
        ["", "with guard", "without guard", "no model, with guard"],
        [[name.replace("_", " "), *(rate(audit.get(kind, {}).get(name)) for kind in AUDITED_DREAMS)] for name in AUDIT],
    )
    show_decided(audit["with_guard"]["decided_by"])


def show_decided(found: dict[str, Any]) -> None:
    """Print the table of what decided states and rewards, with the exactness of each where it was measured."""
    states, rewards = found.get("exact", {}), found.get("rewards_exact", {})
    lines = [
        [by, f"{share:.1%}", rate(states.get(by)), f"{found['rewards'][by]:.1%}", rate(rewards.get(by))]
        for by, share in found["states"].items()
    ]
    table("What decided the steps, with guard", ["", "next states", "exact", "rewards and ends", "exact"], lines)


def score(value: dict[str, Any]) -> str:
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}] of {value['n']}" if value["n"] else "-"


def values(title: str, values: dict[str, Any]) -> None:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"

    table(title, ["what", "value"], [[name.replace("_", " "), shown(value)] for name, value in values.items()])


def rate(value: Any) -> str:
    if isinstance(value, dict) and not value["n"]:
        return "-"
    if isinstance(value, dict):
        return f"{100 * value['value']:.1f} % [{100 * value['low']:.1f}, {100 * value['high']:.1f}] of {value['n']}"
    return "-" if value is None else f"{value:.2f}"


def table(title: str, columns: list[str], rows: list[list[str]], *, width: int = 120) -> None:
    """Print a table at least `width` characters wide. Texts are printed literally: square brackets in the name of a run are no markup."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=max(width, Console().width), markup=False, emoji=False, highlight=False).print(table)
