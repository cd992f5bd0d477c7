"""Answers that stay as long as a condition holds, mined from real rows.

Whether a message can be sent may depend on nine settings at once, and an agent's logs show what each of them was and what was done about
it. A small language model learns from a few hundred such answers how many repairs were made, and not which. Counting learns which:

    the answer to an action of kind K is A as long as the action B last showed line L, and U has not been taken since

A condition (B, L, U) is kept where every real row in which it held was answered by A, where so many rows would be by chance with a
probability below a level, and where rows show that U ends it: with U taken since, other answers came. Levels are tried from the loosest
on: whole tasks are left out, the conditions mined from the others predict their rows, and the first level is used at which these
predictions are right often enough (`recall.MIN_AGREEMENT`, a lower 95 % bound). That takes about 190 predictions without an error. Answers
with fewer are judged together, without those that are significantly worse, which get none.

Where a kind of action has many answers, and few first lines, the first line is what is mined: whether a switch is now on or off, before the
line that says what else is so. The model's answer then keeps its other lines.

What an action showed is the last answer that the episode itself saw; for actions that it has not taken, what other real episodes of the
task saw before anything could change it (`TaskRecall.first_answers`). U is an action, or any of its kind, that may change something
(`TextRules.reads_only`). Several conditions for the same answer are alternatives, so that together they say what all has to be done first.
A reward is never inferred: what pays is for the model to claim, and for guard and verifier to judge.

Where a kind of action is answered in one of two ways, and one of them has conditions, the other answer comes once none of those that held
does any more: what a message waited for has been done. Rows in which that is so are counted under left-out tasks, too, with the conditions
of the loosest level, which are the most. The other answer is inferred where it is right more often than not, by the lower 95 % bound. What
no log shows may still be in the way, so this is a prediction, as the model's is. A small model's is for the frequent answer (in telecom
"cannot send" in 78 of 91 wrong predictions of this kind).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np

from dreamgym.envs.actions import kind_of, kinds_of
from dreamgym.envs.base import TextRules
from dreamgym.envs.real_rows import RealRows, RealStep, acts
from dreamgym.experience.recall import MIN_AGREEMENT, MIN_SAMPLES, Outcome
from dreamgym.experience.task_recall import TaskRecall, synthetic_memory
from dreamgym.protocols import ReplayBuffer
from dreamgym.statistics import Rate, wilson
from dreamgym.types import Action, Memory, Observation, Query, Transition

LEVELS = (1e-2, 1e-3, 1e-4, 1e-5)
"""Probabilities with which a condition may hold by chance, the loosest first."""
FOLDS = 5  # of tasks, left out one after the other
MOST_ANSWERS = 12  # of a kind of action that is mined
MOST_ROWS = 2000  # of a kind of action that are counted, the first ones
MOST_LINES = 20  # of an answer that are read
LEAST = 10  # rows that a line is in, to be counted
MOST_PLACES, MOST_ACTING = 1000, 200  # that are counted: lines, and actions that may end a condition, the most frequent
MORE_OFTEN_THAN_NOT = 0.5  # what the lower bound of the other of two answers has to reach, where no condition of the first holds
ENDED = 3  # rows in which an action has been taken since, and the answer is another one: where it is not of the kind that is asked about

Place = tuple[Action, str]
"""An action, and a line that it showed."""
Shown = Mapping[Place, frozenset[str]]
"""What was last shown, and what was done since: actions and their kinds."""
_Answers = Mapping[Action, tuple[tuple[str, ...], frozenset[str]]]
"""The same by action, all lines of its answer together."""


_Conditions = Mapping[Place, Mapping[str, int]]
"""The conditions of an answer by what was shown: actions or kinds of action that have not been taken since, each with the number of real
rows in which that held; all were answered so."""


@dataclass(frozen=True)
class OtherAnswer:
    """The other of two answers, where nothing is known for which the first would be given."""

    answer: Outcome
    conditions: _Conditions
    """Those of the first answer at the loosest level."""
    right: int
    predicted: int
    """Rows of left-out tasks in which none of the others' conditions holds."""


