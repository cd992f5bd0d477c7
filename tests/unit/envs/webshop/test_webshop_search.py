"""The original's search engine by hand-worked values; generated catalogues and built folders."""

from __future__ import annotations

import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
from shop_catalogue import ATTRIBUTES, GOAL, ITEMS, play, product, run

from dreamgym.envs import webshop
from dreamgym.envs.webshop import lifelike, products, replay
from dreamgym.envs.webshop.analysis import analyse, words
from dreamgym.envs.webshop.lucene import LuceneIndex, quantised
from dreamgym.envs.webshop.porter import stem
from dreamgym.envs.webshop.shop import WebShop
from dreamgym.errors import ConfigError, UsageError

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
    whole = (tmp_path / "index.npz").read_bytes()
    for size in (0, 20, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.npz").write_bytes(whole[:size])
        with pytest.raises(UsageError, match=r"cut\.npz' is no search index.*Build it again"):
            LuceneIndex.load(tmp_path / "cut.npz")


# --- generated catalogues and built folders ---------------------------------------------------------------------------------------


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
    code, out, _ = run(monkeypatch, capsys, "", "build", "--size", 300, "--seed", 4, "--out", tmp_path)
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
    suite = webshop.make(built=tmp_path, **{**shared, "goals": "graded"})
    assert suite.tasks("train", 5) == webshop.make(**paths, **{**shared, "goals": "graded"}).tasks("train", 5)
    assert suite.products[-1] == suite.products[299] and len(suite.products[1:3]) == 2
    whole = (tmp_path / "places.npz").read_bytes()
    for size in (0, 20, len(whole) // 2, len(whole) - 1):
        (tmp_path / "places.npz").write_bytes(whole[:size])
        with pytest.raises(UsageError, match="no built catalogue.*Build it with"):
            replay.load_built(tmp_path, kind=None, seed=0)
    (tmp_path / "places.npz").write_bytes(whole)
    (tmp_path / "products.jsonl").write_bytes(b"")
    with pytest.raises(UsageError, match="half-written"):
        replay.load_built(tmp_path, kind=None, seed=0)


def test_build_wants_files_or_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    code, _, err = run(monkeypatch, capsys, "", "build", "--out", tmp_path)
    assert code == 2 and "--size" in err
    with pytest.raises(UsageError, match="No index"):
        webshop.make(built=tmp_path)
