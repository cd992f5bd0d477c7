"""The markers that structure what models read, and the vocabulary that turns text into ids without ever letting text forge one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

TASK, STATE, ACT, MEMORY, THINK, NEXT, SAME, REWARD, VARY, END = (
    "<|task|>", "<|state|>", "<|act|>", "<|memory|>", "<|think|>", "<|next|>", "<|same|>", "<|reward|>", "<|vary|>", "<|end|>"
)  # fmt: skip
MARKERS = (TASK, STATE, ACT, MEMORY, THINK, NEXT, SAME, REWARD, VARY)
"""Beside `<|pad|>` and `<|end|>`, which every tokenizer of ours has."""


class Vocabulary:
    """Marker ids by name, and a cached encoder for the texts between them.

    `encode` must never emit a marker's id, whatever the text says: a policy that writes `<|reward|>` writes only letters.
    """

    def __init__(self, encode: Callable[[str], list[int]], decode: Callable[[Sequence[int]], str], ids: dict[str, int]) -> None:
        self.ids, self.decode = ids, decode
        self.encode = lru_cache(maxsize=200_000)(lambda text: tuple(encode(text)))

    @cached_property
    def marks(self) -> frozenset[int]:
        """The ids of all markers: none of them belongs inside a text."""
        return frozenset(self.ids.values())

    def __getitem__(self, marker: str) -> int:
        return self.ids[marker]


def rows_in(turns: int, window: int | None) -> list[tuple[int, int, int]]:
    """How an episode of `turns` turns is cut into rows: (first turn shown, first turn learnt, end) of each.

    >>> rows_in(4, None), rows_in(4, 1)
    ([(0, 0, 4)], [(0, 0, 2), (1, 2, 3), (2, 3, 4)])
    """
    whole = turns if window is None else min(turns, window + 1)
    return [(0, 0, whole), *((end - 1 - (window or 0), end - 1, end) for end in range(whole + 1, turns + 1))]
