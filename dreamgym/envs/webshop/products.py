"""Products as the shop shows them, read from WebShop's original JSON schema (loading rules of princeton-nlp/WebShop, MIT)."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.envs.webshop import files
from dreamgym.errors import UsageError

PRICE_WITHOUT_ONE = 100.0
PRICE_RANGE_STEP = 10
LONGEST_ASIN = 10
NO_ATTRIBUTE = "DUMMY_ATTR"


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


def load(
    items: Iterable[Mapping[str, Any]],
    attributes: Mapping[str, Mapping[str, Any]],
    *,
    seed: int | random.Random,
    file: Path | str = "the catalogue",
    num_products: int | None = None,
) -> list[Product]:
    """Products in catalogue order: 'nan' and over-long ASINs and repeats are skipped, as the original does.

    `seed` may be a generator under way: ranged prices are its next draws, in product order. `num_products` cuts before anything is skipped.
    """
    rng = seed if isinstance(seed, random.Random) else random.Random(seed)
    products = list(stream(items, attributes, rng, file=file, num_products=num_products))
    if not products:
        raise UsageError(f"No product in {file}. Expected a list of at least one product with an 'asin' of at most {LONGEST_ASIN} letters.")
    return products


def stream(
    items: Iterable[Mapping[str, Any]],
    attributes: Mapping[str, Mapping[str, Any]],
    rng: random.Random,
    *,
    file: Path | str,
    num_products: int | None = None,
) -> Iterator[Product]:
    """The products that `load` gives, one at a time."""
    seen: set[str] = set()
    for place, item in enumerate(items):
        if num_products is not None and place >= num_products:
            break
        asin = files.text(item, "asin", files.Place(file, place))
        if asin == "nan" or len(asin) > LONGEST_ASIN or asin in seen:
            continue
        seen.add(asin)
        yield _product(item, attributes.get(asin, {}), rng, files.Place(file, place, asin))


def _product(item: Mapping[str, Any], known: Mapping[str, Any], rng: random.Random, place: files.Place) -> Product:
    prices, price_text = _priced(item.get("pricing"), place)
    return Product(
        asin=item["asin"],
        title=files.text(item, "name", place),
        description=files.text(item, "full_description", place, absent=""),
        bullets=_bullets(item.get("small_description"), place),
        price_text=price_text,
        price=prices[0] if len(prices) == 1 else rng.uniform(*prices),
        options=_options(item.get("customization_options") or {}, place),
        attributes=tuple(known.get("attributes", [NO_ATTRIBUTE])),
        category=files.text(item, "category", place),
        query=files.text(item, "query", place).lower().strip(),
        product_category=files.text(item, "product_category", place),
    )


def parse_price(pricing: str | None) -> tuple[list[float], str]:
    """`"$12.50 to $20"` -> ([12.5, 20.0], "$12.5 to $20.0"); nothing -> ([100.0], "$100.0"). ValueError where there is no number."""
    if not pricing:
        return [PRICE_WITHOUT_ONE], f"${PRICE_WITHOUT_ONE}"
    prices = [float(re.sub(r"[^\d.]", "", piece)) for piece in pricing.split("$")[1:]]
    if not prices:
        raise ValueError("no '$'")
    if len(prices) == 1:
        return prices, f"${prices[0]}"
    return prices[:2], f"${prices[0]} to ${prices[1]}"


def _priced(pricing: Any, place: files.Place) -> tuple[list[float], str]:
    try:
        return parse_price(pricing)
    except (ValueError, AttributeError) as error:
        raise place.refuse("pricing", "text such as '$12.50' or '$12.50 to $20.00', '' or null", pricing) from error


def price_bounds(price: float) -> list[float]:
    """The first four multiples of ten strictly above the price, up to 990: candidates for "price lower than"."""
    first = max(1, int(price // PRICE_RANGE_STEP) + 1)
    return [float(step * PRICE_RANGE_STEP) for step in range(first, min(first + 4, 1000 // PRICE_RANGE_STEP))]


def _bullets(raw: Any, place: files.Place) -> tuple[str, ...]:
    bullets = raw if isinstance(raw, list) else [] if raw is None else [raw]
    if not all(isinstance(bullet, str) for bullet in bullets):
        raise place.refuse("small_description", "a text or a list of texts", raw)
    return tuple(bullets)


def _options(raw: Any, place: files.Place) -> dict[str, tuple[str, ...]]:
    wanted = "an object of lists such as {'Color': [{'value': 'red'}]}, '' or null"
    if not isinstance(raw, Mapping):
        raise place.refuse("customization_options", wanted, raw)
    options = {}
    for name, contents in raw.items():
        if contents is None:
            continue
        if not isinstance(contents, Sequence) or not all(
            isinstance(one, Mapping) and isinstance(one.get("value"), str) for one in contents
        ):
            raise place.refuse(f"customization_options.{name}", wanted, contents)
        options[name.lower()] = tuple(one["value"].strip().replace("/", " | ").lower() for one in contents)
    return options
