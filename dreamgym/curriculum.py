"""The curriculum task generator: practise where outcomes differ, and invent tasks like those (section 4.2, arXiv:2511.03773).

A task's value is the variance of its group's returns (Eq. 7): balanced successes and failures carry most information. The policy moves
on, so what was measured fades toward what a fresh task is worth. The most valuable tasks seed variations by the experience model's own
weights (Eq. 6); lambda bounds their share of every iteration.
Proposals are refused, by reason and counted, when malformed, duplicate, held out, or without a product in real memory that meets them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from dreamgym.config import Config
from dreamgym.protocols import Domain
from dreamgym.returns import statistics
from dreamgym.types import Memory, Task, Trajectory

UNKNOWN = 0.125
"""The worth of a task before anything was measured: half of what a coin flip would give."""
REMEMBERED = 64
"""Fresh tasks whose mean is the usual value: those of the last few iterations."""

Vary = Callable[[Sequence[Task], int], list[str]]
"""(seed tasks, seed) -> one proposed instruction per seed task."""


class CurriculumConfig(Config):
    """How tasks are chosen."""

    strategy: Literal["variance", "uniform"] = "variance"
    """`uniform` samples real tasks alike and invents none: the control."""
    synthetic_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """lambda: the largest share of synthetic tasks in an iteration. The paper gives no value; in the shop 0.25 cost three points
    (docs/log.md)."""
    proposals: int = Field(default=16, ge=0)
    """Variations asked for per iteration."""
    seed_tasks: int = Field(default=8, ge=1)
    """The most valuable recent tasks, from which variations are made."""
    revisit: float = Field(default=0.5, ge=0.0, le=1.0)
    """The largest share of the real tasks of an iteration that are drawn again, among those now thought worth more than a fresh one."""
    fade: float = Field(default=0.9, ge=0.0, le=1.0)
    """What is left of a measurement after one iteration; the rest is the worth of a fresh task. 1 trusts the policy not to have moved."""
    pool_limit: int = Field(default=512, ge=1)
    """Synthetic tasks kept; the least valuable go first."""
    band: tuple[float, float] = (0.0, 1.0)
    """An invented task is retired once its mean return lies at or beyond either end: too hard or solved. (-inf, inf) retires none."""
    alike: float = Field(default=1.0, ge=0.0, le=1.0)
    """Seed tasks share at most this much of their words with a more valuable one (Jaccard index); 1 asks for no diversity."""

    @field_validator("band")
    @classmethod
    def _ordered(cls, band: tuple[float, float]) -> tuple[float, float]:
        if not band[0] < band[1]:
            raise ValueError("give the lower end first, such as [0.1, 0.9]")
        return band


@dataclass
class Entry:
    """A task of the pool with what is known of it. `value` is None until it was tried."""

    task: Task
    value: float | None = None
    tried: int = 0
    last: int = -1


class TaskCurriculum:
    """A pool of real and invented tasks with their measured values. All draws depend on (seed, iteration) only, so resume is exact."""

    def __init__(
        self,
        tasks: Sequence[Task],
        config: CurriculumConfig,
        *,
        domain: Domain,
        vary: Vary | None = None,
        memories: Callable[[], Iterable[Memory]] | None = None,
        forbidden: Iterable[str] = (),
        seed: int = 0,
    ) -> None:
        self.config, self.domain, self.vary, self.memories, self.seed = config, domain, vary, memories, seed
        self.pool: dict[str, Entry] = {task.id: Entry(task) for task in tasks}
        self.forbidden = frozenset(forbidden)
        self.archive: set[str] = set()  # instructions of invented tasks that have left the pool: not to be invented again
        self.iteration = 0
        self.counts: Counter[str] = Counter()
        self.fresh: list[float] = []  # values of the real tasks last met for the first time

    def sample(self, n: int) -> list[Task]:
        """`n` tasks for this iteration: at most lambda * n synthetic ones, real ones that were mixed lately, the rest fresh."""
        rng = np.random.default_rng((self.seed, self.iteration, 0))
        real = [e for e in self.pool.values() if e.task.source == "real"]
        if self.config.strategy == "uniform":
            return [entry.task for entry in _draw(rng, real, n, [1.0] * len(real))]
        synthetic = [e for e in self.pool.values() if e.task.source == "synthetic"]
        invented = _draw(rng, synthetic, int(n * self.config.synthetic_share), [self.worth(e) for e in synthetic])
        known = [e for e in real if e.tried and self.worth(e) > self.usual]
        promise = [self.worth(e) - self.usual for e in known]  # by the surplus: many faded tasks do not outweigh the few mixed just now
        again = _draw(rng, known, int((n - len(invented)) * self.config.revisit), promise)
        used = {entry.task.id for entry in again}
        rest = [e for e in real if e.task.id not in used]
        missing = n - len(invented) - len(again)
        fewest = min((e.tried for e in rest), default=0)
        fresh = _draw(rng, [e for e in rest if e.tried == fewest], missing, None)
        fresh += _draw(rng, [e for e in rest if e.tried > fewest], missing - len(fresh), None)
        return [entry.task for entry in (*fresh, *again, *invented)]

    @property
    def usual(self) -> float:
        """The mean value of the last real tasks that were met for the first time: what to expect of one that nobody tried."""
        return float(np.mean(self.fresh)) if self.fresh else UNKNOWN

    def worth(self, entry: Entry) -> float:
        """The value to expect of a task now: its own last one, fading with every iteration since toward the usual one."""
        if entry.value is None:
            return self.usual
        return self.usual + (entry.value - self.usual) * self.config.fade ** (self.iteration - entry.last)

    def observe(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
        """Record each group's variance of returns as its task's value (Eq. 7); the share of mixed groups among fresh tasks, those that
        came again, and invented ones says whether the choosing pays."""
        mixed: dict[str, list[bool]] = {}
        for group in groups:
            entry = self.pool.get(group[0].task.id) if group else None
            if entry is not None:
                found = statistics(group)
                kind = "invented" if entry.task.source == "synthetic" else "again" if entry.tried else "fresh"
                mixed.setdefault(kind, []).append(found.kind == "mixed")
                if kind == "fresh":
                    self.fresh = [*self.fresh, found.variance][-REMEMBERED:]
                entry.value, entry.tried, entry.last = found.variance, entry.tried + 1, self.iteration
                low, high = self.config.band
                if kind == "invented" and len(found.returns) > 1 and not low < found.mean < high:
                    self._retire(entry)
                    self.counts["retired"] += 1
        return {f"mixed_{kind}": sum(found) / len(found) for kind, found in mixed.items()}

    def expand(self) -> dict[str, int]:
        """Invent variations of the most valuable recent tasks; returns how many were proposed, accepted, and refused by reason."""
        found: Counter[str] = Counter()
        self.iteration += 1
        if self.config.strategy == "uniform" or self.vary is None or self.config.synthetic_share <= 0:
            return dict(found)
        best = self._seeds()
        if best:
            seeds = [best[i % len(best)].task for i in range(self.config.proposals)]
            found["proposed"] = len(seeds)
            for i, (parent, text) in enumerate(zip(seeds, self.vary(seeds, self.iteration), strict=True)):
                found[self._consider(text, parent, i)] += 1
        self._trim()
        self.counts += found
        return dict(found)

    def _seeds(self) -> list[Entry]:
        """The most valuable tasks that are not too much like each other."""
        found: list[Entry] = []
        for entry in sorted((e for e in self.pool.values() if e.value), key=lambda e: (-self.worth(e), e.task.id)):
            if len(found) == self.config.seed_tasks:
                break
            if all(_alike(entry.task, other.task) <= self.config.alike for other in found):
                found.append(entry)
        return found

    def _consider(self, text: str, parent: Task, i: int) -> str:
        """Accept a proposal into the pool, or say why not."""
        if not text or not self.domain.well_formed(text):
            return "malformed"
        if text in self.archive or any(entry.task.instruction == text for entry in self.pool.values()):
            return "duplicate"
        if text in self.forbidden:
            return "held_out"
        if self.memories is not None and not self.domain.feasible(text, self.memories()):
            return "impossible"
        name = f"synthetic/{self.iteration}/{i}"
        self.pool[name] = Entry(Task(id=name, instruction=text, env=parent.env, source="synthetic", difficulty=0, parents=(parent.id,)))
        return "accepted"

    def _trim(self) -> None:
        synthetic = [e for e in self.pool.values() if e.task.source == "synthetic"]
        for entry in sorted(synthetic, key=lambda e: (self.worth(e), e.tried))[: max(0, len(synthetic) - self.config.pool_limit)]:
            self._retire(entry)

    def _retire(self, entry: Entry) -> None:
        del self.pool[entry.task.id]
        self.archive.add(entry.task.instruction)

    @property
    def inventions(self) -> list[str]:
        """The instructions of all invented tasks that were accepted, also of those that have left the pool."""
        return sorted(self.archive | {e.task.instruction for e in self.pool.values() if e.task.source == "synthetic"})

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready: what was measured, and the invented tasks themselves."""
        tried = {e.task.id: [e.value, e.tried, e.last] for e in self.pool.values() if e.tried}
        invented = [
            [e.task.id, e.task.instruction, e.task.env, list(e.task.parents)] for e in self.pool.values() if e.task.source == "synthetic"
        ]
        return {
            "iteration": self.iteration,
            "tried": tried,
            "invented": invented,
            "archive": sorted(self.archive),
            "fresh": self.fresh,
            "counts": dict(self.counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration, self.counts, self.fresh = state["iteration"], Counter(state["counts"]), state["fresh"]
        self.archive = set(state.get("archive", ()))
        for name, instruction, env, parents in state["invented"]:
            self.pool[name] = Entry(
                Task(id=name, instruction=instruction, env=env, source="synthetic", difficulty=0, parents=tuple(parents))
            )
        for name, (value, tried, last) in state["tried"].items():
            if name in self.pool:
                entry = self.pool[name]
                entry.value, entry.tried, entry.last = value, tried, last


def _alike(one: Task, other: Task) -> float:
    """The Jaccard index of two instructions' words: 0 for nothing in common, 1 for the same words."""
    a, b = set(one.instruction.split()), set(other.instruction.split())
    return len(a & b) / (len(a | b) or 1)


def _draw(rng: np.random.Generator, entries: Sequence[Entry], n: int, weights: Sequence[float] | None) -> list[Entry]:
    """Up to `n` distinct entries, in proportion to their weights."""
    n = min(n, len(entries))
    if n <= 0:
        return []
    p = None
    if weights is not None:
        p = np.asarray(weights, dtype=float) + 1e-6
        p /= p.sum()
    return [entries[i] for i in rng.choice(len(entries), size=n, replace=False, p=p)]
