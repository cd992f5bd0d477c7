"""Settings of the in-process engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dreamgym.config import Config

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class LocalConfig(Config):
    """Settings of `LocalEngine`."""

    max_batch: int = Field(256, ge=1)
    """Requests that decode together at most; the others wait."""
    dtype: Dtype | None = None
    """Dtype of the linear layers. Not set: the model's own. "auto": bfloat16 where the processor computes in it, else the model's own."""
    cache_dtype: Dtype | None = None
    """Dtype of keys and values; not set: that of the linear layers. A learner that computes in bfloat16 attends in it."""
    cache_bytes: int = Field(2_000_000_000, ge=1)
    """The most memory of keys and values. A single request may exceed it."""
    max_context: int | None = Field(None, ge=2)
    """Tokens of a prompt and its answer; not set: what the model was built for."""
    speculate: int = Field(0, ge=0)
    """Tokens that a pass guesses ahead at most, from text that the engine has seen. Every token is still drawn from the model's own
    distribution at its own random number: answers stay the same but for the rounding of other shapes."""
    seed: int = 0
    """Names the random stream of requests that bring none of their own."""
