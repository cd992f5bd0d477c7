"""Training rows of the experience model (Eq. 5): whole trajectories, with memories retrieved as they will be at inference.

A row is one episode in the layout of `prompts`; each step at which the history window has slid is one more. Every segment the model
must write carries its own weight; what it is given (task, actions, memories) weighs nothing. A row's memories never come from its own
trajectory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.config import Config
from dreamgym.errors import UsageError
from dreamgym.experience.coverage import RELABELLED
from dreamgym.experience.dreaming import told
from dreamgym.experience.prompts import Pieces, Step, answer, opening, question, variation
from dreamgym.experience.recall import Recall
from dreamgym.layout import END, Vocabulary
from dreamgym.protocols import Domain
from dreamgym.types import Query, Task, Trajectory


class SegmentWeights(Config):
    """Loss weight per token of each segment. Eq. 5 weighs reasoning and next state alike; here the short segments
    that decide (what is yes and what is no in a purchase, and the outcome) weigh more."""

    start: float = 0.2
    reasoning: float = 1.5
    state: float = 1.0
    reward: float = 2.0
    task: float = 1.0


@dataclass(frozen=True)
class ExperienceRow:
    """Token ids of one sequence, and for each the weight of its loss and the segment it belongs to ("" where it weighs nothing)."""

    ids: list[int]
    weights: list[float]
    segments: list[str]


class RowBuilder:
    """Builds rows with one vocabulary, one set of pieces and one weighting, as the experience model of `domain` reads and writes."""

    def __init__(self, words: Vocabulary, pieces: Pieces, weights: SegmentWeights, domain: Domain) -> None:
        self.words, self.pieces, self.weights, self.domain = words, pieces, weights, domain

    def episode(self, trajectory: Trajectory, memories: Sequence[tuple[str, ...]]) -> list[ExperienceRow]:
        """A whole trajectory; `memories[t]` are the briefs shown with step t. A step past the window is a row of its own, as asked."""
        given = zip(trajectory.transitions, memories, strict=True)
        steps = [Step(transition, shown, told(self.domain, transition)) for transition, shown in given]
        instruction, size = self.pieces.about(trajectory.task), self.pieces.history + 1
        slid = [self._window(instruction, steps[end - size : end], past=size - 1) for end in range(size + 1, len(steps) + 1)]
        return [self._window(instruction, steps[:size]), *slid]

    def _window(self, instruction: str, steps: Sequence[Step], *, past: int | None = None) -> ExperienceRow:
        """One row. With `past`, the opening and the first `past` steps are given: they were learnt in the rows before."""
        row = ExperienceRow([], [], [])
        state = steps[0].transition.state.text
        first = opening(self.words, instruction, state)
        said = len(self.words.encode(state)) + 1
        self._add(row, first[:-said], "")
        self._add(row, first[-said:], "start" if past is None else "")
        seen = tuple(step.transition.state.text for step in steps)
        for i, step in enumerate(steps):
            self._add(row, question(self.words, step.transition.action, step.memories, self.pieces), "")
            for name, ids in answer(self.words, step, seen[: i + 1], self.pieces).items():
                self._add(row, ids, "" if past and i < past else name)
        return row

    def task(self, seeds: Sequence[str], new: str) -> ExperienceRow:
        """A task variation: from seed tasks, as `Pieces.about` has them, to another instruction like them (Eq. 6)."""
        row = ExperienceRow([], [], [])
        self._add(row, variation(self.words, seeds), "")
        self._add(row, [*self.words.encode(new), self.words[END]], "task")
        return row

    def _add(self, row: ExperienceRow, ids: Sequence[int], segment: str) -> None:
        weight = getattr(self.weights, segment) if segment else 0.0
        row.ids.extend(ids)
        row.weights.extend([weight] * len(ids))
        row.segments.extend([segment] * len(ids))


def shown_memories(trajectories: Sequence[Trajectory], recall: Recall) -> list[list[tuple[str, ...]]]:
    """For each step of each trajectory, the briefs of its memories, none of which is its own trajectory's."""
    queries, owners = [], []
    for trajectory in trajectories:
        for t, transition in enumerate(trajectory.transitions):
            queries.append(Query(trajectory.task, trajectory.transitions[:t], transition.state, transition.action))
            owners.append(trajectory.id.partition(RELABELLED)[0])
    briefs = iter([tuple(recall.domain.brief(one.memory) for one in found) for found in recall.find(queries, owners)])
    return [[next(briefs) for _ in trajectory.turns] for trajectory in trajectories]


def up_to(trajectories: Sequence[Trajectory], transitions: int) -> list[Trajectory]:
    """The first whole trajectories that hold at least so many transitions: the sizes of the paper's Figure 5, each within the next.

    UsageError when all of them together hold fewer.
    """
    total = 0
    for i, trajectory in enumerate(trajectories):
        total += len(trajectory.turns)
        if total >= transitions:
            return list(trajectories[: i + 1])
    raise UsageError(
        f"The logs hold {total} transitions, and logs.transitions = {transitions} of them are wanted. "
        "Raise logs.trajectories, or give more files."
    )


def task_pairs(tasks: Sequence[Task], n: int, seed: int) -> list[tuple[Task, Task]]:
    """Pairs of tasks with alike but different instructions, for M_task: the second shares most of the first's words."""
    rng = random.Random(f"task-pairs/{seed}")
    words = [frozenset(task.instruction.split()) for task in tasks]
    pairs = []
    for _ in range(n):
        i = rng.randrange(len(tasks))
        others = [j for j in rng.sample(range(len(tasks)), min(60, len(tasks))) if tasks[j].instruction != tasks[i].instruction]
        if others:
            best = max(others, key=lambda j: len(words[i] & words[j]) / len(words[i] | words[j]))
            pairs.append((tasks[i], tasks[best]))
    return pairs
