"""The threshold of a verifier: exact for small numbers, honest where they are too small."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import UsageError
from dreamgym.experience.learned_verifier.calibration import (
    Calibration,
    CalibrationConfig,
    Negatives,
    beta_cdf,
    calibrate,
    least_negatives,
    raised,
    threshold,
)
from dreamgym.statistics import conformal_limit


def rank(n: int, alpha: float, delta: float = 0.1) -> int | None:
    """k of the rule on the scores 1, ..., n of equal weight."""
    found = threshold(np.arange(1.0, n + 1), np.ones(n), alpha, delta)
    return None if found is None else int(found)


def test_the_thresholds_are_those_of_the_binomial_tail():
    assert [least_negatives(alpha, 0.1) for alpha in (0.01, 0.02, 0.05, 0.1, 0.2)] == [230, 114, 45, 22, 11]
    assert rank(44, 0.05) is None and rank(45, 0.05) == 45
    assert [rank(n, alpha) for n, alpha in ((100, 0.05), (100, 0.1), (60, 0.05), (60, 0.1))] == [99, 95, 60, 58]


@given(st.integers(1, 200), st.data(), st.floats(0.01, 0.3))
def test_the_beta_distribution_is_the_tail_of_the_binomial_one(n: int, data: st.DataObject, alpha: float):
    """P(Bin(n, alpha) <= m) = 1 - I_alpha(m + 1, n - m)."""
    m = data.draw(st.integers(0, n - 1))
    tail = sum(math.comb(n, j) * alpha**j * (1 - alpha) ** (n - j) for j in range(m + 1))
    assert beta_cdf(alpha, m + 1, n - m) == pytest.approx(1 - tail, abs=1e-4)


def test_a_negative_that_was_drawn_less_often_counts_for_more():
    scores = np.arange(1.0, 101.0)
    rare = np.where(scores > 95, 5.0, 1.0)  # those that would be accepted stand for five each
    often = np.where(scores > 95, 0.2, 1.0)
    low, even, high = (threshold(scores, weights, 0.05, 0.1) for weights in (often, np.ones(100), rare))
    assert low is not None and even is not None and high is not None and low < even <= high


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8, 1.0])
def test_weighted_thresholds_hold_whatever_the_score_that_decided_the_draw_says_of_the_next(correlation: float):
    """Normal scores, of which those with an old score above 1 are drawn nine times as often as the others. For each of 300 calibrations
    whether the true rate above the threshold exceeds 10 %."""
    rng = np.random.default_rng(1)
    missed = []
    for _ in range(300):
        old = rng.normal(size=500)
        scores = correlation * old + (1 - correlation**2) ** 0.5 * rng.normal(size=500)
        probability = np.where(old > 1, 0.9, 0.1)
        drawn = rng.random(500) < probability
        above = threshold(scores[drawn], 1 / probability[drawn], 0.1, 0.1)
        missed.append(above is not None and 1 - NormalDist().cdf(above) > 0.1)
    assert np.mean(missed) <= 0.1


def test_light_negatives_above_a_threshold_do_not_make_few_heavy_ones_many():
    """30 light negatives of the highest scores and 20 heavy ones are worth 23 equal ones, with which no rate of 5 % can be bounded."""
    scores, weights = np.arange(50.0), np.where(np.arange(50) < 20, 20.0, 1.0)
    assert threshold(scores, weights, 0.05, 0.1) is None
    assert threshold(scores, weights, 0.1, 0.1) is not None


@pytest.mark.parametrize(("tasks", "each"), [(3, 30), (5, 20), (10, 10), (30, 4), (60, 2)])
@pytest.mark.parametrize("alike", [0.0, 0.5, 0.9])
def test_a_bound_on_claims_of_few_tasks_holds_however_alike_those_of_a_task_are(tasks: int, each: int, alike: float):
    """Scores with an intraclass correlation; for each of 150 calibrations whether the true rate above the threshold exceeds 10 %."""
    rng, owners = np.random.default_rng(2), np.repeat(np.arange(tasks), each)
    missed = []
    for _ in range(150):
        scores = alike**0.5 * rng.normal(size=tasks)[owners] + (1 - alike) ** 0.5 * rng.normal(size=len(owners))
        found = threshold(scores, np.ones(len(owners)), 0.1, 0.1, tasks=owners)
        missed.append(found is not None and 1 - NormalDist().cdf(found) > 0.1)
    assert np.mean(missed) <= 0.1 + 2 * (0.1 * 0.9 / 150) ** 0.5


def test_a_single_task_bounds_nothing_and_a_task_for_each_claim_changes_nothing():
    scores = np.random.default_rng(2).random(120)
    assert threshold(scores, np.ones(120), 0.1, 0.1, tasks=np.zeros(120, dtype=int)) is None
    assert threshold(scores, np.ones(120), 0.1, 0.1, tasks=np.arange(120)) == threshold(scores, np.ones(120), 0.1, 0.1)


@pytest.mark.parametrize("alpha, delta", [(0, 0.1), (1, 0.1), (0.05, 0), (0.05, 1)])
def test_a_level_that_is_no_rate_is_refused(alpha: float, delta: float):
    with pytest.raises(UsageError, match="between 0 and 1"):
        threshold(np.zeros(50), np.ones(50), alpha, delta)


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


def test_a_bound_that_leaves_less_than_half_of_the_true_claims_gives_way_to_a_looser_one():
    negatives = np.linspace(0, 1, 60)  # the bound at 5 % is their highest score, at 10 % about the third highest
    strict = calibrate(negatives, [2.0], CalibrationConfig(), of="probes")
    looser = calibrate(negatives, [0.97] * 9 + [2.0], CalibrationConfig(), of="probes")
    loosest = calibrate(negatives, [0.5] * 10, CalibrationConfig(), of="probes")
    assert (strict.alpha, looser.alpha, loosest.alpha) == (0.05, 0.1, 0.2)
    assert strict.accept_above == 1.0 > 0.97 > looser.accept_above > loosest.accept_above
    assert looser.status == "certified at 10% false successes"


def test_where_probes_say_that_a_looser_rate_accepts_mostly_false_claims_it_is_not_taken():
    negatives, claimed = np.linspace(0, 1, 60), [0.97] * 9 + [2.0]
    few, many = (calibrate(negatives, claimed, CalibrationConfig(), of="probes", confirmed=([0.97], [weight])) for weight in (0.5, 50.0))
    assert few.alpha == 0.05 and few.accept_above == 1.0
    assert many.alpha == 0.1


@given(st.lists(st.integers(-3, 3), max_size=60), st.floats(0.01, 0.9), st.floats(-3, 3))
def test_a_threshold_rises_as_far_as_the_share_of_true_claims_allows_and_never_falls(scores: list[int], share: float, above: float):
    true = np.array(scores, dtype=float)
    found = raised(replace(calibrate([0.0] * 60, [1.0], CalibrationConfig(), of="probes"), accept_above=above), true, share).accept_above
    assert found >= above and (found == above or (true <= found).mean() <= share)
    higher = true[true > found]
    assert not len(higher) or (true <= higher.min()).mean() > share, "the next score up would refuse more"


def test_only_what_the_policy_in_training_did_certifies():
    kinds: tuple[Negatives, ...] = ("policies", "labels", "probes", "rollouts")
    of_logs, labels, probes, acted = (calibrate([0.0] * 100, [1.0], CalibrationConfig(), of=of) for of in kinds)
    assert probes.status == "certified at 5% false successes" and of_logs.status == "uncertified under policy shift: calibrated on logs"
    assert acted.status == "certified at 5% false successes on real episodes of the policy, not on dreams"
    assert labels.status == "uncertified under policy shift: calibrated on labelled claims of another run"
    assert Calibration.from_json(of_logs.to_json()) == of_logs


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.integers(0, 6))
def test_a_claim_is_out_of_support_where_its_p_value_is_at_most_the_level(reference: list[int], novel: int):
    p_value = (1 + sum(one >= novel for one in reference)) / (len(reference) + 1)
    most = conformal_limit(reference, 0.05)
    assert (most is not None and novel > most) == (p_value <= 0.05)
