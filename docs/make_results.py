"""Writes docs/results.md and docs/results.svg from docs/results/*.json; `make results` runs it.

A JSON file is one table. Its keys: name, order, section, title, text, command, commit, date, machine, seeds, hours (null: not recorded),
columns (key to heading), rows (key to cell), claims and notes. A cell is a number, a text, null, or {"by_seed": [...]}: one number a
seed, which is printed with the mean and, from three seeds on, with the 95 % t interval over seeds.

A claim is {what, asked, got, interval}, and one of two kinds. With `by_seed`, the value of every seed, it is a claim over seeds, and
`verdict` computes its word from the blind ones: `seeds` names them where they are not the table's, and `chosen_on` those on which something
was chosen (all: the claim itself was thought of afterwards), with `why`. Without, it is about one measurement, and has `met`: what
`asked` says of `got`, or another word with `why`.
"""

from __future__ import annotations

import json
import operator
import re
from pathlib import Path
from typing import Any

from dreamgym.statistics import CLAIM_SEEDS, seed_mean

HERE = Path(__file__).parent
KEYS = (
    "name",
    "order",
    "section",
    "title",
    "text",
    "command",
    "commit",
    "date",
    "machine",
    "seeds",
    "hours",
    "columns",
    "rows",
    "claims",
    "notes",
)
CLAIM_KEYS = ("what", "asked", "got", "interval")
SIDES = {"above": operator.gt, "at least": operator.ge, "at most": operator.le, "below": operator.lt}

INTRODUCTION = """# Results

The present results, one table a file of `docs/results/*.json`; `make results` writes this page from them. Older tables, ablations and
comparisons of algorithms are on [a page of the lab](lab/older_results.md). No claim on this page rests on them. Some notes link to them,
and some statements about the shop on [trust](trust.md) rest on them and say so.

**Rows.** `warm_start`: the experience model's weights, fitted to the successful logged episodes. `sft`: the same, for other passes.
`dream`: RL inside the experience model, from the warm start, without a real training step. `s2r` (sim-to-real): the dream's policy,
trained further in the real environment. `real_only`: the warm start, trained in the real environment alone.

**Columns.** Greedy and sampled success: share of held-out tasks that end with reward 1 in the real environment, at temperature 0 and 1.
Real steps are environment steps in the logs, in training, and in probes during training. [Metrics](metrics.md) explains every other rate.

**Numbers.** "93.9 (94.3, 93.5)" is the mean over seeds and the value of each seed. From three seeds on the 95 % t interval over seeds
is given in brackets. An interval over two seeds is nearly meaningless (its half width is 12.7 times the distance of the values from their
mean), so tables of two seeds have none. A bound below 0 or above 100 % says the same of three. One training run is an
example, not an estimate.

**Commands** are of the commit that stands beside them. Presets have changed since.

**Epochs.** Tables of commits before 2026-11-30 count the epochs of supervised fits in full batches. Batches are not full, so that such an
epoch was 0.76 of a pass with SmolLM2 and 0.87 to 0.9 with small models: "six epochs" of SmolLM2 were 4.6 passes. Presets whose epochs
are lower now train as long as these tables say.

**Claims.** A claim over seeds is about the mean of such runs. It shows the value of each seed where there are several, and a program takes
its word in the last column from them. A seed is blind where nothing was chosen on it: no setting, and not the claim itself.

- "Met": five or more seeds are blind, and the 95 % interval over these lies wholly on the side asked for.
- "Not met": five or more are blind, and that interval lies wholly on the other side.
- "Not decided": fewer are blind, or the interval lies on both sides. Why seeds are not blind stands beside it.

"Met" does not mean that every seed reached the figure, nor "not met" that none did. Intervals that name episodes or dreams are of
one seed and decide nothing. Where a table does not say that something was chosen on a seed, the seed counts as blind.

A claim about one measurement, such as a count, seconds or a ratio of speeds, is met where the figure lies on the side asked for. Where
somebody set another word, the reason stands beside it.
"""


def load(folder: Path = HERE / "results") -> list[dict[str, Any]]:
    """The tables, in the order of the page."""
    return sorted((json.loads(path.read_text("utf-8")) for path in folder.glob("*.json")), key=lambda table: table["order"])


def number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def seed_interval(values: list[float]) -> list[float] | None:
    """95 % t interval of the mean over seeds; None below three seeds and where all are equal."""
    return seed_mean(values).interval if len(values) >= 3 and len(set(values)) > 1 else None


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        values = value["by_seed"]
        bounds = seed_interval(values)
        text = f"{sum(values) / len(values):.1f}" + (f" [{bounds[0]:.1f}, {bounds[1]:.1f}]" if bounds else "")
        return text + f" ({', '.join(f'{one:.1f}' for one in values)})"
    return number(value) if isinstance(value, int | float) else str(value)


def markdown(headings: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings), *(f"| {' | '.join(row)} |" for row in rows)]


def reached(asked: str, values: list[float]) -> bool | None:
    """Whether all values lie on the side asked for, such as "at least 70"; None where some do. ValueError where it is no such text."""
    found = re.fullmatch(r"(above|at least|at most|below) (\S+)", asked)
    if not found:
        raise ValueError(f"'{asked}' is not a side and a figure, such as 'at least 70'.")
    sides = {SIDES[found[1]](value, float(found[2])) for value in values}
    return sides.pop() if len(sides) == 1 else None


