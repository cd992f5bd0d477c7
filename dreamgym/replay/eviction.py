"""Which dreams to forget when the replay buffer is full. Real and demo rows are never forgotten.

"balanced" keeps the buffer varied: first go dreams whose (action, next state) a newer dream or a real row repeats; then dreams of
whichever reward sign (negative, zero, positive) there are more of, so that successes do not drown in failures or the other way
round; and of equals the oldest. "oldest" looks at age alone.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Policy = Literal["balanced", "oldest"]


def surplus(policy: Policy, n: int, dream: NDArray[np.bool_], content: NDArray[np.int64], reward: NDArray[np.float64]) -> NDArray[np.int64]:
    """Positions of `n` dreams to forget, ascending; fewer when there are not so many. Columns are [N], oldest row first."""
    dreams = np.flatnonzero(dream)
    if policy == "oldest" or n >= len(dreams):
        return dreams[:n]
    repeated = _repeated(dream, content)[dreams]
    out = dreams[repeated][:n]
    rest = dreams[~repeated]
    return np.sort(np.concatenate([out, _levelled(rest, np.sign(reward[rest]), n - len(out))]))


def _repeated(dream: NDArray[np.bool_], content: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Dreams [N] that say what a real row or a newer dream says."""
    newest = np.full(content.max(initial=-1) + 1, -1, np.int64)
    np.maximum.at(newest, content[dream], np.flatnonzero(dream))
    newest[content[~dream]] = -1  # a real row outlasts every dream of it
    found: NDArray[np.bool_] = dream & (newest[content] != np.arange(len(content)))
    return found


def _levelled(positions: NDArray[np.int64], kinds: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """The oldest of `positions` of each kind, so many of each that the kinds that lose some end level; `n` in all."""
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
