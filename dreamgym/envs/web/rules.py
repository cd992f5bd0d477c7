"""What is known about any web page as text: its elements, which actions it offers, and how actions are spelled.

Nothing here knows a site. Rules read the state's text alone, so they judge dreamed pages as they judge real ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dreamgym.envs.base import TextRules
from dreamgym.envs.web.actions import canonical, parse
from dreamgym.envs.web.page_text import DONE, FLAGS, MAX_OPTION, TYPED_IN, clean, page_text
from dreamgym.types import Action, Observation, Transition

PART = re.compile(r"^\[(\d{1,6})\] (\w+)(.*)$")
OPTIONS = re.compile(r" of: ('.*)$")
SET_FLAGS = re.compile(rf" \(((?:{'|'.join(FLAGS)})(?:, (?:{'|'.join(FLAGS)}))*)\)$")
VALUE = re.compile(r"(?<=') = '(.*)'$|^ = '(.*)'$")
NAME = re.compile(r"^ (?:near )?'(.*)'$")
BLOCKED = ("disabled", "readonly")


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a state."""

    number: int
    role: str
    name: str
    value: str
    flags: tuple[str, ...]
    options: str

    @property
    def blocked(self) -> bool:
        """Whether nothing can be done with it."""
        return any(flag in BLOCKED for flag in self.flags)


@lru_cache(maxsize=4096)
def elements(text: str) -> dict[int, Element]:
    """The elements that a state shows, by number."""
    found = {}
    for line in text.split("\n"):
        for part in line.split(" | "):
            if match := PART.match(part):
                found[int(match[1])] = _element(int(match[1]), match[2], match[3])
    return found


def _element(number: int, role: str, rest: str) -> Element:
    """An element from what stands after its role: name, value, flags and options, each of which may be missing."""
    options = OPTIONS.search(rest)
    rest = rest[: options.start()] if options else rest
    flags = SET_FLAGS.search(rest)
    rest = rest[: flags.start()] if flags else rest
    value = VALUE.search(rest)
    rest = rest[: value.start()] if value else rest
    name = NAME.match(rest)
    return Element(
        number,
        role,
        name[1] if name else "",
        (value[1] or value[2] or "") if value else "",
        tuple(flags[1].split(", ")) if flags else (),
        options[1] if options else "",
    )


class WebRules(TextRules):
    """The `TextRules` of web pages."""

    name = "web"
    token_patterns = (r" ?\[\d{1,4}\]", r"(?:click|hover|type|select|press|scroll|goto|stop)(?= \[)")
    about = (
        "This is a web browser. The state lists the texts of the page and its elements, such as [3] link 'Books'. The number in square "
        "brackets names an element in actions. Parts of one item stand on one line, separated by |."
    )
    action_format = (
        "Think briefly if it helps, then end your reply with one line that holds one action: Action: click [3], type [4] [words] [1] (the "
        "last 1 presses Enter, 0 does not), select [5] [option], hover [3], press [Enter], scroll [down], scroll [up], go_back, "
        "go_forward, goto [address], new_tab, tab_focus [0], close_tab, or stop [answer], which ends the task; the answer may be empty."
    )

    def __init__(self, *, max_tokens: int = 1500) -> None:
        self.max_tokens = max_tokens

    def abstract(self, raw: dict[str, Any]) -> Observation:
        """The state mapping: see `page_text`."""
        return Observation(raw["text"] if "text" in raw else page_text(raw, max_tokens=self.max_tokens).text)

    def canonical(self, action: Action) -> Action:
        return canonical(action)

    def admissible(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """Whether the state offers the element or tab that the action names. None for what the text does not tell, such as an address."""
        parsed = parse(action)
        if parsed is None or observation.text == DONE:
            return False
        name, text = parsed.name, observation.text
        if name in ("click", "hover", "type", "select"):
            found = elements(text).get(parsed.element or 0)
            if found is None or (found.blocked and name != "hover"):
                return False
            if name == "type":
                return found.role in TYPED_IN and not (found.role == "combobox" and found.options)
            if name == "select":
                shown = f"'{clean(parsed.text, MAX_OPTION)}'" in found.options  # the option may be named as the page writes it
                return bool(found.options) and (shown or (None if " more" in found.options else False))
            return True
        if name == "tab_focus":
            tabs = next((line for line in text.split("\n")[:3] if line.startswith("tabs: ")), "tabs: 0 ''")
            return bool(re.search(rf"[ ,]{parsed.element} '", tabs))
        return True if name in ("stop", "new_tab", "close_tab", "press") else None

    def action_kind(self, observation: Observation, action: Action) -> str:
        """The name of the action, and of a click what is clicked."""
        parsed = parse(action)
        if parsed is None:
            return "none"
        found = elements(observation.text).get(parsed.element or 0) if parsed.name == "click" else None
        return f"click {found.role}" if found else parsed.name
