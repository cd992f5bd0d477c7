"""The shop's pages as its scripted policies read them: products, orders, and the ways from one page to another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.envs.web.actions import WebAction
from dreamgym.envs.web.sites.experts import Page

_OFFER = re.compile(r"^\[(\d+)\] link '([^']*)' \| £([\d.]+) \|.*\[(\d+)\] button 'Add to basket'$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Offer:
    """A product in a list. `link` and `button` are numbers of elements."""

    title: str
    price: float
    link: int
    button: int


def offers(page: Page) -> list[Offer]:
    """The products of a list, from above."""
    return [Offer(title, float(price), int(link), int(button)) for link, title, price, button in _OFFER.findall(page.text)]


def on(page: Page, title: str) -> bool:
    """Whether a page is that of this product in the shop."""
    return page.title.startswith(f"{title.lower()} / example")


def search(page: Page, text: str) -> WebAction | None:
    """A search for products."""
    box = page.find("Search", "textbox")
    # in lower case, as the wordings of these tasks write it
    return WebAction("type", box.number, text.lower(), enter=True) if box else page.click("Return to site", "link")


def to_product(page: Page, title: str) -> WebAction | None:
    """One step from anywhere to the page of a product."""
    return page.click(title, "link") or search(page, title)


def looked(page: Page) -> str:
    """What a product's page lists as looked at before it, in lower case."""
    return page.text.lower().partition("# products you recently viewed")[2]


def both(page: Page, first: str, second: str) -> WebAction | None:
    """A step until the pages of both products were looked at; None on the page of the one that was looked at last."""
    for title, other in ((first, second), (second, first)):
        if on(page, title):
            return None if other.lower() in looked(page) else to_product(page, other)
    return to_product(page, second if second.lower() in page.title else first)


def basket(wanted: Sequence[tuple[str, int]], page: Page) -> WebAction | None:
    """A step to a basket with every (title, quantity); None on its page once it holds them."""
    if not page.title.startswith("basket"):
        for title, _ in wanted:
            if on(page, title):
                if page.line("has been added to your basket"):
                    return page.click("View basket")
                return page.click("Add to basket", "button")
        return to_product(page, next((title for title, _ in wanted if title.lower() in page.title), wanted[0][0]))
    missing = [title for title, _ in wanted if title.lower() not in page.text.lower()]
    if missing:
        return to_product(page, missing[0])
    boxes = [one for one in page.elements.values() if one.role == "spinbutton"]
    if len(wanted) == 1 and boxes and boxes[0].value != str(wanted[0][1]):
        return WebAction("type", boxes[0].number, str(wanted[0][1]), enter=True)
    return None


def to_own_order(page: Page, day: str) -> WebAction | None:
    """A step to the account's order of a day, by the list of them, which shows the days; None on the page of an order."""
    if re.match(r"order #\d+ / account", page.title):
        return None
    if page.title.startswith("order history"):
        row = _row(page, f"| {day},")
        return WebAction("click", int(row[0])) if row else page.click("next", "link")
    return page.click("Order History", "link") or page.click("Account", "link")


def staff_list(page: Page, menu: str, entry: str) -> WebAction | None:
    """A step to a list of the administration, by its menu."""
    return page.click(entry, "link") or page.click(menu, "button") or page.click("Dashboard", "link")


def to_order(page: Page, number: str) -> WebAction | None:
    """A step to the page of any customer's order; None on it."""
    if page.title.startswith(f"order {number} "):
        return None
    if page.title.startswith("orders"):
        return typed(page, "Order number:", number)
    return staff_list(page, "Fulfilment", "Orders")


def to_placed(page: Page, name: str, day: str) -> WebAction | None:
    """A step to the order that a customer has placed on a day, by the orders of this customer; None on it."""
    if page.title.startswith("order ") and f"\n{name} | " in page.text and f" | {day} | " in page.text:
        return None
    if not page.title.startswith("orders"):
        return staff_list(page, "Fulfilment", "Orders")
    if row := _row(page, f"'{name}'", f"| {day},"):
        return WebAction("click", int(row[1]))
    return further(page, "customer name matches", name) or typed(page, "Customer name", name) or page.click("Advanced Search", "link")


def _row(page: Page, *parts: str) -> list[str]:
    """The numbers of the elements in the first line that holds all parts."""
    return re.findall(r"\[(\d+)\]", next((line for line in page.lines if all(part in line for part in parts)), ""))


def staff_product(page: Page, title: str) -> WebAction | None:
    """A step to the page of a product in the administration; None on it."""
    if page.title.startswith(f"{title.lower()} / products"):
        return None
    if page.title.startswith("products /"):
        return page.click(title, "link") or typed(page, "Product title:", title.lower())
    return staff_list(page, "Catalogue", "Products")


def typed(page: Page, label: str, text: str) -> WebAction | None:
    """A search by the field of that label."""
    box = page.find(label, "textbox")
    return WebAction("type", box.number, text, enter=True) if box else None


def further(page: Page, *parts: str) -> WebAction | None:
    """A step down what a search has found, whose first line holds these parts."""
    found = page.line(*parts) or page.line("scroll up")
    return WebAction("scroll", text="down") if found and page.line("scroll down") else None


def choose(page: Page, after: str, wanted: str) -> WebAction | None:
    """A step in a list that opens within the page, the first below a text; None once it shows what is wanted."""
    number = re.search(r"\[(\d+)\] combobox", page.text.partition(after)[2])
    box = page.elements.get(int(number[1])) if number else None
    if box is None or box.value == wanted:
        return None
    return page.click(wanted, "option") or WebAction("click", box.number)
