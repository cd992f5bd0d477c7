"""Small statistics: bootstrap intervals, rank correlation, and agreement beyond chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A statistic with its 95 % bootstrap interval; None where there were no cases. `n` is the size of the smallest sample."""

    value: float | None
    low: float | None
    high: float | None
    n: int

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def bootstrap(samples: Sequence[Sequence[float]], statistic: Callable[..., float], seed: int) -> Interval:
    """The percentile interval of a statistic of one or several samples, each drawn again with replacement (Efron 1979)."""
    arrays = [np.asarray(sample, dtype=float) for sample in samples]
    n = min(len(array) for array in arrays)
    if n == 0:
        return Interval(None, None, None, 0)
    rng = np.random.default_rng(seed)
    drawn = [statistic(*(array[rng.integers(0, len(array), len(array))] for array in arrays)) for _ in range(RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(statistic(*arrays), float(low), float(high), n)


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None when there is too little, or one side never varies."""
    if len(one) < 3 or len(set(one)) < 2 or len(set(other)) < 2:
        return None
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def kappa(one: Sequence[bool], other: Sequence[bool]) -> float | None:
    """Cohen's kappa: agreement of two raters beyond what their habits alone would give; None when both say always the same."""
    if not one:
        return None
    agreed = sum(a == b for a, b in zip(one, other, strict=True)) / len(one)
    p, q = sum(one) / len(one), sum(other) / len(other)
    chance = p * q + (1 - p) * (1 - q)
    return None if chance == 1 else (agreed - chance) / (1 - chance)


def _ranks(values: Sequence[float]) -> np.ndarray:
    """[n] ranks from 0; equal values share their mean rank."""
    array = np.asarray(values, dtype=float)
    return np.array([(array < value).sum() + ((array == value).sum() - 1) / 2 for value in array])
