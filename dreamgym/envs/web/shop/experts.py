"""The expert's script for each template of the shop (see `sites.experts`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dreamgym.envs.web.actions import WebAction
from dreamgym.envs.web.shop.content import STATUSES
from dreamgym.envs.web.shop.page import (
    basket,
    both,
    choose,
    further,
    looked,
    offers,
    on,
    search,
    staff_list,
    staff_product,
    to_order,
    to_own_order,
    to_placed,
    to_product,
    typed,
)
from dreamgym.envs.web.sites.experts import Page, Script, answer
from dreamgym.envs.web.sites.tasks import SiteTask

STOP = WebAction("stop")
ADDED = "has been added to your basket"


def _asked(pattern: str, task: SiteTask) -> tuple[str, ...]:
    """What a task asks for, by the groups of a pattern of its wording."""
    found = re.search(pattern, task.instruction)
    return found.groups() if found else ("",) * re.compile(pattern).groups


def _basket(task: SiteTask, page: Page) -> WebAction | None:
    return basket(task.wanted, page) or STOP


PAIRS = {
    "basket_cheaper": r"cheaper of (.*?) and (.*?) into", "basket_stocked": r"one of (.*?) and (.*?) of which",
    "stock_both": r"How many of the (.*?) and (.*?) are", "more_reviews": r"one of (.*?) and (.*?) that has",
    "both_reviewed": r"both the (.*?) and the (.*?), and",
}  # fmt: skip
"""How tasks about two products name them."""


def _pair(task: SiteTask, page: Page) -> WebAction | None:
    """What the pages of two products show: which of them to put into the basket, or the answer to a question."""
    if task.answered or not (page.title.startswith("basket") or page.line(ADDED)):
        first, second = _asked(PAIRS[task.template], task)
        if step := both(page, first, second):
            return step
    return answer(*task.wanted) if task.answered else _basket(task, page)


def _reviewed_by(task: SiteTask, page: Page) -> WebAction | None:
    """One variant after the other, until one has a review by the customer of the task."""
    kind, writer = _asked(r"the (.*?) that (.*?) has reviewed", task)
    if page.title.startswith("basket") or page.line(ADDED):
        return _basket(task, page)
    named = re.search(rf"Other colours of the {kind}: (.*?)\.", page.text)
    if named and f"{kind} / example" in page.title:
        if f"Reviewed by {writer} on" in page.text:
            return page.click("Add to basket", "button")
        left = (f"{colour} {kind}" for colour in named[1].split(", ") if f"{colour} {kind}" not in looked(page))
        return search(page, next(left, kind))
    for one in offers(page):
        if kind in one.title.lower() and (one.title.lower() in page.title or f"'{kind}'" in page.title):
            return WebAction("click", one.link)
    return search(page, kind)


def _basket_wish(task: SiteTask, page: Page) -> WebAction | None:
    """The list of a kind shows prices, from which the cheapest is put into the basket; the page of the dearest saves it."""
    (kind,) = _asked(r"cheapest (.*?) into", task)
    listed = [one for one in offers(page) if kind in one.title.lower()]
    if page.line("was added to your wish list"):
        return STOP
    if listed and not page.find("Add to wish list"):
        if page.line(ADDED) or not page.line("basket total: £0.00"):
            return WebAction("click", max(listed, key=lambda one: one.price).link)
        return WebAction("click", min(listed, key=lambda one: one.price).button)
    return page.click("Add to wish list", "button", "link") if on(page, task.wanted[1]) else search(page, kind)


def _wish(task: SiteTask, page: Page) -> WebAction | None:
    (title,) = task.wanted
    if page.line("was added to your wish list"):
        return STOP
    return page.click("Add to wish list", "button", "link") if on(page, title) else to_product(page, title)


def _review(task: SiteTask, page: Page) -> WebAction | None:
    title, stars, headline = task.wanted
    if "thank you for reviewing" in page.text.lower():
        return STOP
    form = page.find("Save review", "button")
    if not form:
        return (page.click("Write a review", "link") or page.click("Add review", "link")) if on(page, title) else to_product(page, title)
    shown = [one.number for one in page.elements.values() if one.name == "star"]
    if any(one.role == "textbox" and one.value == headline and "focused" in one.flags for one in page.elements.values()):
        return WebAction("click", shown[stars - 1]) if len(shown) >= stars else None
    for one in page.elements.values():
        if one.role == "textbox" and not one.value and one.name.lower().startswith(("review title", "title")):
            return WebAction("type", one.number, headline)
        if one.role == "textbox" and not one.value and one.name.lower().startswith(("body", "review body", "your review")):
            return WebAction("type", one.number, "I have it now.")
    return WebAction("click", form.number)


def _extremes(task: SiteTask, page: Page) -> WebAction | None:
    """The list of a kind says which is the cheapest and which the dearest; their pages hold the rest."""
    (kind,) = _asked(r"cheapest (.*?) with", task)
    cheap, dear = task.wanted[0], task.wanted[2]
    if on(page, cheap) or on(page, dear) or any(one.title == cheap for one in offers(page)):
        return both(page, cheap, dear) or answer(*task.wanted)
    return search(page, kind)


def _day(task: SiteTask) -> str:
    return _asked(r"(\d+ \w{3} \d{4})", task)[0]


def _own_order(task: SiteTask, page: Page) -> WebAction | None:
    """Answers on the page of an order of the account's own, and products that are ordered again."""
    if task.template.startswith("reorder") and page.title.startswith("basket"):
        return STOP
    if step := to_own_order(page, _day(task)):
        return step
    if task.template == "reorder":
        return page.click("Re-order all items", "button")
    if task.template == "reorder_one":
        (count,) = _asked(r"ordered (\d+) of", task)
        row = re.search(rf"'Write a review' \| {count} \| .*\[(\d+)\] button 'Re-order'", page.text)
        return WebAction("click", int(row[1])) if row else None
    if task.template == "my_total":
        return answer(_sum(page), _status(page))
    return answer(*_ordered(page, _asked(r"How many (.*?) did I order", task)[0]))


