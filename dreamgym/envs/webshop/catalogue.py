"""A generated catalogue in WebShop's own schema, so that the shop runs without a download.

`generate(preset, seed)` returns the two objects that WebShop keeps in `items_shuffle*.json` (a list of product dicts) and
`items_ins_v2*.json` (attributes by ASIN). `mini` is small enough for a one-million-parameter model to learn; the other presets
grow toward the real shop's statistics (title of 18 words, 2.8 attributes, 42 % with options, 9 % price ranges).
All words are ours; nothing is scraped.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from dreamgym.errors import ConfigError, nearest

CATEGORIES = {
    "fashion": ("scarf", "jacket", "backpack", "hat"),
    "garden": ("lamp", "chair", "rug"),
    "electronics": ("speaker", "keyboard"),
    "beauty": ("brush",),
}
QUALITIES = {  # adjectives, so that a title's only noun is the thing itself (the title score of the reward counts nouns)
    "scarf": (("soft", "knitted", "silky", "fleecy", "ribbed", "sheer"), ("striped", "plaid", "floral", "plain", "fringed", "dotted")),
    "jacket": (
        ("quilted", "waterproof", "padded", "knitted", "fleecy", "reversible"),
        ("slim", "hooded", "vintage", "casual", "plaid", "cropped"),
    ),
    "backpack": (
        ("waterproof", "padded", "foldable", "woven", "rigid", "quilted"),
        ("slim", "roomy", "vintage", "casual", "sporty", "striped"),
    ),
    "hat": (
        ("soft", "woven", "knitted", "foldable", "waterproof", "fleecy"),
        ("wide", "vintage", "plain", "striped", "sporty", "dotted"),
    ),
    "lamp": (
        ("wooden", "metallic", "ceramic", "wireless", "foldable", "rustic"),
        ("modern", "vintage", "upright", "compact", "bright", "dimmable"),
    ),
    "chair": (
        ("wooden", "metallic", "padded", "foldable", "woven", "rigid"),
        ("modern", "rustic", "upright", "compact", "ergonomic", "swivel"),
    ),
    "rug": (
        ("soft", "woven", "fleecy", "washable", "silky", "reversible"),
        ("striped", "floral", "modern", "vintage", "plain", "shaggy"),
    ),
    "speaker": (
        ("wireless", "waterproof", "metallic", "wooden", "rugged", "solar"),
        ("compact", "portable", "loud", "modern", "vintage", "slim"),
    ),
    "keyboard": (
        ("wireless", "mechanical", "foldable", "metallic", "washable", "rugged"),
        ("compact", "ergonomic", "slim", "silent", "bright", "portable"),
    ),
    "brush": (
        ("wooden", "soft", "metallic", "foldable", "washable", "rigid"),
        ("round", "wide", "compact", "gentle", "portable", "plain"),
    ),
}  # fmt: skip
OPTIONS = {"color": ("red", "blue", "green", "black", "white", "pink", "brown", "yellow"), "size": ("small", "medium", "large")}
EXTRA_QUALITIES = ("durable", "lightweight", "premium", "stylish", "everyday", "handmade", "sturdy", "elegant", "giftable", "seasonal")
MAKERS = ("Aldora", "Brisk", "Calder", "Dovetail", "Elmore", "Fenwick", "Garnet", "Holm", "Iverly", "Juniper", "Kestrel", "Lumen")


@dataclass(frozen=True)
class Preset:
    """How large and how wordy a generated catalogue is."""

    products: int
    per_page: int  # results shown on one page; the original shows 10
    extra_words: int  # words in a title beside two qualities and the noun
    described: bool  # descriptions, bullets and sub-page texts
    ranges: float  # share of products with a price range


PRESETS = {
    "mini": Preset(products=400, per_page=4, extra_words=0, described=False, ranges=0.0),
    "small": Preset(products=1_000, per_page=10, extra_words=3, described=True, ranges=0.09),
    "medium": Preset(products=10_000, per_page=10, extra_words=8, described=True, ranges=0.09),
    "large": Preset(products=100_000, per_page=10, extra_words=14, described=True, ranges=0.09),
}


def preset(name: str) -> Preset:
    """The preset of that name; ConfigError names the nearest known one."""
    if name not in PRESETS:
        raise ConfigError(f"No catalogue preset '{name}'.{nearest(name, PRESETS)} Known: {', '.join(PRESETS)}.")
    return PRESETS[name]


def generate(name: str, seed: int) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Products and attributes of a preset, as WebShop's two JSON files hold them. Deterministic in `seed`."""
    shape = preset(name)
    rng = random.Random(f"catalogue/{name}/{seed}")
    nouns = [(category, noun) for category, members in CATEGORIES.items() for noun in members]
    digits = max(3, len(str(shape.products - 1)))
    numbers = rng.sample(range(10**digits), shape.products)
    products, attributes = [], {}
    for i, number in enumerate(numbers):
        category, noun = nouns[i % len(nouns)]
        asin = f"B{number:0{digits}d}"
        first, second = (rng.choice(slot) for slot in QUALITIES[noun])
        extra = rng.sample(EXTRA_QUALITIES, min(shape.extra_words, len(EXTRA_QUALITIES)))
        products.append(_product(asin, category, noun, [first, second], extra, shape, rng))
        attributes[asin] = {"attributes": [first, second, *extra[:1]]}
    return products, attributes


def _product(
    asin: str, category: str, noun: str, qualities: list[str], extra: list[str], shape: Preset, rng: random.Random
) -> dict[str, Any]:
    title = " ".join([*qualities, *extra, noun]).title()
    if shape.extra_words:
        title = f"{rng.choice(MAKERS)} {title}"
    options = {}
    if rng.random() < 0.8:
        options["color"] = rng.sample(OPTIONS["color"], 3)
    if rng.random() < 0.6:
        options["size"] = [size for size in OPTIONS["size"] if rng.random() < 0.8] or ["medium"]
    price = float(rng.randint(5, 95))
    pricing = f"${price}" if rng.random() >= shape.ranges else f"${price} to ${price + rng.randint(3, 30)}"
    bullets = [f"{quality.title()} {noun} for every day" for quality in qualities] if shape.described else []
    return {
        "asin": asin,
        "name": title,
        "full_description": f"A {' and '.join(qualities)} {noun} that lasts." if shape.described else "",
        "small_description": bullets,
        "pricing": pricing,
        "images": [""],
        "category": category,
        "query": noun,
        "product_category": f"{category.title()} › {noun.title()}s",
        "customization_options": {name: [{"value": value} for value in values] for name, values in options.items()},
    }
