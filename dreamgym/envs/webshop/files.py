"""Reading the original's JSON files: products one at a time, however long the file, and errors that name file, item and key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from dreamgym.errors import UsageError

CHUNK = 1 << 22
SLACK = 1 << 23
"""An error this far before the end of what was read is no item cut in two: no text in a catalogue is that long."""
UNREAD = (
    "product_information", "brand", "brand_url", "list_price", "availability_quantity", "availability_status", "total_reviews",
    "total_answered_questions", "seller_id", "seller_name", "fulfilled_by_amazon", "fast_track_message", "aplus_present",
    "small_description_old", "images", "average_rating",
)  # fmt: skip
"""Keys of a product that the text shop never reads: dropped at once, because the whole file is 5 GB."""
KINDS = {
    "items": "items_shuffle*.json: a list of products",
    "by_asin": "items_ins_v2*.json: an object of attributes by ASIN",
    "human": "items_human_ins.json: an object of instructions by ASIN",
}
DECODER = json.JSONDecoder()
_ABSENT: Any = object()


@dataclass(frozen=True)
class Place:
    """Where something was read, for messages."""

    file: Path | str
    item: int | str
    asin: str = ""

    def __str__(self) -> str:
        return f"item {self.item}{f' ({self.asin})' if self.asin else ''} of '{self.file}'"

    def refuse(self, key: str, wanted: str, found: Any = _ABSENT) -> UsageError:
        """The error for a key that is missing or holds something else. Raise it."""
        if found is _ABSENT:
            return UsageError(f"Key '{key}' is missing in {self}. Expected {wanted}. Add it, or remove the item.")
        shown = json.dumps(found, default=str)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return UsageError(f"Key '{key}' in {self}: expected {wanted}, got {shown}. Correct it, or remove the item.")


def text(item: Any, key: str, place: Place, *, absent: Any = _ABSENT) -> str:
    """The text under a key. Missing or null gives `absent` where there is such a value, and UsageError otherwise."""
    if not isinstance(item, Mapping):
        raise UsageError(
            f"Expected an object of keys such as '{key}' at {place}, got {type(item).__name__}. Correct it, or remove the item."
        )
    value = item.get(key, absent)
    value = absent if value is None and absent is not _ABSENT else value
    if value is _ABSENT:
        raise place.refuse(key, "a text")
    if not isinstance(value, str):
        raise place.refuse(key, "a text", value)
    return value


def texts(item: Mapping[str, Any], key: str, place: Place, *, absent: Any = _ABSENT) -> list[str]:
    """The list of texts under a key."""
    value = item.get(key, absent)
    if value is _ABSENT:
        raise place.refuse(key, "a list of texts")
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise place.refuse(key, "a list of texts", value)
    return value


def items(path: Path) -> Iterator[dict[str, Any]]:
    """The elements of a JSON list, one at a time, without the keys nobody reads: memory holds one chunk, not the file."""
    with _opened(path, "items") as file:
        try:
            for place, item in enumerate(_elements(file, path)):
                if not isinstance(item, dict):
                    raise UsageError(f"Item {place} of '{path}' is no object. Expected {KINDS['items']}, each an object with an 'asin'.")
                for key in UNREAD:
                    item.pop(key, None)
                yield item
        except UnicodeDecodeError as error:
            raise UsageError(f"'{path}' is not JSON in UTF-8: {error}. Expected {KINDS['items']}.") from error


class _Text:
    """A JSON text that is read in chunks, from its start to its end."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.buffer, self.at = file, file.read(CHUNK), 0

    def peek(self) -> str:
        """The next character that is no white space; '' at the end."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self._more():
                return ""

    def skip(self) -> None:
        """Go past the character that was peeked at."""
        self.at += 1

    def value(self) -> Any:
        """The next JSON value. JSONDecodeError where there is none, RecursionError where it is nested too deeply."""
        self.peek()
        while True:
            try:
                value, self.at = DECODER.raw_decode(self.buffer, self.at)
                return value
            except json.JSONDecodeError as error:  # the chunk may end inside the value
                if len(self.buffer) - error.pos > SLACK or not self._more():
                    raise

    def _more(self) -> bool:
        """Read another chunk and let go of what was used; False at the end of the file."""
        chunk = self.file.read(CHUNK)
        self.buffer, self.at = self.buffer[self.at :] + chunk, 0
        return bool(chunk)


def _elements(file: TextIO, path: Path) -> Iterator[Any]:
    """The elements of the list that the file holds, each decoded when it is asked for."""
    text, count = _Text(file), 0

    def broken(why: str) -> UsageError:
        return UsageError(f"'{path}' is not JSON: {why} at item {count}. Expected {KINDS['items']}. Is the file cut short?")

    if text.peek() != "[":
        raise UsageError(f"'{path}' is not a JSON list. Expected {KINDS['items']}.")
    text.skip()
    if text.peek() == "]":
        return
    while True:
        try:
            value = text.value()
        except json.JSONDecodeError as error:
            raise broken(error.msg) from error
        except RecursionError as error:
            raise broken("it is nested too deeply") from error
        yield value
        count += 1
        mark = text.peek()
        if mark == "]":
            return
        if mark != ",":
            raise broken(f"expected ',' or ']', got '{mark or 'the end'}'")
        text.skip()


def by_asin(path: Path, kind: str = "by_asin") -> dict[str, Any]:
    """A JSON object of records by ASIN: attributes (`by_asin`) or human instructions (`human`)."""
    with _opened(path, kind) as file:
        try:
            loaded = json.load(file)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"'{path}' is not JSON in UTF-8: {error}. Expected {KINDS[kind]}.") from error
        except RecursionError as error:
            raise UsageError(f"'{path}' is nested too deeply. Expected {KINDS[kind]}.") from error
        except MemoryError as error:
            raise UsageError(f"'{path}' does not fit into memory. Expected {KINDS[kind]}; the original's is 150 MB.") from error
    if not isinstance(loaded, dict):
        raise UsageError(f"'{path}' holds a {type(loaded).__name__}. Expected {KINDS[kind]}.")
    inner, name = (list, "a list") if kind == "human" else (dict, "an object")
    for asin, record in loaded.items():
        if not isinstance(record, inner):
            raise UsageError(f"Item '{asin}' of '{path}': expected {name}, got {type(record).__name__}. Expected {KINDS[kind]}.")
        if isinstance(record, dict) and "attributes" in record:
            texts(record, "attributes", Place(path, asin))
    return loaded


def _opened(path: Path, kind: str) -> TextIO:
    try:
        return path.open(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"No WebShop file '{path}'. Expected {KINDS[kind]}.") from error
    except OSError as error:
        raise UsageError(f"Cannot read '{path}': {error.strerror}. Expected {KINDS[kind]}.") from error
