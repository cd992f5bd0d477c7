"""Parity with the original WebShop on a small catalogue of our own: goals, pages, search, and the replay commands.

Expected values are worked by hand from the original's rules, or by the same draws written out.
"""

from __future__ import annotations

import io
import json
import math
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dreamgym import cli
from dreamgym.envs import webshop
from dreamgym.envs.webshop import files, lifelike, originals, products, replay, wording
from dreamgym.envs.webshop.analysis import analyse, words
from dreamgym.envs.webshop.domain import ShopDomain
from dreamgym.envs.webshop.lucene import LuceneIndex, quantised
from dreamgym.envs.webshop.pages import Node, plain, rich, tidy
from dreamgym.envs.webshop.porter import stem
from dreamgym.envs.webshop.shop import WebShop
from dreamgym.envs.webshop.tagger import nouns, tagger
from dreamgym.errors import ConfigError, MissingExtra, UsageError
from dreamgym.logs import webshop_human
from dreamgym.types import Memory, Observation, Task, Transition


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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in (("items", ITEMS), ("attributes", ATTRIBUTES), ("human", HUMAN)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


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


# --- goals ------------------------------------------------------------------------------------------------------------------------


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


def test_goals_can_be_filtered_and_limited_by_weight():
    goals = [{"weight": 1.0, "n": n} for n in range(20)]
    assert [g["n"] for g in originals.chosen(goals, random.Random(0), keep=lambda i, goal: i < 3)] == [0, 1, 2]
    limited = [g["n"] for g in originals.chosen(goals, random.Random(0), limit=5)]
    assert len(set(limited)) == 5 and 0 not in limited  # the original's draw is one too high, so it never gives the first


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
    known = {item["asin"]: {"attributes": ["x"], "instruction": "find x", "instruction_attributes": ["x"]} for item in items}
    (tmp_path / "a.json").write_text(json.dumps(known), encoding="utf-8")
    family = webshop.make(items=tmp_path / "i.json", attributes=tmp_path / "a.json", goals="synthetic", tagger="rule")
    tasks = family.tasks("dev", 3)
    assert [task.id for task in tasks] == ["webshop/synthetic/500", "webshop/synthetic/501", "webshop/synthetic/502"]
    assert tasks[0].goal == family.goals[500] and tasks[0].difficulty == 2
    with pytest.raises(ConfigError, match="go together"):
        webshop.make(goals="human")


# --- pages ------------------------------------------------------------------------------------------------------------------------


def test_an_empty_text_is_no_node_and_blanks_are_one_blank():
    assert [node.text for node in tidy([Node(""), Node("  "), Node(" \n "), Node(" a ")])] == [" ", " a "]
    assert plain(tidy([Node("a"), Node(" ")])) == "a [SEP] "


def test_a_product_without_a_title_has_no_node_for_it():
    assert play("search[<q> mugs]")["observations"][1].endswith("B03 [SEP] $100.0")


def test_the_attributes_page_is_there_when_asked_for():
    seen = play("search[<q> cups]", "click[b04]", "click[attributes]", show_attributes=True)
    assert seen["available"][2]["clickables"] == ["back to search", "< prev", "description", "features", "reviews", "attributes", "buy now"]
    assert seen["observations"][3].endswith("< Prev [SEP] DUMMY_ATTR [SEP] beauty [SEP] cups [SEP] Kitchen › Cups › Mugs")
    assert "attributes" not in play("search[<q> cups]", "click[b04]")["available"][2]["clickables"]


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


# --- search -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Runner's shoes, for MEN", ["runner", "shoe", "men"]),
        ("3.5mm 1,000 a.b usb_c x-ray size:red", ["3.5mm", "1,000", "a.b", "usb_c", "x", "rai", "size:r"]),
        ("don't O’Neil’s", ["don't", "o’neil"]),
        ("Brand™ mug ❤️ 👍🏽", ["brand", "™", "mug", "❤️", "👍🏽"]),
        ("日本 カタカナ café", ["日", "本", "カタカナ", "café"]),
        ("... - _ !", []),
        ("", []),
    ],
)
def test_texts_become_terms_as_in_lucenes_english_analyser(text: str, expected: list[str]):
    assert analyse(text) == expected


