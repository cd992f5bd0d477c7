"""Causal attention and token log-probabilities in blocks, with hand-written backward passes: for bfloat16 on CPUs.

torch's flash attention for CPUs spends several times longer in its backward than in its forward. Matrix products of blocks in bfloat16,
recomputed in the backward, took less than half of its time on two AVX512-BF16 cores, and hold no [T, T] scores.
Letters in shapes as in `llama`; T queries that are the last T of L positions, G = H / K query heads to a key head.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256  # queries at a time
ROWS = 256  # rows of logits at a time: with 2,048 words they stay in the second cache, with 49,152 they take 50 MB


def block_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [T, H, D] over k, v [K, L, D]: query i sees positions up to L - T + i. Returns [T, H, D]. Differentiable."""
    return _BlockAttention.apply(q, k, v)


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    """float32 [N] natural-log probabilities of `targets` [N] under softmax(hidden [N, W] @ head [V, W].T / temperature).

    Differentiable in `hidden` and `head`; `dtype` is that of the matrix products. Logits live for `ROWS` rows at a time.
    """
    return _TokenLogprobs.apply(hidden, head, targets, temperature, dtype or hidden.dtype, False)[0]


def token_logprobs_and_entropies(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """(log-probabilities, entropies in nats), each float32 [N], as `token_logprobs` computes them. Both are differentiable."""
    found, entropies = _TokenLogprobs.apply(hidden, head, targets, temperature, hidden.dtype, True)
    return found, entropies


def _grouped(x: Tensor, k: int) -> Tensor:
    """[T, H, D] -> [K, T*G, D]; a view when there is one key head."""
    t, h, d = x.shape
    return x.reshape(t, k, h // k, d).transpose(0, 1).reshape(k, t * (h // k), d)


def _ungrouped(x: Tensor, t: int) -> Tensor:
    """[K, T*G, D] -> [T, H, D]"""
    k, rows, d = x.shape
    return x.view(k, t, rows // t, d).transpose(0, 1).reshape(t, k * (rows // t), d)


def _future(t: int, groups: int, like: Tensor) -> Tensor:
    """[t*G, t]: minus infinity where the key lies after the query."""
    bias = torch.full((t, t), float("-inf"), dtype=like.dtype, device=like.device).triu_(1)
    return bias.repeat_interleave(groups, 0)


def _weights(q: Tensor, k: Tensor, future: Tensor, n: int) -> Tensor:
    """Softmax weights [K, n*G, E] of a block of n scaled queries over k [K, E, D], the last n keys being their own positions."""
    scores = torch.bmm(q, k.transpose(1, 2))
    scores[:, :, -n:] += future[: q.shape[1], :n]
    return torch.softmax(scores, -1)


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (t, h, d), (heads, length, _) = q.shape, k.shape
        q = q * d**-0.5
        future = _future(min(BLOCK, t), h // heads, q)
        out = torch.empty_like(q)
        for start in range(0, t, BLOCK):
            stop = min(t, start + BLOCK)
            seen = length - t + stop
            weights = _weights(_grouped(q[start:stop], heads), k[:, :seen], future, stop - start)
            out[start:stop] = _ungrouped(torch.bmm(weights, v[:, :seen]), stop - start)
        ctx.save_for_backward(q, k, v, future)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, future = ctx.saved_tensors
        (t, _, d), (heads, length, _) = q.shape, k.shape
        dq, dk, dv = torch.empty_like(q), torch.zeros(k.shape, device=k.device), torch.zeros(v.shape, device=v.device)
        for start in range(0, t, BLOCK):
            stop = min(t, start + BLOCK)
            seen = length - t + stop
            query, outer = _grouped(q[start:stop], heads), _grouped(grad[start:stop], heads)
            weights = _weights(query, k[:, :seen], future, stop - start)
            dv[:, :seen] += torch.bmm(weights.transpose(1, 2), outer)
            dweights = torch.bmm(outer, v[:, :seen].transpose(1, 2))
            dscores = torch.ops.aten._softmax_backward_data(dweights, weights, -1, weights.dtype)
            dq[start:stop] = _ungrouped(torch.bmm(dscores, k[:, :seen]), stop - start)
            dk[:, :seen] += torch.bmm(dscores.transpose(1, 2), query)
        return dq * d**-0.5, dk.to(k.dtype), dv.to(v.dtype)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, dtype: torch.dtype, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        x, w = hidden.to(dtype), head.to(dtype)
        out, norm, spread = (torch.zeros(len(x), device=x.device) for _ in range(3))
        for start in range(0, len(x), ROWS):
            part = slice(start, start + ROWS)
            logits = F.linear(x[part], w).float().div_(temperature)
            norm[part] = logits.logsumexp(-1)
            out[part] = logits.gather(1, targets[part, None])[:, 0] - norm[part]
            if entropy:
                logits.sub_(norm[part, None])  # log-probabilities
                spread[part] = -(logits.exp() * logits).sum(-1)
        ctx.save_for_backward(x, w, targets, norm, spread)
        ctx.temperature, ctx.dtypes, ctx.entropy = temperature, (hidden.dtype, head.dtype), entropy
        return out, spread

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_entropy: Tensor) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        x, w, targets, norm, spread = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.zeros(w.shape, device=w.device) if ctx.needs_input_grad[1] else None
        for start in range(0, len(x), ROWS):
            part = slice(start, start + ROWS)
            scale = grad[part, None] / ctx.temperature
            scores = F.linear(x[part], w).float().div_(ctx.temperature).sub_(norm[part, None])
            if ctx.entropy and grad_entropy[part].any():
                chances = scores.exp()  # d entropy / d logit = -p * (log p + entropy)
                dlogits = scores.add_(spread[part, None]).mul_(grad_entropy[part, None] / -ctx.temperature).sub_(scale).mul_(chances)
            else:
                dlogits = scores.exp_().mul_(-scale)
            dlogits.scatter_add_(1, targets[part, None], scale)
            dlogits = dlogits.to(x.dtype)
            dx[part] = dlogits @ w
            if dw is not None:
                dw += dlogits.T @ x[part]
        return dx.to(ctx.dtypes[0]), None if dw is None else dw.to(ctx.dtypes[1]), None, None, None, None
