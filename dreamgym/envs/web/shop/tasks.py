"""Tasks in the shop: templates that are filled with its content, and how each is checked.

Splits are by product, order or customer: what a held-out task is about is in no other task. Wordings give no path: where things are, the
agent has to find out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

from dreamgym.envs.web.shop.content import Content, pounds
from dreamgym.envs.web.sites.tasks import Check, Query, SiteTask

Role = Literal["customer", "staff"]
"""Whose account a task is done with."""
PIPELINE = {"Pending": ("Processing", "Cancelled"), "Processing": ("Shipped", "Cancelled"), "Shipped": ("Complete",)}
"""The statuses that an order can go on to."""
BASKET = (
    "SELECT p.title, l.quantity FROM basket_line l JOIN basket_basket b ON b.id = l.basket_id JOIN auth_user u ON u.id = b.owner_id "
    "JOIN catalogue_product p ON p.id = l.product_id WHERE b.status = 'Open' AND u.username = 'user0' AND l.quantity > 0"
)
STOCK = "SELECT s.num_in_stock, s.price FROM partner_stockrecord s JOIN catalogue_product p ON p.id = s.product_id WHERE p.title = ?"


def _in_basket(query: Query, *wanted: Any) -> bool:
    """The basket holds the (title, quantity) pairs, and nothing else."""
    return sorted(query(BASKET)) == sorted(wanted)


def _wished(query: Query, title: str) -> bool:
    rows = query("SELECT p.title FROM wishlists_line l JOIN catalogue_product p ON p.id = l.product_id")
    return rows == [(title,)]


def _reviewed(query: Query, product: str, stars: int, headline: str) -> bool:
    sql = (
        "SELECT r.score, r.title FROM reviews_productreview r JOIN catalogue_product p ON p.id = r.product_id JOIN auth_user u ON "
        "u.id = r.user_id WHERE p.title = ? AND u.username = 'user0'"
    )
    return [(score, title.strip().lower()) for score, title in query(sql, product)] == [(stars, headline.lower())]


def _stocked(query: Query, title: str, count: int) -> bool:
    return [row[0] for row in query(STOCK, title)] == [count]


def _priced(query: Query, title: str, pence: int) -> bool:
    return [round(float(row[1]) * 100) for row in query(STOCK, title)] == [pence]


def _order_is(query: Query, number: int, status: str) -> bool:
    return query("SELECT status FROM order_order WHERE number = ?", str(number)) == [(status,)]


def _noted(query: Query, number: int, text: str) -> bool:
    sql = "SELECT n.message FROM order_ordernote n JOIN order_order o ON o.id = n.order_id WHERE o.number = ? AND n.note_type <> 'System'"
    return [row[0].strip().lower() for row in query(sql, str(number))] == [text.lower()]


def _titled(query: Query, upc: str, title: str) -> bool:
    return query("SELECT title FROM catalogue_product WHERE upc = ?", upc) == [(title,)]


CHECKED: dict[str, Check] = {
    "basket_one": _in_basket, "basket_many": _in_basket, "basket_two": _in_basket, "basket_cheaper": _in_basket,
    "basket_stocked": _in_basket, "wish": _wished, "review": _reviewed, "set_stock": _stocked, "restock": _stocked,
    "set_price": _priced, "order_status": _order_is, "order_note": _noted, "rename": _titled,
}  # fmt: skip
ANSWERED = (
    "price_upc", "stock_upc", "price_total", "reviews_count", "order_total", "order_quantity", "buyer_email", "buyer_orders",
    "review_author", "price_difference",
)  # fmt: skip
TEMPLATES = (*CHECKED, *ANSWERED)


def every_task(content: Content, seed: int) -> Iterator[SiteTask]:
    """All tasks about the content; the same seed gives the same tasks."""
    rng = random.Random(f"shop-tasks/{seed}")
    yield from _about_products(content, rng)
    yield from _about_orders(content, rng)


def _about_products(content: Content, rng: random.Random) -> Iterator[SiteTask]:
    for place, product in enumerate(content.products):
        title, low = product.title, product.title.lower()
        twin = content.products[place ^ 1]  # of the same pair, so that no pair lies in two splits
        pair = " & ".join(sorted((product.title, twin.title)))
        cheap, dear = sorted((product, twin), key=lambda one: one.price)
        full = max((product, twin), key=lambda one: one.stock)

        def make(template: str, instruction: str, *wanted: Any, role: Role = "customer", about: str = pair) -> SiteTask:
            return SiteTask(template, instruction, about, role, wanted, CHECKED.get(template))

        count = rng.randint(2, 5)
        yield make("basket_one", f"Put one {low} into the basket, and nothing else.", (title, 1))
        yield make("basket_many", f"Put {count} of the {low} into the basket, and nothing else.", (title, count))
        yield make("wish", f"Save the {low} for later in my wish list.", title)
        stars, headline = rng.randint(1, 5), rng.choice(("Nice thing", "Not for me", "Would buy again", "Just right"))
        yield make(
            "review", f"Review the {low} with {stars} of 5 stars and the title '{headline}'; any text will do.", title, stars, headline
        )
        yield make("price_upc", f"What are the price and the UPC of the {low}?", pounds(product.price), product.upc)
        yield make("stock_upc", f"How many {low} are in stock? Add the UPC to the answer.", product.stock, product.upc)
        yield make(
            "reviews_count", f"How many reviews does the {low} have, and what does it cost?", len(product.reviews), pounds(product.price)
        )
        several = rng.randint(2, 4)
        yield make("price_total", f"What does the basket cost in all with {several} of the {low} in it?", pounds(product.price * several))
        amount = rng.randint(70, 99)
        yield make("set_stock", f"Set the stock of the {low} to {amount}.", title, amount, role="staff")
        yield make("restock", f"{amount} more of the {low} have arrived: correct its stock.", title, product.stock + amount, role="staff")
        pence = rng.randrange(300, 9000)
        yield make("set_price", f"Change the price of the {low} to {pounds(pence)}.", title, pence, role="staff")
        renamed = f"{title} {rng.choice(('deluxe', 'classic', 'mini'))}"
        yield make("rename", f"Rename the product '{title}' to '{renamed}'.", product.upc, renamed, role="staff")
        if product.reviews:
            writer = content.customers[product.reviews[0][2]][0]
            if len(product.reviews) == 1:
                yield make("review_author", f"Who wrote the review of the {low}, and how many of it are in stock?", writer, product.stock)
        if place % 2 == 0:
            yield make(
                "basket_two", f"Put one {low} and one {twin.title.lower()} into the basket, and nothing else.", (title, 1), (twin.title, 1)
            )
            if cheap.price != dear.price:
                yield make("basket_cheaper", f"Put the cheaper of {low} and {twin.title.lower()} into the basket.", (cheap.title, 1))
                difference = pounds(dear.price - cheap.price)
                yield make("price_difference", f"By how much does the price of {low} differ from that of {twin.title.lower()}?", difference)
            if product.stock != twin.stock:
                both = f"{low} and {twin.title.lower()}"
                yield make("basket_stocked", f"Put the one of {both} of which more are in stock into the basket.", (full.title, 1))


def _about_orders(content: Content, rng: random.Random) -> Iterator[SiteTask]:
    for order in content.orders:
        number, about = order.number, f"order {order.number}"
        total = pounds(sum(content.products[place].price * count for place, count in order.lines))
        name, email = content.customers[order.customer]

        def ask(template: str, instruction: str, *wanted: Any, role: Role = "staff", about: str = about) -> SiteTask:
            return SiteTask(template, instruction, about, role, wanted, CHECKED.get(template))

        mine: Role = "customer" if order.customer == 0 else "staff"
        yield ask("order_total", f"What was the total of order {number}, and what is its status?", total, order.status, role=mine)
        first, count = content.products[order.lines[0][0]], order.lines[0][1]
        if mine == "customer":
            asked = f"How many {first.title.lower()} did I order in order {number}, and at what price each?"
            yield ask("order_quantity", asked, count, pounds(first.price), role=mine)
        if mine == "staff":
            yield ask("buyer_email", f"What is the e-mail address of the customer who placed order {number}, and its total?", email, total)
            orders = sum(one.customer == order.customer for one in content.orders)
            yield ask(
                "buyer_orders", f"How many orders has the customer placed who placed order {number}? Give name and count.", name, orders
            )
        for later in PIPELINE.get(order.status, ()):
            yield ask("order_status", f"Set the status of order {number} to {later}.", number, later)
        note = rng.choice(("called the customer", "address checked", "wrap as a gift"))
        yield ask("order_note", f"Add the note '{note}' to order {number}.", number, note)
