"""The outcome head: the probability that a claim of success is true, by logistic regressions on `features`, fitted in seconds on two cores.

The loss is convex, so that the same cases give the same weights, and a refit with a few probes more starts anew and needs no checkpoint.
Every member of the ensemble leaves out one fold of the cases: whole behaviour policies of the logs, and probes. Its own fold is scored by
that member alone, so that calibration never sees a case that the fit has seen. Members rank what is worth a probe; they do not make up for
what all of them share (Eisenstein et al., arXiv:2312.09244).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from dreamgym.errors import InvariantError, RunDirError
from dreamgym.experience.outcome.features import DIM, SparseRows
from dreamgym.types import Transition

L2 = 1e-3
"""Weight of |w|²/2 beside the mean loss of a case."""
STEPS = 200  # of L-BFGS at most: it converges in fewer
FILE = "weights.safetensors"


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

    def logits(self, found: SparseRows) -> np.ndarray:
        """The log-odds of a success, float64 [members, rows]."""
        return np.stack([found.times(weights) for weights in self.weights])

    def save(self, path: Path) -> None:
        """Write into a folder that exists. Only columns with a weight are kept."""
        used = np.flatnonzero(np.abs(self.weights).sum(0))
        save_file({"columns": used, "weights": np.ascontiguousarray(self.weights[:, used])}, path / FILE)

    @classmethod
    def load(cls, path: Path) -> OutcomeHead:
        """What `save` wrote; RunDirError where it cannot be read."""
        try:
            found = load_file(path / FILE)
            weights = np.zeros((len(found["weights"]), DIM))
            weights[:, found["columns"]] = found["weights"]
        except Exception as error:  # a boundary: safetensors raises its own kinds
            raise RunDirError(
                f"Cannot read the verifier's weights '{path / FILE}': {error}. Restore the file, or make the run anew."
            ) from error
        return cls(weights)


def fit(cases: Sequence[LabelledClaim], found: SparseRows, *, members: int) -> tuple[OutcomeHead, np.ndarray]:
    """The head, from cases and their features, and the scores of all cases by the member that left them out: float64 [cases].

    A member whose fold holds every true or every false claim is fitted to all cases, and the scores of its fold are not a number.
    InvariantError without a claim of each kind.
    """
    labels = np.array([case.label for case in cases])
    if not len(cases) or labels.min() > 0.5 or labels.max() < 0.5:
        raise InvariantError("An outcome head needs claims that are true and claims that are false. Give at least one of each.")
    importance, fold = np.array([case.weight for case in cases]), np.array([case.fold for case in cases])
    weights, scores = np.zeros((members, DIM)), np.full(len(cases), np.nan)
    with _one_thread():
        matrix, targets = _Matrix(found), torch.from_numpy(labels)
        for member in range(members):
            inside = fold != member
            left_out = inside.any() and labels[inside].min() <= 0.5 < labels[inside].max()
            weights[member, matrix.used] = _logistic(matrix, targets, importance * inside if left_out else importance)
            if left_out:
                scores[~inside] = found.times(weights[member])[~inside]
    return OutcomeHead(weights), scores


@contextmanager
def _one_thread() -> Iterator[None]:
    """Without torch's other threads: on vectors this short they cost more than they do, and on a busy machine forty times as much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Matrix:
    """Rows of features as a torch matrix and its transpose, float64, with one column for all columns that hold the same values.

    Words of a fixed answer always come together, so that in logs of tools six columns of seven repeat another one. m equal columns with
    the weight w each are one column of sqrt(m) times their values, with the weight sqrt(m) w: the same logits and the same penalty.
    """

    def __init__(self, found: SparseRows) -> None:
        counts = np.bincount(found.columns, minlength=DIM)
        self.used = np.flatnonzero(counts)
        place = np.zeros(DIM, np.int64)
        place[self.used] = np.arange(len(self.used))
        columns = place[found.columns]
        drawn = np.random.default_rng(0).random((2, found.n))
        sums = [np.bincount(columns, found.values * one[found.rows]) for one in drawn]  # of equal columns the same, to the last bit
        _, first, self.group = np.unique(sums[0] + 1j * sums[1], return_index=True, return_inverse=True)
        self.root = np.sqrt(np.bincount(self.group))
        kept = first[self.group[columns]] == columns
        places = torch.from_numpy(np.stack([found.rows[kept], self.group[columns[kept]]]))
        values = torch.from_numpy(found.values[kept] * self.root[self.group[columns[kept]]])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
            plain = torch.sparse_coo_tensor(places, values, (found.n, len(self.root)), check_invariants=False)
            self.rows, self.columns = plain.to_sparse_csr(), plain.t().coalesce().to_sparse_csr()

    def spread(self, weights: np.ndarray) -> np.ndarray:
        """float64 [used]: the weights of the columns as they were."""
        return (weights / self.root)[self.group]


def _logistic(matrix: _Matrix, labels: torch.Tensor, importance: np.ndarray) -> np.ndarray:
    """The weights of one regression: float64 [used columns]."""
    w = torch.zeros(len(matrix.root), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w], lr=1.0, max_iter=STEPS, line_search_fn="strong_wolfe")
    scale = torch.from_numpy(importance / importance.sum())

    def closure() -> torch.Tensor:
        with torch.no_grad():
            logits = matrix.rows @ w
            w.grad = matrix.columns @ (scale * (torch.sigmoid(logits) - labels)) + L2 * w
            losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
            return (scale * losses).sum() + 0.5 * L2 * (w @ w)

    optimiser.step(closure)
    return matrix.spread(w.detach().numpy())