@dataclass(frozen=True)
class MinedAnswer:
    """What is established about one answer of one kind of action."""

    kind: str
    answer: Outcome
    first_line: bool
    """Whether the text of `answer` is the first line only."""
    conditions: _Conditions
    right: int
    predicted: int
    """Rows of left-out tasks that the conditions of the others predict."""
    other: OtherAnswer | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values, the conditions with most rows first."""
        text, reward, terminated = self.answer
        by_rows = sorted(self.conditions.items(), key=lambda item: -max(item[1].values()))
        listed = [
            {"shown_by": action, "line": line, "until": list(end_actions), "rows": max(end_actions.values())}
            for (action, line), end_actions in by_rows
        ]
        about = {"action": self.kind, "answer": text, "first_line": self.first_line, "reward": reward, "ends": terminated}
        about |= {"right": self.right, "predicted": self.predicted, "conditions": listed}
        if self.other:
            about["other"] = {"answer": self.other.answer[0], "right": self.other.right, "predicted": self.other.predicted}
        return about


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
        self._episodes: list[list[RealStep]] = []
        self._answered: dict[tuple[str, bool], Counter[Outcome]] = defaultdict(Counter)
        self._acted = Counter[Action]()
        self._mined_answers: list[MinedAnswer] = []

    def infer(self, query: Query) -> Memory | None:
        """The answer whose condition holds, as a memory in the query's state; None where no condition holds, or two answers' do."""
        outcome = self._holding(query, first_line=False)
        if outcome is None:
            return None
        text, reward, terminated = outcome
        after = self.rules.apply_delta(query.state, query.action, text)
        if after is None:
            return None
        return replace(synthetic_memory(query), state=query.state.text, next_state=after.text, reward=reward, terminated=terminated)

    def correct_first_line(self, query: Query, after: Observation) -> Observation:
        """A state that a model wrote after the query, with the first line of its answer as a condition says; else as it is."""
        outcome = self._holding(query, first_line=True)
        if outcome is None:
            return after
        first, *rest = self.rules.encode_delta(Transition(query.state, query.action, after, 0.0, False)).split("\n")
        if first == outcome[0]:
            return after
        return self.rules.apply_delta(query.state, query.action, "\n".join([outcome[0], *rest])) or after

    def mined_answers(self) -> list[MinedAnswer]:
        """List what was mined, by kind of action and answer."""
        self._follow()
        return self._mined_answers

    def _holding(self, query: Query, *, first_line: bool) -> Outcome | None:
        self._follow()
        candidates = [
            candidate for candidate in self._mined_answers if candidate.kind == kind_of(query.action) and candidate.first_line is first_line
        ]
        if not candidates:
            return None
        steps = [(step, acts(step, self.rules), None) for step in query.history]
        *_, answers = self._shown(query.task.env, query.task.id, "", steps)
        shown = _by_place(answers)
        holding = [candidate.answer for candidate in candidates if _holds(candidate.conditions, shown)]
        if not holding:
            others = [candidate.other for candidate in candidates if candidate.other]
            holding = [other.answer for other in others if other.conditions.keys() & shown.keys() and not _holds(other.conditions, shown)]
        return holding[0] if len(holding) == 1 else None

    def _add(self, episodes: Iterator[Iterable[Memory]]) -> None:
        """An answer rests on all rows, so all are mined again."""
        fresh = [whole for rows in episodes if (whole := _whole(rows, self.rules))]
        if not fresh:
            return
        self._episodes += fresh
        for real in (real for episode in fresh for real in episode):
            if real.acts:
                self._acted[real.memory.action] += 1
            for only_first in (True, False):
                self._answered[kind_of(real.memory.action), only_first][_answer(real, only_first)] += 1
        first_line = self._few_valued()
        rows: dict[str, list[_Row]] = defaultdict(list)
        for episode in self._episodes:
            about = episode[0].memory
            before = self._shown(about.env, about.task, about.trajectory, [(real.step, real.acts, real.delta) for real in episode])
            for real, answers in zip(episode, before, strict=False):
                name, memory = kind_of(real.memory.action), real.memory
                if name in first_line and len(rows[name]) < MOST_ROWS:
                    rows[name].append(_Row(memory.task or memory.instruction, _answer(real, first_line[name]), _by_place(answers)))
        acting = self._acting()
        self._mined_answers = list(_mine([_Counts(name, first_line[name], rows[name], acting) for name in sorted(rows)]))

    def _acting(self) -> list[str]:
        """The kinds of action that may change something, and the actions of that kind that are frequent."""
        kinds = Counter[str]()
        for action, n in self._acted.items():
            kinds.update(dict.fromkeys(kinds_of(action), n))
        frequent = Counter({action: n for action, n in self._acted.items() if n >= MIN_SAMPLES}) | kinds
        return sorted(name for name, _ in frequent.most_common(MOST_ACTING))

    def _few_valued(self) -> dict[str, bool]:
        """The kinds of action that are answered in one of a few ways, and not always in one of them; True: their first lines are few."""
        few = [key for key, answers in self._answered.items() if 1 < len(answers) <= MOST_ANSWERS and answers.total() >= 2 * MIN_SAMPLES]
        return {name: first_line for name, first_line in sorted(few, key=lambda item: not item[1])}

    def _shown(self, env: str, task: str, without: str, steps: Sequence[tuple[Transition, bool, str | None]]) -> Iterator[_Answers]:
        """Yield what is known before each step, and after the last; each is valid until the next is asked for. A step is given with whether
        it may have changed something, and with what it showed (None: not yet read). `without` is an episode that does not count as another
        one of the task."""
        first = self.task_recall.first_answers(env, task, without=without) if task else {}
        answers = {action: (_lines(text), frozenset[str]()) for action, text in first.items()}
        yield answers
        for step, acted, delta in steps:
            if acted:
                done = {step.action, *kinds_of(step.action)}
                answers = {action: (lines, since | done) for action, (lines, since) in answers.items()}
            if step.is_answer:
                answers[step.action] = (_lines(self.rules.encode_delta(step) if delta is None else delta), frozenset())
            yield answers


class _Counts:
    """The number of rows of a kind of action in which each condition held, by answer and fold of tasks."""

    def __init__(self, name: str, first_line: bool, rows: Sequence[_Row], acting: Sequence[str]) -> None:
        self.name, self.first_line, self.rows, self.acting = name, first_line, rows, acting
        often = Counter(place for row in rows for place in row.shown)
        self.places = sorted(place for place, n in often.most_common(MOST_PLACES) if n >= LEAST)
        number, self.answers = {place: i for i, place in enumerate(self.places)}, sorted({row.answer for row in rows})
        self.rows_with = Counter(row.answer for row in rows)
        # What was shown before all rows, one after the other: the row, the place, and what had been done since, by its number.
        after: dict[frozenset[str], int] = {}
        occurrences = [
            (j, number[at], after.setdefault(since, len(after)))
            for j, row in enumerate(rows)
            for at, since in row.shown.items()
            if at in number
        ]
        self.row, self.place, self.since = np.array(occurrences, np.int64).reshape(-1, 3).T
        self.open = np.array([[end_action not in since for end_action in acting] for since in after], bool).reshape(len(after), len(acting))
        folds = np.array([crc32(row.task.encode("utf-8", "surrogatepass")) % FOLDS for row in rows])
        self.shown_in = [np.flatnonzero(folds[self.row] == fold) for fold in range(FOLDS)]
        self.held_in = np.zeros((len(self.answers), FOLDS, len(self.places), len(acting)), np.int16)  # of at most MOST_ROWS rows
        self.ended_in = np.zeros_like(self.held_in)
        ends = np.searchsorted(self.row, np.arange(len(rows) + 1))
        for row, fold, begin, end in zip(rows, folds.tolist(), ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            which, open_ = self.place[begin:end], self.open[self.since[begin:end]]
            self.held_in[self.answers.index(row.answer), fold, which] += open_
            self.ended_in[self.answers.index(row.answer), fold, which] += ~open_
        self.same_kind = np.array([not {end_action, *kinds_of(end_action)}.isdisjoint(name.split("+")) for end_action in acting], bool)

    @property
    def inferable(self) -> list[Outcome]:
        """Frequent answers without a reward, of which a part would go on. None where the rows that are counted have one answer."""
        if len(self.answers) < 2:
            return []
        return [a for a in self.answers if a[1] <= 0 and not (self.first_line and a[2]) and self.rows_with[a] >= MIN_SAMPLES]

    def held_out_hits(self, answer: Outcome, level: float) -> list[bool]:
        """Whether each row of a left-out fold is answered so, for the rows of which the others' conditions predict it."""
        return [self.rows[j].answer == answer for j in self._waiting(answer, level)[1]]

    def other(self, answer: Outcome) -> OtherAnswer | None:
        """The only other answer, if it continues without a reward, where rows in which no condition holds any more mostly have it."""
        others = [other for other in self.answers if other != answer]
        if len(others) != 1 or others[0][1] > 0 or others[0][2]:
            return None
        level = LEVELS[0]
        known, held = self._waiting(answer, level)
        hits = [self.rows[j].answer == others[0] for j in sorted(known - held)]
        if len(hits) < MIN_SAMPLES or _rate(hits).low < MORE_OFTEN_THAN_NOT:
            return None
        return OtherAnswer(others[0], self.conditions(answer, level), sum(hits), len(hits))

    def _waiting(self, answer: Outcome, level: float) -> tuple[set[int], set[int]]:
        """The rows of each fold that have seen what conditions of the others are about, and of them those in which one holds."""
        known, held = set[int](), set[int]()
        for held_out in range(FOLDS):
            kept = self._kept(answer, level, [fold for fold in range(FOLDS) if fold != held_out])
            seen = self.shown_in[held_out]
            seen = seen[np.asarray(kept.any(1))[self.place[seen]]]
            holds = (kept[self.place[seen]] & self.open[self.since[seen]]).any(1)
            known.update(np.unique(self.row[seen]).tolist())
            held.update(np.unique(self.row[seen[holds]]).tolist())
        return known, held

    def conditions(self, answer: Outcome, level: float) -> dict[Place, dict[str, int]]:
        """The conditions of all rows."""
        conditions: dict[Place, dict[str, int]] = defaultdict(dict)
        for place, end_action in np.argwhere(self._kept(answer, level, range(FOLDS))).tolist():
            conditions[self.places[place]][self.acting[end_action]] = int(self.held_in[:, :, place, end_action].sum())
        return {place: _broadest(end_actions) for place, end_actions in conditions.items()}

    def _kept(self, answer: Outcome, level: float, folds: Sequence[int]) -> np.ndarray:
        """bool [place, acting]: what held in so many rows and in none with another answer, and was seen to end. What an action does to
        its own answer needs not be seen: switches are seldom used twice."""
        others = [i for i, other in enumerate(self.answers) if other != answer]
        held, ended = self.held_in[:, folds].sum(1), self.ended_in[:, folds].sum(1)
        against = held[others].sum(0)
        enough = held.sum(0) >= self._least(answer, level)
        return np.asarray((against == 0) & enough & (self.same_kind | (ended[others].sum(0) >= ENDED)))

    def _least(self, answer: Outcome, level: float) -> float:
        return math.log(level) / math.log(self.rows_with[answer] / len(self.rows))


