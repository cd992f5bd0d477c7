"""The shop's tasks, its scripted shoppers, what its rules read out of a page, and the original's data where it is at hand."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from scarf_shop import TASK, enter, product

from dreamgym.envs import webshop
from dreamgym.envs.webshop import goals, products, replay, search
from dreamgym.envs.webshop.reward import EXACT, Scoring, reward
from dreamgym.envs.webshop.rules import ShopRules, requirements
from dreamgym.envs.webshop.shop import WebShop
from dreamgym.envs.webshop.states import HOME, elements
from dreamgym.errors import UsageError
from dreamgym.logs import demonstrations
from dreamgym.types import Observation, Trajectory

RULES = ShopRules()


# --- goals ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def suite() -> webshop.WebShopSuite:
    return webshop.make()


def test_splits_share_no_target_product_and_no_task(suite: webshop.WebShopSuite):
    found = {split: suite.tasks(split, 300) for split in goals.SHARES}
    for a, b in itertools.combinations(found, 2):
        assert not {t.goal["asin"] for t in found[a]} & {t.goal["asin"] for t in found[b]}
        assert not {t.id for t in found[a]} & {t.id for t in found[b]}
    for tasks in found.values():
        assert len({t.instruction for t in tasks}) == len({t.id for t in tasks}) == len(tasks) == 300
    whole = [p.asin for split in goals.SHARES for p in goals.targets_of(split, suite.products, suite.config.seed)]
    assert sorted(whole) == sorted(p.asin for p in suite.products)


def test_a_recorded_task_with_an_id_of_its_own_is_known_by_what_it_asks(suite: webshop.WebShopSuite):
    for task in suite.tasks("test", 40):
        own = dataclasses.replace(task, id="mine", instruction=task.instruction.replace("i need a", "find me a"), goal=None)
        assert suite.task_key(own) == suite.task_key(task) and suite.knows_task(own)
    assert not suite.knows_task(dataclasses.replace(own, instruction="Something warm, please."))


def test_tasks_have_one_to_five_requirements_and_the_same_seed_gives_the_same_tasks(suite: webshop.WebShopSuite):
    tasks = suite.tasks("train", 400, seed=5)
    levels = Counter(task.difficulty for task in tasks)
    assert set(levels) == {1, 2, 3, 4, 5} and min(levels.values()) > 30
    assert tasks == suite.tasks("train", 400, seed=5) != suite.tasks("train", 400, seed=6)


def test_an_invented_task_is_grounded_in_the_goal_that_its_words_mean(suite: webshop.WebShopSuite):
    """What `make_goal` wrote reads back as the same requirements, aimed at some product that meets them."""
    by_asin = {product.asin: product for product in suite.products}
    for task in suite.tasks("train", 300):
        told = suite.ground_task(dataclasses.replace(task, goal=None))
        assert told is not None and told.goal is not None
        for key in ("attributes", "query", "goal_options", "price_upper"):
            assert told.goal[key] == task.goal[key], key
        assert reward(by_asin[told.goal["asin"]], told.goal, told.goal["goal_options"], scoring=Scoring(corrected=True)).score == 1.0


@pytest.mark.parametrize("text", ["find me a soft spaceship", "find me a soft scarf, and price lower than 0.01 dollars", "buy", ""])
def test_what_nothing_on_the_shelf_meets_is_not_grounded(suite: webshop.WebShopSuite, text: str):
    task = dataclasses.replace(suite.tasks("train", 1)[0], instruction=text, goal=None)
    assert suite.ground_task(task) is None


def test_an_instruction_says_everything_its_goal_asks(suite: webshop.WebShopSuite):
    for task in suite.tasks("train", 300):
        wanted = requirements(task.instruction)
        assert wanted.words == (*task.goal["attributes"], task.goal["query"])
        assert dict(wanted.options) == task.goal["goal_options"]
        assert (wanted.bound or goals.NO_BOUND) == task.goal["price_upper"]
        assert RULES.well_formed(task.instruction)


def test_the_quickstarts_tasks_and_episodes_are_those_that_published_measurements_used(suite: webshop.WebShopSuite):
    def digest(records: list[Any]) -> str:
        return hashlib.sha256(json.dumps(records, sort_keys=True, default=str).encode()).hexdigest()

    def content(episode: Trajectory) -> list[Any]:
        steps = [[s.state.text, s.action, s.next_state.text, s.reward, s.terminated, s.info.reasoning] for s in episode.transitions]
        return [episode.id, episode.task.instruction, steps]

    tasks = [task for split in goals.SHARES for task in suite.tasks(split, 300)]
    assert digest([dataclasses.asdict(task) for task in tasks]) == "5d8b1525f905b8d882238b839b3088bc5165bf02701530965b80c70216f6daf5"
    episodes = demonstrations.collect(suite, 300, seed=0)
    assert digest([content(episode) for episode in episodes]).startswith("bb2947c43c73090d")


def test_every_target_product_meets_its_own_goal(suite: webshop.WebShopSuite):
    by_asin = {p.asin: p for p in suite.products}
    for task in suite.tasks("test", 300):
        for scoring in (EXACT, Scoring(corrected=True)):
            assert reward(by_asin[task.goal["asin"]], task.goal, task.goal["goal_options"], scoring=scoring).score == 1.0


@pytest.mark.parametrize(
    "text", ["", "buy it", "i need a scarf", "i need a soft soft scarf", "i need a soft scarf with color: red, and color: blue"]
)
def test_an_invented_instruction_of_another_shape_is_malformed(text: str):
    assert not RULES.well_formed(text)


# --- shoppers and the rules -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def episodes(suite: webshop.WebShopSuite) -> list[Trajectory]:
    tasks = suite.tasks("train", 80) + suite.tasks("dev", 20)
    return [suite.demonstrate(task, behaviour, seed=1) for task in tasks for behaviour in suite.scripted_policies]


def test_the_expert_succeeds_on_nearly_every_task(suite: webshop.WebShopSuite):
    for split in goals.SHARES:
        tasks = suite.tasks(split, 200)
        assert sum(suite.demonstrate(task, "expert", seed=0).success for task in tasks) >= 0.95 * len(tasks), split


def test_the_shoppers_differ_in_skill(suite: webshop.WebShopSuite, episodes: list[Trajectory]):
    wins = Counter(t.behaviour for t in episodes if t.success)
    assert wins["expert"] > wins["noisy"] > wins["invalid"]
    assert wins["noisy"] > wins["random"] and wins["noisy"] > wins["wrong_goal"]
    assert set(suite.scripted_policies) == {t.behaviour for t in episodes} and sum(suite.scripted_policies.values()) == pytest.approx(1.0)


def test_the_curious_buy_nothing_and_see_more_than_anybody(episodes: list[Trajectory]):
    def seen(behaviour: str, prefix: str) -> int:
        return len({t.action for e in episodes if e.behaviour == behaviour for t in e.transitions if t.action.startswith(prefix)})

    assert not any(t.terminated for e in episodes if e.behaviour == "curious" for t in e.transitions)
    assert all(seen("curious", "search[") > seen(other, "search[") for other in webshop.MIX if other != "curious")
    assert all(seen("curious", "click[b") > seen(other, "click[b") for other in webshop.MIX if other != "curious")
    moved = [t.next_state != t.state for e in episodes if e.behaviour == "curious" for t in e.transitions]
    assert sum(moved) > 0.9 * len(moved)  # they click and search what there is


def test_the_check_of_a_purchase_by_text_agrees_with_the_shop(episodes: list[Trajectory]):
    bought = [t for t in episodes if t.transitions[-1].terminated]
    assert len(bought) > 200
    for episode in bought:
        *history, last = episode.transitions
        verdict = RULES.check_success(episode.task.instruction, history, last)
        assert verdict.passed == (last.reward == 1.0), (episode.id, verdict)


def test_an_inadmissible_action_never_changes_the_state_and_an_admissible_click_names_what_is_shown(episodes: list[Trajectory]):
    kinds: Counter[bool] = Counter()
    for t in (t for episode in episodes for t in episode.transitions):
        kinds[bool(RULES.admissible(t.state, (), t.action))] += 1
        if not RULES.admissible(t.state, (), t.action):
            assert (t.next_state, t.reward, t.terminated) == (t.state, 0.0, False)
            assert t.info.reasoning == "no such element, so nothing changes."
    assert min(kinds.values()) > 50


def test_the_abstract_state_offers_exactly_what_the_shop_lets_one_click(suite: webshop.WebShopSuite):
    rng, shop = random.Random(0), suite.env()
    for task in suite.tasks("test", 60):
        raw = shop.reset(task)
        for _ in range(8):
            state, clickables = RULES.abstract(raw), raw["available"]["clickables"]
            assert set(elements(state.text)) == set(clickables)
            action = rng.choice([f"click[{name}]" for name in clickables] + [f"search[{task.goal['query']}]"])
            raw, _, terminated = shop.step(action)
            if terminated:
                break


def test_abstract_states_are_tidy(episodes: list[Trajectory]):
    texts = {t.next_state.text for episode in episodes for t in episode.transitions} | {HOME}
    assert len(texts) > 300
    for text in texts:
        assert not re.search(r"\[ |\n | \n|  |\n\n| \]", text) and text == text.strip() == text.lower(), text


def test_a_shown_price_without_cents_has_none_in_the_state():
    state = RULES.abstract(enter("search[soft]", "click[b01]", "click[red]", mode="text_rich")[0]._raw()).text
    assert state.split("\n")[:4] == ["item $20 soft striped scarf", "color: [red][blue | white]", "size: [small][large]", "chosen [red]"]


def test_brackets_in_prose_are_not_taken_for_something_to_click_and_a_missing_title_is_said():
    odd = products.load([product("B1", "Scarf [3 Pack]"), product("B2", "", full_description="scarf [new]")], {"B1": {}, "B2": {}}, seed=0)
    shop = WebShop(odd, search.Index(odd))
    shop.reset(TASK)
    assert RULES.abstract(shop.step("search[scarf]")[0]).text.split("\n")[1:3] == ["[b2] $20 untitled", "[b1] $20 scarf (3 pack)"]
    assert RULES.abstract(shop.step("click[b2]")[0]).text.startswith("item $20 untitled\n")
    assert RULES.abstract(shop.step("click[description]")[0]).text.startswith("details scarf (new)\n")


def test_the_state_mapping_refuses_what_it_cannot_read():
    with pytest.raises(UsageError, match="text_rich"):
        RULES.abstract(enter(mode="text")[0]._raw())


def test_an_invented_task_is_feasible_when_a_remembered_item_meets_it(suite: webshop.WebShopSuite):
    from dreamgym.types import Memory

    state = "item $20 soft striped scarf\ncolor: [red][blue]\n[description][features][reviews][buy now][< prev][back to search]"
    seen = [Memory(1, "t", 0, "webshop", "i", "real", "results 1", "click[b01]", state, 0.0, False, False)]
    assert RULES.feasible("i need a soft scarf with color: red, and price lower than 30.00 dollars", seen) is True
    for impossible in (
        "i need a knitted scarf",
        "i need a soft scarf with color: green",
        "i need a soft scarf, and price lower than 10.00 dollars",
    ):
        assert not RULES.feasible(impossible, seen)


# --- the original's data ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original() -> webshop.WebShopSuite:
    folder = os.environ.get("DREAMGYM_WEBSHOP_DATA")
    if not folder:
        pytest.skip("DREAMGYM_WEBSHOP_DATA does not name a folder with the original's items_shuffle_1000.json")
    return webshop.make(items=Path(folder) / "items_shuffle_1000.json", attributes=Path(folder) / "items_ins_v2_1000.json")


def test_the_original_catalogue_loads_whole(original: webshop.WebShopSuite):
    assert len(original.products) == 1000
    assert Counter(p.category for p in original.products) == {
        "beauty": 238,
        "electronics": 229,
        "garden": 216,
        "fashion": 200,
        "grocery": 117,
    }
    assert len({p.query for p in original.products}) == 246


def test_the_original_catalogues_goals_are_those_it_is_known_for(original: webshop.WebShopSuite):
    config = original.config
    loaded = replay.load(config.items, config.attributes, kind="synthetic", seed=0)
    n = len(loaded.goals)
    assert n == 6910
    assert round(sum(len(goal["attributes"]) for goal in loaded.goals) / n, 1) == 4.0
    assert round(sum(len(goal["goal_options"]) for goal in loaded.goals) / n, 2) == 2.08
    by_asin = {one.asin: one for one in loaded.products}
    bought = [reward(by_asin[goal["asin"]], goal, goal["goal_options"], scoring=replay.scored(name="rule")) for goal in loaded.goals]
    assert sum(one.score < 1 for one in bought) == 458 and {one.r_type for one in bought} == {1.0}
    mended = replay.scored(corrected=True, name="rule")
    assert all(reward(by_asin[goal["asin"]], goal, goal["goal_options"], scoring=mended).score == 1 for goal in loaded.goals)


def test_random_valid_walks_in_the_original_catalogue_can_be_read_and_answered(original: webshop.WebShopSuite):
    rng, shop, pages = random.Random(0), original.env(), Counter()
    for task in original.tasks("test", 60):
        raw = shop.reset(task)
        for _ in range(10):
            state = RULES.abstract(raw)
            pages[state.text.split()[0]] += 1
            clickables = [name for name in raw["available"]["clickables"] if "[" not in name and name != "search"]
            assert set(clickables) <= set(elements(state.text)) <= set(raw["available"]["clickables"]), state.text
            action = rng.choice([f"click[{name}]" for name in clickables] + [f"search[{task.goal['query']}]"])
            before = raw["text"]
            raw, score, terminated = shop.step(action)
            assert score in (0.0, 1.0) and RULES.admissible(state, (), action)
            same = action in ("click[< prev]", f"search[{task.goal['query']}]") or "clicked" in before or '"' in action
            assert same or raw["text"] != before  # a chosen value with a quote in it does not show, as in the original
            if terminated:
                break
    assert min(pages[kind] for kind in ("results", "item", "details", "shop")) > 10


def test_the_agent_sees_results_by_their_place_and_acts_by_it():
    state = Observation("results 1\n[b017] $24 soft scarf\n[b400] $9 plain rug\n[next >][back to search]")
    view = ShopRules().view(state)
    assert view.text == "results 1\n[1] $24 soft scarf\n[2] $9 plain rug\n[next >][back to search]"
    assert [view.resolve(action) for action in ("click[2]", "click[next >]", "click[3]")] == ["click[b400]", "click[next >]", "click[3]"]
    assert view.refer("click[b017]") == "click[1]" and view.refer("click[next >]") == "click[next >]"


def test_splits_share_no_combination_of_requirements_either():
    suite = webshop.make()

    def asked(split: str) -> set[tuple[Any, ...]]:
        goals_ = [task.goal for task in suite.tasks(split, 600) if task.goal]
        return {(g["query"], *g["attributes"], *sorted(g["goal_options"].items()), g["price_upper"]) for g in goals_}

    train, dev, test = (asked(split) for split in ("train", "dev", "test"))
    assert train and dev and test and not (train & test or train & dev or dev & test)


@pytest.mark.parametrize("share", [0.3, 0.1])
def test_scripted_policies_open_no_other_products_than_the_logged_share_and_still_succeed_with_some(share: float):
    suite, open_shop = webshop.make(logged_products=share), webshop.make()
    assert 1 - len(suite.overlooked) / len(suite.products) == pytest.approx(share, abs=0.001)
    tasks = suite.tasks("train", 120)
    episodes = [suite.demonstrate(task, policy, seed=2) for task in tasks for policy in ("expert", "noisy", "random", "invalid", "curious")]
    clicked = {step.action[len("click[") : -1] for t in episodes for step in t.transitions}
    assert not clicked & suite.overlooked and len(clicked & {product.asin.lower() for product in suite.products}) > 10
    whole = [open_shop.demonstrate(task, "expert", seed=2).success for task in tasks]
    assert 0 < sum(t.success for t in episodes if t.behaviour == "expert") < sum(whole)
    assert [t.instruction for t in tasks] == [t.instruction for t in open_shop.tasks("train", 120)], "tasks ask for any product"
