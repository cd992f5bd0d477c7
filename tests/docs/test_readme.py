"""The README says what is so, within two minutes: its commands exist, its Python runs, and its table is that of the results."""

from __future__ import annotations

import json
import re

import pytest
from documents import ROOT, bash_lines

README = (ROOT / "README.md").read_text("utf-8")


def test_the_readme_is_for_two_minutes():
    assert len(README.splitlines()) <= 130 and len(README.split()) <= 1100


def test_every_make_command_of_the_readme_is_a_target():
    targets = set(re.findall(r"^([a-z.-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = [line[line.index("make ") :] for line in bash_lines(README) if re.match(r"(?:\w+=\S+ )*make ", line)]
    assert {"make test", "make test-all", "make quickstart", "make quickstart BUDGET=small"} <= set(commands)
    for command in commands:
        assert {word for word in command.split()[1:] if "=" not in word} <= targets, command


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]):
    (block,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    exec(block, {})
    assert "click[buy now]: the nearest memory is click[buy now], reward 1.0\n" in (said := capsys.readouterr().out)
    assert "success without a purchase" in said


def test_the_table_of_the_readme_is_that_of_the_results():
    table = json.loads((ROOT / "docs/results/from-logs-converged.json").read_text("utf-8"))
    assert re.fullmatch(r"[0-9a-f]{7}", table["commit"]), "one command at one commit"
    shown = [line.strip("| ").split(" | ") for line in README.splitlines() if re.match(r"\| [^|]+ \| \d+\.\d ", line)]
    for row, (_, *cells) in zip(table["rows"], shown, strict=True):
        means = [sum(row[kind]["by_seed"]) / len(table["seeds"]) for kind in ("greedy", "sampled")]
        assert cells == [f"{mean:.1f}" for mean in means]
