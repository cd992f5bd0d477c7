"""A shop of scarves and a lamp, with one task in it: what the tests of pages, rewards and state mapping play in."""

from __future__ import annotations

from typing import Any

from dreamgym.envs.webshop import products, search
from dreamgym.envs.webshop.shop import WebShop
from dreamgym.types import Task


def product(asin: str, name: str, **more: Any) -> dict[str, Any]:
    """A product as items_shuffle*.json holds it."""
    return {
        "asin": asin,
        "name": name,
        "full_description": "",
        "small_description": [],
        "pricing": "$20.0",
        "images": [""],
        "category": "fashion",
        "query": "scarf",
        "product_category": "Fashion › Scarfs",
        "customization_options": {},
    } | more


ITEMS = [
    product(
        "B01",
        "Soft Striped Scarf",
        small_description=["Warm", ""],
        customization_options={"Color": [{"value": " Red "}, {"value": "Blue/White"}], "Size": [{"value": "Small"}, {"value": "Large"}]},
    ),
    product("B02", "Wooden Lamp", query="lamp", category="garden", product_category="Garden › Lamps", full_description="Glows."),
    *[product(f"B{i}", f"Plain Scarf {i}") for i in range(10, 25)],
]
LOADED = products.load(ITEMS, {item["asin"]: {"attributes": item["name"].lower().split()[:2]} for item in ITEMS}, seed=0)
SCARF, LAMP = LOADED[0], LOADED[1]
GOAL = {
    "asin": "B01",
    "category": "fashion",
    "query": "scarf",
    "name": "Soft Striped Scarf",
    "product_category": "Fashion › Scarfs",
    "attributes": ["soft", "striped"],
    "goal_options": {"color": "red"},
    "price_upper": 30.0,
}
TASK = Task("t", "i need a soft striped scarf with color: red, and price lower than 30.00 dollars", "webshop", goal=GOAL)


def enter(*actions: str, **shape: Any) -> tuple[WebShop, str, float, bool]:
    """The shop after these actions, with what the last one gave."""
    shop = WebShop(LOADED, search.Index(LOADED), **shape)
    raw, score, bought = shop.reset(TASK), 0.0, False
    for action in actions:
        raw, score, bought = shop.step(action)
    return shop, raw["text"], score, bought


def page(*actions: str, mode: str = "text", **shape: Any) -> str:
    return enter(*actions, mode=mode, **shape)[1]
