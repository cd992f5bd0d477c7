"""Logistic regression on sparse rows, by L-BFGS: the numerics of the outcome head."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dreamgym.experience.learned_verifier.features import DIM, SparseRows

L2 = 1e-3
"""Weight of |w|²/2 beside the mean loss of a case."""
STEPS = 200  # of L-BFGS at most: it converges in fewer


@contextmanager
def one_thread() -> Iterator[None]:
    """Run without torch's other threads: on vectors this short they cost more than they do, and on a busy machine forty times as much."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Matrix:
    """Rows of features as a torch matrix and its transpose, float64, with one column for all columns that hold the same values.

    Words of a fixed answer always come together, so that in logs of tools six columns of seven repeat another one. m equal columns with
    the weight w each are one column of sqrt(m) times their values, with the weight sqrt(m) w: the same logits and the same penalty.
    """

    def __init__(self, features: SparseRows) -> None:
        counts = np.bincount(features.columns, minlength=DIM)
        self.used = np.flatnonzero(counts)
        index_of = np.zeros(DIM, np.int64)
        index_of[self.used] = np.arange(len(self.used))
        columns = index_of[features.columns]
        drawn = np.random.default_rng(0).random((2, features.n))
        sums = [np.bincount(columns, features.values * draw[features.rows]) for draw in drawn]  # of equal columns the same, to the last bit
        _, first, self.group = np.unique(sums[0] + 1j * sums[1], return_index=True, return_inverse=True)
        self.root = np.sqrt(np.bincount(self.group))
        kept = first[self.group[columns]] == columns
        places = torch.from_numpy(np.stack([features.rows[kept], self.group[columns[kept]]]))
        values = torch.from_numpy(features.values[kept] * self.root[self.group[columns[kept]]])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
            plain = torch.sparse_coo_tensor(places, values, (features.n, len(self.root)), check_invariants=False)
            self.rows, self.columns = plain.to_sparse_csr(), plain.t().coalesce().to_sparse_csr()

    def spread(self, weights: np.ndarray) -> np.ndarray:
        """float64 [used]: the weights of the columns as they were."""
        return (weights / self.root)[self.group]


def logistic(matrix: Matrix, labels: np.ndarray, importance: np.ndarray) -> np.ndarray:
    """The weights of one regression: float64 [used columns]. `labels` and `importance` are float64 [rows]."""
    targets = torch.from_numpy(labels)
    w = torch.zeros(len(matrix.root), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([w], lr=1.0, max_iter=STEPS, line_search_fn="strong_wolfe")
    scale = torch.from_numpy(importance / importance.sum())

    def closure() -> torch.Tensor:
        with torch.no_grad():
            logits = matrix.rows @ w
            w.grad = matrix.columns @ (scale * (torch.sigmoid(logits) - targets)) + L2 * w
            losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
            return (scale * losses).sum() + 0.5 * L2 * (w @ w)

    optimiser.step(closure)
    return matrix.spread(w.detach().numpy())
