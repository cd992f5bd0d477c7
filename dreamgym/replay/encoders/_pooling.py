"""Texts through a transformer, and the mean of its last hidden states over the tokens of each text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def mean_pooled(body: Any, encode: Callable[[str], list[int]], texts: Sequence[str], *, max_tokens: int, batch: int) -> NDArray[np.float32]:
    """float32 [n, hidden]. `body(input_ids, attention_mask)` gives `last_hidden_state`; of a longer text the first tokens are read.

    Texts of like length share a batch, so that little is computed for padding. Every text must have a token.
    """
    ids = [encode(text)[:max_tokens] for text in texts]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    device = next(body.parameters()).device
    found: dict[int, NDArray[np.float32]] = {}
    training = body.training
    body.eval()
    try:
        with torch.inference_mode():
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                longest = len(ids[chosen[-1]])
                rows = torch.tensor([ids[i] + [0] * (longest - len(ids[i])) for i in chosen], device=device)  # [b, T]
                mask = torch.tensor([[1] * len(ids[i]) + [0] * (longest - len(ids[i])) for i in chosen], device=device)  # [b, T]
                hidden = body(input_ids=rows, attention_mask=mask).last_hidden_state.float()  # [b, T, hidden]
                means = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
                found.update(zip(chosen, means.cpu().numpy(), strict=True))
    finally:
        body.train(training)
    return np.stack([found[i] for i in range(len(ids))])
