"""Statistics of shares, means and seeds: Wilson, Newcombe, bootstrap and t intervals, rank correlation, agreement beyond chance.

A seed is one independent training run, and its episodes are not independent of each other. A claim that one way of training is better
rests on the paired differences of seeds, not on pooled episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from dreamgym.errors import UsageError


@dataclass(frozen=True)
class Rate:
    """A share of `n` with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]" if self.n else "-"


def wilson(successes: float, n: float) -> Rate:
    """Wilson's 95 % score interval of a proportion (Wilson 1927); (0, 0, 1) for no trials. Weighted trials count as fractions."""
    if n == 0:
        return Rate(0.0, 0.0, 1.0, 0)
    z = NormalDist().inv_cdf(0.975)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return Rate(p, max(0.0, centre - half), min(1.0, centre + half), int(n))


def weighted_rate(hits: Sequence[bool], weights: Sequence[float]) -> Rate:
    """A share of cases that were drawn with unequal probabilities, weighted by one over each (Hájek 1971).

    The interval is Wilson's at the effective number of cases, (sum of weights)² / sum of squared weights; `n` is the number of cases.
    """
    if not hits:
        return wilson(0, 0)
    total = sum(weights)
    effective = total**2 / sum(weight**2 for weight in weights)
    share = sum(weight * hit for weight, hit in zip(weights, hits, strict=True)) / total
    return replace(wilson(share * effective, effective), n=len(hits))


def design_effect(values: np.ndarray, clusters: np.ndarray, weights: np.ndarray | None = None) -> float:
    """The factor by which cases of the same clusters, such as steps of an episode, count for less than independent ones: 1 + (m - 1) rho
    (Kish 1965), with m cases a cluster, and rho the intraclass correlation of the values (analysis of variance). `clusters` numbers the
    cluster of each value from 0. Where all values agree, and of a single cluster, nothing is known: rho is 1."""
    sizes = np.bincount(clusters)
    n, n_clusters = len(values), int((sizes > 0).sum())
    if n_clusters == n:
        return 1.0
    heavy = np.ones(n) if weights is None else weights
    m = float((np.bincount(clusters, heavy) ** 2).sum() / (heavy**2).sum())
    if n_clusters == 1:
        return m
    means = np.bincount(clusters, values) / np.maximum(sizes, 1)
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (n_clusters - 1)
    within = float(((values - means[clusters]) ** 2).sum()) / (n - n_clusters)
    typical = (n - float((sizes**2).sum()) / n) / (n_clusters - 1)
    spread = between + (typical - 1) * within
    rho = min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else 1.0
    return 1 + (m - 1) * rho


def _effect_of(values: Sequence[float], clusters: Sequence[Hashable] | None) -> float:
    """The design effect of at least one value; 1 without clusters."""
    if clusters is None:
        return 1.0
    numbers: dict[Hashable, int] = {}
    numbered = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])
    return design_effect(np.asarray(values, dtype=float), numbered)


def clustered_rate(hits: Sequence[bool], clusters: Sequence[Hashable]) -> Rate:
    """A share of cases that come in clusters, such as steps of episodes, so that they depend on each other: Wilson's interval at the number
    of cases over their design effect. `n` is the number of cases."""
    if not hits:
        return wilson(0, 0)
    share, effective = sum(hits) / len(hits), len(hits) / _effect_of(hits, clusters)
    return replace(wilson(share * effective, effective), value=share, n=len(hits))


def inclusion_probabilities(weights: Sequence[float], size: float) -> np.ndarray:
    """float64 [weights]: probabilities of a Poisson sample, proportional to the weights, cut off at 1, that sum to `size`, or to the number
    of weights above 0 where that is smaller."""
    array = np.asarray(weights, dtype=float)
    order = np.argsort(-array, kind="stable")
    rest = np.cumsum(array[order][::-1])[::-1]  # of each weight and those below it
    found = np.zeros(len(array))
    for place, i in enumerate(order):
        left = size - place
        if array[i] <= 0 or left <= 0:
            break
        if left * array[i] < rest[place]:
            found[order[place:]] = left * (array[order[place:]] / rest[place])
            break
        found[i] = 1.0
    return found


def difference(one: Rate, other: Rate, *, phi: float = 0.0) -> tuple[float, float, float]:
    """one - other, with its 95 % interval (Newcombe 1998, Stat Med 17:873, method 10: from the two Wilson intervals). `phi` is the
    correlation of the two outcomes, where both are of the same cases."""

    def distance(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))

    value = one.value - other.value
    low = value - distance(one.value - one.low, other.high - other.value)
    high = value + distance(one.high - one.value, other.value - other.low)
    return value, low, high


RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A statistic with its 95 % interval; None where there were no cases. `n` is the size of the smallest sample."""

    value: float | None
    low: float | None
    high: float | None
    n: int

    def json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def paired_rate_difference(one: Sequence[bool], other: Sequence[bool], clusters: Sequence[Hashable] | None = None) -> Interval:
    """The share of `one` minus that of `other`, two outcomes of the same cases in the same order (Newcombe 1998, Stat Med 17:2635, method
    10: the correlation phi enters with a continuity correction). Unlike a bootstrap's, the interval has a width where all cases agree.
    Where cases come in `clusters`, each counts for one over the design effect of the differences."""
    if not one:
        return Interval(None, None, None, 0)
    pairs = list(zip(one, other, strict=True))
    weight = 1 / _effect_of([a - b for a, b in pairs], clusters)
    n, first, second, both = (weight * k for k in (len(pairs), sum(one), sum(other), sum(a and b for a, b in pairs)))
    covariance = both * n - first * second  # ad - bc of the 2 x 2 table, whose row and column sums follow
    covariance = covariance if covariance < 0 else max(0.0, covariance - n / 2)
    spread = first * (n - first) * second * (n - second)
    phi = covariance / math.sqrt(spread) if spread else 0.0
    return Interval(*difference(wilson(first, n), wilson(second, n), phi=phi), len(pairs))


def bounded_mean(values: Sequence[float], most: float = 1.0, clusters: Sequence[Hashable] | None = None) -> Interval:
    """The mean of values from 0 to `most`, with Wilson's interval of a share. Values within bounds vary at most as a coin of the same mean
    does (Bhatia and Davis 2000), so that it is wide enough; unlike a bootstrap's it has a width where all values agree. Where values come
    in `clusters`, it is at their number over the design effect."""
    if not values:
        return Interval(None, None, None, 0)
    mean, effective = sum(values) / len(values), len(values) / _effect_of(values, clusters)
    rate = wilson(mean / most * effective, effective)
    return Interval(mean, most * rate.low, most * rate.high, len(values))


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


CLAIM_SEEDS = 5
"""Seeds that a claim needs. Fewer are shown with their interval and without a claim."""


@dataclass(frozen=True)
class SeedMean:
    """The mean over seeds with its 95 % t interval, which one seed does not have."""

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def interval(self) -> list[float] | None:
        """[low, high], as summary.json holds it."""
        return None if self.low is None or self.high is None else [self.low, self.high]


def seed_mean(values: Sequence[float]) -> SeedMean:
    """The mean of one value per seed, with Student's 95 % t interval: mean -+ t(n - 1) * s / sqrt(n). UsageError for no seeds."""
    n = len(values)
    if n == 0:
        raise UsageError("An interval over seeds needs at least one seed.")
    mean = sum(values) / n
    if n == 1:
        return SeedMean(mean, None, None, 1)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(0.975, n - 1) * deviation / math.sqrt(n)
    return SeedMean(mean, mean - half, mean + half, n)


def paired_difference(one: Sequence[float], other: Sequence[float]) -> SeedMean:
    """`one` minus `other`, seed by seed; both measured on the same held-out tasks. UsageError when the seeds do not match."""
    if len(one) != len(other):
        raise UsageError(f"A paired difference needs the same seeds on both sides, not {len(one)} and {len(other)}.")
    return seed_mean([a - b for a, b in zip(one, other, strict=True)])


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """The quantile of Student's t distribution, to 1e-6: its density (Student 1908) integrated with Simpson's rule, and bisection.

    Above 200 degrees of freedom, where it differs from the normal distribution's by less than half a percent, the normal's is returned.
    """
    if degrees > 200:
        return NormalDist().inv_cdf(probability)
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)

    def cdf(t: float) -> float:
        angles = np.linspace(0.0, math.atan(t / math.sqrt(degrees)), 2001)  # x = sqrt(degrees) * tan(angle) keeps heavy tails bounded
        density = np.cos(angles) ** (degrees - 1)
        simpson = density[0] + density[-1] + 4 * density[1:-1:2].sum() + 2 * density[2:-1:2].sum()
        return 0.5 + math.exp(log_scale) * math.sqrt(degrees) * float(simpson) * (angles[1] - angles[0]) / 3

    low, high = 0.0, 1.0
    while cdf(high) < probability:
        high *= 2
    while high - low > 1e-7 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle) < probability else (low, middle)
    return (low + high) / 2


def jaccard(one: str, other: str) -> float:
    """The Jaccard index of two texts' words: 0 for nothing in common, 1 for the same words."""
    a, b = set(one.split()), set(other.split())
    return len(a & b) / (len(a | b) or 1)


def conformal_limit(reference: Sequence[int], level: float) -> int | None:
    """The number above which a p-value (1 + #{reference >= number}) / (n + 1) is at most `level`; None where n is
    too small for any."""
    k = int(level * (len(reference) + 1))
    return sorted(reference, reverse=True)[k - 1] if k else None
