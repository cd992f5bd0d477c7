"""WebShop's reward for a purchase (princeton-nlp/WebShop, `web_agent_site/engine/goal.py`, MIT; facts re-implemented).

r = r_type * (attributes met + options met + [price within bound]) / (attributes + options + 1); success means r == 1.
Nouns of titles come from a small rule tagger (`TAGGER`), because the original's spaCy models are not on the package index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from dreamgym.envs.webshop.products import Product

TAGGER = "rule"
COLORS = (
    "red",
    "blue",
    "green",
    "black",
    "white",
    "pink",
    "brown",
    "yellow",
    "grey",
    "gray",
    "purple",
    "orange",
    "beige",
    "navy",
    "gold",
    "silver",
)
ADJECTIVES = frozenset(
    [
        "soft",
        "knitted",
        "silky",
        "fleecy",
        "ribbed",
        "sheer",
        "striped",
        "plaid",
        "floral",
        "plain",
        "fringed",
        "dotted",
        "quilted",
        "waterproof",
        "padded",
        "reversible",
        "slim",
        "hooded",
        "vintage",
        "casual",
        "cropped",
        "foldable",
        "woven",
        "rigid",
        "roomy",
        "sporty",
        "wide",
        "wooden",
        "metallic",
        "ceramic",
        "wireless",
        "rustic",
        "modern",
        "upright",
        "compact",
        "bright",
        "dimmable",
        "ergonomic",
        "swivel",
        "washable",
        "shaggy",
        "rugged",
        "solar",
        "portable",
        "loud",
        "mechanical",
        "silent",
        "round",
        "gentle",
        "durable",
        "lightweight",
        "premium",
        "stylish",
        "everyday",
        "handmade",
        "sturdy",
        "elegant",
        "giftable",
        "seasonal",
        "new",
        "large",
        "small",
        "medium",
        "big",
        "long",
        "short",
        "natural",
        "organic",
        "classic",
        "heavy",
        "light",
    ]
)


@dataclass(frozen=True)
class Purchase:
    """What was bought, with which options, under which goal; `score` is the reward and the rest its parts."""

    score: float
    r_type: float
    r_att: float
    r_option: float
    r_price: float


def reward(product: Product, goal: Mapping[str, Any], options: Mapping[str, str]) -> Purchase:
    """Score a purchase of `product` with chosen `options` against a goal in WebShop's schema."""
    attributes, wanted = goal["attributes"], goal["goal_options"]
    met = sum(_has_attribute(product, attribute) for attribute in attributes)
    chosen = list(options.items()) if isinstance(wanted, Mapping) else list(options.values())
    targets = list(wanted.items()) if isinstance(wanted, Mapping) else list(wanted)
    chosen_met = sum(any(_same_option(have, want) for have in chosen) for want in targets)
    price_ok = product.price <= goal["price_upper"]
    r_type = type_score(product, goal)
    score = r_type * (met + chosen_met + price_ok) / (len(attributes) + len(targets) + 1)
    return Purchase(score, r_type, met / max(1, len(attributes)), chosen_met / max(1, len(targets)), float(price_ok))


def type_score(product: Product, goal: Mapping[str, Any]) -> float:
    """1 for the right kind of thing, 0 for something else altogether, with the original's steps between."""
    mine, theirs = (set(text.split(" › ")) for text in (product.product_category, goal["product_category"]))
    title_score = _title_score(product.title, goal["name"])
    score = 1.0 if product.query == goal["query"] or len(mine & theirs) >= 2 or title_score > 0.2 else 0.5
    if title_score < 0.1:
        score = 0.1
    return 0.0 if title_score == 0.0 else score


def nouns(title: str) -> list[str]:
    """Lower-case words of a title that are not known adjectives."""
    return [word for word in re.findall(r"[a-z]+", title.lower()) if word not in ADJECTIVES]


def _title_score(mine: str, theirs: str) -> float:
    wanted = nouns(theirs)
    return len(set(nouns(mine)) & set(wanted)) / len(wanted) if wanted else 0.2


def _has_attribute(product: Product, attribute: str) -> bool:
    if any(token_set_ratio(own, attribute) > 85 for own in product.attributes):
        return True
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return any(attribute in text for text in texts)


def _same_option(have: str | tuple[str, str], want: str | tuple[str, str]) -> bool:
    if isinstance(have, str) and isinstance(want, str):
        have, want = normalize_color(have), normalize_color(want)
    return have == want or token_set_ratio(str(have), str(want)) > 85


def normalize_color(value: str) -> str:
    """The first known colour inside the value, else the value: "dark red" -> "red"."""
    return next((color for color in COLORS if color in value), value)


@lru_cache(maxsize=65536)
def token_set_ratio(a: str, b: str) -> int:
    """thefuzz 0.19's token_set_ratio on difflib, in [0, 100]: the version whose scores WebShop's thresholds were set for."""
    sets = [set(re.sub(r"\W", " ", re.sub("[\u0080-\u00ff]", "", text)).lower().split()) for text in (a, b)]
    if not sets[0] or not sets[1]:
        return 0
    common = " ".join(sorted(sets[0] & sets[1]))
    full = [" ".join([common, *sorted(mine - other)]).strip() for mine, other in ((sets[0], sets[1]), (sets[1], sets[0]))]
    return max(_ratio(common, full[0]), _ratio(common, full[1]), _ratio(full[0], full[1]))


def _ratio(a: str, b: str) -> int:
    return round(100 * SequenceMatcher(None, a, b).ratio()) if a and b else 0
