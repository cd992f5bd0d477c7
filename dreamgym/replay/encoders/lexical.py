"""phi(s, a) by hashed words: no download, no fit, the same numbers on every machine, some 10,000 texts a second.

State and action are hashed apart and joined with the square roots of their weights, so that the cosine of two pairs is
    action_weight * cos(a, a') + (1 - action_weight) * cos(s, s').
A text is its words and pairs of neighbouring words, each with weight 1 + log(count) (sublinear term frequency) and a sign and a
place taken from a hash of it (Weinberger et al. 2009, arXiv:0902.2206). Ids such as b017 and prices such as 12.50 stay whole.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dreamgym.config import Config, build

WORD = re.compile(r"\d+\.\d+|\w+")
MAX_WORDS = 200_000  # distinct words remembered before their hashes are forgotten and computed again
PAIR = np.uint64(1 << 39)  # marks a feature as a pair of words
SIGN = np.uint64(1 << 38)
FEATURE = np.uint64((1 << 40) - 1)  # low bits of a key; the number of the text is above them
BATCH = 4096  # texts hashed at a time


class LexicalConfig(Config):
    """Everything but `cache` is part of the encoder's id: a log built with other values cannot be searched with these."""

    state_dim: int = Field(default=192, ge=8)
    action_dim: int = Field(default=256, ge=8)
    action_weight: float = Field(default=0.7, ge=0.0, le=1.0)  # of the cosine
    pair_weight: float = Field(default=0.5, ge=0.0)  # of a pair of words against a word
    cache: int = Field(default=50_000, ge=0)  # texts whose vectors are kept, for states and for actions


class LexicalEncoder:
    """See `protocols.Encoder`."""

    def __init__(self, config: LexicalConfig):
        self.dim = config.state_dim + config.action_dim
        self.id = (
            f"lexical-1 state_dim={config.state_dim} action_dim={config.action_dim}"
            f" action_weight={config.action_weight} pair_weight={config.pair_weight}"
        )
        self._scales = math.sqrt(1.0 - config.action_weight), math.sqrt(config.action_weight)
        self._states = HashedText(config.state_dim, pair_weight=config.pair_weight, cache=config.cache)
        self._actions = HashedText(config.action_dim, pair_weight=config.pair_weight, cache=config.cache)

    def encode(self, states: Sequence[str], actions: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, dim], rows of length 1."""
        if len(states) != len(actions):
            raise ValueError(f"{len(states)} states and {len(actions)} actions: expected as many of each.")
        state_scale, action_scale = self._scales
        parts = [self._states.encode(states) * state_scale, self._actions.encode(actions) * action_scale]
        return np.concatenate(parts, axis=1, dtype=np.float32)


class HashedText:
    """Texts as unit vectors of `dim` numbers. It owns two caches: of words, and of whole texts, because states repeat."""

    def __init__(self, dim: int, *, pair_weight: float, cache: int):
        self.dim = dim
        self._pair_weight = pair_weight
        self._words = _WordHashes()
        self._texts: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._cache = cache

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, dim], rows of length 1; the row of a text does not depend on the other texts."""
        found: dict[str, NDArray[np.float32]] = {}
        for text in dict.fromkeys(texts):
            if text in self._texts:
                self._texts.move_to_end(text)
                found[text] = self._texts[text]
        missing = [text for text in dict.fromkeys(texts) if text not in found]
        for start in range(0, len(missing), BATCH):
            batch = missing[start : start + BATCH]
            found.update(zip(batch, self._hash(batch), strict=True))
        for text in missing[-self._cache :] if self._cache else []:
            self._texts[text] = found[text].copy()  # a view would keep its whole batch alive
        while len(self._texts) > self._cache:
            self._texts.popitem(last=False)
        return np.stack([found[text] for text in texts]) if texts else np.zeros((0, self.dim), np.float32)

    def _hash(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Distinct texts -> float32 [n, dim]."""
        keys = []  # one uint64 per feature: its hash in the low bits, the number of its text above
        for number, text in enumerate(texts):
            words = np.array([self._words[word] for word in _words(text)], np.uint64)
            pairs = ((words[:-1] * np.uint64(0x9E3779B97F4A7C15) + words[1:]) >> np.uint64(20)) & FEATURE | PAIR
            keys += [words & (FEATURE ^ PAIR) | np.uint64(number << 40), pairs | np.uint64(number << 40)]
        features, counts = np.unique(np.concatenate(keys), return_counts=True)
        weights = (1.0 + np.log(counts)) * np.where(features & PAIR, self._pair_weight, 1.0)
        weights *= np.where(features & SIGN, -1.0, 1.0)
        places = (features & np.uint64(0xFFFFFFFF)) % np.uint64(self.dim) + (features >> np.uint64(40)) * np.uint64(self.dim)
        rows = np.bincount(places.astype(np.int64), weights, minlength=len(texts) * self.dim).reshape(len(texts), self.dim)
        lengths = np.sqrt(np.square(rows).sum(axis=1))
        cancelled = lengths < 1e-9  # all features met others of opposite sign in the same places
        rows[cancelled, 0] = lengths[cancelled] = 1.0
        unit: NDArray[np.float32] = (rows / lengths[:, None]).astype(np.float32)
        return unit


class _WordHashes(dict[str, int]):
    """word -> 64 stable bits, computed once (Python's own hash() differs from process to process)."""

    def __missing__(self, word: str) -> int:
        if len(self) >= MAX_WORDS:
            self.clear()
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self[word] = value = int.from_bytes(digest, "little")
        return value


def _words(text: str) -> list[str]:
    """Never empty: a text without words is read letter by letter, and an empty one is one empty word."""
    return WORD.findall(text.lower()) or list(text.strip()) or [""]


def make(**config: object) -> LexicalEncoder:
    """`make("replay.encoders", "lexical", action_weight=0.5)`."""
    return LexicalEncoder(build(LexicalConfig, config, where="replay.encoders.lexical"))
