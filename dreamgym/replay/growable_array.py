"""An array with amortised appends and a numpy view of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class GrowableArray:
    """Rows of a fixed shape in one preallocated block that doubles when full."""

    def __init__(self, dtype: DTypeLike, *, width: tuple[int, ...] = (), capacity: int = 1024):
        self._block: NDArray[Any] = np.zeros((capacity, *width), dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._block.dtype

    @property
    def view(self) -> NDArray[Any]:
        """The rows so far [n, *width]. Read it again after `append`: the block may have moved."""
        return self._block[: self._length]

    def append(self, rows: NDArray[Any]) -> None:
        """Append `rows` [n, *width]."""
        end = self._length + len(rows)
        if end > len(self._block):
            self.reserve(max(end, 2 * len(self._block)))
        self._block[self._length : end] = rows
        self._length = end

    def reserve(self, rows: int) -> None:
        """Allocate room for `rows` rows in all."""
        if rows > len(self._block):
            bigger = np.zeros((rows, *self._block.shape[1:]), self._block.dtype)
            bigger[: self._length] = self.view
            self._block = bigger

    def truncate(self, length: int) -> None:
        self._length = min(self._length, length)

    def retain(self, keep: NDArray[np.bool_]) -> None:
        """Remove the rows that are False in `keep` [n]; the others move up."""
        kept = self.view[keep]
        self._block[: len(kept)] = kept
        self._length = len(kept)

    def astype(self, dtype: DTypeLike) -> GrowableArray:
        """A copy with numbers of another kind."""
        copy = GrowableArray(dtype, width=self._block.shape[1:], capacity=max(1, self._length))
        copy.append(self.view)
        return copy
