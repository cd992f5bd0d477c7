"""The results page is written from the tables under docs/results, and the tables hold what they must."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TABLES = sorted((DOCS / "results").glob("*.json"))


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_results", DOCS / "make_results.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE = script()
OVER_SEEDS = [
    (table["name"], claim | {"of": claim.get("seeds", table["seeds"])})
    for table in MAKE.load()
    for claim in table["claims"]
    if "by_seed" in claim
]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_has_the_keys_of_a_result(path: Path):
    table = json.loads(path.read_text("utf-8"))
    assert tuple(table) == MAKE.KEYS and table["name"] == path.stem
    assert all(set(row) == set(table["columns"]) for row in table["rows"])
    for claim in table["claims"]:
        kind = {"by_seed"} if "by_seed" in claim else {"met"}
        optional = {"seeds", "chosen_on", "why"} if "by_seed" in claim else {"why"}
        assert {*MAKE.CLAIM_KEYS} | kind <= set(claim) <= {*MAKE.CLAIM_KEYS} | kind | optional, claim["what"]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_value_by_seed_has_a_number_for_every_seed(path: Path):
    table = json.loads(path.read_text("utf-8"))
    cells = [cell["by_seed"] for row in table["rows"] for cell in row.values() if isinstance(cell, dict)]
    assert all(len(values) == len(table["seeds"]) for values in cells)
    assert all(len(claim["by_seed"]) == len(claim.get("seeds", table["seeds"])) for claim in table["claims"] if "by_seed" in claim)


@pytest.mark.parametrize("claim", [claim for _, claim in OVER_SEEDS], ids=[f"{name}: {claim['what']}" for name, claim in OVER_SEEDS])
def test_a_claim_over_seeds_has_the_mean_the_interval_and_the_verdict_of_its_seeds(claim: dict[str, Any]):
    values, bounds = claim["by_seed"], MAKE.seed_interval(claim["by_seed"])
    assert claim["got"] == pytest.approx(sum(values) / len(values), abs=0.051)
    if bounds:
        assert claim["interval"] == pytest.approx(bounds, abs=0.051)
    else:
        assert claim["interval"] is None or (len(values) == 1 and re.search(r", over \d+ (episodes|dreams)$", claim["interval"]))
    met, why = MAKE.verdict(claim, claim["of"])
    chosen = claim.get("chosen_on", [])
    assert set(chosen) <= set(claim["of"]) and ("why" in claim) == bool(chosen), "what was chosen on seeds is said"
    blind = [value for seed, value in zip(claim["of"], values, strict=True) if seed not in chosen]
    bounds = MAKE.seed_interval(blind)
    if claim["asked"] is None or len(blind) < 5:
        assert met is None and why and claim.get("why", "") in why
        return
    side, figure = claim["asked"].rsplit(" ", 1)
    low, high = ((bound > float(figure), bound >= float(figure)) for bound in bounds or (min(blind), max(blind)))
    place = {"above": 0, "at most": 0, "at least": 1, "below": 1}[side]
    wanted = side in ("above", "at least")
    assert met is (low[place] is wanted if low[place] is high[place] else None)


def test_the_differences_that_the_quickstart_claims_are_those_of_its_rows():
    table = next(table for table in MAKE.load() if table["name"] == "quickstart")
    found = {claim["what"]: claim["by_seed"] for claim in table["claims"] if "by_seed" in claim}
    pairs = {
        "RL in the real environment above eleven passes of imitation, {}, points (the ceiling)": (4, 0),
        "RL in the dream above eleven passes of imitation, {}, points": (1, 0),
        "RL in the dream above RL in the control's dream, {}, points": (1, 3),
        "sim-to-real above RL in the dream, {}, points": (2, 1),
    }
    for kind in ("greedy", "sampled"):
        values = [row[kind]["by_seed"] for row in table["rows"]]
        for what, (one, other) in pairs.items():
            assert found[what.format(kind)] == pytest.approx([a - b for a, b in zip(values[one], values[other], strict=True)])


def test_a_claim_about_one_measurement_is_what_its_figure_says_unless_a_reason_stands_beside_it():
    claims = [claim for table in MAKE.load() for claim in table["claims"] if "met" in claim]
    assert len(claims) > 20
    for claim in claims:
        assert "why" in claim or claim["met"] is MAKE.reached(claim["asked"], [claim["got"]]), claim["what"]


def test_a_verdict_takes_five_blind_seeds_and_an_interval_on_one_side():
    def word(asked: str, *values: float, **more: Any) -> tuple[bool | None, str]:
        return MAKE.verdict({"asked": asked, "by_seed": list(values)} | more, list(range(len(values))))

    assert word("above 0", 1.0, 2.0, 3.0, 4.0, 5.0) == (True, "")  # 3 -+ 2.776 * 1.581 / sqrt(5)
    assert word("below 0", 1.0, 2.0, 3.0, 4.0, 5.0) == (False, "")
    assert word("at least 2", 1.0, 2.0, 3.0, 4.0, 5.0) == (None, "")  # [1.04, 4.96]
    assert word("at most 0", 0.0, 0.0, 0.0, 0.0, 0.0) == (True, "") and word("above 0", 0.0, 0.0, 0.0, 0.0, 0.0) == (False, "")
    assert word("above 0", 1.0, 2.0, 3.0, 4.0) == (None, "4 seeds") and word("above 0", 1.0) == (None, "1 seed")
    chosen = word("above 0", 1.0, 2.0, 3.0, 4.0, 5.0, chosen_on=[0, 1], why="settings were chosen on seeds 0 and 1")
    assert chosen == (None, "3 of 5 seeds blind: settings were chosen on seeds 0 and 1")
    assert word("above 0", 1.0, 2.0, 3.0, 4.0, 5.0, chosen_on=range(5), why="pooled afterwards") == (None, "pooled afterwards")
    mixed = word("above 0", 2.0, 2.2, 1.9, 1.0, -0.5, 0.8, -0.2, 0.6, chosen_on=[0, 1, 2], why="the width was chosen there")
    assert mixed == (None, "5 of 8 seeds blind: the width was chosen there"), (
        "[0.13, 1.82] over all of them, [-0.47, 1.15] over the blind ones"
    )
    with pytest.raises(ValueError, match="'70' is not a side"):
        word("70", 1.0, 2.0, 3.0, 4.0, 5.0)


def test_a_value_by_seed_is_printed_with_its_mean_and_from_three_seeds_on_with_its_interval():
    assert MAKE.cell({"by_seed": [1.0, 3.0]}) == "2.0 (1.0, 3.0)"
    assert MAKE.cell({"by_seed": [1.0, 2.0, 3.0]}) == "2.0 [-0.5, 4.5] (1.0, 2.0, 3.0)"  # 4.303 / sqrt(3) = 2.484
    assert MAKE.cell({"by_seed": [0.0, 0.0, 0.0]}) == "0.0 (0.0, 0.0, 0.0)"


def test_page_and_plot_are_what_make_results_writes():
    tables = MAKE.load()
    assert (DOCS / "results.md").read_text("utf-8") == MAKE.page(tables), "Run: make results"
    policies = next(table for table in tables if table["name"] == "from-logs-converged")
    assert (DOCS / "results.svg").read_text("utf-8") == MAKE.chart(policies), "Run: make results"
