"""Which dreams to evict from a full replay buffer. Real and demo rows are never evicted.

First go dreams whose (action, next state) a newer dream or a real row repeats. Then go dreams of the reward signs (negative, zero,
positive) of which there are most, so that successes and failures stay in balance. Ties go by age, the oldest first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def select_evicted(n: int, dream: NDArray[np.bool_], content: NDArray[np.int64], reward: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of `n` dreams to evict, ascending; of all dreams when there are fewer. Columns are [N], oldest row first."""
    dreams = np.flatnonzero(dream)
    if n >= len(dreams):
        return dreams
    repeated = _repeated(dream, content)[dreams]
    out = dreams[repeated][:n]
    rest = dreams[~repeated]
    return np.sort(np.concatenate([out, _levelled(rest, np.sign(reward[rest]), n - len(out))]))


def _repeated(dream: NDArray[np.bool_], content: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Dreams [N] of the content of a real row or a newer dream."""
    newest = np.full(content.max(initial=-1) + 1, -1, np.int64)
    np.maximum.at(newest, content[dream], np.flatnonzero(dream))
    newest[content[~dream]] = -1  # a real row outlasts every dream of the same content
    found: NDArray[np.bool_] = dream & (newest[content] != np.arange(len(content)))
    return found


def _levelled(positions: NDArray[np.int64], kinds: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """`n` of `positions`, the oldest of each kind first, such that all kinds that lose some keep equally many."""
    if n <= 0:
        return positions[:0]
    groups = [positions[kinds == kind] for kind in np.unique(kinds)]
    low, high = 0, max(map(len, groups))  # the smallest level at which no more than n have to go
    while low < high:
        level = (low + high) // 2
        if sum(max(0, len(group) - level) for group in groups) <= n:
            high = level
        else:
            low = level + 1
    out = [group[: max(0, len(group) - low)] for group in groups]
    missing = n - sum(map(len, out))  # fewer than there are groups at the level: one more of each, the oldest first
    heads = sorted(int(group[len(gone)]) for group, gone in zip(groups, out, strict=True) if len(gone) < len(group) and len(group) >= low)
    return np.concatenate([*out, np.array(heads[:missing], np.int64)])
