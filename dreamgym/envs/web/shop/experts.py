"""The expert's script for each template of the shop (see `sites.experts`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dreamgym.envs.web.actions import WebAction
from dreamgym.envs.web.shop.content import STATUSES
from dreamgym.envs.web.sites.experts import Page, Script
from dreamgym.envs.web.sites.tasks import SiteTask


def _search(page: Page, title: str) -> WebAction | None:
    """One step from anywhere to the page of a product."""
    if link := page.click(title, "link"):
        return link
    box = page.find("Search", "textbox")
    # in lower case, as the wordings of these tasks write it
    return WebAction("type", box.number, title.lower(), enter=True) if box else page.click("Return to site", "link")


def _on(page: Page, title: str) -> bool:
    return page.title.startswith(f"{title.lower()} /")


def _basket(task: SiteTask, page: Page) -> WebAction | None:
    return _filled(task.wanted, page) or WebAction("stop")


def _compared(task: SiteTask, page: Page) -> WebAction | None:
    """One of two products, once both pages were looked at: a product's page lists those that were looked at before it."""
    if page.title.startswith("basket") or page.line("has been added to your basket"):
        return _basket(task, page)
    first, second = sorted(task.about.split(" & "), key=lambda title: task.instruction.lower().index(title.lower()))
    seen = page.text.lower().partition("# products you recently viewed")[2]
    for title, other in ((first, second), (second, first)):
        if _on(page, title):
            return _basket(task, page) if other.lower() in seen else _search(page, other)
    return _search(page, second if second.lower() in page.title else first)


def _filled(wanted: Sequence[tuple[str, int]], page: Page) -> WebAction | None:
    """A step to a basket with every (title, quantity); None on its page once it holds them."""
    if not page.title.startswith("basket"):
        for title, _ in wanted:
            if _on(page, title):
                if page.line("has been added to your basket"):
                    return page.click("View basket")
                return page.click("Add to basket", "button")
        return _search(page, next((title for title, _ in wanted if title.lower() in page.title), wanted[0][0]))
    missing = [title for title, _ in wanted if title.lower() not in page.text.lower()]
    if missing:
        return _search(page, missing[0])
    boxes = [one for one in page.elements.values() if one.role == "spinbutton"]
    if len(wanted) == 1 and boxes and boxes[0].value != str(wanted[0][1]):
        return WebAction("type", boxes[0].number, str(wanted[0][1]), enter=True)
    return None


def _total(task: SiteTask, page: Page) -> WebAction | None:
    """What the basket costs, read on its page."""
    count, title = _asked(r"with (\d+) of the (.*?) in it", task)
    if step := _filled(((_titled(task, title), int(count)),), page):
        return step
    return WebAction("stop", text=(re.findall(r"Order total \| #? ?£([\d.,]+)", page.text) or [""])[-1].replace(",", ""))


def _difference(task: SiteTask, page: Page) -> WebAction | None:
    """Two prices, side by side in the basket."""
    titles = task.about.split(" & ")
    if step := _filled([(title, 1) for title in titles], page):
        return step
    first, second = (float((re.search(rf"'{re.escape(title)}'[^£]*£([\d.]+)", page.text) or ["", "0"])[1]) for title in titles)
    return WebAction("stop", text=f"{abs(first - second):.2f}")


def _asked(pattern: str, task: SiteTask) -> tuple[str, ...]:
    """What a task asks for, by the groups of a pattern of its wording."""
    found = re.search(pattern, task.instruction)
    return found.groups() if found else ("",) * re.compile(pattern).groups


def _titled(task: SiteTask, lower: str) -> str:
    """A product of the task as its title is written."""
    return next((title for title in task.about.split(" & ") if title.lower() == lower), lower)


def _wish(task: SiteTask, page: Page) -> WebAction | None:
    (title,) = task.wanted
    if "wish list" in page.line("added to") or page.title.startswith("wish list"):
        return WebAction("stop")
    return page.click("Add to wish list", "button", "link") if _on(page, title) else _search(page, title)


