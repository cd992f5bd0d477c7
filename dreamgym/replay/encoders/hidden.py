"""phi(s, a) by the experience model itself: the mean of its last hidden states over the tokens of a text.

The model is handed in, because replay knows no models: `make(model=model, encode=llm.encode, weights="experience-3")`. `weights` names
them, and is part of the encoder's id, so that a log built with other weights is refused and not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dreamgym.config import build
from dreamgym.replay.encoders._pair import PairConfig, PairEncoder

NOTHING = "(nothing)"  # what a text without tokens is read as: a mean of nothing has no direction


class HiddenConfig(PairConfig):
    """Beside the model."""

    weights: str  # a name for these weights: another version of the model needs another
    max_tokens: int = Field(default=512, ge=1)  # of a text; the rest is not read
    batch: int = Field(default=32, ge=1)


class HiddenStates:
    """See `_pair.TextModel`. The model is a causal LM of `transformers`; its head is not computed."""

    def __init__(self, model: Any, encode: Callable[[str], list[int]], config: HiddenConfig):
        self.id = f"hidden-1 {config.weights} max_tokens={config.max_tokens}"
        self.dim = int(model.config.hidden_size)
        self._body, self._encode, self._config = model.base_model, encode, config

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, hidden]."""
        from dreamgym.replay.encoders._pooling import mean_pooled

        return mean_pooled(
            self._body,
            lambda text: self._encode(text) or self._encode(NOTHING),
            texts,
            max_tokens=self._config.max_tokens,
            batch=self._config.batch,
        )


def make(*, model: Any, encode: Callable[[str], list[int]], **config: object) -> PairEncoder:
    """`make("replay.encoders", "hidden", model=model, encode=llm.encode, weights="experience-3")`."""
    settings = build(HiddenConfig, config, where="replay.encoders.hidden")
    return PairEncoder(HiddenStates(model, encode, settings), settings)
