"""Task clusters: the groups of Eq. 7 for algorithms that may have one rollout a task.

Eq. 7 of DreamGym (arXiv:2511.03773) is the variance of returns over the rollouts of one task. For PPO the paper clusters tasks by a
semantic encoder, and a cluster is the group. `ClusteredCurriculum` wraps a curriculum and does that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dreamgym.curriculum.task_curriculum import TaskCurriculum
from dreamgym.errors import UsageError, counted
from dreamgym.protocols import Encoder
from dreamgym.returns import group_statistics
from dreamgym.types import Task, Trajectory

ROUNDS = 20


class Clusters:
    """`k` clusters of instructions by spherical k-means over an encoder; the same tasks and seed give the same clusters."""

    def __init__(self, tasks: Sequence[Task], k: int, encoder: Encoder, *, seed: int = 0) -> None:
        if not 1 <= k <= len(tasks):
            raise UsageError(f"{counted(len(tasks), 'task')} cannot make {k} clusters. Choose 1 to {len(tasks)}.")
        self.encoder = encoder
        self._cluster_of: dict[str, int] = {}
        vectors = self._encode([task.instruction for task in tasks])  # [n, dim]
        self.centres = _spread(vectors, k, np.random.default_rng((seed, k)))  # [k, dim], rows of length 1
        for _ in range(ROUNDS):
            nearest = (vectors @ self.centres.T).argmax(axis=1)
            means = np.stack([vectors[nearest == c].mean(axis=0) if (nearest == c).any() else self.centres[c] for c in range(k)])
            moved = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
            if np.allclose(moved, self.centres):
                break
            self.centres = moved

    def assign(self, tasks: Sequence[Task]) -> list[int]:
        """The nearest cluster of each task, also of tasks that the clusters were not made from."""
        new = list(dict.fromkeys(task.instruction for task in tasks if task.instruction not in self._cluster_of))
        if new:
            self._cluster_of |= zip(new, (self._encode(new) @ self.centres.T).argmax(axis=1).tolist(), strict=True)
        return [self._cluster_of[task.instruction] for task in tasks]

    def _encode(self, instructions: Sequence[str]) -> np.ndarray:
        return self.encoder.encode(instructions, instructions)


class ClusteredCurriculum:
    """A curriculum that measures a task on the rollouts of its whole cluster. It has no state of its own."""

    def __init__(self, curriculum: TaskCurriculum, clusters: Clusters) -> None:
        self.curriculum, self.clusters = curriculum, clusters

    def sample(self, n: int, *, after: Sequence[Task] | None = None) -> list[Task]:
        return self.curriculum.sample(n, after=after)

    def observe(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
        """Each task's group, valued by it with the other rollouts of its cluster: by nothing in clusters of fewer than two rollouts without
        an error, whose tasks count as tried all the same."""
        together: dict[int, list[Trajectory]] = defaultdict(list)
        clusters = self.clusters.assign([group[0].task for group in groups])
        for cluster, group in zip(clusters, groups, strict=True):
            together[cluster] += group
        joined = [
            [*group, *(t for t in together[cluster] if t.task.id != group[0].task.id)]
            for cluster, group in zip(clusters, groups, strict=True)
        ]
        return self.curriculum.observe(groups, [group if len(group_statistics(group).returns) > 1 else [] for group in joined])

    def expand(self) -> dict[str, int]:
        return self.curriculum.expand()


def _spread(vectors: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Initial centres: vectors drawn by their squared distance from those drawn before (k-means++, Arthur and Vassilvitskii 2007)."""
    chosen = [int(rng.integers(len(vectors)))]
    for _ in range(k - 1):
        far = np.clip(1 - (vectors @ vectors[chosen].T).max(axis=1), 0, None).astype(float)  # half the squared distance
        far[chosen] = 0.0  # which rounding may leave at a little more
        if far.sum() <= 1e-9:  # every other vector is one that was drawn
            far = np.ones(len(vectors))
            far[chosen] = 0.0
        chosen.append(int(rng.choice(len(vectors), p=far / far.sum())))
    return vectors[chosen]
