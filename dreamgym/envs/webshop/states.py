"""What an abstract state of a shop says, read: the results it lists, the item it shows, what it offers to click."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dreamgym.bracket_actions import ELEMENT
from dreamgym.envs.webshop.wording import Prices
from dreamgym.types import Transition

DONE = "purchase done"
HOME = "shop home\n[search]"
PRICE = r"\$[\d.]+(?: to \$[\d.]+)?"
RESULT = re.compile(rf"^\[(\w+)\] ({PRICE}) (.+)$", re.MULTILINE)
ITEM = re.compile(rf"item ({PRICE}) (.+)")
OPTION_LINE = re.compile(r"^([^\[\]\n]+): (\[.+\])$", re.MULTILINE)
CHOSEN_LINE = re.compile(r"^chosen (\[.+\])$", re.MULTILINE)


class Row(NamedTuple):
    """A line of results."""

    asin: str
    price: str  # as shown: "$12", or "$12 to $20"
    title: str


@dataclass(frozen=True)
class Item:
    """What an item page shows."""

    title: str
    prices: Prices
    offered: dict[str, tuple[str, ...]]
    chosen: dict[str, str]
    marked: tuple[str, ...] = ()  # values that stand as chosen, in the order of the page

    @property
    def price(self) -> str:
        """The price, or its range, as the teacher writes it."""
        return " to ".join(f"${end:g}" for end in dict.fromkeys(self.prices))


@lru_cache(maxsize=65536)
def read_item(state: str) -> Item | None:
    """The item page in a state's text, or None when it is another page."""
    head = ITEM.match(state)
    if not head:
        return None
    offered = {name: tuple(ELEMENT.findall(values)) for name, values in OPTION_LINE.findall(state)}
    marked = ELEMENT.findall(line[1]) if (line := CHOSEN_LINE.search(state)) else []
    chosen = {name: value for value in marked for name, values in offered.items() if value in values}
    try:
        return Item(head[2], ends(head[1]), offered, chosen, tuple(marked))
    except ValueError:
        return None


def rows(state: str) -> list[Row]:
    """The results that a state lists; none on another page."""
    return [Row(*found) for found in RESULT.findall(state)]


def without_results(state: str, names: Container[str]) -> str:
    """The state without the lines of the results that are named; it offers all the rest."""
    return RESULT.sub(lambda found: "" if found[1] in names else found[0], state)


def ends(price: str) -> Prices:
    """`"$12 to $20"` -> (12.0, 20.0), and `"$12"` -> (12.0, 12.0). ValueError for what is no number, such as `"$1.2.3"`."""
    shown = sorted(float(end) for end in price.replace("$", "").split(" to "))
    return shown[0], shown[-1]


@lru_cache(maxsize=65536)
def elements(state: str) -> tuple[str, ...]:
    """What a state offers to click, in order."""
    return tuple(ELEMENT.findall(state))


def since_opening(history: Sequence[Transition]) -> list[Transition]:
    """What was done on the item's pages since the item was opened: options are chosen there or nowhere."""
    visit: list[Transition] = []
    for transition in reversed(history):
        if not transition.state.text.startswith(("item ", "details ")):
            break
        visit.append(transition)
    return visit
