"""Tasks in the shop: templates that are filled with its content.

Splits are by kind of product: a kind's variants and the orders of them are in one split. Wordings give no path: where things are, the agent
has to find out. A search finds all variants of a kind, so which one is meant must be read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Literal

from dreamgym.envs.web.shop.checks import CHECKED
from dreamgym.envs.web.shop.content import FIRST_KINDS, KINDS, ORDERS, STATUSES, VARIANTS, Content, Order, Product, pounds
from dreamgym.envs.web.sites.tasks import SiteTask

Role = Literal["customer", "staff"]
"""Whose account a task is done with."""
PIPELINE = {"Pending": ("Processing", "Cancelled"), "Processing": ("Shipped", "Cancelled"), "Shipped": ("Complete",)}
"""The statuses that an order can go on to."""
ANSWERED = (
    "upc_and_stock", "stock_both", "more_reviews", "both_reviewed", "my_total", "order_quantity", "price_change", "order_total",
    "buyer_email", "buyer_orders",
)  # fmt: skip
TEMPLATES = (*CHECKED, *ANSWERED)


def every_task(content: Content, seed: int) -> Iterator[SiteTask]:
    """All tasks about the content; the same seed gives the same tasks."""
    rng = random.Random(f"shop-tasks/{seed}")
    for place in range(FIRST_KINDS, KINDS):
        variants = content.products[place * VARIANTS :][:VARIANTS]
        maker = _Maker(content, variants[0].kind)
        for product in variants:
            yield from _buying(maker, product, rng)
            yield from _stocking(maker, product, rng)
        for one, other in pairwise(variants):
            yield from _comparing(maker, one, other, rng)
        yield from _among_all(maker, variants)
        own, *others = content.orders[place * ORDERS :][:ORDERS]
        yield from _own_order(maker, own, rng)
        for order in others:
            yield from _customers_order(maker, order, rng)


class _Maker:
    """Makes tasks about one kind of product."""

    def __init__(self, content: Content, kind: str) -> None:
        self.content, self.kind = content, kind

    def task(self, template: str, instruction: str, *wanted: object, role: Role = "customer", others: set[str] | None = None) -> SiteTask:
        """A task. An answer may hold none of `others`."""
        return SiteTask(template, instruction, f"every {self.kind}", role, wanted, CHECKED.get(template), tuple(sorted(others or ())))

    def name(self, customer: int) -> str:
        return self.content.customers[customer][0]


def _buying(maker: _Maker, product: Product, rng: random.Random) -> Iterator[SiteTask]:
    """What a customer does with one product."""
    title, low = product.title, product.title.lower()
    count = rng.randint(2, 5)
    yield maker.task("basket_many", f"Put {count} of the {low} into the basket, and nothing else.", (title, count))
    yield maker.task("wish", f"Save the {low} for later in my wish list.", title)
    stars, headline = rng.randint(1, 5), rng.choice(("Nice thing", "Not for me", "Would buy again", "Just right"))
    asked = f"Review the {low} with {stars} of 5 stars and the title '{headline}'; any text will do."
    yield maker.task("review", asked, title, stars, headline)


def _stocking(maker: _Maker, product: Product, rng: random.Random) -> Iterator[SiteTask]:
    """What the staff does with one product and its reviews."""
    title, low = product.title, product.title.lower()
    amount = rng.randint(70, 99)
    yield maker.task("set_stock", f"Set the stock of the {low} to {amount}.", title, amount, role="staff")
    asked = f"{amount} more of the {low} have arrived: correct its stock."
    yield maker.task("restock", asked, title, product.stock + amount, role="staff")
    pence = rng.randrange(300, 6000)
    pence += pence == product.price
    yield maker.task("set_price", f"Change the price of the {low} to {pounds(pence)}.", title, pence, role="staff")
    renamed = f"{title} {rng.choice(('deluxe', 'classic', 'mini'))}"
    yield maker.task("rename", f"Rename the product '{title}' to '{renamed}'.", product.upc, renamed, role="staff")
    yield maker.task("hide", f"Customers should no longer see the {low} in the shop.", title, role="staff")
    review = rng.choice(product.reviews)
    writer = maker.name(review.writer)
    asked = f"Reject the review '{review.title}' of the {low} by {writer}."
    yield maker.task("reject_review", asked, title, writer, review.title, role="staff")


def _comparing(maker: _Maker, one: Product, other: Product, rng: random.Random) -> Iterator[SiteTask]:
    """Two variants of a kind."""
    first, second, count = one.title.lower(), other.title.lower(), rng.randint(2, 5)
    both = f"{first} and {second}"
    asked = f"Put one {first} and one {second} into the basket, and nothing else."
    yield maker.task("basket_two", asked, (one.title, 1), (other.title, 1))
    cheap = min((one, other), key=lambda product: product.price)
    yield maker.task("basket_cheaper", f"Put {count} of the cheaper of {both} into the basket.", (cheap.title, count))
    full = max((one, other), key=lambda product: product.stock)
    yield maker.task("basket_stocked", f"Put the one of {both} of which more are in stock into the basket.", (full.title, 1))
    yield maker.task("stock_both", f"How many of the {both} are in stock together?", one.stock + other.stock)
    if len(one.reviews) != len(other.reviews):
        more, less = sorted((one, other), key=lambda product: -len(product.reviews))
        asked = f"Name only the one of {both} that has more reviews, and its UPC."
        yield maker.task("more_reviews", asked, more.title, more.upc, others={less.title})


def _among_all(maker: _Maker, variants: Sequence[Product]) -> Iterator[SiteTask]:
    """One or two of all variants of a kind."""
    kind = maker.kind
    cheap, *_, dear = sorted(variants, key=lambda product: product.price)
    asked = f"Put the cheapest {kind} into the basket and save the dearest for later in my wish list."
    yield maker.task("basket_wish", asked, cheap.title, dear.title)
    asked = f"Name the cheapest {kind} with its UPC, and the dearest with how many of it are in stock."
    yield maker.task("upc_and_stock", asked, cheap.title, cheap.upc, dear.title, dear.stock)
    writers = [review.writer for product in variants for review in product.reviews]
    for product in variants:
        for review in product.reviews:
            if writers.count(review.writer) == 1:
                asked = f"Put the {kind} that {maker.name(review.writer)} has reviewed into the basket."
                yield maker.task("basket_reviewed", asked, (product.title, 1))
    names = {name for name, _ in maker.content.customers}
    for one, other in combinations(variants, 2):
        common = {review.writer for review in one.reviews} & {review.writer for review in other.reviews}
        if len(common) == 1:
            name = maker.name(*common)
            asked = f"Who has reviewed both the {one.title.lower()} and the {other.title.lower()}, and how many of the first are in stock?"
            yield maker.task("both_reviewed", asked, name, one.stock, others=names - {name})


def _own_order(maker: _Maker, order: Order, rng: random.Random) -> Iterator[SiteTask]:
    """An order of the account's own."""
    asked = f"What was the total of my order of {order.day}, and what is its status?"
    yield maker.task("my_total", asked, pounds(order.total), order.status, others={*STATUSES} - {order.status})
    line = rng.choice(order.lines)
    low, cost = line.product.title.lower(), pounds(line.price * line.count)
    yield maker.task("order_quantity", f"How many {low} did I order on {order.day}, and what did they cost together?", line.count, cost)
    line = rng.choice(order.lines)
    low, cost = line.product.title.lower(), pounds(line.price * line.count)
    asked = f"What did the {low} in my order of {order.day} cost together, and what does one of them cost now?"
    yield maker.task("price_change", asked, cost, pounds(line.product.price))
    wanted = [(line.product.title, line.count) for line in order.lines]
    yield maker.task("reorder", f"Put everything that I ordered on {order.day} into the basket again.", *wanted)
    title, count = rng.choice(wanted)
    asked = f"Put what I ordered {count} of on {order.day} into the basket again, as many as then and nothing else."
    yield maker.task("reorder_one", asked, (title, count))


