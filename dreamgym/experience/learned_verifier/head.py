"""The outcome head: the probability that a claim of success is true, by logistic regressions on `features`, fitted in seconds on two cores.
Hidden states among these are standardised for the fit; the weights that it gives are for hidden states as they are.

The loss is convex, so that the same cases give the same weights, and a refit with a few probes more starts anew and needs no checkpoint.
Every member of the ensemble leaves out one fold of the cases: whole behaviour policies of the logs, and probes. Its own fold is scored by
that member alone, so that calibration never sees a case that the fit has seen. Members rank what is worth a probe; they do not make up for
what all of them share (Eisenstein et al., arXiv:2312.09244).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from dreamgym.errors import InvariantError, RunDirError
from dreamgym.experience.learned_verifier.features import ALWAYS, DIM, HASHED, SparseRows
from dreamgym.types import Transition

FILE = "weights.safetensors"
SPREAD = 0.3  # of a standardised hidden state: with 1, the penalty that suits hashed features lets hundreds of them fit the cases by heart


@dataclass(frozen=True)
class LabelledClaim:
    """A claim with what is known of it. `label` is the probability that it is true."""

    instruction: str
    steps: tuple[Transition, ...]
    label: float
    weight: float = 1.0
    novel: int = 0
    """Lines of its states that no log has."""
    fold: int = 0
    """The member that is not fitted to it."""


@dataclass(frozen=True)
class OutcomeHead:
    """Fitted weights of all members: float64 [members, DIM]."""

    weights: np.ndarray

    def logits(self, features: SparseRows) -> np.ndarray:
        """The log-odds of a success, float64 [members, rows]."""
        return np.stack([features.times(weights) for weights in self.weights])

    def save(self, path: Path) -> None:
        """Write into a folder that exists. Only columns with a weight are kept."""
        used = np.flatnonzero(np.abs(self.weights).sum(0))
        save_file({"columns": used, "weights": np.ascontiguousarray(self.weights[:, used])}, path / FILE)

    @classmethod
    def load(cls, path: Path) -> OutcomeHead:
        """Load what `save` wrote; RunDirError where it cannot be read."""
        try:
            stored = load_file(path / FILE)
            weights = np.zeros((len(stored["weights"]), DIM))
            weights[:, stored["columns"]] = stored["weights"]
        except Exception as error:  # a boundary: safetensors raises its own kinds
            raise RunDirError(
                f"Cannot read the verifier's weights '{path / FILE}': {error}. Restore the file, or make the run anew."
            ) from error
        return cls(weights)


def fit(cases: Sequence[LabelledClaim], features: SparseRows, *, members: int) -> tuple[OutcomeHead, np.ndarray]:
    """The head, from cases and their features, and the scores of all cases by the member that left them out: float64 [cases].

    A member whose fold holds every true or every false claim is fitted to all cases, and the scores of its fold are not a number.
    InvariantError without a claim of each kind.
    """
    from dreamgym.experience.learned_verifier.regression import Matrix, logistic, one_thread  # torch, which settings and reports do without

    labels = np.array([case.label for case in cases])
    if not len(cases) or labels.min() > 0.5 or labels.max() < 0.5:
        raise InvariantError("An outcome head needs claims that are true and claims that are false. Give at least one of each.")
    importance, fold = np.array([case.weight for case in cases]), np.array([case.fold for case in cases])
    weights, scores = np.zeros((members, DIM)), np.full(len(cases), np.nan)
    features, mean, factor = _standardised(features)
    with one_thread():
        matrix = Matrix(features)
        for member in range(members):
            inside = fold != member
            left_out = inside.any() and labels[inside].min() <= 0.5 < labels[inside].max()
            weights[member, matrix.used] = logistic(matrix, labels, importance * inside if left_out else importance)
            if left_out:
                scores[~inside] = features.times(weights[member])[~inside]
    weights[:, HASHED:] *= factor
    weights[:, ALWAYS] -= weights[:, HASHED:] @ mean
    return OutcomeHead(weights), scores


def _standardised(features: SparseRows) -> tuple[SparseRows, np.ndarray, np.ndarray]:
    """(rows whose columns of hidden states have the mean 0 and the standard deviation `SPREAD`, the means, the factors). The latter two are
    float64 [DIM - HASHED], and a factor is 0 where there is no column or its values are all the same."""
    hidden = np.flatnonzero(features.columns >= HASHED)
    columns, values = features.columns[hidden] - HASHED, features.values[hidden]
    mean = np.bincount(columns, values, minlength=DIM - HASHED) / max(1, features.n)
    centred = values - mean[columns]
    spread = np.sqrt(np.bincount(columns, centred**2, minlength=DIM - HASHED) / max(1, features.n))
    factor = np.divide(SPREAD, spread, out=np.zeros_like(spread), where=spread > 1e-9)
    scaled = features.values.copy()
    scaled[hidden] = centred * factor[columns]
    return SparseRows(features.n, features.rows, features.columns, scaled), mean, factor
