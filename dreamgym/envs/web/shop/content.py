"""What the shop holds, drawn from a seed: products in six categories, reviews, customers, orders, and a member of staff.

Plain records, so that tasks can be made without Django; `fill` writes them into the database.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
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
PRAISE = ("Lovely", "Sturdy", "As described", "Too small", "Broke quickly", "A gift", "Good value", "Not my colour", "Perfect", "Fine")
CUSTOMER = ("customer@shop.example", "customer-1")
STAFF = ("staff@shop.example", "staff-1")
"""(e-mail address, password) of the two accounts that tasks are done with."""
STATUSES = ("Pending", "Processing", "Shipped", "Complete", "Cancelled")
PRODUCTS, ORDERS = 120, 60
FIRST_ORDER = 100001
NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Product:
    """One product. Prices are in pence."""

    title: str
    category: str
    upc: str
    price: int
    stock: int
    reviews: tuple[tuple[str, int, int], ...]
    """(title, stars, number of the customer who wrote it)."""


@dataclass(frozen=True, slots=True)
class Order:
    """One order; `lines` are (number of the product, quantity). `customer` 0 is the account of the tasks."""

    number: int
    customer: int
    status: str
    lines: tuple[tuple[int, int], ...]
    days_ago: int


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that a seed names."""

    products: tuple[Product, ...]
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
    names = [(f"{first} {last}", f"{first.lower()}.{last.lower()}@mail.example") for first in FIRST_NAMES for last in LAST_NAMES]
    customers = (("Robin Marsh", CUSTOMER[0]), *rng.sample(names, 15))
    pairs = [(noun, category) for category, nouns in NOUNS.items() for noun in nouns]
    titles, products = set[str](), list[Product]()
    while len(products) < PRODUCTS:
        noun, category = pairs[len(products) % len(pairs)]
        title = f"{rng.choice(COLOURS)} {rng.choice(MATERIALS)} {noun}".capitalize()
        if title in titles:
            continue
        titles.add(title)
        writers = rng.sample(range(1, len(customers)), rng.randint(0, 3))
        reviews = tuple((rng.choice(PRAISE), rng.randint(1, 5), writer) for writer in writers)
        products.append(Product(title, category, f"{rng.randrange(10**7, 10**8)}", rng.randrange(300, 9000), rng.randint(3, 60), reviews))
    orders = tuple(
        Order(
            FIRST_ORDER + place,
            0 if place % 2 else rng.randrange(1, len(customers)),
            rng.choice(STATUSES),
            tuple((product, rng.randint(1, 3)) for product in rng.sample(range(PRODUCTS), rng.randint(1, 3))),
            rng.randint(1, 300),
        )
        for place in range(ORDERS)
    )
    return Content(tuple(products), customers, orders)


def fill(seed: int) -> dict[str, Any]:
    """Write the content into the database that Django is set up with. Returns the user of each role."""
    from django.contrib.auth import get_user_model
    from django.contrib.sites.models import Site

    made, user_model = content(seed), get_user_model()
    users = [
        user_model.objects.create_user(
            username=f"user{place}", email=email, password=CUSTOMER[1], first_name=name.split()[0], last_name=name.split()[1]
        )
        for place, (name, email) in enumerate(made.customers)
    ]
    staff = user_model.objects.create_superuser(username="staff", email=STAFF[0], password=STAFF[1])
    Site.objects.update_or_create(id=1, defaults={"domain": "127.0.0.1", "name": "Example shop"})
    partner = _model("partner", "Partner").create(name="Warehouse", code="warehouse")
    stock = _fill_catalogue(made, users, partner)
    # what the database dates by itself gets the shop's date, so that every build shows the same pages
    user_model.objects.update(date_joined=NOW)
    _model("catalogue", "Product").update(date_created=NOW, date_updated=NOW)
    _model("reviews", "ProductReview").update(date_created=NOW)
    _fill_orders(made, users, partner, stock)
    return {"customer": users[0], "staff": staff}


def _model(app: str, name: str) -> Any:
    from oscar.core.loading import get_model

    return get_model(app, name).objects


def _fill_catalogue(made: Content, users: Sequence[Any], partner: Any) -> list[tuple[Any, Any]]:
    """Products, prices, stock and reviews; returns the rows of each product and its stock record, in order."""
    from decimal import Decimal

    from oscar.apps.catalogue.categories import create_from_breadcrumbs

    kind = _model("catalogue", "ProductClass").create(name="Goods", requires_shipping=True, track_stock=True)
    categories = {name: create_from_breadcrumbs(name) for name in NOUNS}
    rows = []
    for product in made.products:
        row = _model("catalogue", "Product").create(
            title=product.title, upc=product.upc, product_class=kind, structure="standalone", description=f"For {product.category.lower()}."
        )
        row.categories.add(categories[product.category])
        record = _model("partner", "StockRecord").create(
            product=row, partner=partner, partner_sku=product.upc, price=Decimal(product.price) / 100, price_currency="GBP",
            num_in_stock=product.stock,
        )  # fmt: skip
        rows.append((row, record))
        for title, stars, writer in product.reviews:
            review = {"score": stars, "title": title, "body": f"{title}.", "user": users[writer], "status": 1}
            _model("reviews", "ProductReview").create(product=row, **review)
        row.update_rating()
    return rows


def _fill_orders(made: Content, users: Sequence[Any], partner: Any, stock: Sequence[tuple[Any, Any]]) -> None:
    """Orders and their lines; `stock` is what `_fill_catalogue` returned."""
    from decimal import Decimal

    country = _model("address", "Country").create(
        iso_3166_1_a2="GB", iso_3166_1_a3="GBR", iso_3166_1_numeric="826", printable_name="United Kingdom", name="United Kingdom",
        is_shipping_country=True,
    )  # fmt: skip
    address = _model("order", "ShippingAddress").create(
        first_name="Robin", last_name="Marsh", line1="1 Mill Lane", line4="York", postcode="YO1 7HH", country=country
    )
    records = {place: _model("analytics", "UserRecord").create(user=user) for place, user in enumerate(users)}
    for order in made.orders:
        prices = [(stock[place], count, Decimal(made.products[place].price) / 100) for place, count in order.lines]
        total = sum((price * count for _, count, price in prices), Decimal(0))
        saved = _model("order", "Order").create(
            number=str(order.number), user=users[order.customer], status=order.status, total_incl_tax=total, total_excl_tax=total,
            shipping_incl_tax=0, shipping_excl_tax=0, currency="GBP", shipping_address=address, shipping_method="Free shipping",
            date_placed=NOW - timedelta(days=order.days_ago),
        )  # fmt: skip
        sums = records[order.customer]  # by which the shop's administration counts orders
        sums.num_orders += 1
        sums.num_order_lines += len(prices)
        sums.num_order_items += sum(count for _, count, _ in prices)
        sums.total_spent += total
        sums.date_last_order = max(filter(None, (sums.date_last_order, saved.date_placed)))
        sums.save()
        for (row, record), count, price in prices:
            _model("order", "Line").create(
                order=saved, product=row, num_allocated=0, title=row.title, upc=row.upc, quantity=count, stockrecord=record,
                partner=partner, partner_name=partner.name, partner_sku=row.upc, status=order.status, line_price_incl_tax=price * count,
                line_price_excl_tax=price * count, line_price_before_discounts_incl_tax=price * count,
                line_price_before_discounts_excl_tax=price * count, unit_price_incl_tax=price, unit_price_excl_tax=price,
            )  # fmt: skip
