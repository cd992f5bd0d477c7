"""Scripted policies for the shop. They read the state, as an agent does, and the task's template and values; nothing hidden.

`expert` does the task. `noisy` does something else in a quarter of its steps, `careless` stops too early or answers with what it has not
looked up, `random` clicks anything, `invalid` names what is not there. The expert knows the templates in `SCRIPTS`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

from dreamgym.envs.web.actions import WebAction
from dreamgym.envs.web.rules import Element, elements
from dreamgym.envs.web.shop.content import STATUSES
from dreamgym.envs.web.shop.tasks import ShopTask
from dreamgym.types import Action, Observation

MIX: Mapping[str, float] = {"expert": 0.4, "noisy": 0.25, "careless": 0.15, "random": 0.1, "invalid": 0.1}
CLICKED = ("link", "button", "clickable", "checkbox", "radio", "tab", "menuitem")


class Page:
    """A state, and how its elements are found."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.title = text.split("\n", 1)[0].removeprefix("page: ").lower()
        self.elements = elements(text)

    def find(self, name: str, *roles: str) -> Element | None:
        """The first element of that name, whatever its case."""
        wanted = name.lower()
        return next((one for one in self.elements.values() if one.name.lower() == wanted and (not roles or one.role in roles)), None)

    def click(self, name: str, *roles: str) -> WebAction | None:
        found = self.find(name, *roles)
        return WebAction("click", found.number) if found else None

    def line(self, *parts: str) -> str:
        """The first line that holds all parts, in lower case."""
        return next((line for line in self.text.lower().split("\n") if all(part.lower() in line for part in parts)), "")

    def cell(self, label: str) -> str:
        """What stands beside a label in a table."""
        line = next((line for line in self.text.split("\n") if line.lower().startswith(f"{label.lower()} | ")), "")
        return line.partition(" | ")[2].strip()


Script = Callable[[ShopTask, Page], WebAction | None]


def act(task: ShopTask, policy: str, state: Observation, rng: random.Random) -> Action:
    """What a scripted policy does in a state."""
    page = Page(state.text)
    if policy == "invalid" and rng.random() < 0.5:
        return str(WebAction("click", len(page.elements) + rng.randint(1, 50)))
    if policy == "random" or (policy in ("noisy", "invalid") and rng.random() < 0.25):
        found = [one for one in page.elements.values() if one.role in CLICKED and not one.blocked]
        return str(WebAction("click", rng.choice(found).number)) if found and rng.random() < 0.95 else "stop []"
    if policy == "careless" and rng.random() < 0.2:
        return str(WebAction("stop", text=str(rng.randint(1, 60)) if task.answered else ""))
    script = SCRIPTS.get(task.template)
    return str((script(task, page) if script else None) or WebAction("stop"))


def _search(page: Page, title: str) -> WebAction | None:
    """One step from anywhere to the page of a product."""
    if link := page.click(title, "link"):
        return link
    box = page.find("Search", "textbox")
    return WebAction("type", box.number, title, enter=True) if box else page.click("Return to site", "link")


def _on(page: Page, title: str) -> bool:
    return page.title.startswith(f"{title.lower()} /")


def _basket(task: ShopTask, page: Page) -> WebAction | None:
    """Put every (title, quantity) into the basket; the basket's page shows what is missing."""
    wanted: tuple[tuple[str, int], ...] = task.wanted
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
    return WebAction("stop")


def _wish(task: ShopTask, page: Page) -> WebAction | None:
    (title,) = task.wanted
    if "wish list" in page.line("added to") or page.title.startswith("wish list"):
        return WebAction("stop")
    return page.click("Add to wish list", "button", "link") if _on(page, title) else _search(page, title)


def _review(task: ShopTask, page: Page) -> WebAction | None:
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


def _product_answer(task: ShopTask, page: Page) -> WebAction | None:
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


def _order(task: ShopTask, page: Page) -> WebAction | None:
    """Answers and changes on an order's page, for customers and staff."""
    number = (re.search(r"order (\d+)", task.instruction) or ["", ""])[1]
    if not page.title.startswith((f"order {number}", f"order #{number}", f"#{number}")):
        if link := page.click(number, "link") or page.click(f"#{number}", "link"):
            return link
        if box := page.find("Order number", "textbox") or page.find("Order number:", "textbox"):
            return WebAction("type", box.number, number, enter=True)
        return page.click("Order History", "link") or page.click("Account", "link")
    if task.template == "order_total":
        total = re.findall(r"\border total \| £([\d.,]+)", page.text, re.IGNORECASE)
        status = next((one for one in STATUSES if re.search(rf"(?:\||status:?) {one}\b", page.text, re.IGNORECASE)), "")
        return WebAction("stop", text=f"{total[-1].replace(',', '') if total else ''} {status}")
    return None


SCRIPTS: Mapping[str, Script] = {
    "basket_one": _basket, "basket_many": _basket, "basket_two": _basket, "basket_cheaper": _basket, "basket_stocked": _basket,
    "wish": _wish, "review": _review, "price_upc": _product_answer, "stock_upc": _product_answer, "reviews_count": _product_answer,
    "review_author": _product_answer, "order_total": _order,
}  # fmt: skip
"""Experts by template. The other templates have none yet: an expert stops at once there."""
