"""Writes what the shop holds into the database that Django is set up with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.sites.models import Site
from oscar.apps.catalogue.categories import create_from_breadcrumbs
from oscar.core.loading import get_model

from dreamgym.envs.web.shop.content import CUSTOMER, NOUNS, NOW, STAFF, Content

Rows = Mapping[str, tuple[Any, Any]]
"""Each product's row and that of its stock, by title."""


def write(made: Content) -> dict[str, Any]:
    """Write everything. Returns the user of each role."""
    user_model = get_user_model()
    users = [
        user_model.objects.create_user(
            username=f"user{place}", email=email, password=CUSTOMER[1], first_name=name.split()[0], last_name=name.split()[1]
        )
        for place, (name, email) in enumerate(made.customers)
    ]
    staff = user_model.objects.create_superuser(username="staff", email=STAFF[0], password=STAFF[1])
    Site.objects.update_or_create(id=1, defaults={"domain": "127.0.0.1", "name": "Example shop"})
    partner = _model("partner", "Partner").create(name="Warehouse", code="warehouse")
    rows = _catalogue(made, users, partner)
    # what the database dates by itself gets the shop's date, so that every build shows the same pages
    user_model.objects.update(date_joined=NOW)
    _model("catalogue", "Product").update(date_created=NOW, date_updated=NOW)
    _model("reviews", "ProductReview").update(date_created=NOW)
    _orders(made, users, partner, rows)
    return {"customer": users[0], "staff": staff}


def _model(app: str, name: str) -> Any:
    return get_model(app, name).objects


def _catalogue(made: Content, users: Sequence[Any], partner: Any) -> Rows:
    """Products, prices, stock and reviews."""
    kind = _model("catalogue", "ProductClass").create(name="Goods", requires_shipping=True, track_stock=True)
    categories = {name: create_from_breadcrumbs(name) for name in NOUNS}
    rows = {}
    for product in made.products:
        row = _model("catalogue", "Product").create(
            title=product.title, upc=product.upc, product_class=kind, structure="standalone", description=product.description
        )
        row.categories.add(categories[product.category])
        record = _model("partner", "StockRecord").create(
            product=row, partner=partner, partner_sku=product.upc, price=Decimal(product.price) / 100, price_currency="GBP",
            num_in_stock=product.stock,
        )  # fmt: skip
        rows[product.title] = (row, record)
        for one in product.reviews:
            review = {"score": one.stars, "title": one.title, "body": f"{one.title}.", "user": users[one.writer], "status": 1}
            _model("reviews", "ProductReview").create(product=row, **review)
        row.update_rating()
    return rows


def _orders(made: Content, users: Sequence[Any], partner: Any, rows: Rows) -> None:
    """Orders and their lines."""
    country = _model("address", "Country").create(
        iso_3166_1_a2="GB", iso_3166_1_a3="GBR", iso_3166_1_numeric="826", printable_name="United Kingdom", name="United Kingdom",
        is_shipping_country=True,
    )  # fmt: skip
    address = _model("order", "ShippingAddress").create(
        first_name="Robin", last_name="Marsh", line1="1 Mill Lane", line4="York", postcode="YO1 7HH", country=country
    )
    records = {place: _model("analytics", "UserRecord").create(user=user) for place, user in enumerate(users)}
    for order in made.orders:
        total = Decimal(order.total) / 100
        saved = _model("order", "Order").create(
            number=str(order.number), user=users[order.customer], status=order.status, total_incl_tax=total, total_excl_tax=total,
            shipping_incl_tax=0, shipping_excl_tax=0, currency="GBP", shipping_address=address, shipping_method="Free shipping",
            date_placed=order.placed,
        )  # fmt: skip
        sums = records[order.customer]  # by which the shop's administration counts orders
        sums.num_orders += 1
        sums.num_order_lines += len(order.lines)
        sums.num_order_items += sum(line.count for line in order.lines)
        sums.total_spent += total
        sums.date_last_order = max(filter(None, (sums.date_last_order, saved.date_placed)))
        sums.save()
        for line in order.lines:
            (row, record), price = rows[line.product.title], Decimal(line.price) / 100
            cost = price * line.count
            _model("order", "Line").create(
                order=saved, product=row, num_allocated=0, title=row.title, upc=row.upc, quantity=line.count, stockrecord=record,
                partner=partner, partner_name=partner.name, partner_sku=row.upc, status=order.status, line_price_incl_tax=cost,
                line_price_excl_tax=cost, line_price_before_discounts_incl_tax=cost, line_price_before_discounts_excl_tax=cost,
                unit_price_incl_tax=price, unit_price_excl_tax=price,
            )  # fmt: skip
