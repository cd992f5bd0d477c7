"""Attention of new tokens over the key-value cache on a CPU: of decoded tokens in all rows at once, of prompts in a few rows at a time, so
that their scores stay in the processor's cache.

Letters in shapes as in `llama`; c rows side by side, T new tokens of each, L positions that they may see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dreamgym.engines.local import llama
from dreamgym.engines.local.attention import block_attention
from dreamgym.engines.local.kv_cache import KVCache
from dreamgym.engines.local.padded_prefill import unseen

ROWS = 64  # side by side at most
TOKENS = 256  # new ones side by side at most, padding included
LONG = 128  # new tokens of a row from which it is attended to alone


def decoding(kv_cache: KVCache, positions: Tensor, rows: Tensor, length: int, groups: int) -> llama.Attend:
    """Attention of the cache's first n rows up to `length`, with new tokens at `positions` [n, T], written to `rows` [n, T].

    `groups` query heads share a key head.
    """
    n, t = positions.shape
    first = _BatchedAttention(kv_cache, slice(n), positions, length, groups)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = kv_cache.keys[layer], kv_cache.values[layer]
        keys[rows, :, positions] = k.unflatten(0, (n, t)).to(kv_cache.dtype)
        values[rows, :, positions] = v.unflatten(0, (n, t)).to(kv_cache.dtype)
        return first.attend(q.unflatten(0, (n, t)), keys, values).flatten(0, 1)

    return attend


def prompts(
    kv_cache: KVCache, rows: Sequence[int], lengths: Sequence[int], past: Sequence[int], groups: int, dtype: torch.dtype | None
) -> llama.Attend:
    """Attention of packed sequences: `lengths[i]` new tokens behind the first `past[i]` of row `rows[i]`.

    `dtype` is that of the linear layers; in bfloat16 a long sequence is attended to in blocks.
    """
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    at = torch.cat([torch.arange(p, p + m) for p, m in zip(past, lengths, strict=True)])
    write = torch.tensor(rows).repeat_interleave(torch.tensor(lengths))
    long = [i for i, m in enumerate(lengths) if m >= LONG]
    short = []
    for members, token, real in _short(lengths, starts):
        length = kv_cache.rounded(max(past[i] + lengths[i] for i in members))
        short.append((_BatchedAttention(kv_cache, torch.tensor([rows[i] for i in members]), at[token], length, groups), token, real))
    blocked = dtype is not None and llama.blocks(dtype, kv_cache.device)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = kv_cache.keys[layer], kv_cache.values[layer]
        keys[write, :, at], values[write, :, at] = k.to(kv_cache.dtype), v.to(kv_cache.dtype)
        out = torch.empty(q.shape, dtype=kv_cache.dtype)
        for i in long:
            part, seen = slice(starts[i], starts[i + 1]), past[i] + lengths[i]
            alone = _in_blocks if blocked else _alone
            out[part] = alone(q[part], keys[rows[i], :, :seen], values[rows[i], :, :seen])
        for batched, token, real in short:
            out[token[real]] = batched.attend(q[token], keys, values)[real]
        return out

    return attend


def _short(lengths: Sequence[int], starts: Sequence[int]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Sequences below LONG, alike in length: (which, [c, T] their tokens in the pack, [c, T] whether that is one or padding)."""
    order = sorted((i for i, m in enumerate(lengths) if m < LONG), key=lambda i: lengths[i])
    while order:
        count = 1
        while count < min(len(order), ROWS) and (count + 1) * lengths[order[count]] <= TOKENS:
            count += 1
        members, order = order[:count], order[count:]
        sizes, column = torch.tensor([lengths[i] for i in members])[:, None], torch.arange(lengths[members[-1]])
        yield members, torch.tensor([starts[i] for i in members])[:, None] + torch.minimum(column, sizes - 1), column < sizes


class _BatchedAttention:
    """Queries at `positions` [c, T] of c rows of the cache, which are read up to L: the first rows where they lie, named ones as a copy."""

    def __init__(self, kv_cache: KVCache, rows: slice | Tensor, positions: Tensor, length: int, groups: int) -> None:
        self.rows, self.in_place, self.length = rows, isinstance(rows, slice), length
        bias = unseen(positions, length, kv_cache.dtype)[:, 0]
        if positions.shape[1] > 1:
            bias = bias.repeat_interleave(groups, 1)
        self.bias = bias.repeat_interleave(kv_cache.kv_heads, 0)  # [c*K, T*G, L]; with one token [c*K, 1, L]

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """q [c, T, H, D] over a layer's keys and values [rows, K, capacity, D] -> [c, T, H, D]."""
        (c, t, h, d), k = q.shape, keys.shape[1]
        query = (q * d**-0.5).to(keys.dtype).unflatten(2, (k, h // k)).transpose(1, 2)  # no key is repeated for its query heads
        query = query.reshape(c * k, t * (h // k), d)
        keys, values = (x[self.rows, :, : self.length].flatten(0, 1) for x in (keys, values))
        if self.in_place:  # products of bfloat16 with the transpose of a slice take up to twice as long as with the slice
            scores = torch.bmm(keys, query.transpose(1, 2)).transpose(1, 2).contiguous().add_(self.bias)
        else:
            scores = torch.baddbmm(self.bias, query, keys.transpose(1, 2))
        mixed = torch.bmm(torch.softmax(scores, -1), values)
        return mixed.view(c, k, t, h // k, d).transpose(1, 2).reshape(c, t, h, d)


def _in_blocks(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return block_attention(q.bfloat16(), keys.bfloat16(), values.bfloat16())


def _alone(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q [T, H, D] over keys and values [K, L, D], whose last T are its own."""
    t, length = len(q), keys.shape[1]
    seen = None if t == length else torch.ones(t, length, dtype=torch.bool).tril_(length - t)
    query, keys, values = (x[None].to(q.dtype) for x in (q.transpose(0, 1), keys, values))
    mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, is_causal=seen is None, enable_gqa=True)
    return mixed[0].transpose(0, 1)