def test_a_very_long_word_is_cut():
    assert [len(word) for word in words("x" * 600)] == [255, 255, 90]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("feed", "feed"), ("agreed", "agre"), ("plastered", "plaster"), ("motoring", "motor"),
        ("conflated", "conflat"), ("hopping", "hop"), ("falling", "fall"), ("filing", "file"), ("happy", "happi"), ("sky", "sky"),
        ("relational", "relat"), ("vietnamization", "vietnam"), ("triplicate", "triplic"), ("electriciti", "electr"), ("goodness", "good"),
        ("adoption", "adopt"), ("replacement", "replac"), ("probate", "probat"), ("rate", "rate"), ("controll", "control"), ("is", "is"),
        ("technology", "technolog"), ("possibly", "possibl"), ("trekking", "trek"),
    ],
)  # fmt: skip
def test_words_are_stemmed_as_porter_does(word: str, expected: str):
    assert stem(word) == expected


@pytest.mark.parametrize(("length", "kept"), [(0, 0), (39, 39), (40, 40), (41, 40), (55, 54), (57, 56), (100, 96), (130, 128)])
def test_lengths_are_kept_in_one_byte(length: int, kept: int):
    assert quantised(length) == kept


def catalogue_of(*titles: str) -> list[products.Product]:
    return products.load([product(f"B{i}", title) for i, title in enumerate(titles)], {}, seed=0)


def test_bm25_orders_by_hand_worked_scores():
    # lengths 2, 3, 50: quantised 50 is 50; the mean is 55 / 3. "red" is in all three, "cup" in one.
    titles = ("red mug", "red red cup", "red " + "x1 " * 49)
    index = LuceneIndex.of(catalogue_of(*titles))

    def score(tf: int, length: int, df: int) -> float:
        return math.log(1 + (3 - df + 0.5) / (df + 0.5)) * (1 - 1 / (1 + tf / (0.9 * (0.6 + 0.4 * length / (55 / 3)))))

    assert score(2, 3, 3) > score(1, 2, 3) > score(1, 50, 3)
    assert index.search(["red"]) == [1, 0, 2]
    assert index.search(["mugs"]) == [0] and index.search(["absent", "the"]) == []
    assert score(1, 3, 1) + score(2, 3, 3) > score(1, 2, 3)
    assert index.search(["cup", "red"]) == [1, 0, 2]


def test_a_word_twice_in_a_query_counts_twice():
    index = LuceneIndex.of(catalogue_of("mug", "cup", "cup"))  # "mug" is rarer, so it leads until "cup" is asked for three times
    assert index.search(["mug", "cup"])[0] == 0
    assert index.search(["mug", "cup", "cup", "cup"])[0] == 1


def test_equal_scores_are_ordered_by_asin_and_fifty_are_kept():
    loaded = products.load([product(f"B{i:02d}", "mug") for i in reversed(range(70))], {}, seed=0)
    found = LuceneIndex.of(loaded).search(["mug"])
    assert [loaded[i].asin for i in found] == [f"B{i:02d}" for i in range(50)]


def test_only_the_first_bullet_and_the_options_are_searched():
    loaded = products.load(ITEMS, ATTRIBUTES, seed=0)
    index = LuceneIndex.of(loaded)
    assert index.search(["tea"]) == [] and index.search(["text"]) == [3] and index.search(["tiny"]) == [0] and index.search(["sky"]) == [1]


