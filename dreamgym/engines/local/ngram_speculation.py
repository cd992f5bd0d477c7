"""Guesses at the next tokens: what followed the same tokens before, in any prompt or answer (prompt lookup, arXiv:2304.04487).

Experience models copy: the page of a step before, the memory that is shown, the catalogue line that another episode has read. A guess is
checked by the model in one pass over all its tokens, so it changes how many passes an answer takes and never what is answered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CONTEXTS = (8, 4, 2)  # how many last tokens must agree; the longest that is known decides
KEPT = 1 << 18  # tokens remembered before the older half is forgotten
PRICE = 0.45  # of the time of a pass without guesses: what a column of them adds, for models of 1 to 4 M parameters on a CPU
TRIAL = 16  # passes after which guesses that did not seem worth their price are tried again
INERTIA = 0.9


class NGramSpeculator:
    """Remembers text, and how often guesses from it came true."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # the place in the text that follows a context
        self._older: tuple[list[int], dict[tuple[int, ...], int]] = ([], {})
        self._hits = dict.fromkeys(CONTEXTS, 0.5)  # share of guessed tokens that came true, by context
        self._passes = 0

    def learn(self, tokens: Sequence[int]) -> None:
        """Remember a text."""
        if len(self._text) > KEPT // 2:
            self._older = (self._text, self._after)
            self._text, self._after = [], {}
        start = len(self._text)
        self._text += tokens
        for at in range(start + 1, len(self._text)):
            for length in CONTEXTS:
                if at - start >= length:
                    self._after[tuple(self._text[at - length : at])] = at

    def guess(self, tail: Sequence[int], most: int) -> tuple[list[int], int]:
        """(up to `most` tokens that may follow `tail`, the length of the context that says so)."""
        most = min(most, self.longest)
        for length in CONTEXTS:
            if most > 0 and len(tail) >= length:
                context = tuple(tail[-length:])
                for text, after in ((self._text, self._after), self._older):
                    if context in after:
                        at = after[context]
                        return text[at : at + most], length
        return [], 0

    def worth(self, guesses: Sequence[tuple[list[int], int]]) -> bool:
        """Whether a pass with these guesses, one for each row at work, is expected to save more than it costs."""
        expected = sum(self._hits[length] * len(ids) for ids, length in guesses if ids)
        width = max((len(ids) for ids, _ in guesses), default=0)
        self._passes += 1
        return width > 0 and (expected >= PRICE * width * len(guesses) or self._passes % TRIAL == 0)

    def score(self, guesses: Sequence[tuple[list[int], int]], accepted: np.ndarray) -> None:
        """Take note of how many tokens of each guess came true."""
        for context in CONTEXTS:
            guessed = sum(len(ids) for ids, length in guesses if length == context)
            true = sum(int(n) for (_, length), n in zip(guesses, accepted, strict=True) if length == context)
            if guessed:
                self._hits[context] = INERTIA * self._hits[context] + (1 - INERTIA) * true / guessed
