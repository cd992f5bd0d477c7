"""A small catalogue of our own in WebShop's schema, and ways to open, play and command it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from dreamgym import cli
from dreamgym.envs.webshop import products, replay
from dreamgym.envs.webshop.lucene import LuceneIndex
from dreamgym.envs.webshop.shop import WebShop


def product(asin: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "asin": asin,
        "name": name,
        "full_description": "",
        "small_description": [],
        "pricing": "$20.0",
        "images": ["picture"],
        "brand": "unread",
        "category": "garden",
        "query": "Mugs ",
        "product_category": "Kitchen › Cups › Mugs",
        "customization_options": "",
    } | more


ITEMS = [
    product(
        "B01",
        "Red Mug <1>",
        pricing="$12.50 to $30",
        small_description=["", 'Holds "tea" & milk'],
        customization_options={
            "Size": [{"value": "Big "}, {"value": "Tiny"}],
            "Color": [{"value": "Red"}, {"value": 'Say "Hi"'}],
            "Kit": None,
        },
    ),
    product("B02", "Blue Mug", pricing="$985.00", full_description="Blue as the sky's end."),
    product("B03", "", pricing=""),
    product("B04", "Green Cup", category="beauty", query="cups", small_description="One text"),
]
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "B01": {"attributes": ["dish safe"], "instruction": "Find me dish safe mugs", "instruction_attributes": ["dish safe", "hand made"]},
    "B02": {"attributes": ["hand made"], "instruction": "Find me hand made mugs", "instruction_attributes": ["hand made"]},
    "B03": {"attributes": []},
    "B04": {},
}
HUMAN = {
    "B02": [
        {"instruction": "i want a blue mug.", "instruction_attributes": ["hand made"], "instruction_options": ["blue"]},
        {"instruction": "skipped", "instruction_attributes": [], "instruction_options": []},
    ],
    "B04": [{"instruction": "a green cup..", "instruction_attributes": ["green"], "instruction_options": []}],
}


def written(folder: Path) -> Path:
    """The catalogue as the original's three files."""
    for name, content in (("items", ITEMS), ("attributes", ATTRIBUTES), ("human", HUMAN)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def load(folder: Path, kind: Any = "synthetic", seed: int = 7) -> replay.Loaded:
    return replay.load(folder / "items.json", folder / "attributes.json", human=folder / "human.json", kind=kind, seed=seed)


def shop(**more: Any) -> WebShop:
    loaded = products.load(ITEMS, ATTRIBUTES, seed=0)
    return WebShop(loaded, LuceneIndex.of(loaded), outcome=False, **{"mode": "text"} | more)


GOAL = {
    "asin": "B01", "query": "mugs", "name": "Red Mug", "product_category": "Kitchen › Cups › Mugs", "instruction_text": "a mug",
    "attributes": ["dish safe"], "goal_options": {"color": "red"}, "price_upper": 40.0,
}  # fmt: skip


def play(*actions: str, **more: Any) -> dict[str, Any]:
    return replay.episode(shop(**more), GOAL, actions, name="0")


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, *arguments: Any) -> tuple[Any, str, str]:
    """A command's exit code, what it printed, and what it said on standard error."""
    monkeypatch.setattr("sys.argv", ["dreamgym", "webshop", *map(str, arguments)])
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    said = capsys.readouterr()
    return stop.value.code, said.out, said.err