def _ordered(page: Page, title: str) -> tuple[str, str]:
    """How many of a product an order holds, and what they cost together."""
    line = re.search(r"\| (\d+) \| £([\d.]+)", page.line(f"link '{title}'"))
    return (line[1], line[2]) if line else ("", "")


def _price_change(task: SiteTask, page: Page) -> WebAction | None:
    """From an order to the product, whose page shows today's price."""
    (title,) = _asked(r"What did the (.*?) in my order", task)
    if on(page, title):
        return answer(task.wanted[0], page.cell("Price (incl. tax)").lstrip("£"))
    return to_own_order(page, _day(task)) or page.click(title, "link")


def _sum(page: Page) -> str:
    """The total on an order's page."""
    return (re.findall(r"\border total \| £([\d.]+)", page.text, re.IGNORECASE) or [""])[-1]


def _status(page: Page) -> str:
    """The status on an order's page."""
    return next((one for one in STATUSES if re.search(rf"(?:\| |# Status\n){one}$", page.text, re.MULTILINE)), "")


def _order(task: SiteTask, page: Page) -> WebAction | None:
    """Questions about a customer's order of a number."""
    if step := to_order(page, _asked(r"order (\d+)", task)[0]):
        return step
    if task.template == "order_total":
        return answer(_sum(page), _status(page))
    email = (re.search(r"[\w.]+@[\w.]+\w", page.text.split("Customer Information")[-1]) or [""])[0]
    return answer(email, _sum(page))


def _buyer_orders(task: SiteTask, page: Page) -> WebAction | None:
    """From an order to its customer, whose page lists the orders."""
    (number,), name = _asked(r"order (\d+)", task), task.wanted[0]
    if "@" in page.title:
        return answer(name, len(re.findall(r"^\[\d+\] link '\d{6}' \|", page.text, re.MULTILINE)))
    if page.title.startswith("customers"):
        row = re.search(rf"\[(\d+)\] link '[^']*@[^']*' \| {re.escape(name)} \|", page.text)
        return WebAction("click", int(row[1])) if row else typed(page, "Name:", name)
    return to_order(page, number) or page.click("Customers", "link") or page.click("Customers", "button")


def _placed(task: SiteTask) -> tuple[str, str]:
    """Who has placed the order of a task, and when."""
    return _asked(r"(?:that|what) (\w+ \w+) (?:placed|ordered)", task)[0], _day(task)


