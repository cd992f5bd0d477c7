"""Cosine search in two passes: a bfloat16 product over all rows finds candidates, float32 rows rank them. Nothing is missed.

bfloat16 keeps 8 bits, so a coarse cosine of a pair differs from the true one by at most e + h: e = |x - x'| + |q - q'| is what rounding
did to the row and the query (their lengths are 1), h what rounding did to the result. If b is the k-th best coarse cosine, the true
ones of k rows are at least b - h - e; a row of the true top k is at least as near, so its own coarse cosine is at least b - 2h - 2e. All
rows above that are ranked exactly. Instead of b the k-th best of the maxima of chunks is used, which is no larger, and faster to find.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dreamgym.replay.indexes._groups import GATHER, within

CHUNK = 64  # rows whose largest coarse cosine is found first
HALF_ULP = 2.0**-8  # the most that rounding to bfloat16 changes a number, relative: just above a power of two it is that much
SLACK = 5e-5  # float32 sums, and the rounding of cosines before they are ranked


def has_fast_bf16(device: str) -> bool:
    """Whether bfloat16 products are faster than float32 ones here: any GPU, and processors with instructions for them."""
    return device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class CoarseMatrix:
    """Owns a bfloat16 copy of unit rows on a device, in one block that doubles when full."""

    def __init__(self, dim: int, device: str):
        self.device = device
        self._block = torch.empty((0, dim), dtype=torch.bfloat16, device=device)
        self._length = 0
        self._error = 0.0  # the largest |x - x'|

    def __len__(self) -> int:
        return self._length

    def append(self, rows: NDArray[np.floating[Any]]) -> None:
        """rows [n, dim] of length 1, float32 or float16."""
        end = self._length + len(rows)
        if end > len(self._block):
            bigger = torch.empty((max(end, 2 * len(self._block)), self._block.shape[1]), dtype=torch.bfloat16, device=self.device)
            bigger[: self._length] = self._block[: self._length]
            self._block = bigger
        for start in range(0, len(rows), 65536):  # in parts, for the sake of memory
            part = torch.from_numpy(rows[start : start + 65536]).to(self.device).float()
            coarse = part.bfloat16()
            self._error = max(self._error, float((part - coarse.float()).norm(dim=1).max()))
            self._block[self._length : self._length + len(part)] = coarse
            self._length += len(part)

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on."""
        self._length = min(self._length, length)

    def candidates(
        self, queries: NDArray[np.float32], *, k: int, mask: NDArray[np.bool_] | None, hidden: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs (query, position) that hold the true top k of each of the queries [Q, dim], and little more.

        `mask` [N] keeps rows; `hidden` are pairs (queries, positions) that may not be found.
        """
        kept = None if mask is None else np.flatnonzero(mask)
        if kept is not None and not len(kept):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        gathered = kept is not None and len(kept) < GATHER * self._length
        block = self._block[: self._length]
        if gathered and kept is not None:
            hidden = within(kept, self._length, hidden)
            block = block[self._tensor(kept)]
        exact = torch.from_numpy(queries).to(self.device)
        rounded = exact.bfloat16()
        error = self._error + (exact - rounded.float()).norm(dim=1)  # [Q]
        with torch.inference_mode():
            rows, whole = len(block), -(-len(block) // CHUNK) * CHUNK
            scores = torch.empty((whole, len(queries)), dtype=torch.bfloat16, device=self.device)
            scores[rows:] = -torch.inf
            torch.mm(block, rounded.T, out=scores[:rows])  # [N, Q]
            if mask is not None and not gathered:
                scores[:rows][self._tensor(~mask)] = -torch.inf
            scores[self._tensor(hidden[1]), self._tensor(hidden[0])] = -torch.inf
            found = _above(scores, min(k, rows), error)
        queries_, positions = (one.cpu().numpy() for one in found)
        return queries_, kept[positions] if gathered and kept is not None else positions

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)


def _above(scores: torch.Tensor, k: int, error: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(queries, rows) whose coarse cosine in scores [N, Q] may belong to the top k, given the rounding errors [Q]."""
    chunks = scores.view(-1, CHUNK, scores.shape[1])
    best = chunks.amax(1)  # [N / CHUNK, Q]
    if k <= len(best):
        threshold = best.topk(k, dim=0).values[-1].float()  # [Q]; -inf where fewer than k chunks hold anything
    else:
        threshold = scores.topk(k, dim=0).values[-1].float()
    threshold = threshold - 2 * HALF_ULP * threshold.abs().nan_to_num(posinf=0.0) - 2 * error - SLACK
    chunk, query = (best.float() >= threshold).nonzero(as_tuple=True)
    inside = chunks[chunk, :, query].float()  # [C, CHUNK]
    which, offset = ((inside >= threshold[query, None]) & (inside > -torch.inf)).nonzero(as_tuple=True)
    return query[which], chunk[which] * CHUNK + offset
