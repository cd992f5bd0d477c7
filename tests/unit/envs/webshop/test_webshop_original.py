"""Parity with the original WebShop on a small catalogue of our own: goals, pages, nouns, and people's demonstrations.

Expected values are worked by hand from the original's rules, or by the same draws written out.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from shop_catalogue import ATTRIBUTES, GOAL, load, play, product, shop, written

from dreamgym.envs import webshop
from dreamgym.envs.webshop import goals, lifelike, originals, products, replay
from dreamgym.envs.webshop.lucene import LuceneIndex
from dreamgym.envs.webshop.pages import Node, plain, rich, tidy
from dreamgym.envs.webshop.reward import reward
from dreamgym.envs.webshop.shop import WebShop
from dreamgym.envs.webshop.tagger import nouns, tagger
from dreamgym.errors import ConfigError, MissingExtra, UsageError
from dreamgym.types import Task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


# --- goals ------------------------------------------------------------------------------------------------------------------------


def test_graded_goals_over_the_originals_files_can_be_met_by_their_own_products_and_its_own_goals_are_scored_as_there(tmp_path: Path):
    thing = product("B09", "Rug", customization_options={"Color": [{"value": "2005grey"}]})
    (tmp_path / "i.json").write_text(json.dumps([thing]), encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps({"B09": {**ATTRIBUTES["B01"], "attributes": ["soft wool", "hand made"]}}), encoding="utf-8")
    files = {"items": tmp_path / "i.json", "attributes": tmp_path / "a.json", "tagger": "rule"}
    own, original = webshop.make(**files), webshop.make(**files, goals="synthetic", split_by="product")
    goal = next(one for k in range(50) if (one := goals.make_goal(own.products[0], 2, random.Random(k))) and one["goal_options"])
    scores = [reward(own.products[0], goal, goal["goal_options"], scoring=suite.scoring).score for suite in (own, original)]
    assert scores[0] == 1.0 > scores[1]


def test_synthetic_goals_are_drawn_in_the_originals_order(folder: Path):
    loaded, draws = load(folder), random.Random(7)
    price = draws.uniform(12.5, 30.0)  # the one range first, then a pair of bounds per product with an instruction
    first = math.floor(price / 10) * 10
    upper = max(draws.sample([float(first + 10 * i) for i in range(1, 5)], 2))
    assert loaded.products[0].price == price and loaded.products[2].price == 100.0
    by_text = {goal["instruction_text"]: goal for goal in loaded.goals}
    text = f"Find me dish safe mugs with color: red, and size: tiny, and price lower than {upper:.2f} dollars"
    assert by_text[text]["goal_options"] == {"color": "red", "size": "tiny"}
    assert len(loaded.goals) == 5  # two colours times two sizes, and one product without options
    dear = next(goal for goal in loaded.goals if goal["asin"] == "B02")
    assert dear["instruction_text"] == "Find me hand made mugs" and dear["price_upper"] == 1_000_000  # only 990 is above 985
    # "dish safe" is in four goals and "hand made" in five
    assert by_text[text]["weight"] == pytest.approx((1 / 4 + 1 / 5) / 2) and dear["weight"] == pytest.approx(1 / 5)


def test_goals_are_shuffled_with_the_seed_of_the_original(folder: Path):
    plain_order = originals.synthetic(load(folder).products, ATTRIBUTES, random.Random(0))
    order = list(range(5))
    random.Random(233).shuffle(order)
    shuffled = originals.shuffled(plain_order, random.Random(99))
    assert shuffled == [plain_order[i] for i in order]


def test_human_goals_keep_lists_of_options_and_lose_full_stops(folder: Path):
    loaded = load(folder, "human")
    assert Counter(goal["asin"] for goal in loaded.goals) == {"B02": 1, "B04": 1}
    blue, green = sorted(loaded.goals, key=lambda goal: goal["asin"])
    assert (blue["instruction_text"], blue["goal_options"], blue["weight"]) == ("i want a blue mug", ["blue"], 1)
    assert green["instruction_text"].startswith("a green cup, and price lower than ") and green["price_upper"] in (40.0, 50.0, 60.0)


def test_the_generator_stands_where_the_originals_stands_after_its_first_session(folder: Path):
    draws = random.Random(233)
    draws.shuffle(list(range(5)))
    draws.choices("abcdefghijklmnopqrstuvwxyz", k=10)
    draws.uniform(0, 1)
    assert load(folder).rng.random() == draws.random()


def test_the_splits_are_ranges_of_the_full_catalogues_goals():
    goals: list[dict[str, Any]] = [{} for _ in range(1600)]
    assert [(places[0], places[-1]) for places in (originals.split(goals, name) for name in ("test", "dev", "train"))] == [
        (0, 499), (500, 1499), (1500, 1599),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="cannot be split"):
        originals.split(goals[:1500], "test")


def test_a_family_gives_the_originals_goals_as_tasks(tmp_path: Path):
    items = [product(f"B{i}", "Mug") for i in range(1600)]
    (tmp_path / "i.json").write_text(json.dumps(items), encoding="utf-8")
    record = {"attributes": ["x"], "instruction_attributes": ["x"]}
    known = {item["asin"]: record | {"instruction": f"find {i}"} for i, item in enumerate(items)}
    (tmp_path / "a.json").write_text(json.dumps(known), encoding="utf-8")
    suite = webshop.make(items=tmp_path / "i.json", attributes=tmp_path / "a.json", goals="synthetic", tagger="rule")
    tasks = suite.tasks("dev", 3)
    assert [task.id for task in tasks] == ["webshop/synthetic/500", "webshop/synthetic/501", "webshop/synthetic/502"]
    assert tasks[0].goal == suite.goals[500] and tasks[0].difficulty == 2
    with pytest.raises(ConfigError, match="go together"):
        webshop.make(goals="human")


# --- pages ------------------------------------------------------------------------------------------------------------------------


def test_split_by_product_no_goal_of_one_split_aims_at_a_product_of_another(tmp_path: Path):
    pairs = list(lifelike.generate(200, 0))
    (tmp_path / "i.json").write_text(json.dumps([item for item, _ in pairs]), encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps({item["asin"]: record for item, record in pairs}), encoding="utf-8")
    suite = webshop.make(items=tmp_path / "i.json", attributes=tmp_path / "a.json", goals="synthetic", tagger="rule", split_by="product")
    tasks = {split: suite.tasks(split, 100_000) for split in ("train", "dev", "test")}
    aims = {split: {task.goal["asin"] for task in found} for split, found in tasks.items()}
    assert not aims["train"] & aims["dev"] and not aims["train"] & aims["test"] and not aims["dev"] & aims["test"]
    assert sum(map(len, tasks.values())) == len(suite.goals) and all(aims.values())


def test_goals_over_products_that_list_the_same_attributes_in_any_order_are_in_one_split(tmp_path: Path):
    qualities = [f"kind{i} made" for i in range(12)]
    pairs = [(one, other) for one in qualities for other in qualities if one != other]
    items = [product(f"B{i}", "Mug", pricing="") for i in range(len(pairs))]
    known = {item["asin"]: {"attributes": list(pair)} for item, pair in zip(items, pairs, strict=True)}
    (tmp_path / "i.json").write_text(json.dumps(items), encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(known), encoding="utf-8")
    suite = webshop.make(items=tmp_path / "i.json", attributes=tmp_path / "a.json", tagger="rule")
    keys = {split: {suite.rules.task_key(task.instruction) for task in suite.tasks(split, 40)} for split in ("train", "dev", "test")}
    assert all(keys.values())
    assert not keys["train"] & keys["test"] and not keys["train"] & keys["dev"] and not keys["dev"] & keys["test"]


def test_a_synthetic_goal_that_is_worded_as_a_training_goal_is_in_no_other_split(tmp_path: Path):
    items = [product(f"B{i}", "Mug", pricing="") for i in range(20)]
    record = {"attributes": ["x"], "instruction_attributes": ["x"]}
    known = {item["asin"]: record | {"instruction": f"find {i % 12}"} for i, item in enumerate(items)}
    (tmp_path / "i.json").write_text(json.dumps(items), encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps(known), encoding="utf-8")
    suite = webshop.make(items=tmp_path / "i.json", attributes=tmp_path / "a.json", goals="synthetic", tagger="rule", split_by="product")
    words = {split: [task.instruction for task in suite.tasks(split, 99)] for split in ("train", "dev", "test")}
    assert len(words["train"]) == 13 and len(words["test"]) > 0
    assert not set(words["train"]) & {*words["dev"], *words["test"]}


def test_an_empty_text_is_no_node_and_blanks_are_one_blank():
    assert [node.text for node in tidy([Node(""), Node("  "), Node(" \n "), Node(" a ")])] == [" ", " a "]
    assert plain(tidy([Node("a"), Node(" ")])) == "a [SEP] "


def test_a_product_without_a_title_has_no_node_for_it():
    assert play("search[<q> mugs]")["observations"][1].endswith("B03 [SEP] $100.0")


def test_the_page_after_a_purchase_is_printed_whole():
    seen = play("search[red]", "click[b01]", "click[red]", 'click[say "hi"]', "click[buy now]")
    assert seen["rewards"] == [0.0] * 5 + [pytest.approx(2 / 3)] and seen["dones"] == [False] * 5 + [True]
    assert seen["observations"][-1] == (
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] Purchased "
        '[SEP] asin [SEP] B01 [SEP] options [SEP] {"color": "say \\"hi\\""} [SEP] attrs [SEP] None [SEP] category [SEP] None '
        "[SEP] query [SEP] None [SEP] product category [SEP] None [SEP] Target [SEP] asin [SEP] options [SEP] attrs [SEP] price upper "
        "[SEP] instuction text [SEP] category [SEP] product category [SEP] query [SEP] Goal [SEP] None [SEP] Reward [SEP] "
        "Your score (min 0.0, max 1.0) [SEP] "
        f"{2 / 3} [SEP] Reward Details [SEP] None"
    )
    assert seen["available"][-1] == {"has_search_bar": False, "clickables": []}


def test_signs_of_html_are_escaped_in_the_options_of_the_last_page_only():
    loaded = products.load([product("B1", "Mug", customization_options={"a": [{"value": "<b> & 'c'"}]})], {}, seed=0)
    seen = replay.episode(
        WebShop(loaded, LuceneIndex.of(loaded), mode="text", outcome=False),
        GOAL, ["search[mug]", "click[b1]", "click[<b> & 'c']", "click[buy now]"], name="0",
    )  # fmt: skip
    assert "[SEP] <b> & 'c' [SEP]" in seen["observations"][3]
    assert r'{"a": "\u003cb\u003e \u0026 \u0027c\u0027"}' in seen["observations"][4]


def test_a_value_with_a_quote_never_shows_as_clicked_though_it_is():
    seen = play("search[red]", "click[b01]", 'click[say "hi"]', "click[big]", mode="text_rich")["observations"][-1]
    assert seen.startswith("You have clicked big.\nInstruction:\n") and '  [button] say "hi" [button_]\n' in seen


def test_a_quoted_word_of_the_query_shows_as_clicked_because_it_is_in_the_address():
    assert "You have clicked red.\n" in play('search["red" mug]', "click[b01]", mode="text_rich")["observations"][-1]


def test_prev_is_understood_by_the_address_so_a_query_can_confuse_it():
    # "search_results" in the address of an item page: the original goes one page back from page 1, to an empty page 0
    confused = play("search[search_results mug]", "click[b02]", "click[< prev]")["observations"][-1]
    assert confused.endswith("Page 0 (Total results: 2) [SEP] Next >")


def test_a_value_under_two_names_sets_the_last_and_buttons_win_over_values():
    twice = {"one": [{"value": "x"}, {"value": "features"}], "two": [{"value": "x"}]}
    loaded = products.load([product("B1", "Mug", customization_options=twice)], {}, seed=0)
    there = WebShop(loaded, LuceneIndex.of(loaded), mode="text")
    there.reset(Task("t", "i", "webshop", goal=GOAL))
    for action in ("search[mug]", "click[b1]", "click[x]"):
        raw = there.step(action)[0]
    assert there.session and there.session.options == {"two": "x"}
    assert raw["available"]["clickables"] == ["back to search", "< prev", "description", "features", "reviews", "buy now", "x"]
    there.step("click[features]")
    assert there.session.page == "features"


def test_random_valid_walks_never_fail_and_accept_what_they_offer():
    for seed in range(60):
        rng, there = random.Random(seed), shop(mode=("text", "text_rich")[seed % 2])
        raw = there.reset(Task(str(seed), "a mug", "webshop", goal=GOAL))
        for _ in range(30):
            offered = [name for name in raw["available"]["clickables"] if name != "search" and "[" not in name]
            queries = ["mug", "<r>", "<c>", "<c> beauty", "<q> mugs", "<a> hand made", "<a>", " ", "[", "search_results", '"red"']
            click = bool(offered) and rng.random() < 0.7
            action = f"click[{rng.choice(offered)}]" if click else f"search[{rng.choice(queries)}]"
            assert there.step("click[nowhere]") == (raw, 0.0, False)
            raw, score, bought = there.step(action)
            assert 0.0 <= score <= 1.0 and (bought or score == 0.0)
            assert not raw["available"]["has_search_bar"] or raw["available"]["clickables"] == ["search"]


def test_rich_text_announces_the_latest_option_of_the_page_first():
    nodes = [Node("Red", "option", True), Node("Big", "option", True), Node("B1", "product", True), Node("Go", "button")]
    assert rich(nodes) == (
        "You have clicked Big.\nYou have clicked Red.\n  [clicked button] Red [clicked button_]\n  [clicked button] Big [clicked button_]\n"
        "\n[clicked button] B1 [clicked button_]\n[button] Go [button_]\n"
    )


# --- the tagger -------------------------------------------------------------------------------------------------------------------


def test_the_log_says_who_finds_nouns(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dreamgym.envs.webshop.tagger._installed", lambda: None)
    with caplog.at_level("INFO"):
        assert tagger("auto") is nouns
    assert "rule tagger, because no spaCy model is installed" in caplog.text
    with pytest.raises(MissingExtra, match="pip install spacy"):
        tagger("spacy")
    assert nouns("Soft Mug for the Garden, mug of 3") == ["mug", "garden", "mug"]
