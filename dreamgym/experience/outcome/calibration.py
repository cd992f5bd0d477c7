"""From scores to accepted claims: a threshold whose false-success rate is bounded with a stated confidence, for small numbers too.

The rule of Neyman-Pearson classification with order statistics (Tong, Feng and Li 2018, Science Advances 4, eaao1659): of the sorted scores
of n negatives that were not used in the fit, accept what lies above the k-th, with the smallest k for which

    sum_{j=k..n} C(n, j) (1 - alpha)^j alpha^(n - j) <= delta .

Then P(share of negatives accepted > alpha) <= delta, if the claims to come are drawn as those negatives were. Under another policy they are
not, which is why probes replace the logs as soon as there are enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from dreamgym.config import Config
from dreamgym.errors import UsageError

Scores = Sequence[float] | np.ndarray

Negatives = Literal["probes", "policies", "episodes", "constructed"]
"""Whose negatives: refuted claims of the policy in training; logged failures of policies left out of the fit, one after the other; logged
failures of left-out episodes of the one policy there is; or claims that were made up from successes, where there are too few failures."""

CERTIFIED = "certified"
UNCERTIFIED: dict[Negatives, str] = {
    "probes": "not certified: too few refuted probes",
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
    """The false-success rate that the threshold is made for; above the one asked for where n was too small for that."""
    delta: float
    bounded: bool
    """Whether n was large enough for any bound."""

    @property
    def status(self) -> str:
        """Plain words for reports: certified for the policy in training, or why not."""
        return CERTIFIED if self.bounded and self.negatives == "probes" else UNCERTIFIED[self.negatives]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"status": self.status}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Calibration:
        return cls(**{name: value for name, value in found.items() if name != "status"})


class CalibrationConfig(Config):
    """How many false successes may be accepted."""

    alpha: float = Field(default=0.05, gt=0, lt=1)
    """The largest share of failures that may be accepted as successes."""
    delta: float = Field(default=0.1, gt=0, lt=1)
    """The probability with which that may be missed."""
    support_level: float = Field(default=0.02, ge=0, lt=1)
    """The share of logged successes whose least supported step would be taken for unlike anything real; 0: support is not asked."""


def least_negatives(alpha: float, delta: float) -> int:
    """The fewest negatives with which a false-success rate of `alpha` can be bounded: (1 - alpha)^n <= delta."""
    return math.ceil(math.log(delta) / math.log(1 - alpha))


def rank(n: int, alpha: float, delta: float) -> int | None:
    """k of the rule above, from 1; None where n is too small. UsageError for levels outside (0, 1)."""
    if not 0 < alpha < 1 or not 0 < delta < 1:
        raise UsageError(f"alpha = {alpha} and delta = {delta} are a rate and a probability: give both between 0 and 1.")
    tail, found = 0.0, None
    for j in range(n, 0, -1):
        tail += math.exp(
            math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * math.log(1 - alpha) + (n - j) * math.log(alpha)
        )
        if tail > delta:
            return found
        found = j
    return found


LOOSER = (0.1, 0.2)
"""False-success rates that are tried where the negatives are too few for the one asked for."""


def calibrate(negatives: Scores, positives: Scores, config: CalibrationConfig, *, of: Negatives) -> Calibration:
    """The thresholds from scores of negatives and positives that the fit has not seen.

    Where n allows no bound at all, nothing is accepted that scores no higher than every negative, and `bounded` is False. Without a single
    negative nothing is accepted.
    """
    scores = np.sort(np.asarray(negatives, dtype=float))
    n = len(scores)
    zero_below = float(np.quantile(np.asarray(positives, dtype=float), 0.05)) if len(positives) else -math.inf
    for alpha in (config.alpha, *(level for level in LOOSER if level > config.alpha)):
        k = rank(n, alpha, config.delta)
        if k is not None:
            above = float(scores[k - 1])
            return Calibration(above, min(zero_below, above), of, n, alpha, config.delta, bounded=True)
    above = float(scores[-1]) if n else math.inf
    return Calibration(above, min(zero_below, above), of, n, LOOSER[-1], config.delta, bounded=False)
