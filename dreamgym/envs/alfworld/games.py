"""Game files: the official ones from `$ALFWORLD_DATA` or packed, and generated ones, which are written in the official layout.

A game is a folder `<split>/<kind>-<object>-<movable>-<receptacle>-<scene>/<trial>` that holds `game.tw-pddl`, a JSON object with the rules
(`pddl_domain`), the texts (`grammar`, the goal's words inside), the house (`pddl_problem`) and a planner's `walkthrough`. The folder's
name says the rest. A pack is one `<split>.jsonl.xz` with a line `[folder, goal, pddl_problem, walkthrough]` per game, and a `logic.json`
with the rules and texts that all of them share.
"""

from __future__ import annotations

import json
import lzma
import os
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.errors import UsageError, nearest

KINDS = (
    "pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep", "pick_two_obj_and_place",
)  # fmt: skip
"""The six kinds of task, by their official names."""
FOLDERS: Mapping[str, str] = {"train": "train", "dev": "valid_seen", "test": "valid_unseen"}
"""Our words for the splits, and the official ones. The houses of `test` are in no other split."""
RELEASE, FILE = "json_2.1.1", "game.tw-pddl"
GOAL = re.compile(r"Your task is to: (.*?)\.\\?\"?\s*$", re.MULTILINE)
BLANK = "UNKNOWN GOAL"
"""Where the goal's words go in a grammar that several games share."""
TEXTS = ("pddl_domain", "grammar", "pddl_problem")


@dataclass(frozen=True, slots=True)
class Game:
    """One task in one house. `id` is its official folder, such as `train/pick_and_place_simple-Mug-None-Shelf-12/trial_T2019`."""

    id: str
    kind: str  # one of KINDS
    goal: str  # the words between "Your task is to: " and the full stop
    scene: int | None  # the floor plan's number; None where the folder does not tell
    text: str  # the JSON of game.tw-pddl
    walkthrough: tuple[str, ...]  # commands that win, by a planner


def read_file(path: Path, *, name: str = "") -> Game:
    """The game of a `game.tw-pddl`; UsageError names the file and the key that is missing or wrong. `name` is its id, else its folders."""
    path = path / FILE if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot read '{path}': {error.strerror}. Expected an ALFWorld game, {FILE}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"'{path}' is not text in UTF-8: {error}. Expected an ALFWorld game, {FILE}.") from error
    return parse(text, name or "/".join(path.parts[-4:-1]), where=str(path))


def parse(text: str, name: str, *, where: str) -> Game:
    """The game that the JSON of a `game.tw-pddl` describes; `name` is its folder's, which tells kind and scene."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"'{where}' is not JSON: {error}. Is the file cut short? Copy it again.") from error
    if not isinstance(data, dict):
        raise UsageError(f"'{where}' holds a {type(data).__name__}. Expected an object with the keys {', '.join(TEXTS)}.")
    for key in TEXTS:
        if not isinstance(_need(data, key, where), str):
            raise _wrong(key, "a text", data[key], where)
    goal = GOAL.search(data["grammar"])
    if goal is None:
        raise UsageError(f"Key 'grammar' of '{where}' has no line 'Your task is to: ….', so nobody can tell the task. Copy the file again.")
    return Game(name, _kind(name, where), goal[1], _scene(name), text, _walkthrough(data.get("walkthrough") or [], where))


def read(folder: Path, split: str, *, limit: int | None = None) -> Iterator[Game]:
    """The games of a split in the order of their ids: from a pack or from folders, whichever `folder` holds.

    `folder` is what `$ALFWORLD_DATA` names, or one that holds `<split>.jsonl.xz` and `logic.json`. A `limit` gives a fixed sample of the
    whole split, which a larger limit extends; only its games are parsed.
    """
    if split not in FOLDERS:
        raise UsageError(f"No split '{split}' of games.{nearest(split, FOLDERS)} Known: {', '.join(FOLDERS)}.")
    pack, tree = folder / f"{FOLDERS[split]}.jsonl.xz", folder / RELEASE / FOLDERS[split]
    tree = tree if tree.is_dir() else folder / FOLDERS[split]
    if pack.is_file():
        yield from _packed(pack, folder / "logic.json", limit)
    elif tree.is_dir():
        places = sorted(path for path in tree.glob(f"*/*/{FILE}") if _kind_of(path.parts[-3]) in KINDS)
        chosen = (places[place] for place in _sample(len(places), limit))
        yield from (read_file(path, name="/".join(path.parts[-4:-1])) for path in chosen)
    else:
        raise UsageError(
            f"No ALFWorld games of split '{split}': neither '{tree}' nor '{pack}' exists. Set ALFWORLD_DATA to a folder that "
            "alfworld-download filled, or play generated games."
        )


def write(games: Iterable[Game], folder: Path) -> int:
    """Write games in the official layout under `folder`, each file whole or not at all, so that ALFWorld's own loaders read them too."""
    count = 0
    for game in games:
        place = folder / RELEASE / game.id
        kind, target, _, receptacle, scene = place.parent.name.split("-")
        words = {"object_target": target, "parent_target": receptacle, "toggle_target": "", "mrecep_target": "", "object_sliced": False}
        if kind == "look_at_obj_in_light":
            words |= {"parent_target": "", "toggle_target": receptacle}
        task = {"task_type": kind, "pddl_params": words, "scene": {"scene_num": int(scene)}, "turk_annotations": {"anns": []}}
        place.mkdir(parents=True, exist_ok=True)
        _replace(place / "traj_data.json", json.dumps(task))
        _replace(place / FILE, game.text)
        count += 1
    return count