def _mine(kinds: Sequence[_Counts]) -> Iterator[MinedAnswer]:
    """Yield what is established: each answer at the loosest level at which its own predictions are right often enough, and where it has too
    few for that, at the loosest at which those of all such answers are."""
    hits_by_level = {
        level: {(i, answer): counts.held_out_hits(answer, level) for i, counts in enumerate(kinds) for answer in counts.inferable}
        for level in LEVELS
    }
    chosen: dict[tuple[int, Outcome], float] = {}
    for level in LEVELS:
        chosen |= {key: level for key, hits in hits_by_level[level].items() if key not in chosen and _rate(hits).low >= MIN_AGREEMENT}
    for level in LEVELS:
        rest = {key: hits for key, hits in hits_by_level[level].items() if key not in chosen and hits and _rate(hits).high >= MIN_AGREEMENT}
        if _rate([right for hits in rest.values() for right in hits]).low >= MIN_AGREEMENT:
            chosen |= dict.fromkeys(rest, level)
            break
    for (i, answer), level in sorted(chosen.items()):
        hits, counts = hits_by_level[level][i, answer], kinds[i]
        if conditions := counts.conditions(answer, level):
            yield MinedAnswer(counts.name, answer, counts.first_line, conditions, sum(hits), len(hits), counts.other(answer))