def test_special_searches_list_a_category_a_query_or_a_random_draw():
    assert "Page 1 (Total results: 1)" in play("search[<c> beauty]")["observations"][1]
    assert "Page 1 (Total results: 3)" in play("search[<q> mugs]")["observations"][1]
    assert "Page 1 (Total results: 0)" in play("search[<c>]")["observations"][1]
    loaded = products.load([product(f"B{i:03d}", "mug") for i in range(80)], {}, seed=0)
    drawn = WebShop(loaded, LuceneIndex.of(loaded), mode="text", rng=random.Random(5))
    pages = replay.episode(drawn, GOAL, ["search[<r>]", "click[next >]"], name="0")["observations"]
    draws = random.Random(5)
    first, second = (draws.sample(loaded, 50) for _ in range(2))  # drawn anew on every page turn
    assert [p.asin for p in first[:10]] == [word for word in pages[1].split(" [SEP] ") if word.startswith("B0")]
    assert [p.asin for p in second[10:20]] == [word for word in pages[2].split(" [SEP] ") if word.startswith("B0")]


def test_an_index_can_be_saved_and_loaded(tmp_path: Path):
    index = LuceneIndex.of(products.load(ITEMS, ATTRIBUTES, seed=0))
    index.save(tmp_path / "index.npz")
    again = LuceneIndex.load(tmp_path / "index.npz")
    assert again.asins == index.asins and all(again.search([word]) == index.search([word]) for word in index.numbers)
    (tmp_path / "no.npz").write_text("text")
    with pytest.raises(UsageError, match="no search index"):
        LuceneIndex.load(tmp_path / "no.npz")
    with pytest.raises(UsageError, match="No index"):
        LuceneIndex.load(tmp_path / "absent.npz")


# --- generated catalogues and built folders ----------------------------------------------------------------------------------------


def test_a_generated_catalogue_has_the_real_ones_statistics():
    pairs = list(lifelike.generate(1500, 0))
    items, known = [item for item, _ in pairs], {item["asin"]: record for item, record in pairs}
    loaded = products.load(items, known, seed=0)
    assert len(loaded) == len(known) == 1500 and all(len(p.asin) == 10 for p in loaded)

    def mean(values: Any) -> float:
        return statistics.mean(map(float, values))

    assert mean(len(p.title.split()) for p in loaded) == pytest.approx(18, abs=2)
    assert mean(len(p.bullets) for p in loaded) == pytest.approx(4.6, abs=0.3)
    assert mean(len(p.description) for p in loaded) == pytest.approx(510, abs=50)
    assert mean(not p.description for p in loaded) == pytest.approx(0.3, abs=0.05)
    assert mean(len(p.attributes) for p in loaded) == pytest.approx(2.8, abs=0.2)
    assert mean(bool(p.options) for p in loaded) == pytest.approx(0.42, abs=0.05)
    assert mean(len(values) for p in loaded for values in p.options.values()) == pytest.approx(5.7, abs=0.5)
    assert mean(" to " in p.price_text for p in loaded) == pytest.approx(0.09, abs=0.03)
    assert statistics.quantiles([p.price for p in loaded], n=4) == pytest.approx([15, 29, 100], rel=0.15)
    assert 200 <= len({p.query for p in loaded}) <= 250
    assert list(lifelike.generate(1500, 0)) == pairs != list(lifelike.generate(1500, 1))
    with pytest.raises(ConfigError, match="100 to 1,000,000"):
        next(lifelike.generate(99, 0))


def test_a_built_folder_opens_as_the_shop_its_files_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    code, out, _ = run(monkeypatch, capsys, "", "build", "webshop", "--size", 300, "--seed", 4, "--out", tmp_path)
    assert code == 0 and out.startswith("300 products")
    paths = {"items": tmp_path / "items_shuffle_300.json", "attributes": tmp_path / "items_ins_v2_300.json"}
    shared = {"goals": "synthetic", "seed": 5, "tagger": "rule"}
    read = replay.load(*paths.values(), kind="synthetic", seed=5)
    opened = replay.load_built(tmp_path, kind="synthetic", seed=5)
    assert list(opened.products) == list(read.products) and opened.goals == read.goals
    assert opened.rng.getstate() == read.rng.getstate()
    lines = [json.dumps({"goal": 3, "actions": [f"search[{read.goals[3]['query']}]", f"click[{read.goals[3]['asin']}]", "click[buy now]"]})]
    scoring = replay.scored(name="rule")
    episodes = [list(replay.replay(one, lines, mode="text", scoring=scoring)) for one in (read, opened)]
    assert episodes[0] == episodes[1]
    family = webshop.make(built=tmp_path, **{**shared, "goals": "graded"})
    assert family.tasks("train", 5) == webshop.make(**paths, **{**shared, "goals": "graded"}).tasks("train", 5)
    assert family.products[-1] == family.products[299] and len(family.products[1:3]) == 2
    (tmp_path / "products.jsonl").write_bytes(b"")
    with pytest.raises(UsageError, match="half-written"):
        replay.load_built(tmp_path, kind=None, seed=0)


