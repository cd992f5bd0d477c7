"""The keys and values of running and resting episodes: one tensor per layer, one row per episode, kept between calls.

Active rows are always the first n, so that attention reads slices and copies nothing. Rows change places instead (`swap`). Every active
row has an owner: a session, or its request. A resting session keeps its row until it is released, or evicted, least recently used
first, to stay within the byte budget; only a single request that needs more than all of it, beside the spare row, may exceed it.

Shapes: `keys[layer]` and `values[layer]` are [rows + 1, kv_heads, capacity, head_dim], valid up to `len(tokens[row])` of each row. The
last row is spare: passes of rounded shape write their padding to it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor

from dreamgym.llm.memory import return_free_memory

_EMPTY = np.zeros(0, dtype=np.int64)


class KVCache:
    """Owns the key-value memory and the record of which tokens each row holds."""

    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, cache_bytes: int, max_length: int
    ) -> None:
        self.layers, self.kv_heads, self.head_dim, self.dtype, self.device = layers, kv_heads, head_dim, dtype, device
        self.cache_bytes, self.max_length = cache_bytes, max_length
        self.moves = 0  # how often the memory has changed its place
        self.clear()

    def clear(self) -> None:
        """Forget every session and give the memory back."""
        self.rows = self.capacity = self.clock = 0
        self.moves += 1
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.tokens: list[np.ndarray] = []  # per row: the ids whose keys and values are valid
        self.owner: list[Hashable | None] = []
        self.used: list[int] = []
        self.row_of: dict[Hashable, int] = {}

    def most_rows(self, length: int) -> int:
        """How many rows of `length` tokens the budget holds beside the spare one, at least 1."""
        size = 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize * self._grown(length)
        return max(1, self.cache_bytes // size - 1)

    def rounded(self, length: int) -> int:
        """`length`, or a little more that shapes repeat: the next multiple of 64, as far as the rows reach."""
        return min(-(-length // 64) * 64, self.capacity)

    def release(self, names: Sequence[Hashable]) -> None:
        """Free the rows of these owners; unknown ones are ignored."""
        for name in names:
            row = self.row_of.pop(name, None)
            if row is not None:
                self.owner[row], self.tokens[row], self.used[row] = None, _EMPTY, 0

    def assign_rows(self, first: int, names: Sequence[Hashable], length: int) -> np.ndarray:
        """Give each new owner a row among [first, first + len(names)), with room for `length` tokens; the rows before are at work.

        Returns `order`: row first + r belongs to names[order[r]]. An owner that rests here keeps what its row holds.
        """
        n = first + len(names)
        self.clock += 1
        capacity = self._grown(length)
        wanted = set(names)
        resting = [name for name, row in self.row_of.items() if row >= first and name not in wanted]
        resting.sort(key=lambda name: self.used[self.row_of[name]])
        room = max(0, self.most_rows(length) - n)
        self.release(resting[: max(0, len(resting) - room)])
        resting = resting[max(0, len(resting) - room) :]
        self._resize(n + len(resting), capacity)
        active = {self.row_of[name]: i for i, name in enumerate(names) if name in self.row_of}
        free = iter(row for row in range(first, self.rows) if self.owner[row] is None)  # lowest first: before n where possible
        for i, name in enumerate(names):
            if name not in self.row_of:
                row = next(free)
                active[row] = i
                self.row_of[name], self.owner[row], self.tokens[row] = row, name, _EMPTY
        outside = [row for row in active if row >= n]
        holes = [row for row in range(first, n) if row not in active]
        self.swap(holes, outside)
        for hole, row in zip(holes, outside, strict=True):
            active[hole] = active.pop(row)
        for row in range(n):
            self.used[row] = self.clock
        return np.array([active[row] for row in range(first, n)], dtype=np.int64)

    def swap(self, a: Sequence[int], b: Sequence[int], length: int | None = None) -> None:
        """Exchange rows a[i] and b[i], up to `length` tokens (None: as many as the rows hold)."""
        if not a:
            return
        if length is None:
            length = max(len(self.tokens[row]) for row in (*a, *b))
        if length:
            first, second = (torch.tensor(rows, device=self.device) for rows in ([*a, *b], [*b, *a]))
            for tensor in (*self.keys, *self.values):
                tensor[first, :, :length] = tensor[second, :, :length]
        for i, j in zip(a, b, strict=True):
            self.tokens[i], self.tokens[j] = self.tokens[j], self.tokens[i]
            self.owner[i], self.owner[j] = self.owner[j], self.owner[i]
            self.used[i], self.used[j] = self.used[j], self.used[i]
            for row in (i, j):
                name = self.owner[row]
                if name is not None:
                    self.row_of[name] = row

    def copy(self, source: int, target: int, length: int) -> None:
        """Let row `target` begin with the first `length` tokens of row `source`."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]

    def _grown(self, length: int) -> int:
        """Capacity for `length`: what there is if it suffices, else half as much again, in steps of 64."""
        if length <= self.capacity:
            return self.capacity
        return min(-(-max(length, self.capacity * 3 // 2) // 64) * 64, -(-self.max_length // 64) * 64)

    def _resize(self, rows: int, capacity: int) -> None:
        """Room for `rows` rows of `capacity` tokens; rows never shrink below those in use, and grow only when they must."""
        if rows <= self.rows and capacity <= self.capacity:
            return
        if rows < self.rows and self.rows <= self.most_rows(capacity):
            rows = self.rows
        rows = max(rows, 1)
        keep = [row for row in range(self.rows) if self.owner[row] is not None]
        used = max((len(self.tokens[row]) for row in keep), default=0)
        index = torch.tensor(keep, device=self.device, dtype=torch.long)
        shape = (rows + 1, self.kv_heads, capacity, self.head_dim)
        for tensors in (self.keys, self.values):
            for layer in range(self.layers):  # one layer at a time, so that the peak is one layer above the sum
                new = torch.zeros(shape, dtype=self.dtype, device=self.device)  # zeros: a masked NaN would still poison a sum
                if used:
                    new[: len(keep), :, :used] = tensors[layer][index, :, :used]
                tensors[layer : layer + 1] = [new]
        free = rows - len(keep)
        self.tokens = [self.tokens[row] for row in keep] + [_EMPTY] * free
        self.owner = [self.owner[row] for row in keep] + [None] * free
        self.used = [self.used[row] for row in keep] + [0] * free
        self.row_of = {name: row for row, name in enumerate(self.owner) if name is not None}
        self.rows, self.capacity = rows, capacity
        self.moves += 1
        if self.device.type == "cpu":
            return_free_memory()  # of the smaller tensors
