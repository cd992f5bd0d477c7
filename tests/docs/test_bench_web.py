"""bench/envs.py, the web: the same actions on both sides, what an interrupted measurement keeps, and the rows that it writes."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from documents import ROOT

from dreamgym.envs.web.actions import parse

TABLE = ROOT / "docs/results/environments.json"


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, ModuleType]]:
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        yield {name: importlib.import_module(f"common.{name}") for name in ("web_speed", "web_table")}
    finally:
        sys.path.remove(str(ROOT / "bench"))


def measured(bench: dict[str, ModuleType]) -> dict[str, Any]:
    found = dict.fromkeys(bench["web_speed"].FIELDS, 0.25) | {"web_stock_step_s": 0.75, "web_stock_step_same_wait_s": 0.5, "web_end_s": 0.1}
    return found | {"web_wait_s": 0.1, "web_eight_contexts_mb": 700.0, "web_episodes": 300}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("click [2]", "click('a7')"),
        ("type [2] [it's red] [0]", "fill('a7', \"it's red\")"),
        ("type [2] [red] [1]", "fill('a7', 'red')\npress('a7', 'Enter')"),
        ("select [2] [Large]", "select_option('a7', 'Large')"),
        ("stop [4]", "send_msg_to_user('4')"),
    ],
)
def test_an_action_is_written_as_browsergym_takes_it(bench: dict[str, ModuleType], ours: str, theirs: str):
    assert bench["web_speed"].as_browsergym(parse(ours), {1: "a3", 2: "a7"}) == theirs


def test_the_medians_of_steps_that_go_on_and_of_those_that_end_are_apart(bench: dict[str, ModuleType]):
    played = bench["web_speed"].Played([1.0], [0.3, 0.5, 0.4], [0.1])
    assert played.medians("web") == {"web_reset_s": 1.0, "web_step_s": 0.4, "web_end_s": 0.1}
    assert bench["web_speed"].Played([1.0]).medians("x")["x_step_s"] is None


def test_an_interrupted_measurement_goes_on_behind_its_last_finished_part(
    bench: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    speed, asked, kept = bench["web_speed"], list[str](), tmp_path / "kept.json"

    def isolated(contender: Any, *arguments: Any) -> dict[str, Any]:
        asked.append(contender.__name__)
        if asked == ["miniwob", "leak", "stock"]:
            raise SystemExit("killed")
        return {"scripts": [], "web_wait_s": 0.1, "web_step_s": 0.2} if contender.__name__ == "miniwob" else {"web_grown_mb": 1.0}

    monkeypatch.setattr(speed, "isolated", isolated)
    with pytest.raises(SystemExit):
        speed.measure(24, 300, kept)
    assert set(json.loads(kept.read_text())) == {"miniwob/24", "leak/300"}
    asked[:] = ["again"]
    assert speed.measure(24, 300, kept) == {"web_wait_s": 0.1, "web_step_s": 0.2, "web_grown_mb": 1.0}
    assert asked == ["again", "stock", "stock", "site", "site"]


def test_a_run_writes_the_rows_of_the_web_anew_and_no_others(bench: dict[str, ModuleType], tmp_path: Path):
    path = tmp_path / "environments.json"
    path.write_text(TABLE.read_text("utf-8"), "utf-8")
    before, table = json.loads(path.read_text()), bench["web_table"]
    for _ in range(2):
        table.rewrite(measured(bench), at="commit abc, 2026-12-01", where="a machine", path=path)
    after = json.loads(path.read_text())
    web = [row for row in after["rows"] if "browser" in row["environment"]]
    assert [row for row in before["rows"] if "browser" not in row["environment"]] == [row for row in after["rows"] if row not in web]
    assert [(row["steps"], row["stock"], row["ratio"]) for row in web[:3]] == [(4.0, 1.33, 3.0), (4.0, 2.0, 2.0), (10.0, None, None)]
    assert len(web) == 5 and all("commit abc" in row["environment"] and set(row) == set(after["columns"]) for row in web)
    claims = {claim["what"]: claim["met"] for claim in after["claims"]}
    assert claims["memory of a browser with eight contexts of MiniWoB, MiB"] is False and len(claims) == 2 + 6
    assert sum(note.startswith("The web:") for note in after["notes"]) == 1 and "300 episodes" in after["notes"][-1]


def test_a_run_that_measured_too_little_leaves_the_table_as_it_is(bench: dict[str, ModuleType], tmp_path: Path):
    path = tmp_path / "environments.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="Not measured: web_step_s"):
        bench["web_table"].rewrite(measured(bench) | {"web_step_s": None}, at="", where="", path=path)
    assert path.read_text() == "{}"
