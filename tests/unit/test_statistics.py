"""Intervals over seeds: Student's t, and claims only where enough seeds agree."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import UsageError
from dreamgym.statistics import (
    Interval,
    bounded_mean,
    clustered_rate,
    inclusion_probabilities,
    paired_difference,
    paired_rate_difference,
    seed_mean,
    t_quantile,
    weighted_rate,
    wilson,
)


@pytest.mark.parametrize(
    ("probability", "degrees", "published"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 4, 2.77645), (0.975, 7, 2.36462), (0.95, 9, 1.83311), (0.995, 30, 2.74999)],
)
def test_quantiles_are_those_of_published_tables(probability: float, degrees: int, published: float):
    assert t_quantile(probability, degrees) == pytest.approx(published, rel=1e-5)
    assert t_quantile(1 - probability, degrees) == pytest.approx(-published, rel=1e-5)


def test_the_interval_as_worked_by_hand():
    found = seed_mean([0.90, 0.92, 0.94, 0.96, 0.98])  # s = 0.0316228, t(4) = 2.77645, half = 0.0392649
    assert (found.mean, found.low, found.high) == pytest.approx((0.94, 0.9007351, 0.9792649), abs=1e-6)
    assert found.interval == [found.low, found.high]


def test_one_seed_has_no_interval_and_two_have_a_wide_one():
    assert seed_mean([0.9]).interval is None
    two = seed_mean([0.90, 0.92])
    assert two.low is not None and two.high is not None and two.high - two.low > 0.25


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(UsageError, match="same seeds"):
        paired_difference([0.9], [0.8, 0.9])
    with pytest.raises(UsageError, match="at least one seed"):
        seed_mean([])


@given(st.lists(st.floats(0, 10), max_size=30), st.floats(0.1, 20))
def test_inclusion_probabilities_sum_to_the_size_and_follow_the_weights(weights: list[float], size: float):
    found = inclusion_probabilities(weights, size)
    positive = sum(weight > 0 for weight in weights)
    assert ((found >= 0) & (found <= 1 + 1e-9)).all() and found.sum() == pytest.approx(min(size, positive), abs=1e-6)
    assert (np.diff(found[np.argsort(weights)]) >= -1e-9).all()


def test_a_share_of_cases_with_unequal_probabilities_is_weighted_by_one_over_them():
    found = weighted_rate([True, False, False], [4.0, 1.0, 1.0])
    assert found.value == pytest.approx(4 / 6) and found.n == 3 and found.low < found.value < found.high
    assert weighted_rate([True, False], [1.0, 1.0]) == wilson(1, 2) and weighted_rate([], []).n == 0


def of_counts(a: int, b: int, c: int, d: int) -> tuple[float, float, float]:
    """(value, low, high) of a cases that succeed in both, b only in the first, c only in the second and d in none."""
    whole = paired_rate_difference([True] * (a + b) + [False] * (c + d), [True] * a + [False] * b + [True] * c + [False] * d)
    assert whole.value is not None and whole.low is not None and whole.high is not None and whole.n == a + b + c + d
    return whole.value, whole.low, whole.high


@pytest.mark.parametrize(
    ("table", "published"),
    [
        ((59, 6, 16, 80), (-0.0621, -0.1186, -0.0046)),  # Cavo et al. 2012, by the R package contingencytables 3.1.0
        ((36, 12, 2, 0), (0.2, 0.0569, 0.3404)),  # by hand: 0.2 - 0.1431 and 0.2 + 0.1404 at phi = -24 / 209.2
    ],
)
def test_a_paired_difference_of_rates_has_the_published_interval(table: tuple[int, int, int, int], published: tuple[float, float, float]):
    assert of_counts(*table) == pytest.approx(published, abs=6e-5)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_a_paired_difference_of_rates_is_antisymmetric_and_lies_inside_an_interval_with_a_width(pairs: list[tuple[bool, bool]]):
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    found, swapped = paired_rate_difference(one, other), paired_rate_difference(other, one)
    assert found.value is not None and found.low is not None and found.high is not None
    assert found.value == pytest.approx((sum(one) - sum(other)) / len(pairs))
    assert -1 - 1e-9 <= found.low <= found.value <= found.high <= 1 + 1e-9 and found.high - found.low > 0.001
    assert (swapped.low, swapped.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_a_paired_difference_of_no_cases_is_unknown():
    assert paired_rate_difference([], []) == Interval(None, None, None, 0)


@pytest.mark.parametrize("shares", [(0.9, 0.05, 0.0, 0.05), (0.4, 0.1, 0.1, 0.4), (0.6, 0.2, 0.05, 0.15), (0.25, 0.25, 0.25, 0.25)])
def test_the_interval_of_a_paired_difference_holds_the_true_one_in_about_95_percent_of_samples(shares: tuple[float, ...]):
    """Over every table of 20 cases, weighted by its probability, which is exact; a percentile bootstrap holds 0.64 in the first case."""
    n, covered = 20, 0.0
    for a, b, c in itertools.product(range(n + 1), repeat=3):
        if (d := n - a - b - c) >= 0:
            _, low, high = of_counts(a, b, c, d)
            ways = math.factorial(n) / math.prod(map(math.factorial, (a, b, c, d)))
            chance = ways * math.prod(share**count for share, count in zip(shares, (a, b, c, d), strict=True))
            covered += chance * (low <= shares[1] - shares[2] <= high)
    assert covered > 0.945


@given(st.lists(st.floats(0, 2), min_size=1, max_size=30))
def test_an_interval_of_bounded_values_holds_their_mean_stays_within_the_bounds_and_has_a_width(values: list[float]):
    found = bounded_mean(values, 2.0)
    assert found.value == pytest.approx(sum(values) / len(values)) and found.n == len(values)
    assert 0 <= found.low < found.high <= 2 and found.low - 1e-9 <= found.value <= found.high + 1e-9


def test_values_that_are_all_the_same_leave_a_mean_uncertain_and_none_leave_it_unknown():
    assert bounded_mean([1.0] * 20).low == pytest.approx(wilson(20, 20).low) and wilson(20, 20).low < 0.85
    assert bounded_mean([]) == Interval(None, None, None, 0)


# Cases in clusters, such as steps of episodes


def test_cases_that_are_alike_within_their_clusters_count_as_many_as_there_are_clusters():
    hits, clusters = [k < 5 for k in range(10) for _ in range(8)], [k for k in range(10) for _ in range(8)]
    found, of_clusters = clustered_rate(hits, clusters), wilson(5, 10)
    assert (found.value, found.n) == (0.5, 80)
    assert (found.low, found.high) == (pytest.approx(of_clusters.low), pytest.approx(of_clusters.high))
    mean = bounded_mean([float(hit) for hit in hits], 1.0, clusters)
    assert (mean.low, mean.high, mean.n) == (pytest.approx(of_clusters.low), pytest.approx(of_clusters.high), 80)


def test_clusters_of_one_case_and_cases_that_vary_within_clusters_as_between_them_change_nothing():
    hits = [True, False] * 20
    for clusters in (range(40), [k // 2 for k in range(40)]):
        assert clustered_rate(hits, list(clusters)) == wilson(20, 40)
    assert clustered_rate([], []) == wilson(0, 0)


def test_of_a_single_cluster_and_of_cases_that_all_agree_as_much_is_known_as_of_one_case_a_cluster():
    assert clustered_rate([True, False], [7, 7]).high == pytest.approx(wilson(0.5, 1).high)
    assert clustered_rate([True] * 12, [k // 4 for k in range(12)]).low == pytest.approx(wilson(3, 3).low)


def test_two_equal_predictors_of_steps_in_episodes_are_seldom_told_apart():
    """Each side is ahead by its interval in about 2.5 % of samples; with steps as independent cases it is in two to four times as many."""
    rng, ahead, taken_alone = np.random.default_rng(0), 0, 0
    for _ in range(400):
        clusters = np.repeat(np.arange(30), rng.integers(1, 16, 30))
        sides = [(rng.random(len(clusters)) < (rng.random(30) < 0.6)[clusters] * 0.9 + 0.05).tolist() for _ in range(2)]
        ahead += paired_rate_difference(sides[0], sides[1], clusters.tolist()).low > 0
        taken_alone += paired_rate_difference(sides[0], sides[1]).low > 0
    assert ahead <= 20 < 80 < taken_alone
