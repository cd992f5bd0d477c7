"""A run whose RL stopped early and was put back says so, and its row is marked."""

from __future__ import annotations

from typing import Any

import pytest

from dreamgym.cli._show import show
from dreamgym.recipes.arms import ARMS
from dreamgym.recipes.early_stops import TO_GOOD, TO_START, fields, lines, mark, pooled
from dreamgym.report import data, sentences

BACK = f"the gap opened to 0.42, {TO_START}"
RATE = {"value": 0.55, "low": 0.4, "high": 0.7, "n": 40}
ENTRY: dict[str, Any] = {
    "real_success": 0.72, "ci95": [0.57, 0.84], "sampled": RATE, "episodes": 40, "real_transitions_offline": 9,
    "real_transitions_online": 0, "real_transitions_probe": 5, "dream_transitions": 7, "seconds": 1.0,
}  # fmt: skip


def test_the_table_marks_a_policy_that_was_put_back_and_a_line_says_why(capsys: pytest.CaptureFixture[str]):
    show({"seeds": [0], "commit": "", "warm_start": ENTRY, "dream": ENTRY | fields(BACK, "warm_start")}, False)
    text = " ".join(capsys.readouterr().out.split())
    assert "dream = " in text
    assert f"dream: RL stopped early, {BACK}. Its row is that of warm_start, not of a policy that RL trained to the end." in text


def test_a_spent_budget_is_said_and_marks_nothing():
    spent = fields("2,000 real steps are spent", "warm_start")
    assert mark(spent) == "" and list(lines({"dream": spent})) == ["dream: RL stopped early, 2,000 real steps are spent."]
    assert fields("", "warm_start") == {} and mark({}) == "" and list(lines({"dream": {}, "s2r": None})) == []


def test_several_seeds_say_which_of_them_were_put_back_and_to_what():
    found = pooled([{}, fields(BACK, "warm_start"), fields(f"75% are false, {TO_GOOD}", "warm_start")])
    assert found["kept_policies"] == ["", "warm_start", "its last good policy"] and mark(found) == ", 2 of 3 seeds rolled back"
    assert [line.partition(":")[0] for line in lines({"dream": found})] == ["dream, seed 2 of 3", "dream, seed 3 of 3"]
    assert pooled([{}, {}]) == {}


def test_the_reports_first_paragraph_and_its_row_say_that_rl_was_put_back():
    def run_of(stop_reason: str) -> data.Run:
        phases = {"dream": {"stop_reason": stop_reason}}
        rows = [data._row(key, key, ARMS[key], ENTRY, phases) for key in ("warm_start", "dream")]
        return data.Run("r", {}, "", {}, phases, {}, [row for row in rows if row], [])

    stopped = run_of(BACK)
    assert sentences.headline(stopped).startswith(
        f"RL in the dream stopped early, {BACK}: the row of the dream is that of the warm start. "
    )
    assert [row.meaning.endswith("; rolled back: the warm start") for row in stopped.rows] == [False, True]
    through = run_of("")
    assert sentences.headline(through).startswith("After training in the dream") and "rolled back" not in through.rows[1].meaning
