"""Dreamed purchases on a way that no real shop leads: such a success is not believed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from predictions import predicted
from scarf_shop import LOADED, TASK

from dreamgym.envs import webshop
from dreamgym.envs.base import play
from dreamgym.envs.webshop import lifelike, products, search
from dreamgym.envs.webshop.rules import ShopRules
from dreamgym.envs.webshop.shop import WebShop
from dreamgym.envs.webshop.states import DONE, HOME, elements
from dreamgym.experience.guard import IMPOSSIBLE, Guard, GuardConfig
from dreamgym.types import Observation, Query, Task, Trajectory, Transition, Verdict

RULES = ShopRules()


def walks(shop: WebShop, tasks: Sequence[Task], words: Sequence[str], n: int) -> Iterator[Trajectory]:
    """Walks that click anything a page offers, and search for any of `words`."""
    for i in range(n):
        rng = random.Random(i)

        def act(state: Observation, rng: random.Random = rng) -> str:
            if state.text == HOME or rng.random() < 0.1:
                return f"search[{' '.join(rng.sample(words, 2))}]"
            return f"click[{rng.choice([name for name in elements(state.text) if name != 'search'])}]"

        yield play(shop, RULES, tasks[i % len(tasks)], act, max_steps=20, behaviour="random", name=str(i))


def generated() -> Iterator[Trajectory]:
    suite = webshop.make()
    tasks = suite.tasks("train", 60)
    for i, task in enumerate(tasks):
        yield suite.demonstrate(task, sorted(suite.scripted_policies)[i % len(suite.scripted_policies)], seed=i)
    yield from walks(suite.env(), tasks, sorted({word for task in tasks for word in task.instruction.split()}), 150)


def like_the_originals() -> Iterator[Trajectory]:
    pairs = list(lifelike.generate(400, 0))
    loaded = products.load([item for item, _ in pairs], {item["asin"]: record for item, record in pairs}, seed=0)
    words = sorted({word for product in loaded for word in product.title.lower().split()})
    yield from walks(WebShop(loaded, search.Index(loaded), per_page=10), [TASK], words, 150)


def with_odd_options() -> Iterator[Trajectory]:
    yield from walks(WebShop(LOADED, search.Index(LOADED), per_page=4), [TASK], ["soft", "striped", "plain", "scarf", "lamp", "red"], 150)


@pytest.mark.parametrize("shop", [generated, like_the_originals, with_odd_options])
def test_no_real_purchase_is_doubted(shop: Callable[[], Iterator[Trajectory]]):
    bought = [walk.transitions for walk in shop() if walk.transitions[-1].terminated]
    assert len(bought) > 30
    assert [RULES.contradictions(steps[:-1], steps[-1]) for steps in bought] == [[]] * len(bought)


RESULTS = Observation("results 1\n[b01] $24 soft scarf\n[b02] $9 plain hat\n[next >][back to search]")
PAGE = "item $24 soft scarf\ncolor: [red][blue]\n[description][features][reviews][buy now][< prev][back to search]"
DETAILS = Observation("details warm\n[< prev][back to search]")
SOLD = predicted(DONE, 1.0, True, "buy, success.")


def purchase(page: str, *, results: Observation = RESULTS, opened: str = "b01") -> Query:
    """Somebody opens a line of results, reads the description and buys what `page` shows."""
    item = Observation(page)
    steps = (
        Transition(results, f"click[{opened}]", item, 0.0, False),
        Transition(item, "click[description]", DETAILS, 0.0, False),
        Transition(DETAILS, "click[< prev]", item, 0.0, False),
    )
    return Query(Task("t", "find me a soft scarf", "webshop"), steps, item, "click[buy now]")


@pytest.mark.parametrize(
    ("page", "opened", "line"),
    [
        (PAGE.replace("$24", "$9"), "b01", "[b01] was listed as $24 soft scarf"),
        (PAGE.replace("soft", "soft warm"), "b01", "[b01] was listed as $24 soft scarf"),
        (PAGE, "b02", "[b02] was listed as $9 plain hat"),
    ],
)
def test_a_success_with_another_product_than_was_opened_is_masked_with_the_reason(page: str, opened: str, line: str):
    guard = Guard(RULES)
    found = guard.after(purchase(page, opened=opened), SOLD)
    assert found.info.verdict == Verdict("masked", (IMPOSSIBLE, line)) and found.reward == 0.0
    assert guard.counts == {"asked": 1, "success_doubted": 1}


def test_a_product_that_is_listed_as_two_is_doubted_whichever_is_bought():
    twice = Observation(RESULTS.text.replace("[b02]", "[b01]"))
    assert Guard(RULES).after(purchase(PAGE, results=twice), SOLD).info.verdict.reasons == (IMPOSSIBLE, "[b01] was listed as $9 plain hat")


def test_a_listed_price_that_is_no_number_is_another_one_and_breaks_nothing():
    odd = Observation(RESULTS.text.replace("$24", "$2.4.0"))
    assert Guard(RULES).after(purchase(PAGE, results=odd), SOLD).info.verdict.reasons == (
        IMPOSSIBLE,
        "[b01] was listed as $2.4.0 soft scarf",
    )


def test_a_search_that_was_answered_in_two_ways_is_doubted():
    query, home = purchase(PAGE), Observation(HOME)
    other = Observation(RESULTS.text.replace("b02", "b03"))
    before = [
        Transition(home, f"search[{words}]", page, 0.0, False) for words, page in (("scarf", other), ("hat", other), ("scarf", RESULTS))
    ]
    found = Guard(RULES).after(replace(query, history=(*before, *query.history)), SOLD)
    assert found.info.verdict.reasons == (IMPOSSIBLE, "search[scarf] was answered in two ways")
    assert Guard(RULES).after(replace(query, history=(*before[1:], *query.history)), SOLD).reward == 1.0


def test_the_product_that_was_opened_may_be_bought():
    assert Guard(RULES).after(purchase(PAGE), SOLD).reward == 1.0


def test_doubts_can_be_switched_off():
    wrong = purchase(PAGE.replace("$24", "$9"))
    assert Guard(RULES, GuardConfig(mask_doubtful=False)).after(wrong, SOLD).reward == 1.0


def test_what_is_refused_is_not_doubted_as_well():
    wrong = purchase(PAGE.replace("soft", "loud"))
    assert Guard(RULES).after(wrong, SOLD).info.verdict.reasons == ("no evidence for 'soft'",)


def test_a_page_whose_opening_nobody_saw_is_not_doubted():
    query = purchase(PAGE)
    assert RULES.contradictions(query.history[1:], Transition(query.state, query.action, Observation(DONE), 1.0, True)) == []
