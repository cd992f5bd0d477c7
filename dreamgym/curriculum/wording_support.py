"""How much a synthetic instruction is like the real ones, where no rule says what can be fulfilled.

An instruction is a set of pairs of neighbouring words. It is supported where it has no more pairs that no real instruction has than all but
`LEVEL` of the real ones, each counted against the others: the conformal p-value (Vovk et al. 2005) that claims are accepted by, too
(`experience.learned_verifier.support`). Numbers count as one word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from dreamgym.statistics import conformal_limit

LEVEL = 0.05
WORD = re.compile(r"\d+(?:\.\d+)?|\w+|[^\w\s]")


class WordingSupport:
    """Whether the wording of an instruction is supported by real instructions. Without any, none is."""

    def __init__(self, instructions: Iterable[str]) -> None:
        real = [_pairs(text) for text in dict.fromkeys(instructions)]
        self._pair_counts = Counter(pair for pairs in real for pair in pairs)
        novel = [sum(self._pair_counts[pair] == 1 for pair in pairs) for pairs in real]
        limit = conformal_limit(novel, LEVEL)
        self.most_novel = max(novel, default=-1) if limit is None else limit
        """The most pairs of words without a precedent; -1: nothing is supported."""

    def __contains__(self, instruction: object) -> bool:
        return sum(pair not in self._pair_counts for pair in _pairs(str(instruction))) <= self.most_novel


def _pairs(text: str) -> set[tuple[str, str]]:
    words = ["", *("0" if word[0].isdecimal() else word for word in WORD.findall(text.lower())), ""]
    return set(pairwise(words))
