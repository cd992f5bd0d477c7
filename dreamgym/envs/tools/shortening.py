"""Long results and arguments, shortened by a rule that depends on the text alone. Ids are kept whole.

JSON keeps its form: long lists keep their first items, long strings their beginning, deep objects their outer fields, each with a count of
what was left out. The mildest cut that fits is used. Other text keeps its beginning and its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from dreamgym.tool_calls import ToolCall

ID_CHARS = 64
"""A string without spaces and not longer than this may be an id, and is never cut."""


class Cut(NamedTuple):
    """How much of a JSON value is kept."""

    items: int  # of a list
    chars: int  # of a string with spaces
    depth: int  # of nested lists and objects
    fields: int  # of an object


CUTS = (
    Cut(24, 400, 8, 48),
    Cut(12, 200, 6, 32),
    Cut(8, 120, 5, 24),
    Cut(5, 80, 4, 16),
    Cut(3, 60, 3, 12),
    Cut(2, 40, 2, 10),
    Cut(1, 30, 2, 8),
    Cut(1, 20, 1, 6),
)
"""From the mildest to the hardest."""


def shorten_result(text: str, limit: int) -> str:
    """A result in at most `limit` characters, of 40 or more: what is shortened is not shortened again. JSON objects and lists are written
    in one line."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return shorten_text(text, limit)
    if not isinstance(value, dict | list):
        return shorten_text(text, limit)
    try:
        written = _json(value)
        for cut in CUTS:
            if len(written) <= limit:
                return written
            written = _json(_kept(value, cut, 0))
    except RecursionError:
        return shorten_text(text, limit)
    return shorten_text(written, limit)


def shorten_text(text: str, limit: int) -> str:
    """A text in at most `limit` characters, of 40 or more: two thirds from its beginning, the rest from its end, cut between words, and how
    many are left out."""
    if len(text) <= limit:
        return text
    room = max(0, limit - len(f" …{len(text)} characters… "))
    head, tail = _first_words(text, 2 * room // 3), _first_words(text[::-1], room // 3)[::-1]
    return f"{head} …{len(text) - len(head) - len(tail)} characters… {tail}"


def shorten_arguments(call: ToolCall, limit: int) -> ToolCall:
    """The call with each argument in at most about `limit` characters."""
    if isinstance(call.arguments, str):
        return ToolCall(call.name, _short_string(call.arguments, limit))
    return ToolCall(call.name, {key: _short_argument(value, limit) for key, value in call.arguments.items()})


def _short_argument(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return _short_string(value, limit)
    if not isinstance(value, dict | list):
        return value
    kept = value
    for cut in CUTS:
        if len(_json(kept)) <= limit:
            break
        kept = _kept(value, cut, 0)
    return kept


def _kept(value: Any, cut: Cut, depth: int) -> Any:
    """A JSON value after one cut."""
    if isinstance(value, str):
        return _short_string(value, cut.chars)
    if isinstance(value, Mapping):
        if depth >= cut.depth:
            return f"…{len(value)} fields"
        kept = {key: _kept(one, cut, depth + 1) for key, one in list(value.items())[: cut.fields]}
        return kept | ({"…": f"{len(value) - cut.fields} more"} if len(value) > cut.fields else {})
    if isinstance(value, list):
        if depth >= cut.depth:
            return f"…{len(value)} items"
        return [
            *(_kept(one, cut, depth + 1) for one in value[: cut.items]),
            *([f"…{len(value) - cut.items} more"] * (len(value) > cut.items)),
        ]
    return value


def _short_string(text: str, limit: int) -> str:
    """The beginning of a string, cut between words; the whole where it may be an id."""
    if len(text) <= max(limit, ID_CHARS if " " not in text and "\n" not in text else 0):
        return text
    head = _first_words(text, limit)
    return f"{head} …{len(text) - len(head)} characters"


def _first_words(text: str, limit: int) -> str:
    """The longest beginning of at most `limit` characters that ends between words. A word longer than an id is cut."""
    if len(text) <= limit:
        return text
    end = max(text.rfind(" ", 0, limit + 1), text.rfind("\n", 0, limit + 1))
    return (text[:end] if end > limit - ID_CHARS and end > 0 else text[:limit]).rstrip()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
