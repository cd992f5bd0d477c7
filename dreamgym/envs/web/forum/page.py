"""The forum's pages as its scripted policies read them: comments with their links, and the ways from one page to another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.envs.web.actions import WebAction
from dreamgym.envs.web.sites.experts import Page

SEARCH = "search header tabs"
"""The name of the icon that opens the search."""
NEXT = "chevron right"
"""The name of the icon that leads to the next page of a list."""
_WRITER = re.compile(r"^\[\d+\] link '([a-z_]+)'$")
_DATE = re.compile(r"(?:^|\| )(?:\d{1,2} \w{3} \d{4}|today)$")
_LINK = re.compile(r"\[(\d+)\] (\w+) '([^']*)'")
_LIKES = re.compile(r"like \((\d+)\)'|^\((\d+)\)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Shown:
    """A comment on a page of its topic or of its writer."""

    writer: str
    lines: tuple[str, ...]
    """The lines below the writer's name, down to the next comment."""

    @property
    def text(self) -> str:
        """What it says: the line below its date."""
        date = next((place for place, line in enumerate(self.lines) if _DATE.search(line)), len(self.lines))
        return self.lines[date + 1] if date + 1 < len(self.lines) else ""

    @property
    def likes(self) -> int:
        found = _LIKES.search("\n".join(self.lines))
        return int(found[1] or found[2]) if found else 0

    def click(self, name: str) -> WebAction | None:
        """A click on the first link whose name begins so."""
        found = _LINK.findall("\n".join(self.lines))
        return next((WebAction("click", int(number)) for number, role, text in found if role == "link" and text.startswith(name)), None)


def comments(page: Page) -> list[Shown]:
    """The comments of a page, from above."""
    lines, starts = page.lines, list[int]()
    for place, line in enumerate(lines[:-1]):
        if _WRITER.match(line) and any(_DATE.search(one) for one in lines[place + 1 : place + 3]):
            starts.append(place)
    found = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):  # none where there are no comments
        name = _WRITER.match(lines[start])
        assert name
        found.append(Shown(name[1], tuple(lines[start + 1 : end])))
    return found


def saying(page: Page, text: str) -> Shown | None:
    """The comment that says this."""
    return next((one for one in comments(page) if one.text == text), None)


def on(page: Page, title: str) -> bool:
    """Whether a page is that of this topic, user or category."""
    return page.title.startswith(f"{title.lower()} - ")


def to_topic(page: Page, title: str) -> WebAction | None:
    """A step to the page of a topic, by the search; None on it."""
    if on(page, title):
        return None
    if link := page.click(title, "link"):
        return link
    box = page.find("Search:", "searchbox") or page.find("Search:", "textbox")
    return WebAction("type", box.number, title, enter=True) if box else page.click(SEARCH, "link")


def to_message(page: Page, title: str) -> WebAction | None:
    """A step to the page of a private topic, by the list of them; None on it."""
    if on(page, title):
        return None
    if page.title.startswith("private topics"):
        return page.click(title, "link") or page.click(NEXT, "link")
    return page.click("Private topics", "link") or page.click("robin", "link")


def to_profile(page: Page) -> WebAction | None:
    """A step to the member's own page, by the menu."""
    return page.click("Profile", "link") or page.click("robin", "link")


def fill(page: Page, button: str, *fields: tuple[str, str]) -> WebAction | None:
    """A step in a form: the next (label, text) that is not written yet, or the button."""
    for label, text in fields:
        box = page.find(label)
        if box is None:
            return None
        if box.options and not box.value.lower().startswith(text.lower()):
            return WebAction("select", box.number, _option(box.options, text))
        if not box.options and box.value != text:
            return WebAction("type", box.number, text)
    return page.click(button, "button")


def _option(options: str, text: str) -> str:
    """An option as the list writes it."""
    return next((one for one in re.findall(r"'([^']*)'", options) if one.lower() == text.lower()), text)


def first(found: Sequence[str]) -> str:
    """The first of what was found, or nothing."""
    return found[0] if found else ""
