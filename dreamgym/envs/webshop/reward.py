"""WebShop's reward for a purchase (princeton-nlp/WebShop, `web_agent_site/engine/goal.py`, MIT; facts re-implemented).

r = (attributes met + options met + [price within bound]) / (attributes + options + 1) * r_type; success means r == 1.

The original compares the pairs (name, value) of a synthetic goal with bare values, so that some goals cannot reach 1 even with a perfect
purchase. `Scoring.corrected` compares pairs with pairs; graded goals use it, the original's own goals do not unless asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from dreamgym.envs.webshop.products import Product
from dreamgym.envs.webshop.tagger import nouns

_COLORS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel champagne
charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim eggplant elephant espresso
fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta
maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow
red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet
walnut wheat white wine yellow
"""
COLORS = tuple(_COLORS.split())
"""The original's colour names in its order, in which the first that is part of a value names it."""
SIMILAR = 85
"""Texts count as the same above this token-set ratio."""


@dataclass(frozen=True)
class Scoring:
    """How purchases are compared with goals."""

    corrected: bool = False
    nouns: Callable[[str], list[str]] = nouns


EXACT = Scoring()


@dataclass(frozen=True)
class Purchase:
    """What was bought, with which options, under which goal; `score` is the reward and the rest its parts.

    `info` holds the original's sub-scores under its names; options and their weight are absent when the goal asks for none.
    """

    score: float
    r_type: float
    r_att: float
    r_option: float
    r_price: float
    info: Mapping[str, Any] = field(default_factory=dict)


def reward(
    product: Product, goal: Mapping[str, Any], options: Mapping[str, str], *, price: float | None = None, scoring: Scoring = EXACT
) -> Purchase:
    """Score a purchase of `product` with chosen `options` against a goal in WebShop's schema. `price` stands in for the product's own."""
    attributes, wanted = goal["attributes"], goal["goal_options"]
    met = sum(_has_attribute(product, attribute) for attribute in attributes)
    chosen_met = _options_met(options, wanted, corrected=scoring.corrected)
    price_ok = (product.price if price is None else price) <= goal["price_upper"]
    parts = type_parts(product, goal, scoring)
    total = len(attributes) + len(wanted) + 1
    info = {
        "r_type": parts["r_type"],
        "r_att": met / max(1, len(attributes)),
        "w_att": len(attributes) / total,
        "query_match": parts["query_match"],
        "category_match": parts["category_match"],
        "title_score": parts["title_score"],
    }
    if len(wanted):
        info |= {"r_option": chosen_met / len(wanted), "w_option": len(wanted) / total}
    info |= {"r_price": price_ok, "w_price": 1 / total}
    score = (met + chosen_met + price_ok) / total * parts["r_type"]
    return Purchase(score, parts["r_type"], info["r_att"], info.get("r_option", 0.0), float(price_ok), info)


def type_parts(product: Product, goal: Mapping[str, Any], scoring: Scoring) -> dict[str, Any]:
    """r_type and what it rests on: the query, two common levels of category, and nouns shared by the titles."""
    query_match = product.query == goal["query"]
    mine, theirs = ({level.strip() for level in text.split("›")} for text in (product.product_category, goal["product_category"]))
    category_match = len(mine & theirs) >= 2
    title_score = _title_score(product.title, goal["name"], scoring.nouns)
    r_type = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        r_type = 0.1
    if title_score == 0.0:
        r_type = 0.0
    return {"r_type": r_type, "query_match": query_match, "category_match": category_match, "title_score": title_score}


def _title_score(mine: str, theirs: str, nouns_of: Callable[[str], list[str]]) -> float:
    wanted = nouns_of(theirs)
    return len(set(nouns_of(mine)) & set(wanted)) / len(wanted) if wanted else 0.2


def _has_attribute(product: Product, attribute: str) -> bool:
    if any(token_set_ratio(own, attribute) > SIMILAR for own in product.attributes):
        return True
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return any(attribute in text for text in texts)


def _options_met(options: Mapping[str, str], wanted: Any, *, corrected: bool) -> int:
    """How many of the wanted options some chosen value meets. A synthetic goal wants pairs, a human one values."""
    targets: list[Any] = list(wanted.items()) if isinstance(wanted, Mapping) else list(wanted)
    if corrected and isinstance(wanted, Mapping):
        return sum(any(_same_pair(have, want) for have in options.items()) for want in targets)
    chosen = [normalize_color(value) for value in options.values()]
    named = [normalize_color(target) for target in targets]
    return sum(any(token_set_ratio(have, str(want)) > SIMILAR for have in chosen) for want in named)


def _same_pair(have: tuple[str, str], want: tuple[str, str]) -> bool:
    return have == want or token_set_ratio(str(have), str(want)) > SIMILAR


def normalize_color(value: Any) -> Any:
    """The first known colour inside the value, else the value: "dark red" -> "dark". Of a pair, the colour that is one of its two."""
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