def with_goal(grammar: str, goal: str) -> str:
    """A shared grammar with the words of one game's goal in it."""
    return grammar.replace(BLANK, goal)


def _packed(pack: Path, logic: Path, limit: int | None) -> Iterator[Game]:
    try:
        shared = json.loads(logic.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read '{logic}': {error.strerror}. It holds the rules of the games in '{pack.name}'.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"'{logic}' is not JSON in UTF-8: {error}. It holds the rules of the games in '{pack.name}'.") from error
    for key in ("pddl_domain", "grammar"):
        if not isinstance(_need(shared, key, str(logic)), str):
            raise _wrong(key, "a text", shared[key], str(logic))
    try:
        with lzma.open(pack, "rt", encoding="utf-8") as lines:
            chosen = frozenset(_sample(sum(1 for _ in lines), limit))
        with lzma.open(pack, "rt", encoding="utf-8") as lines:  # again: the training games are 190 MB of text
            for place, line in enumerate(lines):
                if place in chosen:
                    yield _unpacked(line, shared, f"{pack}, line {place + 1}")
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot unpack '{pack}': {error}. Is the file cut short? Copy it again.") from error


def _unpacked(line: str, shared: Mapping[str, str], where: str) -> Game:
    expected = "Expected [folder, goal, pddl_problem, walkthrough]: three texts and a list of texts."
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"'{where}' is not JSON: {error}. {expected}") from error
    if not isinstance(entry, list) or len(entry) != 4 or not all(isinstance(text, str) for text in entry[:3]):
        raise UsageError(f"'{where}' is no game. {expected}")
    name, goal, problem, walkthrough = entry
    steps = _walkthrough(walkthrough, where)
    whole = {"pddl_domain": shared["pddl_domain"], "grammar": with_goal(shared["grammar"], goal), "pddl_problem": problem}
    return Game(name, _kind(name, where), goal, _scene(name), json.dumps(whole | {"solvable": True, "walkthrough": steps}), steps)


def _sample(count: int, limit: int | None) -> list[int]:
    """Up to `limit` places of `count`, in order. Games are listed by kind: the first ones would be of one or two kinds."""
    order = list(range(count))
    random.Random("games").shuffle(order)
    return sorted(order[:limit])


def _need(data: Mapping[str, Any], key: str, where: str) -> Any:
    if not isinstance(data, Mapping) or key not in data:
        raise UsageError(f"Key '{key}' is missing in '{where}'. Expected {', '.join(TEXTS)}. Copy the file again.")
    return data[key]


def _wrong(key: str, expected: str, found: Any, where: str) -> UsageError:
    return UsageError(f"Key '{key}' in '{where}': expected {expected}, got {json.dumps(found, default=str)[:60]}. Copy the file again.")


def _walkthrough(found: Any, where: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(step, str) for step in found):
        raise _wrong("walkthrough", "a list of texts", found, where)
    return tuple(found)


def _task_of(name: str) -> list[str]:
    """The words of `kind-object-movable-receptacle-scene` in a game's id."""
    return name.split("/")[-2].split("-") if "/" in name else []


def _kind_of(folder: str) -> str:
    return folder.split("-")[0]


def _kind(name: str, where: str) -> str:
    words = _task_of(name)
    if not words or words[0] not in KINDS:
        raise UsageError(
            f"The folder '{name}' of '{where}' names no kind of task. Expected <split>/<kind>-…/<trial>, a kind of {', '.join(KINDS)}."
        )
    return words[0]


def _scene(name: str) -> int | None:
    last = _task_of(name)[-1:]
    return int(last[0]) if last and last[0].isdecimal() else None


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
