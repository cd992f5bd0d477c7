"""From scores to accepted claims: a threshold whose false-success rate is bounded with a stated confidence, for small numbers too.

The rule of Neyman-Pearson classification with order statistics (Tong, Feng and Li 2018, Science Advances 4, eaao1659): of the sorted scores
of n negatives that were not used in the fit, accept what lies above the k-th, with the smallest k for which

    sum_{j=k..n} C(n, j) (1 - alpha)^j alpha^(n - j) <= delta .

Then P(share of negatives accepted > alpha) <= delta, if the claims to come are drawn as those negatives were. Under another policy they are
not, which is why probes replace the logs as soon as there are enough.

Probes are drawn with unequal probabilities, the accepted claims among them most often. They are weighted by one over their probability, and
the rule becomes an upper confidence bound of the weighted share above the threshold: that of Clopper and Pearson (1934) at the effective
number r (1 - r) / Var(r) of Korn and Graubard (1998), at most (sum w)^2 / sum w^2 (Kish 1965): where only light negatives lie above, Var(r)
says nothing of the heavy ones that might have. Claims of one task tend to be alike, so that this number is divided by the design effect of
sampling tasks. With equal weights and a task for each it is the rule above.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dreamgym.config import Config
from dreamgym.errors import UsageError
from dreamgym.statistics import design_effect

Scores = Sequence[float] | np.ndarray

Negatives = Literal["probes", "rollouts", "labels", "policies", "episodes", "constructed"]
"""The negatives: refuted claims of the policy in training; real failures of that policy, where it acts anew; claims of another run that a
person refuted; logged failures of policies left out of the fit, one after the other; logged failures of left-out episodes of the one policy
there is; or claims that were made up from successes, where there are too few failures."""

CERTIFIED: dict[Negatives, str] = {
    "probes": "certified at {alpha:.0%} false successes",
    "rollouts": "certified at {alpha:.0%} false successes on real episodes of the policy, not on dreams",
}
UNCERTIFIED: dict[Negatives, str] = {
    "probes": "not certified: too few refuted probes",
    "rollouts": "not certified: too few real failures of the policy",
    "labels": "uncertified under policy shift: calibrated on labelled claims of another run",
    "policies": "uncertified under policy shift: calibrated on logs",
    "episodes": "uncertified under policy shift: calibrated on logs of one policy",
    "constructed": "not certified: too few logged failures, calibrated on constructed ones",
}


@dataclass(frozen=True)
class Calibration:
    """What is accepted, and what is known of it."""

    accept_above: float
    zero_below: float
    """Claims in between are masked."""
    negatives: Negatives
    n: int
    alpha: float
    """The false-success rate that the threshold is made for; above the one asked for where that left no bound, or too few true claims."""
    delta: float
    bounded: bool
    """Whether n was large enough for any bound."""

    @property
    def status(self) -> str:
        """Plain words for reports: certified for the policy in training, or why not."""
        certified = CERTIFIED.get(self.negatives) if self.bounded else None
        return certified.format(alpha=self.alpha) if certified else UNCERTIFIED[self.negatives]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"status": self.status}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Calibration:
        return cls(**{name: value for name, value in fields.items() if name != "status"})


class CalibrationConfig(Config):
    """How many false successes may be accepted."""

    alpha: float = Field(default=0.05, gt=0, lt=1)
    """The largest share of failures that may be accepted as successes, where that leaves half of the true claims; else 0.1 or 0.2, unless
    probes say that most of what is then accepted is false."""
    delta: float = Field(default=0.1, gt=0, lt=1)
    """The probability with which that may be missed."""
    support_level: float = Field(default=0.02, ge=0, lt=1)
    """The share of logged successes that may have as many lines known from no other log as a claim that is masked for it; 0: none is."""
    refuse_true: float = Field(default=0.0, ge=0, lt=1)
    """The share of true claims that may be refused to accept fewer false ones: a lower threshold rises until it refuses this share of the
    confirmed probes (with fewer than 20, of the logged successes). 0: failures alone set it."""


def least_negatives(alpha: float, delta: float) -> int:
    """The fewest negatives with which a false-success rate of `alpha` can be bounded: (1 - alpha)^n <= delta."""
    return math.ceil(math.log(delta) / math.log(1 - alpha))


def beta_cdf(x: float, a: float, b: float) -> float:
    """I_x(a, b), the distribution function of the beta distribution, for a >= 1 and x < 1: its density integrated with Simpson's rule."""
    if b <= 0:
        return 0.0
    t = np.linspace(0.0, x, 1001)
    with np.errstate(divide="ignore"):
        logs = (a - 1) * np.log(t) if a > 1 else np.zeros(len(t))
    density = np.exp(logs + (b - 1) * np.log1p(-t) - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b))
    return float((density[0] + density[-1] + 4 * density[1:-1:2].sum() + 2 * density[2:-1:2].sum()) * x / 3000)


