"""What is known about any web page as text."""

from __future__ import annotations

import pytest

from dreamgym.envs.web.page_text import DONE
from dreamgym.envs.web.rules import WebRules, elements
from dreamgym.types import Observation

STATE = Observation(
    "page: Shop\n"
    "tabs: 0 'Shop', 1 'Help'; active: 0\n"
    "# Books\n"
    "[1] link 'It's here' | 3.00 | [2] button 'Add' (disabled)\n"
    "[3] textbox near 'Name' = 'Ann (old)' (required, focused)\n"
    "[4] combobox 'Sort' = 'price' of: 'price', 'name'\n"
    "[5] combobox 'Country' = 'a' of: 'a', 'b', 9 more\n"
    "[6] checkbox\n"
    "[7] inputtime 'At' | [8] datetime 'Month' = '2026-01' | [9] combobox 'By' of: 'Price (low)', 'A / B'"
)


def allowed(action: str) -> bool | None:
    return WebRules().admissible(STATE, (), action)


def test_elements_are_read_from_a_state():
    found = elements(STATE.text)
    assert [(one.number, one.role, one.name, one.value) for one in found.values()] == [
        (1, "link", "It's here", ""), (2, "button", "Add", ""), (3, "textbox", "Name", "Ann (old)"), (4, "combobox", "Sort", "price"),
        (5, "combobox", "Country", "a"), (6, "checkbox", "", ""), (7, "inputtime", "At", ""), (8, "datetime", "Month", "2026-01"),
        (9, "combobox", "By", ""),
    ]  # fmt: skip
    assert found[3].flags == ("required", "focused") and found[2].blocked and not found[3].blocked
    assert found[4].options == "'price', 'name'"


@pytest.mark.parametrize(
    "action",
    ["click [1]", "hover [2]", "type [3] [x] [0]", "select [4] [name]", "tab_focus [1]", "stop [x]", "press [a]",
     "type [7] [12:30] [0]", "type [8] [2026-02] [0]", "select [9] [Price (low)]", "select [9] [Price [low]]", "select [9] [A | B]"],
)  # fmt: skip
def test_what_a_state_offers(action: str):
    assert allowed(action) is True


@pytest.mark.parametrize(
    "action",
    ["click [70]", "click [2]", "select [9] [Price]", "press [Control+c]", "type [1] [x] [0]", "type [4] [x] [0]", "select [4] [size]",
     "select [6] [a]", "tab_focus [2]", "", "jump"],
)  # fmt: skip
def test_what_a_state_does_not_offer(action: str):
    assert allowed(action) is False


@pytest.mark.parametrize("action", ["select [5] [c]", "goto [http://x]", "scroll [down]", "go_back"])
def test_what_a_state_does_not_tell(action: str):
    assert allowed(action) is None


def test_nothing_is_offered_after_the_end():
    assert WebRules().admissible(Observation(DONE), (), "stop []") is False
