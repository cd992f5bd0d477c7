"""The threshold of a verifier: exact for small numbers, honest where they are too small."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import UsageError
from dreamgym.experience.outcome.calibration import Calibration, CalibrationConfig, calibrate, least_negatives, rank
from dreamgym.experience.outcome.support import least_supported


def test_the_least_numbers_of_negatives_are_those_of_the_binomial_tail():
    assert [least_negatives(alpha, 0.1) for alpha in (0.01, 0.02, 0.05, 0.1, 0.2)] == [230, 114, 45, 22, 11]
    assert rank(44, 0.05, 0.1) is None and rank(45, 0.05, 0.1) == 45
    assert [rank(n, alpha, 0.1) for n, alpha in ((100, 0.05), (100, 0.1), (60, 0.05), (60, 0.1))] == [99, 95, 60, 58]


@pytest.mark.parametrize("alpha, delta", [(0, 0.1), (1, 0.1), (0.05, 0), (0.05, 1)])
def test_a_level_that_is_no_rate_is_refused(alpha: float, delta: float):
    with pytest.raises(UsageError, match="between 0 and 1"):
        rank(50, alpha, delta)


def test_more_than_alpha_false_successes_are_as_rare_as_promised():
    """2,000 calibrations on 60 negatives each; the true rate above a threshold t of uniform scores is 1 - t."""
    rng = np.random.default_rng(0)
    thresholds = [calibrate(rng.random(60), [1.0], CalibrationConfig(alpha=0.1), of="probes").accept_above for _ in range(2000)]
    missed = np.mean([1 - threshold > 0.1 for threshold in thresholds])
    assert 0.02 < missed <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 2000)  # neither broken nor far from the bound


@given(st.lists(st.floats(-5, 5), max_size=300), st.lists(st.floats(-5, 5), max_size=50))
def test_whatever_the_scores_only_the_allowed_share_of_the_negatives_lies_above(negatives: list[float], positives: list[float]):
    found = calibrate(negatives, positives, CalibrationConfig(), of="policies")
    above = sum(score > found.accept_above for score in negatives)
    assert above <= found.alpha * len(negatives)
    assert found.zero_below <= found.accept_above
    assert found.bounded == (len(negatives) >= least_negatives(0.2, 0.1))


def test_few_negatives_give_a_looser_rate_and_none_give_no_acceptance():
    assert calibrate([0.0] * 30, [1.0], CalibrationConfig(), of="probes").alpha == 0.1
    assert calibrate([0.0] * 12, [1.0], CalibrationConfig(), of="probes").alpha == 0.2
    few, none = (calibrate(scores, [1.0], CalibrationConfig(), of="probes") for scores in ([0.5] * 5, []))
    assert few.accept_above == 0.5 and not few.bounded and few.status.startswith("not certified")
    assert none.accept_above == math.inf and not none.bounded


def test_only_probes_certify():
    of_logs, of_probes = (calibrate([0.0] * 100, [1.0], CalibrationConfig(), of=of) for of in ("policies", "probes"))
    assert of_probes.status == "certified" and of_logs.status == "uncertified under policy shift: calibrated on logs"
    assert Calibration.from_json(of_logs.to_json()) == of_logs


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200), st.floats(0, 1))
def test_a_claim_is_out_of_support_where_its_p_value_is_at_most_the_level(reference: list[float], support: float):
    p_value = (1 + sum(one <= support for one in reference)) / (len(reference) + 1)
    below = support < least_supported(np.array(reference), 0.05)
    assert not below or p_value <= 0.05
    assert below or p_value > 0.05 or any(abs(one - support) <= 2e-5 for one in reference)
