"""Answers that stay as long as a condition holds, mined from real rows.

Whether a message can be sent may depend on nine settings at once, and an agent's logs show what each of them was and what was done about
it. A small language model learns from a few hundred such answers how many repairs were made, and not which. Counting learns which:

    the answer to an action of kind K is A as long as the action B last showed line L, and U has not been taken since

A condition (B, L, U) is kept where every real row in which it held was answered by A, and where so many rows would be by chance with a
probability below a level. Levels are tried from the loosest on: whole tasks are left out, the conditions mined from the others predict
their rows, and the first level is used at which these predictions are right often enough (`recall.MIN_AGREEMENT`, a lower 95 % bound). An
answer for which no level is gets none: it takes about 190 right predictions without an error.

What an action showed is the last answer that the episode itself saw; for actions that it has not taken, what other real episodes of the
task saw before anything could change it (`TaskRecall.first_answers`). U is an action, or any of its kind, that may change something
(`TextRules.reads_only`). Several conditions for the same answer are alternatives, so that together they say what all has to be done first.
A reward is never inferred: what pays is for the model to claim, and for guard and verifier to judge.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from dreamgym.envs.actions import parts
from dreamgym.envs.base import TextRules
from dreamgym.experience.real_rows import RealRows
from dreamgym.experience.recall import ENOUGH, MIN_AGREEMENT, Outcome
from dreamgym.experience.task_recall import TaskRecall
from dreamgym.protocols import ReplayBuffer
from dreamgym.statistics import wilson
from dreamgym.types import Action, Memory, Observation, Query, Transition

LEVELS = (1e-2, 1e-3, 1e-4, 1e-5)
"""Probabilities with which a condition may hold by chance, the loosest first."""
FOLDS = 5  # of tasks, left out one after the other
MOST_ANSWERS = 12  # of a kind of action that is mined
MOST_ROWS = 2000  # of a kind of action that are counted, the first ones
MOST_LINES = 20  # of an answer that are read
LEAST = 10  # rows that a line is in, to be counted

Place = tuple[Action, str]
"""An action, and a line that it showed."""
Shown = Mapping[Place, frozenset[str]]
"""What was last shown, and what was done since: actions and their kinds."""


@dataclass(frozen=True)
class Conditioned:
    """What is established about one answer of one kind of action."""

    kind: str
    answer: Outcome
    conditions: Mapping[Place, Mapping[str, int]]
    """By what was shown, an action or kind of action that has not been taken since, with the number of real rows in which that held; all
    were answered so."""
    right: int
    predicted: int
    """Rows of left-out tasks that the conditions of the others predict."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, the conditions with most rows first."""
        text, reward, terminated = self.answer
        by_rows = sorted(self.conditions.items(), key=lambda one: -max(one[1].values()))
        listed = [
            {"shown_by": action, "line": line, "until": list(untils), "rows": max(untils.values())} for (action, line), untils in by_rows
        ]
        about = {"action": self.kind, "answer": text, "reward": reward, "ends": terminated}
        return about | {"right": self.right, "predicted": self.predicted, "conditions": listed}

    def holds(self, shown: Shown) -> bool:
        """Whether one of the conditions does."""
        return any(not since.issuperset(self.conditions[place]) for place, since in shown.items() if place in self.conditions)


@dataclass(frozen=True)
class _Row:
    """A real row with what its episode and its task had shown before it."""

    task: str
    answer: Outcome
    shown: Shown