def test_build_wants_files_or_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    code, _, err = run(monkeypatch, capsys, "", "build", "webshop", "--out", tmp_path)
    assert code == 2 and "--size" in err
    with pytest.raises(UsageError, match="No index"):
        webshop.make(built=tmp_path)


# --- reading instructions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i'm looking for a dairy-free tea that comes in a tin", (("dairy-free", "tea", "tin"), (), None)),
        ("i need a blue mug, and price lower than 40.00 dollars", (("blue", "mug"), (), 40.0)),
        ("find me a steel mug under $25", (("steel", "mug"), (), 25.0)),
        (
            "Find me long sleeve shirts with snaps with color: red, white, and fit type: big & tall, and price lower than 30.00 dollars",
            (("long", "sleeve", "shirts", "snaps"), (("color", "red, white"), ("fit type", "big & tall")), 30.0),
        ),
    ],
)
def test_a_sentence_is_read_by_its_content_words_options_and_bound(text: str, expected: Any):
    wanted = wording.read(text)
    assert wanted and (wanted.words, wanted.options, wanted.bound) == expected


@pytest.mark.parametrize(
    "text",
    [
        "i need a tea without sugar", "a mug in red or blue", "i dont want a steel mug", "a disk of at least 5 gigabytes", "buy it", "",
        "a cheap steel mug for my budget", "a steel mug, price above 5 dollars", "mug mug", " ".join(f"w{i}" for i in range(60)),
    ],
)  # fmt: skip
def test_what_words_alone_cannot_settle_is_not_read(text: str):
    assert wording.read(text) is None
    assert not ShopDomain(wide=True).well_formed(text)


ITEM = "item $20 soft steel travel mug\ncolor: [red][blue]\nchosen [red]\n[description][features][reviews][buy now][< prev][back to search]"


def bought(instruction: str, *clicked: str) -> Any:
    history = [Transition(Observation(ITEM), f"click[{name}]", Observation(ITEM), 0.0, False) for name in clicked]
    return ShopDomain(wide=True).check(
        instruction, history, Transition(Observation(ITEM), "click[buy now]", Observation("purchase done"), 1.0, True)
    )


def test_the_guard_asks_evidence_for_every_word_a_person_used():
    assert bought("i would like red mugs made of steel, and price lower than 30.00 dollars", "red").passed
    assert bought("i would like red mugs made of steel").reasons == ("no evidence for 'red'",)  # marked, but nobody clicked it
    assert bought("find me a travel mug with color: red", "red").passed
    assert bought("find me a travel mug with color: red").reasons == ("nobody clicked red",)
    assert bought("find me a travel mug with color: blue", "blue").reasons == ("color is not blue",)
    assert bought("a steel mug under 10 dollars").reasons == ("price 20.0 is above 10.0",)
    assert bought("a steel mug or a cup").reasons == ("the instruction cannot be read",)


def test_an_original_task_is_feasible_when_a_remembered_item_could_meet_it():
    seen = [Memory(1, "t", 0, "webshop", "i", "real", "results 1", "click[b1]", ITEM, 0.0, False, False)]
    wide = ShopDomain(wide=True)
    assert wide.feasible("a blue steel mug", seen) is True
    assert wide.feasible("a green steel mug", seen) is None
    assert wide.feasible("a mug without steel", seen) is False


