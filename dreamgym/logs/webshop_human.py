"""WebShop's human demonstrations, where a user has them: `il_trajs_finalized_images.jsonl` of the original's baselines, 1,571 episodes.

A line is an object whose `states` are `text_rich` pages and whose `actions` are what the person did on each. The file tells no rewards, so
a demonstration is no trajectory yet: `WebShopFamily.demonstrated` repeats it in the shop, which scores it. Other keys (images, action
indices, translated actions) are left out. Nothing of this file is part of dreamgym.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.types import Action

FILE = "il_trajs_finalized_images.jsonl"
FIRST_PAGE = re.compile(
    r"^\s*(?:webshop|amazon shopping game)\s*\ninstruction:\s*(?P<instruction>.*?)\s*\[button\] search \[button_\]", re.I | re.S
)
"""Older pages carry an older name of the shop."""


@dataclass(frozen=True)
class Demonstration:
    """One person's episode: what was asked, every page, and what was done on it."""

    id: str
    instruction: str
    states: tuple[str, ...]
    actions: tuple[Action, ...]


def read(path: Path) -> Iterator[Demonstration]:
    """The demonstrations of a file, in order; UsageError names the file, the line and the key that cannot be read."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _demonstration(line, f"line {number} of '{path}'", f"human/{number}")
    except FileNotFoundError as error:
        raise UsageError(f"No file '{path}'. Expected {FILE} of WebShop's baseline_models/data.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read '{path}': {error}. Expected {FILE} of WebShop's baseline_models/data.") from error


def _demonstration(line: str, where: str, name: str) -> Demonstration:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}. Expected an object with 'states' and 'actions'. Is the file cut short?") from error
    if not isinstance(record, dict):
        raise UsageError(f"{where} is no object. Expected one with 'states' and 'actions'.")
    states, actions = (_texts(record, key, where) for key in ("states", "actions"))
    if len(actions) > len(states):
        raise UsageError(f"Key 'actions' in {where}: {len(actions)} actions on {len(states)} states. Expected a state for every action.")
    first = FIRST_PAGE.match(states[0])
    if not first:
        raise UsageError(f"Key 'states' in {where}: expected to begin with the page that tells the instruction, got {states[0][:60]!r}.")
    return Demonstration(name, first["instruction"], states, actions)


def _texts(record: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = record.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise UsageError(
            f"Key '{key}' in {where}: expected a list of at least one text. Remove the line, or take another copy of the file."
        )
    return tuple(value)
