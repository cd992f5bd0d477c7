"""State deltas: a next state as its difference from a state that the episode has shown.

    <|same|>                               the present state, unchanged
    <|same|>results 1                      the latest earlier state with this first line
    <|same|>\\n0 1\\nchosen [red]            the present state with a line inserted: 0 lines replaced, 1 line kept behind
    <|same|>item $9 red vest\\n1 1\\nok      an earlier state, its last line but one replaced

Choosing an option changes one line of a page, going back shows an earlier page, and most refused actions change nothing. Written in full,
such a page costs a hundred tokens, each of which can be copied wrongly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

COUNTS = re.compile(r"(\d{1,4}) (\d{1,4})")
"""The numbers of an edit: lines of the old state that are replaced, and lines kept behind them."""


class EncodedState(NamedTuple):
    """A next state as the experience model writes it: in full, or as a delta behind `<|same|>`."""

    text: str
    is_delta: bool = False


@lru_cache(maxsize=65536)
def encode(visible: tuple[str, ...], after: str) -> EncodedState:
    """The shortest encoding of the state `after`; `visible` are the states that the model sees, the present one last.

    A delta is used where it has at most half the characters of the full state. `decode` is the exact inverse.
    """
    deltas = [_delta(name, base, after) for name, base in _bases(visible).items()]
    best = min(deltas, key=len, default=None)
    return EncodedState(after) if best is None or 2 * len(best) > len(after) else EncodedState(best, is_delta=True)


def decode(visible: Sequence[str], encoded: EncodedState) -> str | None:
    """The encoded state. None when no visible state has the named first line, or its lines are too few."""
    if not encoded.is_delta:
        return encoded.text
    name, *edit = encoded.text.split("\n")
    base = _bases(visible).get(name)
    if base is None or not edit:
        return base
    counts, lines = COUNTS.fullmatch(edit[0]), base.split("\n")
    if counts is None or int(counts[1]) + int(counts[2]) > len(lines):
        return None
    kept = len(lines) - int(counts[2])
    return "\n".join([*lines[: kept - int(counts[1])], *edit[1:], *lines[kept:]])


def _bases(visible: Sequence[str]) -> dict[str, str]:
    """States that a delta can refer to, by name: "" for the present one, its first line for the latest earlier one that begins so."""
    earlier = {state.partition("\n")[0]: state for state in visible[:-1]}
    return earlier | {"": visible[-1]} if visible else {}


def _delta(name: str, base: str, after: str) -> str:
    """`after` as `base` with one run of lines replaced."""
    if base == after:
        return name
    old, new = base.split("\n"), after.split("\n")
    most = min(len(old), len(new))
    first = next((i for i in range(most) if old[i] != new[i]), most)
    last = next((i for i in range(most - first) if old[-1 - i] != new[-1 - i]), most - first)
    return "\n".join([name, f"{len(old) - first - last} {last}", *new[first : len(new) - last]])