def threshold(scores: np.ndarray, weights: np.ndarray, alpha: float, delta: float, *, tasks: np.ndarray | None = None) -> float | None:
    """The smallest score above which the weighted share of the negatives is at most `alpha` with confidence 1 - `delta`, or None. `tasks`
    numbers the task of each negative; by default each has its own.

    UsageError for levels outside (0, 1).
    """
    if not 0 < alpha < 1 or not 0 < delta < 1:
        raise UsageError(f"alpha = {alpha} and delta = {delta} are a rate and a probability: give both between 0 and 1.")
    if not len(scores):
        return None
    total, lowest = weights.sum(), None
    most = float(total**2 / (weights**2).sum())
    ranks = np.unique(scores, return_inverse=True)[1].astype(float)
    effect = 1.0 if tasks is None else design_effect(ranks, tasks, weights)
    for score in np.unique(scores)[::-1]:
        above = scores > score
        share = float(weights[above].sum() / total)
        if share > alpha:
            break
        spread = float((weights**2 * (above - share) ** 2).sum()) / total**2
        n = min(share * (1 - share) / spread, most) if share else most
        n /= effect
        if beta_cdf(alpha, share * n + 1, n - share * n) >= 1 - delta:
            lowest = float(score)
    return lowest


LOOSER = (0.1, 0.2)
"""False-success rates that are tried where the one asked for allows no bound, or one that leaves too few true claims to train on."""
KEPT = 0.5
"""The share of true claims that a threshold has to accept, or a looser rate is tried. The first bound that few refuted probes allow is
their highest score, and a policy that is paid for hardly any of its successes stops learning."""


def calibrate(
    negatives: Scores,
    positives: Scores,
    config: CalibrationConfig,
    *,
    of: Negatives,
    weights: Scores | None = None,
    tasks: Sequence[str] | None = None,
    confirmed: tuple[Scores, Scores] | None = None,
) -> Calibration:
    """The thresholds from scores of negatives and positives that the fit has not seen; `weights` and `tasks` are of the negatives: equal,
    and a task for each, by default. `confirmed` are scores and weights of the true claims that were drawn together with the negatives.

    The rate is the first, from `alpha` on, whose bound accepts `KEPT` of the positives; where none does, the loosest. With `confirmed` a
    looser rate is taken only while at least half of what it accepts is true: where nearly all claims are false, a fifth of them is more
    than all the true ones. Where there are too few negatives for any bound, nothing is accepted that scores no higher than every one, and
    `bounded` is False. Without a single negative nothing is accepted.
    """
    scores = np.asarray(negatives, dtype=float)
    heavy = np.ones(len(scores)) if weights is None else np.asarray(weights, dtype=float)
    numbers = None if tasks is None else np.unique(np.asarray(tasks, dtype=str), return_inverse=True)[1]
    zero_below = float(np.quantile(np.asarray(positives, dtype=float), 0.05)) if len(positives) else -math.inf
    accepted = np.asarray(positives, dtype=float)
    calibration: Calibration | None = None
    for alpha in (config.alpha, *(level for level in LOOSER if level > config.alpha)):
        above = threshold(scores, heavy, alpha, config.delta, tasks=numbers)
        if above is None:
            continue
        if calibration is not None and confirmed is not None and heavy[scores > above].sum() > _weight_above(above, *confirmed):
            break
        calibration = Calibration(above, min(zero_below, above), of, len(scores), alpha, config.delta, bounded=True)
        if not len(accepted) or (accepted > above).mean() >= KEPT:
            break
    if calibration is not None:
        return calibration
    above = float(scores.max()) if len(scores) else math.inf
    return Calibration(above, min(zero_below, above), of, len(scores), LOOSER[-1], config.delta, bounded=False)


def raised(calibration: Calibration, true: np.ndarray, share: float) -> Calibration:
    """The calibration with the highest threshold that refuses at most `share` of the true claims with these scores, or its own where that
    is higher."""
    ordered = np.sort(true)
    lower = ordered[ordered < ordered[int(share * len(ordered))]] if len(ordered) else ordered  # equal scores pass together
    return replace(calibration, accept_above=max([calibration.accept_above, *lower[-1:].tolist()]))


def _weight_above(score: float, scores: Scores, weights: Scores) -> float:
    return float(np.asarray(weights, dtype=float)[np.asarray(scores, dtype=float) > score].sum())
