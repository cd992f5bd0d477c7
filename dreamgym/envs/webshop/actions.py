"""The grammar of a shopper's actions: all that the shop and those who may not look into it have in common."""

from __future__ import annotations

import re

from dreamgym.types import Action

ACTION = re.compile(r"(.+)\[(.+)\]")


def parse(action: Action) -> tuple[str, str | None]:
    """`click[Buy Now]` -> ("click", "buy now"); greedy, so the last '[' splits; no match -> (the whole string, None)."""
    match = ACTION.match(action)
    return (match.group(1), match.group(2).lower()) if match else (action, None)
