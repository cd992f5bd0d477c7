"""Pages of search results as text: which page an action requests, which products a step shows, and how a page is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.envs.webshop.actions import parse
from dreamgym.envs.webshop.porter import stem
from dreamgym.envs.webshop.states import read_item, rows
from dreamgym.types import Action, Observation, Transition

MAX_RESULTS = 50
"""Results that a search leads to at most."""
STOP = frozenset(
    ["a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of", "on", "or", "such",
     "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with"]
)  # fmt: skip
"""Words that search engines drop (Lucene's English list)."""
PAGE = re.compile(r"results (-?\d+)\n")
TURNS = {"next >": 1, "< prev": -1}
NO_SEARCH = re.compile(r"<[racq]>( |$)")
"""Begins a search that is none, in the original: a random draw, everything of an attribute, of a category, or of a query."""


@dataclass(frozen=True, slots=True)
class ItemMention:
    """What a step shows of one product, in a list of results or on its own page."""

    name: str
    text: str  # what a search finds it by; of a product in a list, its title
    line: str = ""  # its line in the list; "" on its own page


def requested_page(state: Observation, history: Sequence[Transition], action: Action) -> tuple[str, int] | None:
    """The words of a search and the page of its results, where an action searches or turns a page of results."""
    if words := search_words(action):
        return None if NO_SEARCH.match(words) else (words, 1)
    name, argument = parse(action)
    page = PAGE.match(state.text)
    if page is None or name != "click" or argument not in TURNS:
        return None
    words = next((found for step in reversed(history) if (found := search_words(step.action))), "")
    number = int(page[1]) + TURNS[argument]
    return (words, number) if words and number > 0 and not NO_SEARCH.match(words) else None


def search_words(action: Action) -> str:
    """The words that an action searches for; "" where it does not."""
    name, argument = parse(action)
    return " ".join((argument or "").split()) if name == "search" else ""


def item_mentions(transition: Transition) -> list[ItemMention]:
    """Products: those that results list, found by their titles, and the one that was opened, found by its options as well.

    Descriptions, which the original's engine has read, stand on pages of their own, and are left out.
    """
    _, argument = parse(transition.action)
    after = transition.next_state.text
    item = read_item(after)
    if item and argument in {row.asin for row in rows(transition.state.text)}:
        options = [f"{name} {' '.join(values)}" for name, values in item.offered.items()]
        return [ItemMention(argument, " ".join([item.title, *options]))]
    return [ItemMention(row.asin, row.title, f"[{row.asin}] {row.price} {row.title}") for row in rows(after)]


def results_page(lines: Sequence[str], number: int) -> str:
    """A page of results."""
    return "\n".join([f"results {number}", *lines, f"[next >]{'[< prev]' if number > 1 else ''}[back to search]"])


def search_terms(text: str, *, stemmed: bool) -> list[str]:
    """The words of a text that a search engine keeps; their stems, where it finds plurals too."""
    words = [word for word in re.findall(r"\w+", text.lower()) if word not in STOP]
    return [stem(word) for word in words] if stemmed else words
