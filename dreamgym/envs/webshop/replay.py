"""The original's environment played from a script: what `dreamgym webshop replay` and `dreamgym webshop reward` do.

JSON lines go in and come out, so that two implementations can be compared line by line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.envs.webshop import files, originals, products, store
from dreamgym.envs.webshop.lucene import LuceneIndex
from dreamgym.envs.webshop.pages import Mode
from dreamgym.envs.webshop.products import Product
from dreamgym.envs.webshop.reward import Scoring, reward
from dreamgym.envs.webshop.shop import WebShop
from dreamgym.envs.webshop.tagger import TaggerName, tagger
from dreamgym.errors import UsageError
from dreamgym.types import Task

SESSION_NAME = 10
"""Letters of the session name that the original draws when it opens, before anybody plays."""


@dataclass(frozen=True)
class Loaded:
    """A catalogue with its goals in index order; `rng` stands where the original's generator then stands."""

    products: Sequence[Product]
    goals: list[originals.Goal]
    rng: random.Random
    index: LuceneIndex | None = None  # where one was built before


def load(
    items: Path, attributes: Path, *, human: Path | None = None, kind: originals.Kind | None, seed: int, num_products: int | None = None
) -> Loaded:
    """Read the files as the original does after `random.seed(seed)`: prices, price bounds, the shuffle, the first random session.

    `kind` None leaves the goals out.
    """
    rng = random.Random(seed)
    known = files.by_asin(attributes)
    loaded = products.load(files.items(items), known, seed=rng, file=items, num_products=num_products)
    return Loaded(loaded, _goals(loaded, known, attributes, human, kind, rng), rng)


def load_built(folder: Path, *, human: Path | None = None, kind: originals.Kind | None, seed: int) -> Loaded:
    """The same from a folder of `store.build`."""
    rng = random.Random(seed)
    stored, index = store.open_products(folder, rng)
    known = store.attributes_of(folder) if kind == "synthetic" else {}
    return Loaded(stored, _goals(stored, known, folder / store.ATTRIBUTES, human, kind, rng), rng, index)


def _goals(
    loaded: Sequence[Product], known: dict[str, Any], attributes: Path, human: Path | None, kind: originals.Kind | None, rng: random.Random
) -> list[originals.Goal]:
    if kind is None:
        return []
    if kind == "synthetic":
        goals = originals.synthetic(loaded, known, rng, file=attributes)
    elif human is None:
        raise UsageError("Human goals need the file of human instructions. Give --human items_human_ins.json, or --goals synthetic.")
    else:
        goals = originals.human(loaded, files.by_asin(human, "human"), rng, file=human)
    if not goals:
        raise UsageError(f"No {kind} goal in '{human if kind == 'human' else attributes}' for these products.")
    goals = originals.shuffled(goals, rng)
    for _ in range(SESSION_NAME):
        rng.random()
    originals.draw(originals.cumulate(goals), rng)
    return goals


def replay(
    loaded: Loaded, lines: Iterable[str], *, mode: Mode, scoring: Scoring, source: str = "the actions", index: LuceneIndex | None = None
) -> Iterator[dict[str, Any]]:
    """Play every line `{"goal": index, "actions": [...]}`; lists begin with what is seen before any action."""
    index = index or loaded.index or LuceneIndex.of(loaded.products)
    shop = WebShop(loaded.products, index, mode=mode, outcome=False, scoring=scoring, rng=loaded.rng)
    for number, line in _records(lines, source):
        place = files.Place(source, f"line {number}")
        goal, actions = line.get("goal"), files.texts(line, "actions", place)
        if not isinstance(goal, int) or isinstance(goal, bool) or not 0 <= goal < len(loaded.goals):
            raise place.refuse("goal", f"an index from 0 to {len(loaded.goals) - 1}", goal)
        yield episode(shop, loaded.goals[goal], actions, name=str(goal))


def episode(shop: WebShop, goal: Mapping[str, Any], actions: Iterable[str], *, name: str) -> dict[str, Any]:
    """One episode as the original shows it, on after a purchase as well."""
    raw = shop.reset(Task(name, goal["instruction_text"], "webshop", goal=goal))
    seen: dict[str, Any] = {"observations": [raw["text"]], "rewards": [0.0], "dones": [False], "available": [raw["available"]]}
    for action in actions:
        raw, score, bought = shop.step(action)
        seen["observations"].append(raw["text"])
        seen["rewards"].append(score)
        seen["dones"].append(bought)
        seen["available"].append(raw["available"])
    return seen


def rewards(
    loaded: Sequence[Product], lines: Iterable[str], *, scoring: Scoring, source: str = "the purchases"
) -> Iterator[dict[str, Any]]:
    """Score every line `{"goal": {...}, "asin": ..., "options": {...}, "price": ...}`."""
    by_asin = {product.asin: product for product in loaded}
    for number, line in _records(lines, source):
        place = files.Place(source, f"line {number}")
        goal, options, price = line.get("goal"), line.get("options", {}), line.get("price")
        if not isinstance(goal, Mapping):
            raise place.refuse("goal", "a goal as an object", goal)
        _check(goal, place)
        asin = files.text(line, "asin", place)
        if asin not in by_asin:
            raise place.refuse("asin", f"the ASIN of one of the {len(by_asin)} products", asin)
        if not isinstance(options, Mapping) or not all(isinstance(value, str) for value in options.values()):
            raise place.refuse("options", "an object of chosen values by option name", options)
        if price is not None and (not isinstance(price, int | float) or isinstance(price, bool)):
            raise place.refuse("price", "a number, or none for the product's own price", price)
        bought = reward(by_asin[asin], goal, options, price=price, scoring=scoring)
        yield {"reward": bought.score, "info": dict(bought.info)}


def scored(*, corrected: bool = False, name: TaggerName = "auto") -> Scoring:
    """The original's scoring, or the corrected one, with nouns from the tagger of that name."""
    return Scoring(corrected, tagger(name))


def _check(goal: Mapping[str, Any], place: files.Place) -> None:
    for key in ("query", "name", "product_category"):
        files.text(goal, key, place)
    if not files.texts(goal, "attributes", place):
        raise place.refuse("attributes", "at least one text", [])
    if not isinstance(goal.get("goal_options"), Mapping):
        files.texts(goal, "goal_options", place)
    upper = goal.get("price_upper")
    if not isinstance(upper, int | float) or isinstance(upper, bool) or upper <= 0:
        raise place.refuse("price_upper", "a number above 0", upper)


def _records(lines: Iterable[str], source: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Non-empty lines as objects, with their numbers from 1."""
    try:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _record(line, number, source)
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text: {error}. Expected JSON lines.") from error


def _record(line: str, number: int, source: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"Line {number} of {source} is not JSON: {error}.") from error
    if not isinstance(record, Mapping):
        raise UsageError(f'Line {number} of {source} is no object. Expected one such as {{"goal": 0, "actions": []}}.')
    return record
