"""Products as the shop shows them, read from WebShop's original JSON schema (loading rules of princeton-nlp/WebShop, MIT)."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.errors import UsageError

PRICE_WITHOUT_ONE = 100.0
PRICE_RANGE_STEP = 10


@dataclass(frozen=True)
class Product:
    """One thing on the shelf. `price` is the selling price, drawn once at load when the catalogue gives a range."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    price_text: str
    price: float
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str


def read(items: Path, attributes: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """The two original files as Python objects; UsageError names the file that is missing or is not JSON."""
    loaded = []
    for path in (items, attributes):
        try:
            loaded.append(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise UsageError(
                f"No WebShop file '{path}'. Expected items_shuffle*.json and items_ins_v2*.json of the original data."
            ) from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"'{path}' is not JSON in UTF-8: {error}") from error
    return loaded[0], loaded[1]


def load(items: Sequence[Mapping[str, Any]], attributes: Mapping[str, Mapping[str, Any]], *, seed: int) -> list[Product]:
    """Products in catalogue order: 'nan' and over-long ASINs and repeats are skipped, as the original does."""
    rng = random.Random(seed)
    products: list[Product] = []
    seen: set[str] = set()
    for item in items:
        asin = item["asin"]
        if asin == "nan" or len(asin) > 10 or asin in seen:
            continue
        seen.add(asin)
        prices, price_text = parse_price(item.get("pricing"))
        bullets = item.get("small_description") or []
        products.append(
            Product(
                asin=asin,
                title=item["name"],
                description=item.get("full_description") or "",
                bullets=tuple(bullets) if isinstance(bullets, list) else (bullets,),
                price_text=price_text,
                price=prices[0] if len(prices) == 1 else rng.uniform(*prices[:2]),
                options=_options(item.get("customization_options") or {}),
                attributes=tuple(attributes[asin].get("attributes") or ["DUMMY_ATTR"]),
                category=item["category"],
                query=item["query"].lower().strip(),
                product_category=item["product_category"],
            )
        )
    return products


def parse_price(pricing: str | None) -> tuple[list[float], str]:
    """`"$12.50 to $20"` -> ([12.5, 20.0], "$12.5 to $20.0"); nothing -> ([100.0], "$100.0")."""
    if not pricing:
        return [PRICE_WITHOUT_ONE], f"${PRICE_WITHOUT_ONE}"
    prices = [float(re.sub(r"[^\d.]", "", piece)) for piece in pricing.split("$")[1:]]
    if len(prices) == 1:
        return prices, f"${prices[0]}"
    return prices[:2], f"${prices[0]} to ${prices[1]}"


def price_bounds(price: float) -> list[float]:
    """The first four multiples of ten strictly above the price, up to 990: candidates for "price lower than"."""
    return [float(bound) for bound in range(PRICE_RANGE_STEP, 1000, PRICE_RANGE_STEP) if bound > price][:4]


def _options(raw: Mapping[str, Sequence[Mapping[str, Any]] | None]) -> dict[str, tuple[str, ...]]:
    return {
        name.lower(): tuple(content["value"].strip().replace("/", " | ").lower() for content in contents)
        for name, contents in raw.items()
        if contents is not None
    }
