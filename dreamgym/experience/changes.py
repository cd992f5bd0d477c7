"""A next state in few words: told by what changed since a state that the episode has shown.

    <|same|>                               the present state, to the letter
    <|same|>results 1                      the latest state before it whose first line is this
    <|same|>\\n0 1\\nchosen [red]            the present state, with a line put in: 0 of its lines go, 1 stays behind
    <|same|>item $9 red vest\\n1 1\\nok      an earlier one, its last line but one replaced

An option that is chosen changes one line of a page, going back shows a page that was seen, and most refused actions change nothing. Written
out, such a page costs a hundred tokens that say nothing, and each of them is a chance to copy it wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

COUNTS = re.compile(r"(\d{1,4}) (\d{1,4})")
"""Of an edit: lines of the old state that go, and lines that stay behind them."""


class Written(NamedTuple):
    """A next state as the experience model writes it: whole, or with `<|same|>` before it, as what changed."""

    text: str
    same: bool = False


@lru_cache(maxsize=65536)
def tell(seen: tuple[str, ...], after: str) -> Written:
    """The shortest way to write the state `after`, where `seen` are the states in view, the present one last.

    Changes are worth it where they take at most half as many letters as the whole. `hear` undoes this to the letter.
    """
    ways = [_against(name, base, after) for name, base in _bases(seen).items()]
    best = min(ways, key=len, default=None)
    return Written(after) if best is None or 2 * len(best) > len(after) else Written(best, same=True)


def hear(seen: Sequence[str], written: Written) -> str | None:
    """The state that was written. None when no state in view begins as it says, or it does not have so many lines."""
    if not written.same:
        return written.text
    name, *edit = written.text.split("\n")
    base = _bases(seen).get(name)
    if base is None or not edit:
        return base
    counts, lines = COUNTS.fullmatch(edit[0]), base.split("\n")
    if counts is None or int(counts[1]) + int(counts[2]) > len(lines):
        return None
    kept = len(lines) - int(counts[2])
    return "\n".join([*lines[: kept - int(counts[1])], *edit[1:], *lines[kept:]])


def _bases(seen: Sequence[str]) -> dict[str, str]:
    """What changes can be told against, by name: "" for the present state, and the first line of the latest earlier one that begins so."""
    earlier = {state.partition("\n")[0]: state for state in seen[:-1]}
    return earlier | {"": seen[-1]} if seen else {}


def _against(name: str, base: str, after: str) -> str:
    """`after` as one run of lines that takes the place of another one in `base`."""
    if base == after:
        return name
    old, new = base.split("\n"), after.split("\n")
    most = min(len(old), len(new))
    first = next((i for i in range(most) if old[i] != new[i]), most)
    last = next((i for i in range(most - first) if old[-1 - i] != new[-1 - i]), most - first)
    return "\n".join([name, f"{len(old) - first - last} {last}", *new[first : len(new) - last]])
