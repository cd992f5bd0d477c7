"""A generated catalogue of any size, from 100 to 1,000,000 products, with the real one's statistics and none of its words.

Like the real 1,000 products: titles of 18 words, 4.6 bullets, descriptions of 510 letters (30 % empty), 2.8 attributes of about 600,
246 queries in five categories, options on 42 % with 5.7 values each, 9 % price ranges, 9 % without a price, price quartiles 15, 29, 100,
and an instruction for four in ten. `catalogue.py` makes the small plain one that models of a million parameters learn.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dreamgym.errors import ConfigError
from dreamgym.runs.files import writing_lines

LEAST, MOST = 100, 1_000_000
CATEGORIES = {
    "beauty": (0.238, "Beauty & Care", "shampoo lotion brush soap perfume mirror serum"),
    "electronics": (0.229, "Electronics", "speaker keyboard cable charger headset camera tripod"),
    "garden": (0.216, "Home & Garden", "lamp chair rug curtain pillow table shelf"),
    "fashion": (0.2, "Clothing & Shoes", "jacket scarf boots shirt sandals dress backpack"),
    "grocery": (0.117, "Grocery", "tea cookies pasta sauce coffee snack jam"),
}
"""Share of the products, name of the top level, and nouns by category."""
KINDS = ("travel", "family", "studio", "garden", "kitchen", "winter", "holiday")
MAKERS = ("Aldora", "Brisk", "Calder", "Dovetail", "Elmore", "Fenwick", "Garnet", "Holm", "Iverly", "Juniper", "Kestrel", "Lumen")
_FIRST = """
easy quick long high low soft water heat dust light heavy double single hand machine color wind noise stain rust odor shock battery
energy sun
"""
_SECOND = """
clean carry lasting quality proof resistant safe friendly washable made sided weight finish free fit grip charge storage control cover edge
frame handle lining
"""
FIRST, SECOND = _FIRST.split(), _SECOND.split()
_ADJECTIVES = """
soft sturdy compact modern rustic vintage portable foldable durable elegant bright quiet gentle natural classic slim wide round woven padded
wooden metallic ceramic striped plain premium everyday lightweight handmade washable
"""
ADJECTIVES = _ADJECTIVES.split()
_PLACES = "home office kitchen bedroom garden travel school camping parties weddings gifts winter summer women men kids students"
PLACES = _PLACES.split()
OPTIONS = {
    "color": (
        0.286,
        ("red", "navy blue", "forest green", "black", "off white", "pink", "brown", "yellow", "grey", "rose gold", "teal", "a01-mint"),
    ),
    "size": (
        0.268,
        ("x-small", "small", "medium", "large", "x-large", "xx-large", "6 ounce", "12 ounce", "pack of 2", "pack of 4", "3 feet", "9 x 12"),
    ),
    "style": (0.021, ("classic", "modern", "slim fit", "wide fit", "left hand", "right hand")),
    "flavor name": (0.012, ("vanilla", "lemon", "ginger mint", "dark chocolate", "sea salt", "original")),
}  # fmt: skip
"""Share of products with the option, and its values."""
PRICES = ((0.0, 4.0), (0.25, 13.0), (0.5, 20.5), (0.75, 100.0), (1.0, 900.0))
"""Points of the distribution of prices; between them the logarithm is straight. Products without a price cost 100."""


def generate(size: int, seed: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every product with its attributes record, as the original's two files hold them. Deterministic in `seed`, product by product."""
    if not LEAST <= size <= MOST:
        raise ConfigError(f"A generated catalogue of {size} products: expected {LEAST} to {MOST:,}.")
    shares = [share for share, _, _ in CATEGORIES.values()]
    for place in range(size):
        rng = random.Random(f"lifelike/{seed}/{place}")
        category = rng.choices(list(CATEGORIES), shares)[0]
        yield _product(_asin(place, seed), category, rng)


