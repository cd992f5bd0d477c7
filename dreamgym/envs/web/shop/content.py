"""What the shop holds, drawn from a seed: products, each kind in five colours, reviews, customers, orders, and a member of staff.

Plain records, so that tasks can be made without Django; `filling` writes them into the database.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import product
from typing import Any

COLOURS = ("amber", "black", "blue", "coral", "green", "grey", "ivory", "olive", "purple", "red", "silver", "teal")
MATERIALS = ("bamboo", "canvas", "cotton", "glass", "leather", "linen", "oak", "steel", "velvet", "wool")
NOUNS = {
    "Clothing": ("scarf", "jacket", "gloves", "hat"), "Kitchen": ("teapot", "bowl", "tray", "mug"),
    "Office": ("notebook", "lamp", "folder", "clock"), "Garden": ("planter", "bench", "lantern", "basket"),
    "Travel": ("suitcase", "backpack", "wallet", "pillow"), "Games": ("chess set", "puzzle", "dice cup", "kite"),
}  # fmt: skip
FIRST_NAMES = ("Ada", "Ben", "Cleo", "Dev", "Edda", "Finn", "Gwen", "Hugo", "Ines", "Jon", "Kira", "Luis", "Mona", "Nils", "Olga", "Piet")
LAST_NAMES = ("Abbot", "Brandt", "Castro", "Dahl", "Evans", "Fisher", "Grant", "Hale", "Ito", "Jansen", "Keller", "Lopez")
OPINIONS = ("Lovely", "Fine", "Cheap", "Perfect", "Strange", "Good", "Poor", "Better", "Odd", "Plain")
ASPECTS = ("shape", "quality", "gift", "size", "value", "finish", "colour", "weight")
HEADLINES = [" ".join(parts) for parts in product(OPINIONS, ASPECTS)]
"""Titles of reviews."""
CUSTOMER = ("customer@shop.example", "customer-1")
STAFF = ("staff@shop.example", "staff-1")
"""(e-mail address, password) of the two accounts that tasks are done with."""
STATUSES = ("Pending", "Processing", "Shipped", "Complete", "Cancelled")
KINDS, VARIANTS, CUSTOMERS = 54, 5, 16
"""Kinds of products, products of each, and customers beside the account of the tasks, of whom two share each first name."""
ORDERS = 3
"""Orders of each kind's products; the first is the account's own."""
FIRST_KINDS = 3
"""So many kinds, the first ones, fill the shop's first page; no task is about them."""
FIRST_ORDER = 100001
NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Review:
    """One review. `writer` is the number of a customer."""

    title: str
    stars: int
    writer: int


@dataclass(frozen=True, slots=True)
class Product:
    """One product. Prices are in pence."""

    title: str
    kind: str
    """What all its variants are: the title without the colour."""
    category: str
    description: str
    upc: str
    price: int
    stock: int
    reviews: tuple[Review, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """So many of a product in an order, and what each cost then."""

    product: Product
    count: int
    price: int


@dataclass(frozen=True, slots=True)
class Order:
    """One order, of products of one kind. `customer` 0 is the account of the tasks."""

    number: int
    customer: int
    status: str
    lines: tuple[Line, ...]
    placed: datetime

    @property
    def total(self) -> int:
        return sum(line.price * line.count for line in self.lines)

    @property
    def day(self) -> str:
        """The day it was placed, as pages show it. No two orders share one."""
        return f"{self.placed.day} {self.placed:%b %Y}"


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that a seed names."""

    products: tuple[Product, ...]
    """The variants of a kind stand together."""
    customers: tuple[tuple[str, str], ...]
    """(name, e-mail address); the first is the account of the tasks."""
    orders: tuple[Order, ...]


def pounds(pence: int) -> str:
    """A price as the shop writes it, without the sign."""
    return f"{pence / 100:.2f}"


@lru_cache(maxsize=4)
def content(seed: int) -> Content:
    """The content that a seed names."""
    rng = random.Random(f"shop/{seed}")
    names = [(first, last) for first in rng.sample(FIRST_NAMES, CUSTOMERS // 2) for last in rng.sample(LAST_NAMES, 2)]
    others = [(f"{first} {last}", f"{first.lower()}.{last.lower()}@mail.example") for first, last in names]
    customers = (("Robin Marsh", CUSTOMER[0]), *others)
    pairs = [(noun, category) for category, nouns in NOUNS.items() for noun in nouns]
    materials = {noun: rng.sample(MATERIALS, len(MATERIALS)) for noun, _ in pairs}
    kinds = []
    for place in range(KINDS):
        noun, category = pairs[place % len(pairs)]
        kinds.append(_variants(f"{materials[noun].pop()} {noun}", category, rng))
    return Content(tuple(one for kind in kinds for one in kind), customers, _orders(kinds, rng))


def fill(seed: int) -> dict[str, Any]:
    """Write the content into the database that Django is set up with. Returns the user of each role."""
    from dreamgym.envs.web.shop.filling import write

    return write(content(seed))


def _variants(kind: str, category: str, rng: random.Random) -> list[Product]:
    """One kind in several colours. Descriptions name the other colours, so that a search for one finds them all."""
    colours, found = rng.sample(COLOURS, VARIANTS), []
    prices, stocks = rng.sample(range(300, 6000), VARIANTS), rng.sample(range(10, 60), VARIANTS)
    for colour, price, stock in zip(colours, prices, stocks, strict=True):
        others = ", ".join(sorted(set(colours) - {colour}))
        text = f"For {category.lower()}. Other colours of the {kind}: {others}."
        writers = rng.sample(range(1, CUSTOMERS + 1), rng.randint(1, 3))
        reviews = tuple(Review(rng.choice(HEADLINES), rng.randint(1, 5), writer) for writer in writers)
        upc = f"{rng.randrange(10**7, 10**8)}"
        found.append(Product(f"{colour} {kind}".capitalize(), kind, category, text, upc, price, stock, reviews))
    return found


def _orders(kinds: list[list[Product]], rng: random.Random) -> tuple[Order, ...]:
    """Orders of three or four products of a kind, each in another quantity. Products cost something else then."""
    count = len(kinds) * ORDERS
    numbers = rng.sample(range(FIRST_ORDER, FIRST_ORDER + count), count)
    days = rng.sample(range(1, 300), count)
    buyers = [1 + place % CUSTOMERS for place in range(count)]
    rng.shuffle(buyers)
    found = []
    for place in range(count):
        chosen = rng.sample(kinds[place // ORDERS], rng.randint(3, 4))
        counts = rng.sample(range(1, 6), len(chosen))
        lines = tuple(
            Line(one, many, one.price + rng.choice((-1, 1)) * rng.randint(20, 250)) for one, many in zip(chosen, counts, strict=True)
        )
        customer = buyers[place] if place % ORDERS else 0
        found.append(Order(numbers[place], customer, rng.choice(STATUSES), lines, NOW - timedelta(days=days[place])))
    return tuple(found)
