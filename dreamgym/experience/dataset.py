"""Training rows of the experience model (Eq. 5): whole trajectories, with memories retrieved as they will be at inference.

A row is one episode in the layout of `prompts`; each step at which the history window has slid is one more. Every segment the model
must write carries its own weight; what it is given (task, actions, memories) weighs nothing. A row's memories never come from its own
trajectory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from dreamgym.config import Config
from dreamgym.envs.base import TextRules
from dreamgym.errors import InvariantError, UsageError
from dreamgym.experience.augmentation import RELABELLED
from dreamgym.experience.guard import noop_rule
from dreamgym.experience.prompts import PromptParts, Step, answer, encode_delta, opening, question, variation
from dreamgym.experience.retriever import Retriever
from dreamgym.llm.vocabulary import END, Vocabulary
from dreamgym.statistics import jaccard
from dreamgym.types import Memory, Query, Task, Trajectory


class SegmentWeights(Config):
    """Loss weight per token of each segment. Eq. 5 weighs reasoning and next state alike; here reasoning and reward weigh more, because
    their tokens are few and decide the return."""

    start: float = Field(default=0.2, ge=0)
    """First states."""
    reasoning: float = Field(default=1.5, ge=0)
    """Reasoning traces."""
    state: float = Field(default=1.0, ge=0)
    """Next states."""
    reward: float = Field(default=2.0, ge=0)
    """Reward and end."""
    task: float = Field(default=1.0, ge=0)
    """New tasks."""


@dataclass(frozen=True)
class ExperienceRow:
    """Token ids of one sequence, and for each the weight of its loss and the segment it belongs to ("" where it weighs nothing)."""

    ids: list[int]
    weights: list[float]
    segments: list[str]


class TrainingRows(Protocol):
    """Builds the rows that an experience model is fitted to, as it will read and write."""

    def episodes(self, trajectories: Sequence[Trajectory]) -> list[ExperienceRow]:
        """Whole trajectories with the memories that are retrieved for each step."""
        ...

    def tasks(self, variations: Sequence[Variation]) -> list[ExperienceRow]:
        """Task variations (Eq. 6)."""
        ...


class RowBuilder:
    """Builds rows as the experience model of `rules` reads and writes them. It reads the replay buffer once and then follows it."""

    def __init__(
        self, vocab: Vocabulary, prompt_parts: PromptParts, weights: SegmentWeights, rules: TextRules, retriever: Retriever | None = None
    ) -> None:
        self.vocab, self.prompt_parts, self.weights, self.rules, self.retriever = vocab, prompt_parts, weights, rules, retriever

    def episodes(self, trajectories: Sequence[Trajectory]) -> list[ExperienceRow]:
        if self.retriever is None:
            raise InvariantError("Rows of episodes need a retriever. Give RowBuilder one, with k = 0 for rows without memories.")
        all_texts = memory_texts(trajectories, self.retriever)
        return [row for trajectory, texts in zip(trajectories, all_texts, strict=True) for row in self.episode(trajectory, texts)]

    def tasks(self, variations: Sequence[Variation]) -> list[ExperienceRow]:
        return [
            self.task([self.prompt_parts.about(seed) for seed in example.seeds], example.new.instruction, example.level)
            for example in variations
        ]

    def episode(self, trajectory: Trajectory, memories: Sequence[tuple[str, ...]]) -> list[ExperienceRow]:
        """A whole trajectory; `memories[t]` are the texts of the memories of step t. A step beyond the window is a row of its own."""
        given = zip(trajectory.transitions, memories, strict=True)
        steps = [
            Step(transition, texts, encode_delta(self.rules, transition), trajectory.scored or not transition.terminated)
            for transition, texts in given
        ]
        instruction, size = self.prompt_parts.about(trajectory.task), self.prompt_parts.history + 1
        slid = [self._window(instruction, steps[end - size : end], past=size - 1) for end in range(size + 1, len(steps) + 1)]
        return [self._window(instruction, steps[:size]), *slid]

    def _window(self, instruction: str, steps: Sequence[Step], *, past: int | None = None) -> ExperienceRow:
        """One row. With `past`, the opening and the first `past` steps have no loss: earlier rows have trained them."""
        row = ExperienceRow([], [], [])
        state = steps[0].transition.state.text
        first = opening(self.vocab, instruction, state)
        state_tokens = len(self.vocab.encode(state)) + 1
        self._add(row, first[:-state_tokens], "")
        self._add(row, first[-state_tokens:], "start" if past is None else "")
        visible = tuple(step.transition.state.text for step in steps)
        for i, step in enumerate(steps):
            self._add(row, question(self.vocab, step.transition.action, step.memories, self.prompt_parts), "")
            for name, ids in answer(self.vocab, step, visible[: i + 1], self.prompt_parts).items():
                trained = not (past and i < past) and (step.scored or name != "reward")
                self._add(row, ids, name if trained else "")
        return row

    def task(self, seeds: Sequence[str], new: str, level: int = 0) -> ExperienceRow:
        """A task variation: from seed tasks, as `PromptParts.about` has them, to another instruction like them (Eq. 6)."""
        row = ExperienceRow([], [], [])
        self._add(row, variation(self.vocab, seeds, level), "")
        self._add(row, [*self.vocab.encode(new), self.vocab[END]], "task")
        return row

    def _add(self, row: ExperienceRow, ids: Sequence[int], segment: str) -> None:
        weight = getattr(self.weights, segment) if segment else 0.0
        row.ids.extend(ids)
        row.weights.extend([weight] * len(ids))
        row.segments.extend([segment] * len(ids))


def memory_texts(trajectories: Sequence[Trajectory], retriever: Retriever) -> list[list[tuple[str, ...]]]:
    """The texts of `memories_of`, as the rules of the retriever word them."""
    return [[tuple(map(retriever.rules.memory_text, memories)) for memories in steps] for steps in memories_of(trajectories, retriever)]


def memories_of(trajectories: Sequence[Trajectory], retriever: Retriever) -> list[list[tuple[Memory, ...]]]:
    """The memories of each step of each trajectory, none from its own trajectory. A step that a rule answers has none."""
    queries, owners, places = [], [], []
    memories: list[list[tuple[Memory, ...]]] = []
    for trajectory in trajectories:
        steps = trajectory.transitions
        memories.append([()] * len(steps))
        for t, step in enumerate(steps):
            query = Query(trajectory.task, steps[:t], step.state, step.action)
            if not noop_rule(retriever.rules, query):
                queries.append(query)
                owners.append(trajectory.id.partition(RELABELLED)[0])
                places.append((len(memories) - 1, t))
    for (i, t), neighbours in zip(places, retriever.retrieve(queries, owners), strict=True):
        memories[i][t] = tuple(neighbour.memory for neighbour in neighbours)
    return memories


def up_to(trajectories: Sequence[Trajectory], transitions: int) -> list[Trajectory]:
    """The first whole trajectories with at least this many transitions: the sizes of the paper's Figure 5, each a prefix of the next.

    UsageError when all of them together hold fewer.
    """
    total = 0
    for i, trajectory in enumerate(trajectories):
        total += len(trajectory.turns)
        if total >= transitions:
            return list(trajectories[: i + 1])
    raise UsageError(
        f"The logs hold {total} transitions, and logs.transitions = {transitions}. Raise logs.trajectories, or give more files."
    )


LEVELS = 3
"""The number of levels of difficulty."""


@dataclass(frozen=True)
class Variation:
    """A training example of M_task: a task and others like it as seeds, and a new one with its difficulty, 0 where it is not told."""

    seeds: tuple[Task, ...]
    new: Task
    level: int = 0


def task_variations(
    tasks: Sequence[Task], n: int, seed: int, *, seeds: int = 1, levels: Mapping[str, int] | None = None
) -> list[Variation]:
    """Similar but different tasks, for M_task: of 60 random tasks the one that shares most words with a first seed is the new task, and the
    next ones are further seeds. `levels` are difficulties by instruction."""
    rng = random.Random(f"task-pairs/{seed}")
    variations = []
    for _ in range(n):
        first = tasks[rng.randrange(len(tasks))]
        drawn = [tasks[j] for j in rng.sample(range(len(tasks)), min(60, len(tasks)))]
        if alike := most_similar(first, drawn, seeds):
            new, *more = alike
            variations.append(Variation((first, *more), new, (levels or {}).get(new.instruction, 0)))
    return variations


def most_similar(task: Task, others: Sequence[Task], n: int) -> list[Task]:
    """At most `n` of the other tasks, those that share most words with this one first, each instruction once."""
    different = {other.instruction: other for other in others if other.instruction != task.instruction}
    return sorted(different.values(), key=lambda other: -jaccard(task.instruction, other.instruction))[:n]


def difficulty_levels(logs: Sequence[Trajectory]) -> dict[str, int]:
    """Difficulties from 1 to LEVELS by instruction: thirds of the tasks by the length of their shortest logged success. A task without one
    is of the last."""
    shortest: dict[str, int] = {}
    for t in logs:
        if t.success:
            shortest[t.task.instruction] = min(len(t.turns), shortest.get(t.task.instruction, len(t.turns)))
    lengths = sorted(shortest.values())
    bounds = [lengths[len(lengths) * i // LEVELS] for i in range(1, LEVELS)] if lengths else []
    return {t.task.instruction: 1 + sum(shortest.get(t.task.instruction, math.inf) > bound for bound in bounds) for t in logs}