def _holds(conditions: _Conditions, shown: Shown) -> bool:
    """Whether one of the conditions does."""
    return any(not since.issuperset(conditions[place]) for place, since in shown.items() if place in conditions)


def _rate(hits: Sequence[bool]) -> Rate:
    return wilson(sum(hits), len(hits))


def _broadest(end_actions: Mapping[str, int]) -> dict[str, int]:
    """The end actions without the kinds of which an action is there: until that action is taken, none of its kind may have been."""
    implied = {kind for end_action in end_actions for kind in kinds_of(end_action) if end_action != kind}
    return {end_action: n for end_action, n in end_actions.items() if end_action not in implied}


def _by_place(answers: _Answers) -> Shown:
    return {(action, line): since for action, (lines, since) in answers.items() for line in lines}


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line for line in text.split("\n") if line)[:MOST_LINES]


def _answer(real: RealStep, first_line: bool) -> Outcome:
    return (real.delta.partition("\n")[0] if first_line else real.delta, real.memory.reward, real.memory.terminated)


def _whole(rows: Iterable[Memory], rules: TextRules) -> list[RealStep]:
    """An episode's rows up to the first that is missing."""
    steps = list[RealStep]()
    for expected, memory in enumerate(rows):
        if memory.step != expected:
            break
        steps.append(RealStep.read(memory, rules))
    return steps