def _order_status(task: SiteTask, page: Page) -> WebAction | None:
    wanted = task.wanted[1]
    if step := to_placed(page, *_placed(task)):
        return step
    if re.search(rf"£[\d.]+ \| [^|\n]* \| [^|\n]* \| {wanted}\b", page.text):
        return STOP
    return choose(page, "# Change order status:", wanted) or page.click("Change status", "button")


def _order_note(task: SiteTask, page: Page) -> WebAction | None:
    note = task.wanted[1]
    if step := to_placed(page, *_placed(task)):
        return step
    box = page.find("Message *", "textbox")
    if box is None:
        return STOP if note in page.text else page.click("Notes", "link")
    if note in page.text.partition("# Notes")[2].partition("\nMessage\n")[0]:
        return STOP
    return page.click("Save note", "button") if box.value == note else WebAction("type", box.number, note)


def _stock_ordered(task: SiteTask, page: Page) -> WebAction | None:
    """From an order to the product of which it holds so many."""
    if page.line("updated product") or page.title.startswith(f"{task.wanted[0].lower()} / products"):
        return _product(task, page)
    if step := to_placed(page, *_placed(task)):
        return step
    (count,) = _asked(r"ordered (\d+) of", task)
    row = re.search(rf"link '#\d+' \| {count} \| \[(\d+)\] link", page.text)
    return WebAction("click", int(row[1])) if row else None


def _same(shown: str, value: str) -> bool:
    """Whether a field holds the value; a price is shown with the digits of a float."""
    try:
        return shown == value or abs(float(shown) - float(value)) < 0.001
    except ValueError:
        return False


def _product(task: SiteTask, page: Page) -> WebAction | None:
    """Changes on a product's page in the administration: its stock, its price, its title, and whether customers see it."""
    if page.line("updated product"):
        return STOP
    title = _asked(r"product '(.*?)' to", task)[0] if task.template == "rename" else task.wanted[0]
    if step := staff_product(page, title):
        return step
    if task.template == "hide":
        box = page.find("Is public", "checkbox")
        return WebAction("click", box.number) if box and "checked" in box.flags else page.click("Save", "button")
    value, box = str(task.wanted[1]), page.find("Title", "textbox")
    if task.template != "rename":
        row = next((line for line in page.lines if "'Warehouse'" in line), "")
        boxes = [int(number) for number in re.findall(r"\[(\d+)\] spinbutton", row)]
        if len(boxes) < 3:
            return page.click("Stock and pricing", "link")
        box = page.elements.get(boxes[2 if task.template == "set_price" else 0])
    if task.template == "set_price":
        value = f"{task.wanted[1] / 100:.2f}"
    if box is None:
        return None
    return page.click("Save", "button") if _same(box.value, value) else WebAction("type", box.number, value)


def _reject_review(task: SiteTask, page: Page) -> WebAction | None:
    """The list of reviews shows whether one is rejected; its own page changes that."""
    title, writer, headline = task.wanted
    if page.title.startswith("update review"):
        return choose(page, "\nStatus:", "Rejected") or page.click("Save", "button")
    if not page.title.startswith("reviews"):
        return staff_list(page, "Content", "Reviews")
    row = next((line for line in page.lines if all(f"link '{one}'" in line for one in (headline, title, writer))), "")
    if "| Rejected |" in row:
        return STOP
    if link := re.search(rf"\[(\d+)\] link '{headline}'", row):
        return WebAction("click", int(link[1]))
    return further(page, "with keyword matching", headline) or typed(page, "Keyword:", headline)


SCRIPTS: Mapping[str, Script] = {
    **dict.fromkeys(("basket_many", "basket_two"), _basket), **dict.fromkeys(PAIRS, _pair),
    "basket_reviewed": _reviewed_by, "basket_wish": _basket_wish, "wish": _wish, "review": _review,
    "upc_and_stock": _extremes, **dict.fromkeys(("reorder", "reorder_one", "my_total", "order_quantity"), _own_order),
    "price_change": _price_change, **dict.fromkeys(("order_total", "buyer_email"), _order), "buyer_orders": _buyer_orders,
    "order_status": _order_status, "order_note": _order_note, "stock_ordered": _stock_ordered,
    **dict.fromkeys(("set_stock", "restock", "set_price", "rename", "hide"), _product), "reject_review": _reject_review,
}  # fmt: skip
"""The expert of every template."""
