"""The support head: whether the steps of a claim are like anything real.

The support of a step is its mean cosine to the `K` most similar logged steps, as (next state, action) pairs of hashed words; that of a
claim is the least of its steps. A claim is out of support where its conformal p-value (Vovk et al. 2005) against the logged successes of
left-out policies is at most `support_level`. This is the graded form of `action_support`, and needs no precedent word for word.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dreamgym.replay.encoders import lexical
from dreamgym.types import Trajectory, Transition

K = 5
MOST_ROWS = 20_000
CHUNK = 1024  # steps compared at a time
ROUNDING = 1e-5  # of a cosine of equal texts


@dataclass(frozen=True)
class StepSupport:
    """Logged steps as unit vectors, float32 [rows, dim], each with the fold of its episode, int64 [rows]."""

    rows: np.ndarray
    folds: np.ndarray

    @classmethod
    def of_logs(cls, logs: Sequence[Trajectory], folds: Mapping[str, int], seed: int) -> StepSupport:
        """All steps of the logs, or `MOST_ROWS` of them. Episodes without a fold, which have no outcome, are in fold -1."""
        steps = [(step, folds.get(t.id, -1)) for t in logs for step in t.transitions]
        if len(steps) > MOST_ROWS:
            steps = random.Random(f"support/{seed}").sample(steps, MOST_ROWS)
        return cls(_encoded([step for step, _ in steps]), np.array([fold for _, fold in steps], np.int64))

    def least(self, claims: Sequence[Sequence[Transition]], left_out: Sequence[int] | None = None) -> np.ndarray:
        """float64 [claims]: the least support of each claim's steps, by logged steps outside the fold `left_out` of the claim."""
        owners = np.repeat(np.arange(len(claims)), [len(claim) for claim in claims])
        vectors = _encoded([step for claim in claims for step in claim])
        found = np.full(len(claims), np.inf)
        for start in range(0, len(owners), CHUNK):
            owner = owners[start : start + CHUNK]
            similarity = vectors[start : start + CHUNK] @ self.rows.T
            if left_out is not None:
                similarity[self.folds[None] == np.asarray(left_out)[owner][:, None]] = -1.0
            k = min(K, similarity.shape[1])
            top = -np.partition(-similarity, k - 1, axis=1)[:, :k] if k else np.zeros((len(owner), 1))
            np.minimum.at(found, owner, top.mean(1))
        return found


def least_supported(reference: np.ndarray, level: float) -> float:
    """The support below which a claim's p-value (1 + #{reference <= support}) / (n + 1) is at most `level`; -inf where n is too small."""
    k = int(level * (len(reference) + 1))
    return float(np.sort(reference)[k - 1]) - ROUNDING if k else -np.inf


def _encoded(steps: Sequence[Transition]) -> np.ndarray:
    encoder = lexical.make(action_weight=0.5, cache=0)
    return np.asarray(encoder.encode([step.next_state.text for step in steps], [step.action for step in steps]))
