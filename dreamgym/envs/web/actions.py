"""The actions of WebArena as text, and how they are written in one spelling. Elements are named by their number in the state.

    click [3] · hover [3] · type [3] [red scarf] [1] · select [4] [Price - low to high] · press [Control+a] · scroll [down]
    goto [http://...] · go_back · go_forward · new_tab · tab_focus [0] · close_tab · stop [answer]

The last bracket of `type` says whether Enter is pressed after it; like in WebArena, it is where it is left out. `select` is an addition,
because a browser's list of options is no part of the page. Keys that copy, cut or paste are no actions. Source: WebArena
(arXiv:2307.13854), `browser_env/actions.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ONE_ELEMENT = ("click", "hover")
BARE = ("go_back", "go_forward", "new_tab", "close_tab")
DIRECTIONS = ("up", "down")
KEY = re.compile(r"^(?:(?:Control|Shift|Alt|Meta)\+){0,3}(?:[ -~]|[A-Z][A-Za-z0-9]{1,14})$")
"""Playwright's names of keys, such as `Enter`, `a` or `Control+Shift+Tab`."""
CLIPBOARD = {
    "Control": ("c", "x", "v", "keyc", "keyx", "keyv", "insert", "numpad0"),
    "Shift": ("insert", "numpad0", "delete", "numpaddecimal"),
}
"""Keys that copy, cut or paste beside a modifier. One browser has one clipboard, so an episode would paste what another has copied."""
_HEAD = re.compile(
    r"^\s*(click|hover|type|select|press|scroll|goto|go_back|go_forward|new_tab|tab_focus|close_tab|stop)\b\s*(.*)$", re.DOTALL
)
_NUMBER = re.compile(r"^\[\s*(\d{1,6})\s*\]\s*(.*)$", re.DOTALL)
_TAIL = re.compile(r"^(.*)\]\s*\[(?:press_enter_after=)?([01])\]$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WebAction:
    """One action. `element` is the number of an element or of a tab, `text` what is typed, selected, pressed, opened or answered."""

    name: str
    element: int | None = None
    text: str = ""
    enter: bool = False

    def __str__(self) -> str:
        if self.name in BARE:
            return self.name
        if self.name in (*ONE_ELEMENT, "tab_focus"):
            return f"{self.name} [{self.element}]"
        if self.name == "type":
            return f"type [{self.element}] [{self.text}] [{int(self.enter)}]"
        if self.name == "select":
            return f"select [{self.element}] [{self.text}]"
        return f"{self.name} [{self.text}]"


def parse(text: str) -> WebAction | None:
    """The action that a text is; None for a text that is none."""
    head = _HEAD.match(text)
    if not head:
        return None
    name, rest = head[1], head[2].strip()
    if name in BARE:
        return None if rest else WebAction(name)
    if name in ("click", "hover", "type", "select", "tab_focus"):
        number = _NUMBER.match(rest)
        if not number:
            return None
        element, rest = int(number[1]), number[2].strip()
        if name in (*ONE_ELEMENT, "tab_focus"):
            return None if rest else WebAction(name, element)
        if not (rest.startswith("[") and rest.endswith("]") and len(rest) > 1):
            return None
        tail = _TAIL.match(rest) if name == "type" else None
        value = _value(tail[1][1:] if tail else rest[1:-1])
        enter = name == "type" and (tail is None or tail[2] == "1")
        return WebAction(name, element, value, enter)
    if not (rest.startswith("[") and rest.endswith("]") and len(rest) > 1):
        return None
    value = _value(rest[1:-1])
    if name == "scroll":
        value = value.lower()
    known = {"scroll": value in DIRECTIONS, "press": bool(KEY.match(value)) and not _uses_clipboard(value), "goto": bool(value)}
    return WebAction(name, text=value) if known.get(name, True) else None


def canonical(text: str) -> str:
    """The one spelling of an action; a text that is none keeps its words."""
    action = parse(text)
    return str(action) if action else " ".join(text.split())


def _uses_clipboard(keys: str) -> bool:
    """Whether keys that are pressed together copy, cut or paste."""
    *modifiers, key = keys.replace("Meta", "Control").split("+")
    return any(key.lower() in CLIPBOARD.get(one, ()) for one in modifiers)


def _value(text: str) -> str:
    """A value on one line, without space around it."""
    return " ".join(text.split())
