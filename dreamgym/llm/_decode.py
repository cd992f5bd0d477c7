"""Decoding passes of a plain Llama on a CPU with everything between the matrix products in C (`_decode.c`).

A pass over one token a row is a hundred small operations, and torch spends more on each than it takes: of a pass of the 1m model over 48
rows at 500 positions, attention took 2.1 of 3.0 ms, and takes 0.4 of 1.2 (docs/results.md). A row's result does not depend on its neighbours.

Letters in shapes as in `_llama`; n rows with T new tokens each.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dreamgym.llm import _native
from dreamgym.llm._cache import Slab
from dreamgym.llm._llama import Weights

LANES = 16  # as in _decode.c
SOURCE = Path(__file__).with_name("_decode.c")


class Decoder:
    """The compiled passes over the rows of a slab, for weights as they are now."""

    def __init__(self, library: ctypes.CDLL, weights: Weights, cos: Tensor, sin: Tensor, slab: Slab) -> None:
        """`cos` and `sin` [positions, 1, D] as `_llama.rotary` gives them."""
        self.library, self.weights, self.slab = library, weights, slab
        self.kind = weights.blocks[0][1][0].dtype
        self.norm = weights.norm.float().contiguous()
        self.norms = [(block[0].float().contiguous(), block[3].float().contiguous()) for block in weights.blocks]
        self.cos, self.sin = (x[:, 0, : x.shape[-1] // 2].float().contiguous() for x in (cos, sin))

    def states(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Final normed hidden states, float32 [n, T, W], of `ids` [n, T] fed at `positions` [n, T] of the slab's first n rows."""
        weights = self.weights
        positions = positions.contiguous()
        x = F.embedding(ids.flatten(), weights.embedding).float()
        added: Tensor | None = None
        for layer, (_, qkv, out, _, gate_up, down) in enumerate(weights.blocks):
            before, between = self.norms[layer]
            projected = F.linear(self._add_and_norm(x, added, before), qkv[0])
            added = F.linear(self._attend(layer, projected, positions), out[0])
            both = F.linear(self._add_and_norm(x, added, between), gate_up[0])
            added = F.linear(self._gate(both), down[0])
        self.library.add_and_norm_last(
            _at(x), _at(added), _at(self.norm), ctypes.c_float(weights.eps), _count(len(x)), _count(x.shape[1]), _threads()
        )
        return x.view(*ids.shape, -1)

    def draw(self, logits: Tensor, temperature: np.ndarray, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids, log-probabilities) of one token for each row of float32 logits [n, V]: the likeliest at temperature 0, else the first
        with which the distribution at that temperature exceeds the row's uniform number. Log-probabilities are at the temperature, or 1."""
        n = len(logits)
        ids, scores = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.float32)
        given = [np.ascontiguousarray(x, dtype=np.float32) for x in (temperature, uniforms)]
        logits = logits.contiguous()
        where = [ctypes.c_void_p(x.ctypes.data) for x in (*given, ids, scores)]
        self.library.draw(_at(logits), *where[:2], _count(n), _count(logits.shape[1]), *where[2:], _threads())
        return ids, scores

    def _add_and_norm(self, x: Tensor, added: Tensor | None, weight: Tensor) -> Tensor:
        """The stream x [n*T, W], to which `added` is added in place, normed."""
        out = torch.empty(x.shape, dtype=self.kind)
        self.library.add_and_norm(
            _at(x), _at(added), _at(weight), ctypes.c_float(self.weights.eps), _at(out), _count(len(x)), _count(x.shape[1]), _threads()
        )
        return out

    def _attend(self, layer: int, projected: Tensor, positions: Tensor) -> Tensor:
        """What each token's heads mix, [n*T, H*D], of queries, keys and values side by side in `projected`."""
        slab, weights = self.slab, self.weights
        keys, values = slab.keys[layer], slab.values[layer]
        out = torch.empty(len(projected), weights.heads * weights.head_dim, dtype=self.kind)
        self.library.attend(
            _at(projected), _at(self.cos), _at(self.sin), _count(self.cos.shape[1]), _at(keys), _at(values), _count(keys.shape[2]),
            _at(positions), _count(positions.shape[0]), _count(positions.shape[1]), _count(weights.kv_heads), _at(out), _threads(),
        )  # fmt: skip
        return out

    def _gate(self, both: Tensor) -> Tensor:
        """silu(gate) * up of [n*T, 2M]."""
        out = torch.empty(len(both), both.shape[1] // 2, dtype=self.kind)
        self.library.gate(_at(both), _at(out), _count(len(out)), _count(out.shape[1]), _threads())
        return out


def decoder(weights: Weights, cos: Tensor, sin: Tensor, slab: Slab) -> Decoder | None:
    """Compiled passes for these weights; None where they don't fit, or no compiler is at hand (which the log says)."""
    kind, fused = weights.blocks[0][1][0].dtype, all(len(block[1]) == len(block[4]) == 1 for block in weights.blocks)
    widths = (weights.head_dim, weights.embedding.shape[1], weights.blocks[0][5][0].shape[1])
    fits = fused and slab.dtype == kind and kind in (torch.float32, torch.bfloat16) and all(width % LANES == 0 for width in widths)
    if not fits or slab.device.type != "cpu":
        return None
    constants = {"BFLOAT16": int(kind == torch.bfloat16), "HEAD": weights.head_dim, "GROUP": weights.heads // weights.kv_heads}
    found = _native.library(SOURCE, **constants)
    return None if found is None else Decoder(found, weights, cos, sin, slab)


def _at(x: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if x is None else x.data_ptr())


def _count(n: int) -> ctypes.c_int64:
    return ctypes.c_int64(n)


def _threads() -> ctypes.c_int:
    return ctypes.c_int(torch.get_num_threads())
