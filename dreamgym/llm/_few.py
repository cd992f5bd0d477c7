"""Attention of new tokens over the key-value slab on a CPU: of decoded tokens in all rows at once, of prompts in a few rows at a time, so
that their scores stay in the processor's cache.

Letters in shapes as in `_llama`; c rows side by side, T new tokens of each, L positions that they may see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dreamgym.llm import _llama
from dreamgym.llm._attention import block_attention
from dreamgym.llm._cache import Slab
from dreamgym.llm._padded import unseen

ROWS = 64  # side by side at most
TOKENS = 256  # new ones side by side at most, padding included
LONG = 128  # new tokens of a row from which it is attended to alone


def decoding(slab: Slab, positions: Tensor, rows: Tensor, length: int, groups: int) -> _llama.Attend:
    """Attention of the slab's first n rows up to `length`, with new tokens at `positions` [n, T]; `rows` [n, T] are where they are written.

    `groups` query heads share a key head.
    """
    n, t = positions.shape
    first = _Few(slab, slice(n), positions, length, groups)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = slab.keys[layer], slab.values[layer]
        keys[rows, :, positions] = k.unflatten(0, (n, t)).to(slab.dtype)
        values[rows, :, positions] = v.unflatten(0, (n, t)).to(slab.dtype)
        return first.attend(q.unflatten(0, (n, t)), keys, values).flatten(0, 1)

    return attend


def prompts(
    slab: Slab, rows: Sequence[int], lengths: Sequence[int], past: Sequence[int], groups: int, dtype: torch.dtype | None
) -> _llama.Attend:
    """Attention of packed sequences: `lengths[i]` new tokens behind the first `past[i]` of row `rows[i]`.

    `dtype` is that of the linear layers; in bfloat16 a long sequence is attended to in blocks.
    """
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    at = torch.cat([torch.arange(p, p + m) for p, m in zip(past, lengths, strict=True)])
    write = torch.tensor(rows).repeat_interleave(torch.tensor(lengths))
    long = [i for i, m in enumerate(lengths) if m >= LONG]
    short = []
    for some, token, real in _short(lengths, starts):
        length = slab.rounded(max(past[i] + lengths[i] for i in some))
        short.append((_Few(slab, torch.tensor([rows[i] for i in some]), at[token], length, groups), token, real))
    blocked = dtype is not None and _llama.blocks(dtype, slab.device)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = slab.keys[layer], slab.values[layer]
        keys[write, :, at], values[write, :, at] = k.to(slab.dtype), v.to(slab.dtype)
        out = torch.empty(q.shape, dtype=slab.dtype)
        for i in long:
            part, seen = slice(starts[i], starts[i + 1]), past[i] + lengths[i]
            alone = _in_blocks if blocked else _alone
            out[part] = alone(q[part], keys[rows[i], :, :seen], values[rows[i], :, :seen])
        for few, token, real in short:
            out[token[real]] = few.attend(q[token], keys, values)[real]
        return out

    return attend


def _short(lengths: Sequence[int], starts: Sequence[int]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Sequences below LONG, alike in length: (which, [c, T] their tokens in the pack, [c, T] whether that is one or padding)."""
    order = sorted((i for i, m in enumerate(lengths) if m < LONG), key=lambda i: lengths[i])
    while order:
        count = 1
        while count < min(len(order), ROWS) and (count + 1) * lengths[order[count]] <= TOKENS:
            count += 1
        some, order = order[:count], order[count:]
        sizes, column = torch.tensor([lengths[i] for i in some])[:, None], torch.arange(lengths[some[-1]])
        yield some, torch.tensor([starts[i] for i in some])[:, None] + torch.minimum(column, sizes - 1), column < sizes


class _Few:
    """Queries at `positions` [c, T] of c rows of the slab, which are read up to L: the first rows where they lie, named ones as a copy."""

    def __init__(self, slab: Slab, rows: slice | Tensor, positions: Tensor, length: int, groups: int) -> None:
        self.rows, self.in_place, self.length = rows, isinstance(rows, slice), length
        bias = unseen(positions, length, slab.dtype)[:, 0]
        if positions.shape[1] > 1:
            bias = bias.repeat_interleave(groups, 1)
        self.bias = bias.repeat_interleave(slab.kv_heads, 0)  # [c*K, T*G, L]; with one token [c*K, 1, L]

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
