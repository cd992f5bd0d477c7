"""What commands share: options that many have, and tables for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Run = Annotated[Path, typer.Argument(help="A run directory, such as runs/quickstart.")]
COSTS = ("real_transitions_offline", "real_transitions_online", "real_transitions_probe", "dream_transitions", "seconds")
AUDIT = (
    "dream_success", "real_success", "false_success", "false_failure", "false_failure_at_most", "masked_share", "consistency",
    "state_exact", "state_exact_valid", "state_exact_invalid", "first_divergence",
)  # fmt: skip


def show(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    rows = []
    entries = {name: summary.get(name) for name in ("warm_start", "sft", "dream", "s2r", "real_only", "mixed")}
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
    table(
        f"Success in the real environment on held-out tasks, % [95 % interval]; seeds {summary['seeds']}, commit {summary['commit']}",
        ["policy", "greedy", "sampled", "real: logs", "real: training", "real: probes", "dreamed", "seconds"],
        rows,
    )
    if isinstance(audit := summary.get("audit"), dict):
        print("Dreams of the trained policy, replayed in the real environment (with guard | without):")
        for name in AUDIT:
            print(f"  {name.replace('_', ' '):<24}{rate(audit['with_guard'].get(name)):<32}{rate(audit['without_guard'].get(name))}")
        if guarded := audit["with_guard"].get("revisits"):
            print(f"  {'faithful revisits':<24}{rate(guarded['faithful'])}")
            print(f"  {'settled steps exact':<24}{rate(audit['with_guard']['settled']['exact'])}")
        if invented := audit.get("invented"):
            print("Tasks that the curriculum invented (proposals that were new, accepted ones that the expert solves in reality):")
            print(f"  {rate(invented['new'])}, {rate(invented['solved'])}; real training tasks: {rate(invented['real_solved'])}")


def score(value: dict[str, Any]) -> str:
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}] of {value['n']}" if value["n"] else "-"


def values(title: str, values: dict[str, Any]) -> None:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"

    table(title, ["what", "value"], [[name.replace("_", " "), shown(value)] for name, value in values.items()])


def rate(value: Any) -> str:
    if isinstance(value, dict):
        return f"{100 * value['value']:.1f} % [{100 * value['low']:.1f}, {100 * value['high']:.1f}] of {value['n']}"
    return "-" if value is None else f"{value:.2f}"


def table(title: str, columns: list[str], rows: list[list[str]], *, width: int = 120) -> None:
    """Print a table at least `width` characters wide."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(width=max(width, Console().width)).print(table)