# --- people's demonstrations ------------------------------------------------------------------------------------------------------


def demonstration(instruction: str, *actions: str) -> str:
    first = f"Amazon Shopping Game\nInstruction:\n{instruction}\n[button] Search [button_]\n"
    return json.dumps({"states": [first, *["a page"] * (len(actions) - 1)], "actions": actions, "action_idxs": [-1], "images": [0]})


def test_a_persons_episode_is_repeated_in_the_shop_and_scored(tmp_path: Path):
    items = [product(f"B{i}", "Mug") for i in range(1600)]
    (tmp_path / "i.json").write_text(json.dumps(items), encoding="utf-8")
    (tmp_path / "a.json").write_text("{}", encoding="utf-8")
    said = {
        item["asin"]: [{"instruction": f"Mug number {i}.", "instruction_attributes": ["mug"], "instruction_options": []}]
        for i, item in enumerate(items)
    }
    (tmp_path / "h.json").write_text(json.dumps(said), encoding="utf-8")
    made = {"items": tmp_path / "i.json", "attributes": tmp_path / "a.json", "human": tmp_path / "h.json"}
    family = webshop.make(**made, goals="human", tagger="rule")
    lines = [demonstration("Mug number 7, and price lower than 50.00 dollars", "search[mug]", "click[b0]", "click[Buy Now]")]
    (tmp_path / "demos.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (read,) = webshop_human.read(tmp_path / "demos.jsonl")
    assert read.instruction == "Mug number 7, and price lower than 50.00 dollars" and len(read.states) == 3
    episode = family.demonstrated(read.instruction, read.actions, name=read.id)
    assert episode and episode.success and episode.behaviour == "human" and len(episode.turns) == 3
    assert episode.task.goal and episode.task.goal["asin"] == "B7"
    assert family.demonstrated("a mug nobody asked for", read.actions, name="x") is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 of"),
        ("[]", "no object"),
        ('{"actions": ["x"]}', "Key 'states' in line 1"),
        ('{"states": ["WebShop\\nInstruction: \\na mug\\n[button] Search [button_]"], "actions": ["a", "b"]}', "2 actions on 1 states"),
        ('{"states": ["x"], "actions": ["a"]}', "the page that tells the instruction"),
    ],
)
def test_a_broken_demonstration_is_named_with_line_and_key(tmp_path: Path, line: str, said: str):
    (tmp_path / "demos.jsonl").write_text(line, encoding="utf-8")
    with pytest.raises(UsageError) as error:
        list(webshop_human.read(tmp_path / "demos.jsonl"))
    assert said in str(error.value) and "demos.jsonl" in str(error.value)
    with pytest.raises(UsageError, match=webshop_human.FILE):
        list(webshop_human.read(tmp_path / "absent.jsonl"))


# --- the tagger -------------------------------------------------------------------------------------------------------------------


