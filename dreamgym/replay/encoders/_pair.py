"""phi(s, a) from any model of single texts: state and action are embedded apart and joined with the square roots of their weights.

The cosine of two pairs is then action_weight * cos(a, a') + (1 - action_weight) * cos(s, s'). For every encoder that was tried this found
situations of the same kind more often than one embedding of the joint text.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dreamgym.config import Config
from dreamgym.errors import InvariantError
from dreamgym.runs.files import without_lone_surrogates


class PairConfig(Config):
    """What every encoder of pairs has."""

    action_weight: float = Field(default=0.5, ge=0.0, le=1.0)  # of the cosine
    cache: int = Field(default=50_000, ge=0)  # texts whose vectors are kept


class TextModel(Protocol):
    """Turns texts into vectors. `id` names the model and everything that changes its vectors."""

    id: str
    dim: int

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, dim] of any length but zero."""
        ...


class PairEncoder:
    """See `protocols.Encoder`. It owns a cache of text vectors under the hashes of the texts, because states repeat."""

    def __init__(self, model: TextModel, config: PairConfig):
        self.id = f"{model.id} action_weight={config.action_weight}"
        self.dim = 2 * model.dim
        self._model = model
        self._scales = math.sqrt(1.0 - config.action_weight), math.sqrt(config.action_weight)
        self._cache: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._size = config.cache

    def encode(self, states: Sequence[str], actions: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, dim], rows of length 1."""
        if len(states) != len(actions):
            raise ValueError(f"{len(states)} states and {len(actions)} actions: expected as many of each.")
        if not states:
            return np.zeros((0, self.dim), np.float32)
        vectors = self._texts([*states, *actions])
        parts = [vectors[: len(states)] * self._scales[0], vectors[len(states) :] * self._scales[1]]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def _texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [n, dim / 2]; a text that is cached or repeated is embedded once."""
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        found: dict[bytes, NDArray[np.float32]] = {}
        for key in dict.fromkeys(keys):
            if key in self._cache:
                self._cache.move_to_end(key)
                found[key] = self._cache[key]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if missing:
            found.update(zip(missing, self._unit([without_lone_surrogates(text) for text in missing.values()]), strict=True))
        for key in missing:
            self._cache[key] = found[key].copy()  # a view would keep its whole batch alive
        while len(self._cache) > self._size:
            self._cache.popitem(last=False)
        return np.stack([found[key] for key in keys])

    def _unit(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.asarray(self._model.embed(texts), np.float32)
        if vectors.shape != (len(texts), self.dim // 2):
            raise InvariantError(f"'{self._model.id}' gave vectors of shape {vectors.shape}; expected {(len(texts), self.dim // 2)}.")
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not (np.isfinite(lengths).all() and (lengths > 0).all()):
            raise InvariantError(f"'{self._model.id}' gave a vector that is zero or not finite, and that has no direction to compare.")
        unit: NDArray[np.float32] = vectors / lengths
        return unit
