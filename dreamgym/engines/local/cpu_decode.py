"""Decoding passes of a plain Llama on a CPU with everything between the matrix products in C (`cpu_decode.c`).

A pass over one token a row is a hundred small operations, and torch spends more on calling most of them than they take: of a pass of the
1m model over 48 rows at 500 positions, attention took 2.1 of 2.8 ms, and takes 0.3 of 1.1 (on two cores with AVX512-BF16). A row's
result does not depend on its neighbours, but for how torch's products round at other shapes.

Letters in shapes as in `llama`; N tokens, of whatever rows.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dreamgym.engines.local import native_library
from dreamgym.engines.local.kv_cache import KVCache
from dreamgym.engines.local.llama import Weights
from dreamgym.errors import InvariantError

LANES = 16  # the most that cpu_decode.c has
AT, COUNT, REAL, THREADS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
SIGNATURES = {
    "attend": [AT, AT, AT, AT, AT, COUNT, AT, AT, COUNT, COUNT, AT, THREADS],
    "add_and_norm": [AT, AT, AT, REAL, AT, COUNT, COUNT, THREADS],
    "add_and_norm_last": [AT, AT, AT, REAL, COUNT, COUNT, THREADS],
    "gate": [AT, AT, COUNT, COUNT, THREADS],
    "draw": [AT, AT, AT, COUNT, COUNT, AT, AT, THREADS],
}
SOURCE = Path(__file__).with_name("cpu_decode.c")


class Decoder:
    """The compiled passes over the rows of a kv_cache, for weights as they are now."""

    def __init__(self, library: ctypes.CDLL, weights: Weights, cos: Tensor, sin: Tensor, kv_cache: KVCache) -> None:
        """`cos` and `sin` [positions, 1, D] as `llama.rotary` gives them."""
        self.library, self.weights, self.kv_cache = library, weights, kv_cache
        self.kind = weights.blocks[0][1][0].dtype
        self.norm = weights.norm.float().contiguous()
        self.norms = [(block[0].float().contiguous(), block[3].float().contiguous()) for block in weights.blocks]
        self.cos, self.sin = (x[:, 0, : x.shape[-1] // 2].float().contiguous() for x in (cos, sin))

    def states(self, ids: np.ndarray, rows: np.ndarray, positions: np.ndarray) -> Tensor:
        """Final normed hidden states, float32 [N, W], of one or more tokens `ids` [N] fed at `positions` [N] of the cache's `rows` [N].

        A token sees what its row holds before it, and what is fed here. InvariantError for a place that the cache does not have.
        """
        weights, kv_cache = self.weights, self.kv_cache
        rows, positions = (np.ascontiguousarray(x, dtype=np.int64) for x in (rows, positions))
        room = min(kv_cache.capacity, len(self.cos))
        if min(rows.min(), positions.min()) < 0 or rows.max() > kv_cache.rows or positions.max() >= room:
            raise InvariantError(
                f"Tokens at positions {positions.min()} to {positions.max()} of rows {rows.min()} to {rows.max()} were to be decoded in a "
                f"cache of {room} positions and {kv_cache.rows} rows."
            )
        x = F.embedding(torch.from_numpy(np.ascontiguousarray(ids)), weights.embedding).float()
        added: Tensor | None = None
        for layer, (_, qkv, out, _, gate_up, down) in enumerate(weights.blocks):
            before, between = self.norms[layer]
            projected = F.linear(self._add_and_norm(x, added, before), qkv[0])
            added = F.linear(self._attend(layer, projected, rows, positions), out[0])
            both = F.linear(self._add_and_norm(x, added, between), gate_up[0])
            added = F.linear(self._gate(both), down[0])
        self.library.add_and_norm_last(
            _ptr(x), _ptr_or_none(added, self.kind), _ptr(self.norm), weights.eps, *x.shape, torch.get_num_threads()
        )
        return x

    def draw(self, logits: Tensor, temperature: np.ndarray, uniforms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids, log-probabilities) of one token for each row of float32 logits [n, V]: the likeliest at temperature 0, else the first
        with which the distribution at that temperature exceeds the row's uniform number. Log-probabilities are at the temperature, or 1."""
        ids, scores = np.empty(len(logits), dtype=np.int64), np.empty(len(logits), dtype=np.float32)
        temperature, uniforms = (np.ascontiguousarray(x, dtype=np.float32) for x in (temperature, uniforms))
        logits = logits.float().contiguous()
        self.library.draw(
            _ptr(logits), temperature.ctypes.data, uniforms.ctypes.data, *logits.shape,
            ids.ctypes.data, scores.ctypes.data, torch.get_num_threads(),
        )  # fmt: skip
        return ids, scores

    def _add_and_norm(self, x: Tensor, added: Tensor | None, weight: Tensor) -> Tensor:
        """The stream x [N, W], to which `added` is added in place, normed."""
        out = x.new_empty(x.shape, dtype=self.kind)
        self.library.add_and_norm(
            _ptr(x),
            _ptr_or_none(added, self.kind),
            _ptr(weight),
            self.weights.eps,
            _ptr(out, self.kind),
            *x.shape,
            torch.get_num_threads(),
        )
        return out

    def _attend(self, layer: int, projected: Tensor, rows: np.ndarray, positions: np.ndarray) -> Tensor:
        """What each token's heads mix, [N, H*D], of queries, keys and values side by side in `projected`."""
        kv_cache, weights = self.kv_cache, self.weights
        keys, values = kv_cache.keys[layer], kv_cache.values[layer]
        out = projected.new_empty(len(projected), weights.heads * weights.head_dim)
        self.library.attend(
            _ptr(projected, self.kind), _ptr(self.cos), _ptr(self.sin), _ptr(keys, self.kind), _ptr(values, self.kind), keys.shape[2],
            rows.ctypes.data, positions.ctypes.data, len(rows), weights.kv_heads, _ptr(out, self.kind), torch.get_num_threads(),
        )  # fmt: skip
        return out

    def _gate(self, both: Tensor) -> Tensor:
        """silu(gate) * up of [N, 2M]."""
        out = both.new_empty(len(both), both.shape[1] // 2)
        self.library.gate(_ptr(both, self.kind), _ptr(out, self.kind), *out.shape, torch.get_num_threads())
        return out


def decoder(weights: Weights, cos: Tensor, sin: Tensor, kv_cache: KVCache) -> Decoder | None:
    """Compiled passes for these weights; None where they don't fit, or no compiler is at hand (which the log says)."""
    first = weights.blocks[0][1][0]
    fused = all(len(block[1]) == len(block[4]) == 1 for block in weights.blocks)
    if not isinstance(first, Tensor):  # with adapters beside it
        return None
    kind = first.dtype
    widths = (weights.embedding.shape[1], weights.blocks[0][5][0].shape[1])
    fits = (
        fused
        and kv_cache.dtype == kind
        and kind in (torch.float32, torch.bfloat16)
        and weights.head_dim % (2 * LANES) == 0
        and all(width % LANES == 0 for width in widths)
    )
    if not fits or kv_cache.device.type != "cpu":
        return None
    constants = {"BFLOAT16": int(kind == torch.bfloat16), "HEAD": weights.head_dim, "GROUP": weights.heads // weights.kv_heads}
    found = native_library.library(SOURCE, **constants)
    if found is None:
        return None
    for name, types in SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = types, None
    return Decoder(found, weights, cos, sin, kv_cache)


def _ptr_or_none(x: Tensor | None, kind: torch.dtype) -> int | None:
    return None if x is None else _ptr(x, kind)


def _ptr(x: Tensor, kind: torch.dtype = torch.float32) -> int:
    """The address of a contiguous tensor of the kind that the library reads."""
    if x.dtype != kind or not x.is_contiguous() or x.device.type != "cpu":
        raise InvariantError(f"Compiled passes read contiguous {kind} on a CPU, and got {x.dtype} on {x.device} with strides {x.stride()}.")
    return x.data_ptr()