def test_the_log_says_who_finds_nouns(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dreamgym.envs.webshop.tagger._installed", lambda: None)
    with caplog.at_level("INFO"):
        assert tagger("auto") is nouns
    assert "rule tagger, because no spaCy model is installed" in caplog.text
    with pytest.raises(MissingExtra, match="pip install spacy"):
        tagger("spacy")
    assert nouns("Soft Mug for the Garden, mug of 3") == ["mug", "garden", "mug"]


# --- files that cannot be read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"asin": None}, "Key 'asin' in item 1 of"),
        ({"name": 3}, "Key 'name' in item 1 (B09) of"),
        ({"pricing": "12 dollars"}, "Key 'pricing' in item 1 (B09) of"),
        ({"pricing": ["$1"]}, "Key 'pricing' in item 1 (B09) of"),
        ({"pricing": "$1.2.3"}, 'got "$1.2.3"'),
        ({"small_description": [1]}, "Key 'small_description'"),
        ({"customization_options": {"Size": [{"price": 1}]}}, "Key 'customization_options.Size'"),
        ({"customization_options": [1]}, "Key 'customization_options'"),
    ],
)
def test_a_product_that_cannot_be_read_is_named_with_file_item_and_key(tmp_path: Path, broken: dict[str, Any], said: str):
    path = tmp_path / "items.json"
    path.write_text(json.dumps([ITEMS[1], product("B09", "Mug") | broken]), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        products.load(files.items(path), {}, seed=0, file=path)
    assert said in str(error.value) and "items.json" in str(error.value)


def test_a_missing_key_is_named(tmp_path: Path):
    path = tmp_path / "items.json"
    path.write_text(json.dumps([{"asin": "B1"}]), encoding="utf-8")
    with pytest.raises(UsageError, match=r"Key 'name' is missing in item 0 \(B1\) of '.*items.json'. Expected a text."):
        products.load(files.items(path), {}, seed=0, file=path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "not a JSON list"),
        ("", "not a JSON list"),
        ('[{"asin": "B1"} {"asin": "B2"}]', "got '{' at item 1"),
        ('[{"asin": "B1"}, {"asin": ', "at item 1"),
        ('[{"asin": "B1"}', "got 'the end' at item 1"),
        ("[1]", "Item 0"),
        ("[]", "No product"),
    ],
)
def test_a_broken_list_is_named_with_the_item_where_it_breaks(tmp_path: Path, text: str, said: str):
    path = tmp_path / "items.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as error:
        products.load(
            ({"name": "x", "category": "", "query": "", "product_category": ""} | item for item in files.items(path)), {}, seed=0, file=path
        )
    assert said in str(error.value) and "items.json" in str(error.value)


def test_products_are_read_one_at_a_time_whatever_the_size_of_a_chunk(folder: Path, monkeypatch: pytest.MonkeyPatch):
    whole = list(files.items(folder / "items.json"))
    (folder / "spaced.json").write_text(json.dumps(ITEMS, indent=3).replace("Blue Mug", "Blue M\\u0075g"), encoding="utf-8")
    for size in (1, 7, 64, 4096):
        monkeypatch.setattr(files, "CHUNK", size)
        assert list(files.items(folder / "spaced.json")) == whole


def test_an_error_far_from_the_end_is_told_without_reading_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "CHUNK", 64)
    monkeypatch.setattr(files, "SLACK", 256)
    path = tmp_path / "items.json"
    path.write_text('[{"asin": "B1"}, {"asin" "B2"}' + ", {}" * 10_000, encoding="utf-8")
    with pytest.raises(UsageError, match="at item 1"):
        list(files.items(path))


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ("[]", "holds a list"),
        ("{", "not JSON"),
        ('{"B01": 3}', "Item 'B01'"),
        ('{"B01": {"attributes": "soft"}}', "Key 'attributes' in item B01"),
        ("{}", "No item 'B01'"),
        ('{"B01": {"instruction": 3}, "B02": {}, "B03": {}, "B04": {}}', "Key 'instruction' in item B01"),
        ('{"B01": {"instruction": "x", "instruction_attributes": []}, "B02": {}, "B03": {}, "B04": {}}', "Key 'instruction_attributes'"),
    ],
)
def test_a_broken_attributes_file_is_named_with_item_and_key(folder: Path, attributes: str, said: str):
    (folder / "attributes.json").write_text(attributes, encoding="utf-8")
    with pytest.raises(UsageError) as error:
        load(folder)
    assert said in str(error.value) and "attributes.json" in str(error.value)


def test_a_broken_human_instruction_is_named(folder: Path):
    (folder / "human.json").write_text(json.dumps({"B02": [{"instruction": "x", "instruction_attributes": ["y"]}]}), encoding="utf-8")
    with pytest.raises(UsageError, match=r"Key 'instruction_options' is missing in item 0 \(B02\) of '.*human.json'"):
        load(folder, "human")
    with pytest.raises(UsageError, match="--human"):
        replay.load(folder / "items.json", folder / "attributes.json", kind="human", seed=0)


