"""The original's goals, drawn in its order: `random.seed(N)`, prices of ranged products, price bounds, then the shuffle seeded 233.

A goal is a dict in the original's own keys. `goals.py` makes the graded goals that training on a generated catalogue uses.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dreamgym.envs.webshop import files
from dreamgym.envs.webshop.products import Product, price_bounds
from dreamgym.errors import UsageError
from dreamgym.types import Task

Kind = Literal["synthetic", "human"]
Goal = dict[str, Any]
SHUFFLE_SEED = 233
NO_BOUND = 1_000_000
SPLITS: dict[str, tuple[int, int | None]] = {"test": (0, 500), "dev": (500, 1500), "train": (1500, None)}
"""Ranges of goal indices of the full catalogue's human goals, as in the original's baselines (which say eval for dev)."""


def synthetic(
    products: Sequence[Product], attributes: Mapping[str, Mapping[str, Any]], rng: random.Random, *, file: Path | str = "the attributes"
) -> list[Goal]:
    """One goal per combination of option values of every product with an instruction, before the shuffle."""
    goals: list[Goal] = []
    for product in products:
        place = files.Place(file, product.asin)
        if product.asin not in attributes:
            raise UsageError(f"No item '{product.asin}' in '{file}'. Synthetic goals need one for every product: add {{}} for it.")
        record = attributes[product.asin]
        if record.get("instruction") is None:
            continue
        instruction = files.text(record, "instruction", place)
        wanted = files.texts(record, "instruction_attributes", place)
        if not wanted:
            raise place.refuse("instruction_attributes", "at least one text beside the 'instruction'", wanted)
        upper, price_text = _bound(product.price, rng)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = dict(zip(names, values, strict=True))
            option_text = f" with {', and '.join(f'{name}: {value}' for name, value in options.items())}" if options else ""
            goals.append(goal(product, f"{instruction}{option_text}{price_text}", wanted, upper, options))
    counts = Counter(attribute for one in goals for attribute in one["attributes"])
    for one in goals:
        one["weight"] = sum(1.0 / counts[attribute] for attribute in one["attributes"]) / len(one["attributes"])
    return goals


def human(products: Sequence[Product], instructions: Mapping[str, Sequence[Any]], rng: random.Random, *, file: Path | str) -> list[Goal]:
    """One goal per human instruction that names an attribute, before the shuffle."""
    goals: list[Goal] = []
    for product in products:
        for number, record in enumerate(instructions.get(product.asin, ())):
            place = files.Place(file, number, product.asin)
            instruction = files.text(record, "instruction", place)
            wanted = files.texts(record, "instruction_attributes", place)
            if not wanted:
                continue
            options = files.texts(record, "instruction_options", place)
            upper, price_text = _bound(product.price, rng)
            goals.append(goal(product, instruction.strip(".") + price_text, wanted, upper, options) | {"weight": 1})
    return goals


def shuffled(goals: list[Goal], rng: random.Random) -> list[Goal]:
    """The goals in the order their indices mean. It seeds `rng` anew, as the original seeds the one generator it has."""
    rng.seed(SHUFFLE_SEED)
    order = list(goals)
    rng.shuffle(order)
    return order


def cumulate(goals: Sequence[Goal]) -> list[float]:
    """Sums of the weights up to each goal, with a leading zero."""
    return [0.0, *itertools.accumulate(float(goal["weight"]) for goal in goals)]


def draw(cumulated: Sequence[float], rng: random.Random) -> int:
    """The index of a goal by weight, as the original draws one for a session without a number: one too high, so never the first."""
    return min(bisect(cumulated, rng.uniform(0, cumulated[-1])), len(cumulated) - 2)


def split(goals: Sequence[Goal], name: str) -> list[int]:
    """Goal indices of a split of the original; UsageError where the goals are too few to be the full catalogue's."""
    if name not in SPLITS:
        raise UsageError(f"No split '{name}'. Known: {', '.join(SPLITS)}.")
    first, last = SPLITS[name]
    if len(goals) <= SPLITS["train"][0]:
        raise UsageError(
            f"{len(goals)} goals cannot be split as the original's 12,087 are (test 0-499, dev 500-1499, train from 1500)."
            " With split_by = 'product' they can be split by their target."
        )
    return list(range(first, len(goals) if last is None else last))


def split_by_product(goals: Sequence[Goal], products: Collection[str]) -> list[int]:
    """Goal indices aimed at these products (ASINs), in the original's order: splits that share no target product."""
    return [place for place, goal in enumerate(goals) if goal["asin"] in products]


def task(goal: Goal, name: str, env: str) -> Task:
    """A goal as a task of ours; its difficulty is the number of requirements."""
    level = len(goal["attributes"]) + len(goal["goal_options"]) + (goal["price_upper"] < NO_BOUND)
    return Task(id=name, instruction=goal["instruction_text"], env=env, difficulty=level, goal=goal)


def _bound(price: float, rng: random.Random) -> tuple[float, str]:
    bounds = price_bounds(price)
    if len(bounds) < 2:
        return NO_BOUND, ""
    upper = sorted(rng.sample(bounds, 2))[1]
    return upper, f", and price lower than {upper:.2f} dollars"


def goal(product: Product, instruction: str, attributes: list[str], upper: float, options: dict[str, str] | list[str]) -> Goal:
    """A goal aimed at a product, in the original's keys; it has no weight yet."""
    return {
        "asin": product.asin,
        "category": product.category,
        "query": product.query,
        "name": product.title,
        "product_category": product.product_category,
        "instruction_text": instruction,
        "attributes": attributes,
        "price_upper": upper,
        "goal_options": options,
    }