class Conditions(RealRows):
    """The conditions in the real rows of a replay buffer."""

    def __init__(self, replay: ReplayBuffer, rules: TextRules, task_recall: TaskRecall) -> None:
        super().__init__(replay)
        self.rules, self.task_recall = rules, task_recall

    def _clear(self) -> None:
        self._episodes: list[list[Memory]] = []
        self._found: list[Conditioned] = []

    def infer(self, query: Query) -> Memory | None:
        """The answer whose condition holds, as a memory in the query's state; None where no condition holds, or two answers' do."""
        self._follow()
        known = [one for one in self._found if one.kind == kind_of(query.action)]
        if not known:
            return None
        shown = self._shown(query.task.env, query.task.id, "", query.history)
        holding = [one for one in known if one.holds(shown)]
        if len(holding) != 1:
            return None
        text, reward, terminated = holding[0].answer
        after = self.rules.apply_delta(query.state, query.action, text)
        if after is None:
            return None
        env, instruction = query.task.env, query.task.instruction
        texts = (query.state.text, query.action, after.text)
        return Memory(0, "", len(query.history), env, instruction, "demo", *texts, reward, terminated, bool(reward), task=query.task.id)

    def found(self) -> list[Conditioned]:
        """What was mined, by kind of action and answer."""
        self._follow()
        return self._found

    def _add(self, episodes: Iterator[Iterable[Memory]]) -> None:
        """An answer rests on all rows, so all are mined again."""
        fresh = [whole for rows in episodes if (whole := _whole(rows))]
        if not fresh:
            return
        self._episodes += fresh
        mined = self._few_valued()
        rows: dict[str, list[_Row]] = defaultdict(list)
        acting: set[str] = set()
        often = Counter(memory.action for episode in self._episodes for memory in episode if self._acts(_transition(memory)))
        for action, n in often.items():
            acting |= {*kinds_of(action), *([action] if n >= ENOUGH else [])}
        for episode in self._episodes:
            steps = [_transition(memory) for memory in episode]
            for i, (memory, step) in enumerate(zip(episode, steps, strict=True)):
                name = kind_of(memory.action)
                if name in mined and len(rows[name]) < MOST_ROWS:
                    shown = self._shown(memory.env, memory.task, memory.trajectory, steps[:i])
                    rows[name].append(_Row(memory.task or memory.instruction, self._answer(step), shown))
        self._found = [one for name in sorted(rows) for one in _mine(name, rows[name], sorted(acting))]

    def _few_valued(self) -> set[str]:
        """The kinds of action that are answered in one of a few ways, and in one of them not always."""
        answers: dict[str, Counter[Outcome]] = defaultdict(Counter)
        for episode in self._episodes:
            for memory in episode:
                answers[kind_of(memory.action)][self._answer(_transition(memory))] += 1
        return {name for name, seen in answers.items() if 1 < len(seen) <= MOST_ANSWERS and seen.total() >= 2 * ENOUGH}

    def _shown(self, env: str, task: str, without: str, steps: Sequence[Transition]) -> Shown:
        """What is known before the next step. `without` is an episode that does not count as another one of the task."""
        first = self.task_recall.first_answers(env, task, without=without) if task else {}
        shown = {action: (_lines(text), frozenset[str]()) for action, text in first.items()}
        for step in steps:
            if self._acts(step):
                done = {step.action, *kinds_of(step.action)}
                shown = {action: (lines, since | done) for action, (lines, since) in shown.items()}
            if step.next_state != step.state:
                shown[step.action] = (_lines(self.rules.encode_delta(step)), frozenset())
        return {(action, line): since for action, (lines, since) in shown.items() for line in lines}

    def _acts(self, step: Transition) -> bool:
        return step.next_state != step.state and not self.rules.reads_only(step.action)

    def _answer(self, step: Transition) -> Outcome:
        return (self.rules.encode_delta(step), step.reward, step.terminated)


def _mine(name: str, rows: Sequence[_Row], acting: Sequence[str]) -> Iterator[Conditioned]:
    """What is established about the answers of one kind of action."""
    often = Counter(place for row in rows for place in row.shown)
    places = sorted(place for place, n in often.items() if n >= LEAST)
    number, answers = {place: i for i, place in enumerate(places)}, sorted({row.answer for row in rows})
    held = [_held(row.shown, number, acting) for row in rows]
    fold_of = [crc32(row.task.encode("utf-8", "surrogatepass")) % FOLDS for row in rows]
    counts = np.zeros((len(answers), FOLDS, len(places), len(acting)), np.int32)  # rows in which each condition held
    for row, fold, (which, open_) in zip(rows, fold_of, held, strict=True):
        counts[answers.index(row.answer), fold, which] += open_
    total = counts.sum(0)
    for i, answer in enumerate(answers):
        n = sum(row.answer == answer for row in rows)
        if n < ENOUGH or answer[1] > 0:
            continue
        against = total - counts[i]
        for level in LEVELS:
            least = math.log(level) / math.log(n / len(rows))
            seen = list[bool]()
            for fold in range(FOLDS):
                kept = (against.sum(0) == against[fold]) & (total.sum(0) - total[fold] >= least)
                apart = (j for j in range(len(rows)) if fold_of[j] == fold)
                seen += [rows[j].answer == answer for j in apart if (kept[held[j][0]] & held[j][1]).any()]
            if seen and wilson(sum(seen), len(seen)).low >= MIN_AGREEMENT:
                found: dict[Place, dict[str, int]] = defaultdict(dict)
                for place, until in np.argwhere((against.sum(0) == 0) & (total.sum(0) >= least)).tolist():
                    found[places[place]][acting[until]] = int(total[:, place, until].sum())
                yield Conditioned(name, answer, {place: _broadest(untils) for place, untils in found.items()}, sum(seen), len(seen))
                break


def _broadest(untils: Mapping[str, int]) -> dict[str, int]:
    """Without the kinds of which an action is there: until that action is taken, none of its kind may have been."""
    implied = {kind for until in untils for kind in kinds_of(until) if until != kind}
    return {until: n for until, n in untils.items() if until not in implied}


def _held(shown: Shown, number: Mapping[Place, int], acting: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The places [n] that were shown, and of each whether every one of `acting` has not been done since: bool [n, acting]."""
    known = [(number[place], since) for place, since in shown.items() if place in number]
    open_ = np.array([[until not in since for until in acting] for _, since in known], bool).reshape(len(known), len(acting))
    return np.array([place for place, _ in known], np.int64), open_


def kinds_of(action: Action) -> list[str]:
    return [kind for kind, _ in parts(action)]


def kind_of(action: Action) -> str:
    """The kinds of an action's calls, as one word."""
    return "+".join(kinds_of(action))


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line for line in text.split("\n") if line)[:MOST_LINES]


def _whole(rows: Iterable[Memory]) -> list[Memory]:
    """An episode's rows up to the first that is missing."""
    found = list[Memory]()
    for expected, memory in enumerate(rows):
        if memory.step != expected:
            break
        found.append(memory)
    return found


def _transition(memory: Memory) -> Transition:
    return Transition(Observation(memory.state), memory.action, Observation(memory.next_state), memory.reward, memory.terminated)
