"""How each kind of shop task is checked by the rows of its world."""

from __future__ import annotations

from typing import Any

from dreamgym.envs.web.sites.tasks import Check, Query

OWN = "user0"
"""The user name of the account of the tasks."""
REJECTED = 2
"""The status of a review that the staff has rejected."""
BASKET = (
    "SELECT p.title, l.quantity FROM basket_line l JOIN basket_basket b ON b.id = l.basket_id JOIN auth_user u ON u.id = b.owner_id "
    "JOIN catalogue_product p ON p.id = l.product_id WHERE b.status = 'Open' AND u.username = ? AND l.quantity > 0"
)
STOCK = "FROM partner_stockrecord s JOIN catalogue_product p ON p.id = s.product_id LEFT JOIN template.partner_stockrecord t ON t.id = s.id"
"""Stock, and what it was at first."""


def _in_basket(query: Query, *wanted: Any) -> bool:
    """The basket holds the (title, quantity) pairs, and nothing else."""
    return sorted(query(BASKET, OWN)) == sorted(wanted)


def _wished(query: Query, title: str) -> bool:
    return query("SELECT p.title FROM wishlists_line l JOIN catalogue_product p ON p.id = l.product_id") == [(title,)]


def _chosen(query: Query, basket: str, wish: str) -> bool:
    """One product in the basket, and another in the wish list."""
    return _in_basket(query, (basket, 1)) and _wished(query, wish)


def _reviewed(query: Query, product: str, stars: int, headline: str) -> bool:
    sql = (
        "SELECT p.title, r.score, r.title FROM reviews_productreview r JOIN catalogue_product p ON p.id = r.product_id JOIN auth_user u ON "
        "u.id = r.user_id WHERE u.username = ?"
    )
    rows = [(title, score, text.strip().lower()) for title, score, text in query(sql, OWN)]
    return rows == [(product, stars, headline.lower())]


def _rejected(query: Query, product: str, writer: str, headline: str) -> bool:
    """One review is rejected, that of the product by the writer."""
    sql = (
        "SELECT p.title, u.first_name || ' ' || u.last_name, r.title FROM reviews_productreview r JOIN catalogue_product p ON "
        "p.id = r.product_id JOIN auth_user u ON u.id = r.user_id WHERE r.status = ?"
    )
    return query(sql, REJECTED) == [(product, writer, headline)]


def _stocked(query: Query, title: str, count: int) -> bool:
    """The stock of the product has changed, and of no other."""
    return query(f"SELECT p.title, s.num_in_stock {STOCK} WHERE s.num_in_stock IS NOT t.num_in_stock") == [(title, count)]


def _priced(query: Query, title: str, pence: int) -> bool:
    """The price of the product has changed, and of no other."""
    rows = query(f"SELECT p.title, s.price {STOCK} WHERE s.price IS NOT t.price")
    return [(product, round(float(price) * 100)) for product, price in rows] == [(title, pence)]


def _titled(query: Query, upc: str, title: str) -> bool:
    """The title of the product has changed, and of no other."""
    sql = (
        "SELECT p.upc, p.title FROM catalogue_product p LEFT JOIN template.catalogue_product t ON t.id = p.id WHERE p.title IS NOT t.title"
    )
    return query(sql) == [(upc, title)]


def _hidden(query: Query, title: str) -> bool:
    return query("SELECT title FROM catalogue_product WHERE NOT is_public") == [(title,)]


def _order_is(query: Query, number: int, status: str) -> bool:
    """The status of the order has changed, and of no other."""
    sql = "SELECT o.number, o.status FROM order_order o LEFT JOIN template.order_order t ON t.id = o.id WHERE o.status IS NOT t.status"
    return query(sql) == [(str(number), status)]


def _noted(query: Query, number: int, text: str) -> bool:
    """The order has a new note, and no other has."""
    sql = (
        "SELECT o.number, n.message FROM order_ordernote n JOIN order_order o ON o.id = n.order_id LEFT JOIN template.order_ordernote t ON "
        "t.id = n.id WHERE n.note_type <> 'System' AND n.message IS NOT t.message"
    )
    return [(order, message.strip().lower()) for order, message in query(sql)] == [(str(number), text.lower())]


CHECKED: dict[str, Check] = {
    "basket_many": _in_basket, "basket_two": _in_basket, "basket_cheaper": _in_basket, "basket_stocked": _in_basket,
    "basket_reviewed": _in_basket, "basket_wish": _chosen, "wish": _wished, "review": _reviewed, "reorder": _in_basket,
    "reorder_one": _in_basket, "set_stock": _stocked, "restock": _stocked, "stock_ordered": _stocked, "set_price": _priced,
    "rename": _titled, "hide": _hidden, "reject_review": _rejected, "order_status": _order_is, "order_note": _noted,
}  # fmt: skip
"""By template."""
