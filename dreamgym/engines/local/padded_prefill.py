"""Packed sequences side by side: where calling attention for each costs more than computing some padding.

Letters in shapes as in `llama`; B sequences, T the longest of them, L positions of which T are the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dreamgym.engines.local.attention import block_attention


class Padded:
    """Packed sequences to a padded [B, T], and back. Padding repeats a sequence's last entry."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.rows, self.width = len(lengths), max(lengths)
        self.alike = min(lengths) == self.width
        sizes = torch.tensor(lengths)
        column = torch.arange(self.width)
        first = torch.cumsum(sizes, 0) - sizes
        self.source = torch.minimum(first[:, None] + column, first[:, None] + sizes[:, None] - 1).flatten().to(device)
        self.back = (column < sizes[:, None]).flatten().nonzero()[:, 0].to(device)  # [N] of [B*T]

    def pad(self, x: Tensor) -> Tensor:
        """[N, ...] -> [B, T, ...]"""
        return (x if self.alike else x.index_select(0, self.source)).unflatten(0, (self.rows, self.width))

    def unpad(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [N, ...]"""
        return x.flatten(0, 1) if self.alike else x.flatten(0, 1).index_select(0, self.back)

    def causal(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Each sequence over itself: q [N, H, D], k and v [N, K, D] -> [N, H, D]. Differentiable."""
        q, k, v = (self.pad(x).transpose(1, 2) for x in (q, k, v))
        return self.unpad(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2))

    def causal_in_blocks(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same by `block_attention`, for bfloat16 on CPUs: the heads of all sequences are one long row of heads."""
        b, t = self.rows, self.width
        q, k, v = self.pad(q), self.pad(k), self.pad(v)
        h, d = q.shape[2:]
        keys, values = (x.permute(0, 2, 1, 3).reshape(-1, t, d) for x in (k, v))  # [B*K, T, D]
        mixed = block_attention(q.transpose(0, 1).reshape(t, b * h, d), keys, values)  # [T, B*H, D]
        return self.unpad(mixed.view(t, b, h, d).transpose(0, 1))


def over_cache(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """q [B, T, H, D] over keys and values [B, K, L, D] of a cache; `bias` [B, 1, T, L] is minus infinity where a query sees nothing.

    The queries of one key head are stacked ([B, K, T*G, D]), so that no key is repeated and torch's fused kernels apply.
    Returns [B, T, H, D].
    """
    (b, t, h, d), k = q.shape, keys.shape[1]
    query = q.view(b, t, k, h // k, d).permute(0, 2, 1, 3, 4).reshape(b, k, t * (h // k), d)
    bias = bias if t == 1 else bias.repeat_interleave(h // k, 2)
    mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=bias)
    return mixed.view(b, k, t, h // k, d).permute(0, 2, 1, 3, 4).reshape(b, t, h, d)


def unseen(positions: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """`over_cache`'s bias [B, 1, T, L]: a query at `positions` [B, T] sees the cache up to itself."""
    later = torch.arange(length, device=positions.device) > positions[..., None]
    return torch.zeros(later.shape, dtype=dtype, device=positions.device).masked_fill_(later, float("-inf"))[:, None]
