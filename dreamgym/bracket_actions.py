"""Actions in the grammar `verb[argument]`, such as `click[buy now]` or `search[wool scarf]`: taken apart and put together here alone.

An action without a bracket is words as they stand, such as `go right`. The last bracket of an argument may be missing: agents write so.
"""

from __future__ import annotations

import re

BRACKETS = re.compile(r"(\w+)\[(.*)\]", re.DOTALL)
"""A whole action of one word and one argument, for readers that accept nothing else."""
ELEMENT = re.compile(r"\[([^\[\]\n]+)\]")
"""An element that a state lists, such as `[buy now]`."""


def split_action(action: str) -> tuple[str, str | None]:
    """`click[red]` and `click[red` -> ("click", "red"). The first bracket splits; without one: (the whole action, None)."""
    verb, bracket, rest = action.partition("[")
    return verb, rest.removesuffix("]") if bracket else None


def join_action(verb: str, argument: str | None) -> str:
    """The inverse of `split_action`, with the last bracket in its place: ("click", "red") -> `click[red]`; (words, None) -> the words."""
    return verb if argument is None else f"{verb}[{argument}]"
