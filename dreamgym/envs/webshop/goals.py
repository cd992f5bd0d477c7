"""Goals of graded difficulty over a catalogue, split by target product.

A goal carries one to five requirements: qualities of the title, options, a price bound. Splits are by content, twice: held-out goals aim
at products that no training goal aims at, and ask for combinations that no training goal asks for (two products can both be "soft scarf"s).
Any product that meets the requirements counts, as in WebShop.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dreamgym.envs.webshop import originals
from dreamgym.envs.webshop.products import Product, price_bounds
from dreamgym.envs.webshop.rules import requirements
from dreamgym.types import Task

T = TypeVar("T")

SHARES: dict[str, tuple[float, float]] = {"train": (0.0, 0.65), "dev": (0.65, 0.75), "test": (0.75, 1.0)}
OPENINGS = ("i am looking for a {}", "i need a {}", "find me a {}", "i would like a {}")
NO_BOUND = 1_000_000.0
LEVELS = (1, 2, 3, 4, 5)


def targets_of(split: str, products: Sequence[T], seed: int) -> list[T]:
    """The target products of a split: a fixed shuffle, cut by share."""
    if split not in SHARES:
        raise ValueError(f"No split '{split}'. Known: {', '.join(SHARES)}.")
    order = list(products)
    random.Random(f"split/{seed}").shuffle(order)
    low, high = (round(share * len(order)) for share in SHARES[split])
    return order[low:high]


def tasks(
    split: str,
    n: int,
    products: Sequence[Product],
    *,
    seed: int,
    catalogue_seed: int,
    env: str,
    task_key: Callable[[str], str] | None = None,
) -> list[Task]:
    """`n` tasks of a split, no two worded the same, levels in equal shares. Fewer when the split cannot hold so many.

    Several can ask for the same in other `OPENINGS`, because there are few requests of one requirement: of the mini catalogue's tasks 1,611
    of 2,000 to train, 186 of 300 of dev, 384 of 500 and 690 of 1,000 to test ask for different things.

    `task_key` says what makes two instructions one task, which is then in one split. None: their requirements as the product lists them, in
    one order in all generated products. The original's products list the same attributes in any order.
    """
    rng = random.Random(f"tasks/{split}/{seed}")
    targets = targets_of(split, products, catalogue_seed)
    found: dict[str, Task] = {}
    for attempt in range(200 * n):
        if len(found) == n:
            break
        goal = make_goal(rng.choice(targets), LEVELS[attempt % len(LEVELS)], rng)
        if goal is not None and goal["instruction_text"] not in found and _split_of(goal, task_key) == split:
            level = len(goal["attributes"]) + len(goal["goal_options"]) + (goal["price_upper"] < NO_BOUND)
            name = f"{env}/{split}/{seed}/{len(found)}"
            found[goal["instruction_text"]] = Task(id=name, instruction=goal["instruction_text"], env=env, difficulty=level, goal=goal)
    return list(found.values())


def _split_of(goal: dict[str, Any], task_key: Callable[[str], str] | None) -> str:
    """The one split that may ask for this combination of requirements, by a hash of the combination in the shares of the products."""
    wanted = repr((goal["query"], *goal["attributes"], *sorted(goal["goal_options"].items()), goal["price_upper"]))
    place = zlib.crc32((task_key(goal["instruction_text"]) if task_key else wanted).encode()) / 2**32
    return next(split for split, (_, high) in SHARES.items() if place < high)


def make_goal(product: Product, level: int, rng: random.Random) -> dict[str, Any] | None:
    """A goal of `level` requirements that `product` meets, or None when it has too few features for the level."""
    qualities = list(product.attributes[:2])
    options = {name: rng.choice(values) for name, values in product.options.items()}
    bounds = price_bounds(product.price)
    kinds = ["quality"] * (len(qualities) - 1) + ["option"] * len(options) + ["price"] * (len(bounds) >= 2)
    if not qualities or level - 1 > len(kinds):
        return None
    extra = rng.sample(kinds, level - 1)
    kept = sorted(rng.sample(qualities, 1 + extra.count("quality")), key=qualities.index)
    names = sorted(rng.sample(sorted(options), extra.count("option")))
    chosen = {name: options[name] for name in names}
    bound = sorted(rng.sample(bounds, 2))[1] if "price" in extra else NO_BOUND
    instruction = instruct(rng.choice(OPENINGS), [*kept, product.query], chosen, bound)
    return originals.goal(product, instruction, kept, bound, chosen) | {"weight": 1.0}


def goal_of(instruction: str, products: Mapping[str, Sequence[Product]]) -> dict[str, Any] | None:
    """The goal that an instruction in the wording of `instruct` means, aimed at the first product that meets it; None when none does.

    It undoes `make_goal`, for any bound. `products` are those of each query.
    """
    wanted = requirements(instruction)
    if wanted is None:
        return None
    head, noun, bound = " ".join(wanted.words[:-1]), wanted.words[-1], NO_BOUND if wanted.bound is None else wanted.bound
    for product in products.get(noun, ()):
        kept = [quality for quality in product.attributes[:2] if f" {quality} " in f" {head} "]
        offered = all(value in product.options.get(name, ()) for name, value in wanted.options)
        if " ".join(kept) == head and offered and product.price <= bound:
            return originals.goal(product, instruction, kept, bound, dict(wanted.options)) | {"weight": 1.0}
    return None


def instruct(opening: str, words: Sequence[str], options: dict[str, str], bound: float) -> str:
    """WebShop's wording: `… with color: red, and size: large, and price lower than 40.00 dollars`."""
    text = opening.format(" ".join(words))
    if options:
        text += " with " + ", and ".join(f"{name}: {value}" for name, value in options.items())
    return text + (f", and price lower than {bound:.2f} dollars" if bound < NO_BOUND else "")
