"""Structured decoding: which tokens may follow, by a context-free grammar over text and special tokens (llguidance, an optional extra).

Grammars are in llguidance's Lark dialect, where `<|next|>` is the special token of that name and a regular expression is text without
special tokens:

    start: TEXT <|next|> TEXT <|reward|> OUTCOME
    TEXT: /(.|\\n)+/
    OUTCOME: /[01] (go|stop)/

The tokenizer's end token is allowed where the grammar may end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamgym.errors import MissingExtra, UsageError


class Grammars:
    """Matchers over one tokenizer. A grammar is compiled once; every request gets a copy at its beginning."""

    def __init__(self, tokenizer: Any, n_vocab: int | None = None) -> None:
        """`n_vocab`: how many logits the model has, where its embedding is padded beyond the tokenizer; no grammar allows the padding."""
        try:
            import llguidance
            import llguidance.hf
            import llguidance.numpy
        except ImportError as error:
            raise MissingExtra("Structured decoding needs llguidance. Install it with: pip install 'dreamgym[structured]'") from error
        if tokenizer.eos_token_id is None:
            raise UsageError("The tokenizer has no end token, so no grammar can end. Set its eos_token.")
        self._library = llguidance
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=max(n_vocab or 0, len(tokenizer)))
        self._compiled: dict[str, Any] = {}
        self.end = int(tokenizer.eos_token_id)

    def matcher(self, grammar: str) -> Any:
        """A fresh matcher. UsageError names what the grammar's compiler could not read."""
        if grammar not in self._compiled:
            made = self._library.LLMatcher(self._tokenizer, grammar)
            if made.get_error():
                raise UsageError(f"The grammar cannot be used: {made.get_error().splitlines()[0]} Expected llguidance's Lark dialect.")
            self._compiled[grammar] = made
        return self._compiled[grammar].deep_copy()

    def bias(self, matchers: Sequence[Any | None], like: Tensor) -> Tensor:
        """float32 [n, V], shaped as the logits `like`: 0 where a token may follow, minus infinity elsewhere; None allows everything."""
        words = -(-like.shape[-1] // 32)
        mask = np.full((len(matchers), words), -1, dtype=np.int32)  # one bit for each token, the lowest first
        for row, matcher in enumerate(matchers):
            if matcher is not None:
                self._library.numpy.fill_next_token_bitmask(matcher, mask, row)
        allowed = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")[:, : like.shape[-1]]
        bias = torch.zeros(like.shape, device=like.device)
        return bias.masked_fill_(torch.from_numpy(allowed).to(like.device) == 0, float("-inf"))
