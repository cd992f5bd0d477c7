"""Files that cannot be read, and the commands that replay episodes and score purchases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shop_catalogue import GOAL, ITEMS, load, product, run, written

from dreamgym.envs.webshop import files, products, replay
from dreamgym.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


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
        ("[" * 100_000, "nested too deeply at item 0"),
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
        ("[" * 100_000, "nested too deeply"),
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


def test_replay_prints_what_the_original_would_have_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (folder / "in.jsonl").write_text('{"goal": 1, "actions": ["search[mug]", "jump"]}\n\n{"goal": 0, "actions": []}\n', encoding="utf-8")
    shared = ("--items", folder / "items.json", "--attributes", folder / "attributes.json", "--human", folder / "human.json")
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
    shared = ("--items", folder / "items.json", "--attributes", folder / "attributes.json", "--tagger", "rule")
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
        ("replay", "[" * 100_000, "Line 1 of standard input is not JSON"),
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
    shared = ("--items", folder / "items.json", "--attributes", folder / "attributes.json")
    code, _, err = run(monkeypatch, capsys, line, command, *shared)
    assert code == 2 and said in err


def test_a_file_of_actions_that_is_no_text_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (folder / "actions.jsonl").write_bytes(b"\xff\xfe{}\n")
    files_ = ("--items", folder / "items.json", "--attributes", folder / "attributes.json")
    code, _, err = run(monkeypatch, capsys, "", "replay", *files_, "--actions", folder / "actions.jsonl")
    assert code == 2 and "actions.jsonl is not UTF-8 text" in err


def test_an_unknown_choice_names_the_known_ones(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    files_ = ("--items", folder / "items.json", "--attributes", folder / "attributes.json")
    code, _, err = run(monkeypatch, capsys, "", "replay", *files_, "--mode", "html")
    assert code == 2 and "--mode 'html' is none of text, text_rich" in err
