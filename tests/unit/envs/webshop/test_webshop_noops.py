"""An option that is chosen can be clicked again, and the shop says the same as the rule: nothing changes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from scarf_shop import LOADED, TASK
from shop_catalogue import product

from dreamgym.envs import webshop
from dreamgym.envs.base import play
from dreamgym.envs.webshop import lifelike, products, search
from dreamgym.envs.webshop.products import Product
from dreamgym.envs.webshop.rules import ShopRules
from dreamgym.envs.webshop.shop import WebShop
from dreamgym.envs.webshop.states import HOME, elements, read_item
from dreamgym.types import Observation, Task

RULES = ShopRules()


def loaded(*items: dict) -> list[Product]:
    return products.load(list(items), {item["asin"]: {"attributes": []} for item in items}, seed=0)


def values(*names: str) -> list[dict[str, str]]:
    return [{"value": name} for name in names]


def generated() -> tuple[WebShop, Task]:
    suite = webshop.make()
    return suite.env(), suite.tasks("train", 1)[0]


def like_the_originals() -> tuple[WebShop, Task]:
    pairs = list(lifelike.generate(400, 0))
    found = products.load([item for item, _ in pairs], {item["asin"]: record for item, record in pairs}, seed=0)
    return WebShop(found, search.Index(found), per_page=10), TASK


def odd() -> tuple[WebShop, Task]:
    return WebShop(LOADED, search.Index(LOADED), per_page=4), TASK


def shared() -> tuple[WebShop, Task]:
    """Values that two options share, that are another option's name, and that are called as a button is."""
    items = loaded(
        product("B01", "red lamp", customization_options={"color": values("red", "blue"), "shade": values("blue", "size")}),
        product("B02", "blue lamp", customization_options={"size": values("red", "size", "large"), "kind": values("description", "large")}),
    )
    return WebShop(items, search.Index(items), per_page=4), TASK


def walk(shop: WebShop, task: Task, words: Sequence[str], seed: int) -> list[tuple[str, bool]]:
    """(action, whether something changed) of every no-op by rule of a walk that likes to click again what it has clicked."""
    rng = random.Random(seed)

    def act(state: Observation) -> str:
        item = read_item(state.text)
        if item and item.marked and rng.random() < 0.5:
            return f"click[{rng.choice(item.marked)}]"
        if state.text == HOME or rng.random() < 0.1:
            some = rng.sample(words, 2)
            return f"search[{' '.join(rng.choice((word, repr(word).replace(chr(39), chr(34)))) for word in some)}]"
        return f"click[{rng.choice([name for name in elements(state.text) if name not in ('search', 'buy now')])}]"

    steps = play(shop, RULES, task, act, max_steps=40, behaviour="random", name=str(seed)).transitions
    return [(step.action, not step.is_noop) for t, step in enumerate(steps) if RULES.noop_reason(step.state, steps[:t], step.action)]


@pytest.mark.parametrize("make", [generated, like_the_originals, odd, shared])
def test_a_click_that_is_said_to_change_nothing_changes_nothing(make) -> None:
    shop, task = make()
    words = sorted({word for item in list(shop.products)[:40] for word in item.title.lower().split()} | {"red", "blue", "size", "large"})
    noops = [step for seed in range(120) for step in walk(shop, task, words, seed)]
    assert len(noops) > 100 and not [action for action, changed in noops if changed]


def test_a_value_that_stands_as_chosen_because_it_was_searched_for_is_not_said_to_be_a_noop_beside_another() -> None:
    page = "item $9 red lamp\ncolor: [red][blue]\nchosen [red][blue]\n[description][features][reviews][buy now][< prev][back to search]"
    assert RULES.noop_reason(Observation(page), (), "click[red]") == "" and RULES.noop_reason(Observation(page), (), "click[blue]") == ""
    assert RULES.noop_reason(Observation(page.replace("[red][blue]\n[d", "[red]\n[d")), (), "click[red]")