def _review(task: SiteTask, page: Page) -> WebAction | None:
    title, stars, headline = task.wanted
    if "thank you for reviewing" in page.text.lower():
        return WebAction("stop")
    form = page.find("Save review", "button")
    if not form:
        return (page.click("Write a review", "link") or page.click("Add review", "link")) if _on(page, title) else _search(page, title)
    shown = [one.number for one in page.elements.values() if one.name == "star"]
    if any(one.role == "textbox" and one.value == headline and "focused" in one.flags for one in page.elements.values()):
        return WebAction("click", shown[stars - 1]) if len(shown) >= stars else None
    for one in page.elements.values():
        if one.role == "textbox" and not one.value and one.name.lower().startswith(("review title", "title")):
            return WebAction("type", one.number, headline)
        if one.role == "textbox" and not one.value and one.name.lower().startswith(("body", "review body", "your review")):
            return WebAction("type", one.number, "I have it now.")
    return WebAction("click", form.number)


def _product_answer(task: SiteTask, page: Page) -> WebAction | None:
    """Answers that stand on one product's page."""
    title = next(one for one in task.about.split(" & ") if one.lower() in task.instruction)
    if not _on(page, title):
        return _search(page, title)
    price, upc = page.cell("Price (incl. tax)").lstrip("£"), page.cell("UPC")
    stock = (re.search(r"\((\d+) available\)", page.text) or ["", ""])[1]
    answers = {
        "price_upc": f"{price} {upc}", "stock_upc": f"{stock} {upc}", "reviews_count": f"{page.cell('Number of reviews')} {price}",
        "review_author": f"{(re.search(r'Reviewed by (.*?) on ', page.text) or ['', ''])[1]} {stock}",
    }  # fmt: skip
    return WebAction("stop", text=answers[task.template])


def _order(task: SiteTask, page: Page) -> WebAction | None:
    """Answers and changes on an order's page, for customers and staff."""
    (number,) = _asked(r"order (\d+)", task)
    if not page.title.startswith((f"order {number}", f"order #{number}", f"#{number}")):
        if link := page.click(number, "link") or page.click(f"#{number}", "link"):
            return link
        if box := page.find("Order number", "textbox") or page.find("Order number:", "textbox"):
            return WebAction("type", box.number, number, enter=True)
        return page.click("Order History", "link") or page.click("Account", "link")
    return ORDERS[task.template](task, page)


def _order_total(task: SiteTask, page: Page) -> WebAction:
    status = next((one for one in STATUSES if re.search(rf"(?:\||status:?)\s+{one}\b", page.text, re.IGNORECASE)), "")
    return WebAction("stop", text=f"{_sum(page)} {status}")


def _buyer_email(task: SiteTask, page: Page) -> WebAction:
    email = (re.search(r"[\w.]+@[\w.]+\w", page.text.split("Customer Information")[-1]) or [""])[0]
    return WebAction("stop", text=f"{email} {_sum(page)}")


def _order_quantity(task: SiteTask, page: Page) -> WebAction:
    (title,) = _asked(r"How many (.*?) did I order", task)
    line = re.search(r"\| (\d+) \| £([\d.]+)", page.line(f"link '{title}'"))
    count, price = (int(line[1]), float(line[2])) if line else (1, 0.0)
    return WebAction("stop", text=f"{count} {price / count:.2f}")


def _order_status(task: SiteTask, page: Page) -> WebAction | None:
    wanted = task.wanted[1]
    if re.search(rf"£[\d.,]+ \| [^|\n]* \| [^|\n]* \| {wanted}\b", page.text):
        return WebAction("stop")
    after = page.text.partition("# Change order status:")[2]
    number = (re.search(r"\[(\d+)\] combobox", after) or ["", ""])[1]
    box = page.elements.get(int(number or 0))
    if box and not box.value.startswith(wanted):  # a list that opens within the page
        return page.click(wanted, "option") or WebAction("click", box.number)
    return page.click("Change status", "button")