def verdict(claim: dict[str, Any], seeds: list[int]) -> tuple[bool | None, str]:
    """Whether a claim is met (None: not decided), and why where the figures alone do not say it. `seeds` are those of its values."""
    if claim["asked"] is None:
        return None, "no figure was asked for"
    if "by_seed" not in claim:
        return claim["met"], claim.get("why", "")
    values, why = claim["by_seed"], claim.get("why")
    blind = [value for seed, value in zip(seeds, values, strict=True) if seed not in claim.get("chosen_on", ())]
    count = f"{len(values)} seed{'s' * (len(values) > 1)}"
    reason = (f"{len(blind)} of {count} blind: {why}" if blind else why) if why else ""
    if len(blind) < CLAIM_SEEDS:
        return None, reason or count
    return reached(claim["asked"], seed_interval(blind) or blind), reason


def claims(table: dict[str, Any]) -> list[str]:
    words = {True: "met", False: "not met", None: "not decided"}
    rows = []
    for claim in table["claims"]:
        got, bounds = cell(claim["got"]), claim["interval"]
        if len(claim.get("by_seed", ())) > 1:
            got += f" ({', '.join(f'{one:.1f}' for one in claim['by_seed'])})"
        interval = f"[{', '.join(f'{one:.1f}' for one in bounds)}]" if isinstance(bounds, list) else bounds or ""
        met, why = verdict(claim, claim.get("seeds", table["seeds"]))
        rows.append([claim["what"], cell(claim["asked"]), got, interval, f"{words[met]} ({why})" if why else words[met]])
    return markdown(["claim", "asked", "got", "95 % interval over seeds", ""], rows)


def page(tables: list[dict[str, Any]]) -> str:
    lines = [INTRODUCTION]
    section = ""
    for table in tables:
        if table["section"] != section:
            section = table["section"]
            lines += [f"## {section}", ""]
        hours = "not recorded" if table["hours"] is None else f"{table['hours']:g}"
        seeds = ", ".join(map(str, table["seeds"]))
        lines += [f"### {table['title']}", "", table["text"], ""]
        command = "none reproduces this table" if table["command"] == "none" else f"`{table['command']}`"
        lines += [f"Command: {command}. Commit: {table['commit']}. Date: {table['date']}.", ""]
        lines[-2] += f" Machine: {table['machine']}. Seeds: {seeds}. Hours: {hours}."
        lines += [*markdown(list(table["columns"].values()), [[cell(row[key]) for key in table["columns"]] for row in table["rows"]]), ""]
        lines += [*(f"- {note}" for note in table["notes"]), *([""] if table["notes"] else [])]
        lines += [*claims(table), ""] if table["claims"] else []
    return "\n".join(lines)


def chart(table: dict[str, Any]) -> str:
    """Greedy and sampled success of every policy, means over seeds as bars and seeds as dots, as an SVG for light and dark pages."""
    left, top, width, step = 200, 34, 470, 34
    shown = table["rows"]
    height = top + step * len(shown) + 34
    size = f'viewBox="0 0 {left + width + 30} {height}" width="{left + width + 30}" height="{height}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13">',
        "<title>Success on held-out tasks in the real environment, by policy</title>",
        "<style>text { fill: #7d8590; } .grid { stroke: #7d8590; stroke-opacity: .25; } .bar { fill-opacity: .35; }",
        ".greedy { fill: #3d8f62; } .sampled { fill: #6470c4; }</style>",
        f'<text x="{left + width}" y="20" text-anchor="end">success on held-out tasks; a dot is a seed</text>',
    ]
    for x, kind in ((left, "greedy"), (left + 90, "sampled")):
        out.append(f'<circle class="{kind}" cx="{x + 6}" cy="16" r="5"/><text x="{x + 17}" y="20">{kind}</text>')
    for share in range(0, 101, 20):
        x = left + share * width / 100
        out.append(f'<line class="grid" x1="{x:g}" y1="{top}" x2="{x:g}" y2="{height - 28}"/>')
        out.append(f'<text x="{x:g}" y="{height - 10}" text-anchor="middle">{share} %</text>')
    for place, row in enumerate(shown):
        y = top + step * place + 4
        out.append(f'<text x="{left - 10}" y="{y + 17}" text-anchor="end">{row["policy"]}</text>')
        for offset, kind in ((1, "greedy"), (15, "sampled")):
            values = row[kind]["by_seed"]
            mean = sum(values) / len(values)
            out.append(f'<rect class="{kind} bar" x="{left}" y="{y + offset}" width="{mean * width / 100:.1f}" height="11"/>')
            out += [f'<circle class="{kind}" cx="{left + one * width / 100:.1f}" cy="{y + offset + 5.5}" r="2.5"/>' for one in values]
    return "\n".join([*out, "</svg>", ""])


def write() -> None:
    tables = load()
    (HERE / "results.md").write_text(page(tables), "utf-8")
    (HERE / "results.svg").write_text(chart(next(table for table in tables if table["name"] == "from-logs-converged")), "utf-8")


if __name__ == "__main__":
    write()
