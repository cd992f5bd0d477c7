"""Decoding on a GPU as one launch: a pass of fixed shapes is recorded as a CUDA graph and replayed.

A pass over one token a row is hundreds of kernels of a few microseconds each, and launching them from Python takes several times longer
than running them. A recording holds addresses and shapes: shapes are rounded up to a few (`rounded`), and code that moves memory which
a recorded pass reads must call `forget`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

MOST = 96  # recordings kept; beyond it the one used longest ago is dropped


def rounded(size: int, least: int) -> int:
    """`size` rounded up to a multiple of `least`, or of a quarter of its power of two: few sizes, and little of them for nothing."""
    step = max(least, 1 << max(0, size.bit_length() - 3))
    return -(-size // step) * step


class Graphs:
    """Recorded passes by their shapes. The first pass of a shape runs as it is, which warms libraries up; the second is recorded."""

    def __init__(self) -> None:
        self.kept: OrderedDict[Hashable, tuple[Any, Tensor, Tensor] | None] = OrderedDict()
        self.pool: Any = None

    def forget(self) -> None:
        """Drop every recording: memory that they read has moved."""
        self.kept.clear()
        self.pool = None

    def run(self, shape: Hashable, compute: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
        """compute(given), where all that `compute` depends on but `given` is named by `shape`. The next run overwrites the result."""
        if shape not in self.kept:
            self.kept[shape] = None
            if len(self.kept) > MOST:
                self.kept.popitem(last=False)
            return compute(given)
        self.kept.move_to_end(shape)
        found = self.kept[shape]
        if found is None:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            held, graph = given.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                result = compute(held)
            found = self.kept[shape] = (graph, held, result)
        graph, held, result = found
        held.copy_(given)
        graph.replay()
        return result