def _order_note(task: SiteTask, page: Page) -> WebAction | None:
    note = task.wanted[1]
    box = page.find("Message *", "textbox")
    if box is None:
        return WebAction("stop") if note in page.text else page.click("Notes", "link")
    if note in page.text.partition("# Notes")[2].partition("\nMessage\n")[0]:
        return WebAction("stop")
    return page.click("Save note", "button") if box.value == note else WebAction("type", box.number, note)


ORDERS: Mapping[str, Script] = {
    "order_total": _order_total, "buyer_email": _buyer_email, "order_quantity": _order_quantity, "order_status": _order_status,
    "order_note": _order_note,
}  # fmt: skip


def _sum(page: Page) -> str:
    """The total on an order's page."""
    return (re.findall(r"\border total \| £([\d.,]+)", page.text, re.IGNORECASE) or [""])[-1].replace(",", "")


def _buyer_orders(task: SiteTask, page: Page) -> WebAction | None:
    """From an order to its customer, whose page lists the orders."""
    (number,), name = _asked(r"order (\d+)", task), task.wanted[0]
    if "@" in page.title:
        orders = re.findall(r"^\[\d+\] link '\d{6}' \|", page.text, re.MULTILINE)
        return WebAction("stop", text=f"{name} {len(orders)}")
    if page.title.startswith(f"order {number}"):
        return page.click("Customers", "link") or page.click("Customers", "button")
    if page.title.startswith("customers"):
        row = re.search(rf"\[(\d+)\] link '[^']*@[^']*' \| {re.escape(name)} \|", page.text)
        return WebAction("click", int(row[1])) if row else _typed(page, "Name", name)
    line = next((line for line in page.text.split("\n") if f"link '{number}'" in line), "")
    link = re.search(rf"\[(\d+)\] link '{re.escape(name)}'", line)
    return WebAction("click", int(link[1])) if link else _typed(page, "Order number:", number)


def _same(shown: str, value: str) -> bool:
    """Whether a field holds the value; a price is shown with the digits of a float."""
    try:
        return shown == value or abs(float(shown) - float(value)) < 0.001
    except ValueError:
        return False


def _typed(page: Page, label: str, text: str) -> WebAction | None:
    """A search by the field of that label."""
    box = page.find(label, "textbox") or page.find(f"{label}:", "textbox")
    return WebAction("type", box.number, text, enter=True) if box else None


def _product(task: SiteTask, page: Page) -> WebAction | None:
    """Changes on a product's page in the administration: its stock, its price, its title."""
    if page.line("updated product"):
        return WebAction("stop")
    if task.template == "rename":
        title, value = _asked(r"product '(.*?)' to '(.*?)'", task)
        box = page.find("Title", "textbox")
    else:
        title, value = task.wanted[0], str(task.wanted[1]) if task.template != "set_price" else f"{task.wanted[1] / 100:.2f}"
        row = next((line for line in page.text.split("\n") if "'Warehouse'" in line), "")
        boxes = [int(number) for number in re.findall(r"\[(\d+)\] spinbutton", row)]
        box = page.elements.get(boxes[2 if task.template == "set_price" else 0]) if len(boxes) > 2 else None
    if page.title.startswith((f"{title.lower()} / products", f"{value.lower()} / products")):
        if box is None:
            return page.click("Stock and pricing", "link")
        return page.click("Save", "button") if _same(box.value, value) else WebAction("type", box.number, value)
    if page.title.startswith("products"):
        return page.click(title, "link") or _typed(page, "Product title:", title if title in task.instruction else title.lower())
    return page.click("Products", "link") or page.click("Catalogue", "button")


SCRIPTS: Mapping[str, Script] = {
    "basket_one": _basket, "basket_many": _basket, "basket_two": _basket, "basket_cheaper": _compared, "basket_stocked": _compared,
    "wish": _wish, "review": _review, "price_upc": _product_answer, "stock_upc": _product_answer, "reviews_count": _product_answer,
    "review_author": _product_answer, "price_total": _total, "price_difference": _difference, "buyer_orders": _buyer_orders,
    "set_stock": _product, "restock": _product, "set_price": _product, "rename": _product, **dict.fromkeys(ORDERS, _order),
}  # fmt: skip
"""The expert of every template."""