# --- the commands -----------------------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, *arguments: Any) -> tuple[Any, str, str]:
    monkeypatch.setattr("sys.argv", ["dreamgym", "env", *map(str, arguments)])
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    with pytest.raises(SystemExit) as stop:
        cli.main()
    said = capsys.readouterr()
    return stop.value.code, said.out, said.err


def test_replay_prints_what_the_original_would_have_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (folder / "in.jsonl").write_text('{"goal": 1, "actions": ["search[mug]", "jump"]}\n\n{"goal": 0, "actions": []}\n', encoding="utf-8")
    shared = ("webshop", "--items", folder / "items.json", "--attributes", folder / "attributes.json", "--human", folder / "human.json")
    code, out, _ = run(
        monkeypatch, capsys, "", "replay", *shared, "--goals", "human", "--seed", 3, "--mode", "text_rich", "--actions", folder / "in.jsonl"
    )
    first, second = map(json.loads, out.splitlines())
    assert code == 0 and set(first) == {"observations", "rewards", "dones", "available"}
    assert [len(column) for column in first.values()] == [3, 3, 3, 3] and [len(column) for column in second.values()] == [1, 1, 1, 1]
    assert first["available"][0] == {"has_search_bar": True, "clickables": ["search"]}
    assert first["observations"][1] == first["observations"][2] and first["rewards"] == [0.0] * 3 and first["dones"] == [False] * 3
    instruction = load(folder, "human", 3).goals[0]["instruction_text"]
    assert second["observations"] == [f"WebShop\nInstruction: \n{instruction}\n[button] Search [button_]\n"]


def test_reward_prints_the_score_and_its_parts_and_logs_the_tagger(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    shared = ("webshop", "--items", folder / "items.json", "--attributes", folder / "attributes.json", "--tagger", "rule")
    line = json.dumps({"goal": GOAL, "asin": "B01", "options": {"color": "red"}, "price": 41.0})
    code, out, _ = run(monkeypatch, capsys, line, "reward", *shared)
    scored = json.loads(out)
    assert code == 0 and "rule tagger" in caplog.text
    assert (
        scored["reward"] == pytest.approx(2 / 3)
        and scored["info"]["r_price"] is False
        and scored["info"]["w_option"] == pytest.approx(1 / 3)
    )


@pytest.mark.parametrize(
    ("command", "line", "said"),
    [
        ("replay", '{"goal": 9, "actions": []}', "Key 'goal' in item line 1"),
        ("replay", '{"goal": 0, "actions": "search[x]"}', "Key 'actions'"),
        ("replay", "nonsense", "Line 1 of standard input is not JSON"),
        ("replay", "3", "is no object"),
        ("reward", '{"goal": 3, "asin": "B01"}', "Key 'goal'"),
        ("reward", json.dumps({"goal": GOAL, "asin": "B99"}), "Key 'asin'"),
        ("reward", json.dumps({"goal": GOAL | {"attributes": []}, "asin": "B01"}), "Key 'attributes'"),
        ("reward", json.dumps({"goal": GOAL | {"price_upper": 0}, "asin": "B01"}), "Key 'price_upper'"),
        ("reward", json.dumps({"goal": GOAL, "asin": "B01", "options": {"a": 1}}), "Key 'options'"),
        ("reward", json.dumps({"goal": GOAL, "asin": "B01", "price": "1"}), "Key 'price'"),
    ],
)
def test_a_line_that_cannot_be_played_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, line: str, said: str
):
    shared = ("webshop", "--items", folder / "items.json", "--attributes", folder / "attributes.json")
    code, _, err = run(monkeypatch, capsys, line, command, *shared)
    assert code == 2 and said in err


def test_an_unknown_environment_or_choice_names_the_known_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    files_ = ("--items", folder / "items.json", "--attributes", folder / "attributes.json")
    code, _, err = run(monkeypatch, capsys, "", "replay", "webshp", *files_)
    assert code == 2 and "Did you mean 'webshop'" in err
    code, _, err = run(monkeypatch, capsys, "", "replay", "webshop", *files_, "--mode", "html")
    assert code == 2 and "--mode 'html' is none of text, text_rich" in err
