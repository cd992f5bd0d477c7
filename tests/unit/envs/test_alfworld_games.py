"""Game files: what is read, what is written, and what is said about broken ones. Needs no engine."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path

import pytest

from dreamgym.envs.alfworld import games
from dreamgym.envs.alfworld.games import Game
from dreamgym.errors import UsageError

NAME = "train/pick_and_place_simple-Mug-None-Shelf-12/trial_1"
GRAMMAR = 'grammar :: """\n{"task": [\n    {\n        "rhs": "Your task is to: put a mug in shelf."\n    }\n]}\n""";'
WHOLE = {"pddl_domain": "(define (domain alfred))", "grammar": GRAMMAR, "pddl_problem": "(define (problem p))", "walkthrough": ["look"]}


def game(name: str = NAME, **changed: object) -> Game:
    return games.parse(json.dumps(WHOLE | changed), name, where="here")


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in WHOLE.items() if name != key}


def test_a_game_tells_its_kind_scene_goal_and_walkthrough():
    assert game() == Game(NAME, "pick_and_place_simple", "put a mug in shelf", 12, json.dumps(WHOLE), ("look",))


def test_games_are_written_in_the_official_layout_and_read_back(tmp_path: Path):
    lamp = game("valid_unseen/look_at_obj_in_light-Mug-None-DeskLamp-301/trial_2")
    assert games.write([game(), lamp], tmp_path) == 2
    assert list(games.read(tmp_path, "train")) == [game()]
    assert list(games.read(tmp_path, "test")) == [lamp]
    assert list(games.read(tmp_path, "test", limit=0)) == []
    task = json.loads((tmp_path / "json_2.1.1" / lamp.id / "traj_data.json").read_text())
    assert task["task_type"] == "look_at_obj_in_light" and task["pddl_params"]["toggle_target"] == "DeskLamp"
    assert not list(tmp_path.rglob(".*"))  # nothing half-written is left


def test_official_games_of_other_kinds_are_left_out(tmp_path: Path):
    folder = tmp_path / "json_2.1.1" / "train" / "pick_and_place_with_movable_recep-Mug-Bowl-Shelf-12" / "trial_1"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps(WHOLE))
    assert list(games.read(tmp_path, "train")) == []


def pack(folder: Path, *lines: str) -> Path:
    shared = GRAMMAR.replace("put a mug in shelf", games.BLANK)
    (folder / "logic.json").write_text(json.dumps({"pddl_domain": WHOLE["pddl_domain"], "grammar": shared}))
    with lzma.open(folder / "train.jsonl.xz", "wt") as file:
        file.writelines(f"{line}\n" for line in lines)
    return folder


def test_a_pack_holds_the_rules_once_and_gives_whole_games(tmp_path: Path):
    (read,) = games.read(pack(tmp_path, json.dumps([NAME, "put a mug in shelf", WHOLE["pddl_problem"], ["look"]])), "train")
    assert (read.id, read.kind, read.goal, read.scene, read.walkthrough) == (*_heads(game()), ("look",))
    assert {key: json.loads(read.text)[key] for key in WHOLE} == WHOLE


def _heads(one: Game) -> tuple[object, ...]:
    return one.id, one.kind, one.goal, one.scene


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{not json", "is not JSON"),
        ("[1, 2]", "holds a list. Expected an object"),
        *[(json.dumps(without(key)), f"Key '{key}' is missing") for key in games.TEXTS],
        (json.dumps(WHOLE | {"pddl_problem": 7}), "Key 'pddl_problem' in .* expected a text, got 7"),
        (json.dumps(WHOLE | {"walkthrough": "look"}), "Key 'walkthrough' in .* expected a list of texts"),
        (json.dumps(WHOLE | {"walkthrough": [1]}), "Key 'walkthrough' in .* expected a list of texts"),
        (json.dumps(WHOLE | {"grammar": "no goal"}), "Key 'grammar' of .* has no line 'Your task is to"),
    ],
)
def test_a_broken_game_is_named_with_its_file_and_key(tmp_path: Path, content: str, said: str):
    folder = tmp_path / NAME
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(content)
    with pytest.raises(UsageError, match=said) as caught:
        list(games.read(tmp_path, "train"))
    assert str(folder / "game.tw-pddl") in str(caught.value)


def test_a_game_that_is_not_text_or_not_there_is_named(tmp_path: Path):
    (tmp_path / "game.tw-pddl").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=f"'{re.escape(str(tmp_path))}.*not text in UTF-8"):
        games.read_file(tmp_path)
    with pytest.raises(UsageError, match="Cannot read"):
        games.read_file(tmp_path / "nowhere.tw-pddl")
    with pytest.raises(UsageError, match="names no kind of task"):
        game("train/wash_the_dog-Dog-None-Bath-4/trial_1")


def test_a_limit_samples_games_of_all_kinds_and_the_whole_split_is_as_listed(tmp_path: Path):
    names = sorted(f"train/{kind}-Mug-None-Shelf-12/trial_{i}" for kind in games.KINDS for i in range(20))
    games.write(map(game, names), tmp_path / "folders")
    (tmp_path / "pack").mkdir()
    pack(tmp_path / "pack", *[json.dumps([name, "put a mug in shelf", WHOLE["pddl_problem"], ["look"]]) for name in names])
    for folder in (tmp_path / "folders", tmp_path / "pack"):
        few, more, whole = ([one.id for one in games.read(folder, "train", limit=limit)] for limit in (40, 60, 120))
        assert len(few) == 40 and set(few) < set(more) and few == sorted(few)
        assert {name.split("/")[1].split("-")[0] for name in few} == set(games.KINDS)
        assert few == [one.id for one in games.read(folder, "train", limit=40)]
        assert whole == names == [one.id for one in games.read(folder, "train")]


@pytest.mark.parametrize("line", ["{", "{}", "[1, 2, 3, 4]", '["a", "b", "c"]', json.dumps([NAME, "goal", "problem", "walk"])])
def test_a_broken_line_of_a_pack_is_named_by_its_number(tmp_path: Path, line: str):
    good = json.dumps([NAME, "put a mug in shelf", WHOLE["pddl_problem"], []])
    with pytest.raises(UsageError, match="train.jsonl.xz, line 2"):
        list(games.read(pack(tmp_path, good, line), "train"))


def test_a_pack_that_is_cut_short_or_lacks_its_rules_is_named(tmp_path: Path):
    pack(tmp_path, *[json.dumps([NAME, "goal", "problem", []])] * 50)
    whole = (tmp_path / "train.jsonl.xz").read_bytes()
    (tmp_path / "train.jsonl.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="Cannot unpack .*train.jsonl.xz"):
        list(games.read(tmp_path, "train"))
    (tmp_path / "logic.json").write_text('{"grammar": "x"}')
    with pytest.raises(UsageError, match="Key 'pddl_domain' is missing in .*logic.json"):
        list(games.read(tmp_path, "train"))


def test_a_folder_without_games_says_where_they_come_from(tmp_path: Path):
    with pytest.raises(UsageError, match="alfworld-download"):
        list(games.read(tmp_path, "train"))
    with pytest.raises(UsageError, match="Did you mean 'train'"):
        list(games.read(tmp_path, "trian"))  # type: ignore[arg-type]
