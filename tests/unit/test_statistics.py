"""Intervals over seeds: Student's t, and claims only where enough seeds agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import UsageError
from dreamgym.statistics import inclusion_probabilities, paired_difference, seed_mean, t_quantile, weighted_rate, wilson


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
