"""Language models behind one interface (`protocols.LLM`): `hf` in process, `tiny` from scratch, `backbones` pretrained, `openai` over HTTP,
`scripted` for tests.

Importing this package loads no torch; each module does when it is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, dtype


def fast_forward(module: Any, ids: Tensor, lengths: Sequence[int], *, dtype: dtype | None = None) -> Tensor:
    """Differentiable hidden states [N, W] of packed sequences, for training: see `_llama.forward`."""
    from dreamgym.llm._llama import forward

    return forward(module, ids, lengths, dtype=dtype)


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, *, temperature: float = 1.0, dtype: dtype | None = None) -> Tensor:
    """Differentiable float32 log-probabilities [N] of `targets` [N]; `head` is `module.lm_head.weight`: see `_attention.token_logprobs`."""
    from dreamgym.llm._attention import token_logprobs as compute

    return compute(hidden, head, targets, temperature, dtype)