def _customers_order(maker: _Maker, order: Order, rng: random.Random) -> Iterator[SiteTask]:
    """An order that the staff deals with."""
    number, total = order.number, pounds(order.total)
    name, email = maker.content.customers[order.customer]
    asked = f"What was the total of order {number}, and what is its status?"
    yield maker.task("order_total", asked, total, order.status, role="staff", others={*STATUSES} - {order.status})
    asked = f"What is the e-mail address of the customer who placed order {number}, and its total?"
    emails, names = ({customer[part] for customer in maker.content.customers} for part in (1, 0))
    yield maker.task("buyer_email", asked, email, total, role="staff", others=emails - {email})
    placed = sum(one.customer == order.customer for one in maker.content.orders)
    asked = f"How many orders has the customer placed who placed order {number}? Give name and count."
    yield maker.task("buyer_orders", asked, name, placed, role="staff", others=names - {name})
    which = f"the order that {name} placed on {order.day}"
    for later in PIPELINE.get(order.status, ()):
        yield maker.task("order_status", f"Set the status of {which} to {later}.", number, later, role="staff")
    note = rng.choice(("called the customer", "address checked", "wrap as a gift"))
    yield maker.task("order_note", f"Add the note '{note}' to {which}.", number, note, role="staff")
    line, amount = rng.choice(order.lines), rng.randint(70, 99)
    asked = f"Set the stock of what {name} ordered {line.count} of on {order.day} to {amount}."
    yield maker.task("stock_ordered", asked, line.product.title, amount, role="staff")