def write(folder: Path, size: int, seed: int) -> tuple[Path, Path]:
    """The catalogue as `items_shuffle_N.json` and `items_ins_v2_N.json`, one product at a time; the two paths."""
    paths = folder / f"items_shuffle_{size}.json", folder / f"items_ins_v2_{size}.json"
    with writing_lines(paths[0]) as write_item, writing_lines(paths[1]) as write_attributes:
        mark = ("[", "{")
        for item, record in generate(size, seed):
            write_item(f"{mark[0]}{json.dumps(item)}")
            write_attributes(f"{mark[1]}{json.dumps(item['asin'])}: {json.dumps(record)}")
            mark = (",", ",")
        write_item("]")
        write_attributes("}")
    return paths


def _asin(place: int, seed: int) -> str:
    """Ten letters, different for every place: 7919 has no factor in common with 36."""
    number, letters = ((place + 1) * 7919 * 104729 + seed * 15485863) % 36**8, ""
    for _ in range(8):
        number, digit = divmod(number, 36)
        letters += "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit]
    return f"B0{letters}"


def _product(asin: str, category: str, rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    _, top, nouns = CATEGORIES[category]
    noun, kind = rng.choice(nouns.split()), rng.choice(KINDS)
    attributes = [f"{rng.choice(FIRST)} {rng.choice(SECOND)}" for _ in range(rng.choice((0, 1, 2, 3, 3, 4, 4, 5)))]
    adjectives = rng.sample(ADJECTIVES, 4)
    features = ", ".join(attributes[:2]) or " ".join(adjectives[2:])
    places = rng.sample(PLACES, rng.randint(2, 5))
    title = (
        f"{rng.choice(MAKERS)} {adjectives[0]} {kind} {noun} with {features}, {adjectives[1]} {noun} for {', '.join(places[:-1])} and "
        f"{places[-1]}, pack of {rng.randint(1, 12)}"
    )
    item = {
        "asin": asin,
        "name": title.title(),
        "full_description": "" if rng.random() < 0.3 else " ".join(_sentence(noun, rng) for _ in range(rng.randint(7, 17))),
        "small_description": [_sentence(noun, rng) for _ in range(rng.choice((0, 4, 5, 5, 5, 5, 6, 7)))],
        "pricing": _pricing(rng),
        "images": [""],
        "category": category,
        "query": f"{kind} {noun}",
        "product_category": f"{top} › {noun.title()} › {kind.title()} {noun.title()}",
        "customization_options": _options(rng) if rng.random() < 0.42 else "",
    }
    return item, _record(f"{kind} {noun}", attributes, rng)


def _record(query: str, attributes: list[str], rng: random.Random) -> dict[str, Any]:
    record: dict[str, Any] = {"attributes": attributes}
    if attributes and rng.random() < 0.48:
        wanted = rng.sample(attributes, rng.randint(1, min(3, len(attributes))))
        record |= {"instruction": f"Find me {', '.join(wanted)} {query}", "instruction_attributes": wanted}
    return record


def _sentence(noun: str, rng: random.Random) -> str:
    first, second = rng.sample(ADJECTIVES, 2)
    last = f"{rng.choice(FIRST)} {rng.choice(SECOND)}"
    return f"This {first} {noun} is {second} and {last}, made for {rng.choice(PLACES)}."


def _options(rng: random.Random) -> dict[str, list[dict[str, str]]]:
    """At least one option, each with its share among products that have any."""
    names = [name for name, (share, _) in OPTIONS.items() if rng.random() < share / 0.42] or ["color"]
    return {name: [{"value": value} for value in _some(OPTIONS[name][1], rng)] for name in names}


def _some(values: tuple[str, ...], rng: random.Random) -> list[str]:
    return rng.sample(values, min(len(values), rng.randint(2, 10)))


def _pricing(rng: random.Random) -> str:
    if (kind := rng.random()) < 0.09:
        return ""
    price = _price(rng.random())
    return f"${price:.2f} to ${price * rng.uniform(1.2, 2.0):.2f}" if kind < 0.18 else f"${price:.2f}"


def _price(share: float) -> float:
    place = min(int(share * 4), 3)
    (left, low), (right, high) = PRICES[place], PRICES[place + 1]
    return math.exp(math.log(low) + (share - left) / (right - left) * (math.log(high) - math.log(low)))
