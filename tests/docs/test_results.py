"""The results page is written from the tables under docs/results, and the tables hold what they must."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from dreamgym.statistics import CLAIM_SEEDS

DOCS = Path(__file__).parents[2] / "docs"
TABLES = sorted((DOCS / "results").glob("*.json"))


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_results", DOCS / "make_results.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE = script()


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_has_the_keys_of_a_result(path: Path):
    table = json.loads(path.read_text("utf-8"))
    assert tuple(table) == MAKE.KEYS and table["name"] == path.stem
    assert all(set(row) == set(table["columns"]) for row in table["rows"])
    for claim in table["claims"]:
        assert set(MAKE.CLAIM_KEYS) <= set(claim) <= {*MAKE.CLAIM_KEYS, "by_seed"} and claim["met"] in (True, False, None)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_value_by_seed_has_a_number_for_every_seed(path: Path):
    table = json.loads(path.read_text("utf-8"))
    cells = [cell["by_seed"] for row in table["rows"] for cell in row.values() if isinstance(cell, dict)]
    assert all(
        len(values) == len(table["seeds"]) for values in cells + [claim["by_seed"] for claim in table["claims"] if "by_seed" in claim]
    )


def test_a_claim_over_seeds_is_met_only_where_enough_seeds_decide_it():
    for table in MAKE.load():
        for claim in table["claims"]:
            if "by_seed" in claim and claim["met"]:
                bounds = MAKE.seed_interval(claim["by_seed"]) or [min(claim["by_seed"])]
                assert len(claim["by_seed"]) >= CLAIM_SEEDS and bounds[0] >= claim["asked"], f"{table['name']}: {claim['what']}"


def test_a_value_by_seed_is_printed_with_its_mean_and_from_three_seeds_on_with_its_interval():
    assert MAKE.cell({"by_seed": [1.0, 3.0]}) == "2.0 (1.0, 3.0)"
    assert MAKE.cell({"by_seed": [1.0, 2.0, 3.0]}) == "2.0 [-0.5, 4.5] (1.0, 2.0, 3.0)"  # 4.303 / sqrt(3) = 2.484
    assert MAKE.cell({"by_seed": [0.0, 0.0, 0.0]}) == "0.0 (0.0, 0.0, 0.0)"


def test_page_and_plot_are_what_make_results_writes():
    tables = MAKE.load()
    assert (DOCS / "results.md").read_text("utf-8") == MAKE.page(tables), "Run: make results"
    policies = next(table for table in tables if table["name"] == "quickstart")
    assert (DOCS / "results.svg").read_text("utf-8") == MAKE.chart(policies), "Run: make results"
