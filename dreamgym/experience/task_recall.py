"""Recall within a task: what other real episodes of the same task showed for the same action.

A task hides a part of its world, and every episode of it has the same. So a logged check of a phone, or a look into a drawer, tells what
a dream of that task must show there, unless the episode has changed it before. Which kinds of action change the answer to which others
is mined from pairs of real rows of one task: an answer *depends* on the kinds of action that one of the two had before it and the other
had not, where the answers differ. Mining is greedy: the kind of action that explains most differing answers joins the dependency, until
the remaining pairs agree often enough. That an action does not change its own answer, as a switch does, must be shown by as many pairs.
Actions that only read (`TextRules.reads_only`) change no answer at all.

An answer is what the rules write of a step (`TextRules.encode_delta`). A query is answered by

* the episode itself, where it has taken the action before, and since then none that acts, or none on which the answer depends;
* other episodes of the task that took the same of those earlier actions on which the answer depends, where they agree;
* recordings of the task that took the same acting actions in the same order, where states do not show everything
  (`experience.recorded_answers`).

As in `experience.recall`, each real row is predicted from other trajectories, or from its own earlier rows, and either way is used only
where that is right often enough: agents ask again when they have changed something. Two things need no proof, and hold unless the logs
contradict them: what a recording of the task shows, and that an action that only reads shows the same again while nothing acts. Dreamed
rows are no precedents.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import get_args

from dreamgym.envs.actions import kind_of, kinds_of
from dreamgym.envs.base import TextRules
from dreamgym.envs.consistency import changing_kinds, holds
from dreamgym.envs.real_rows import RealRows, RealStep, acts
from dreamgym.experience.recall import (
    MIN_SAMPLES,
    Agreement,
    Key,
    Origin,
    Outcome,
    OutcomeClass,
    leave_one_out,
    measure_agreement,
    outcome_class,
)
from dreamgym.experience.recorded_answers import RecordedAnswers
from dreamgym.protocols import ReplayBuffer
from dreamgym.types import Action, Memory, Query, Transition

MAX_PAIRS_PER_ROW = 8
"""Earlier rows of a task with the same action that a row is paired with, at most."""
_Pairs = dict[str, list[tuple[frozenset[str], bool]]]
"""Pairs of rows of one task with the same action, by its kind: the kinds of action that one had before it and the other had not, and
whether the answers agree."""


@dataclass(frozen=True)
class Dependency:
    """The kinds of earlier action on which the answer to an action of this kind depends; it depends on no others."""

    kind: str
    invalidated_by: tuple[str, ...]
    support: int
    """Pairs of rows of one task that differ in no action on which the answers depend by the pairs."""
    exceptions: int
    """Pairs among them whose answers differ."""


@dataclass(frozen=True)
class _Row:
    """A real row, and the earlier actions of its episode that may have changed something."""

    real: RealStep
    earlier: tuple[Action, ...]

    @property
    def memory(self) -> Memory:
        return self.real.memory

    @property
    def outcome(self) -> Outcome:
        return (self.real.delta, self.memory.reward, self.memory.terminated)


class _Task:
    """The real rows of a task, and how many of them have been paired."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.paired = 0
        self._same: dict[Action, list[_Row]] = defaultdict(list)

    @property
    def repeated(self) -> bool:
        """Whether the rows are of several trajectories."""
        return any(row.memory.trajectory != self.rows[0].memory.trajectory for row in self.rows)

    def pair(self, pairs: _Pairs) -> None:
        """Add the pairs of the rows that came since the last call."""
        for row in self.rows[self.paired :]:
            action = row.memory.action
            same = self._same[action]
            for other in same[-MAX_PAIRS_PER_ROW:]:
                pairs[kind_of(action)].append((_action_kind_difference(row.earlier, other.earlier), other.outcome == row.outcome))
            same.append(row)
        self.paired = len(self.rows)


class TaskRecall(RealRows):
    """The precedents of the same task in the real rows of a replay buffer."""

    def __init__(self, replay: ReplayBuffer, rules: TextRules) -> None:
        super().__init__(replay)
        self.rules = rules

    def _clear(self) -> None:
        self._tasks: dict[tuple[str, str], _Task] = defaultdict(_Task)
        self._pairs: _Pairs = defaultdict(list)
        self._invalidated_by: dict[str, frozenset[str]] = {}
        self._dependencies: list[Dependency] = []
        self._agreements: list[Agreement] = []
        self._outcomes: dict[Key, dict[Outcome, set[Origin]]] = {}
        self._rows: dict[Key, Memory] = {}
        self._first: dict[tuple[str, str], list[Action]] = {}  # the actions of a task that were taken before anything could change them
        self._recorded = RecordedAnswers()
        self._reliable: set[str] = set()
        self._unreliable: set[Action] = set()
        self._answers_again = False
        self._varying: set[str] = set()  # kinds of action that only read and yet show something else while nothing acts

    def recall(self, query: Query) -> Memory | None:
        """A real row with the query's outcome, its next state put after the query's; None where no precedent is known, they disagree, or
        nothing is established about them."""
        self._follow()
        invalidated_by = self._invalidated_by.get(kind_of(query.action)) if query.action not in self._unreliable else None
        acting = [acts(step, self.rules) for step in query.history]
        own_step = self._own_step(query, acting, invalidated_by)
        if own_step is not None:
            return self._answer(query, (self.rules.encode_delta(query.history[own_step]), 0.0, False), synthetic_memory(query))
        earlier = tuple(step.action for step, acted in zip(query.history, acting, strict=True) if acted)
        if invalidated_by is not None:
            key = _key(query.task.env, query.task.id, query.action, earlier, invalidated_by)
            outcomes = self._outcomes.get(key, {})
            if len(outcomes) == 1 and outcome_class(*next(iter(outcomes))) in self._reliable:
                return self._answer(query, next(iter(outcomes)), self._rows[key])
        varies = kind_of(query.action) in self._varying or query.action in self._unreliable
        start = (query.history[0].state if query.history else query.state).text
        recorded = None if varies else self._recorded.find((query.task.env, query.task.id, start, query.action, earlier))
        return self._answer(query, *recorded) if recorded else None

    def _own_step(self, query: Query, acting: Sequence[bool], invalidated_by: frozenset[str] | None) -> int | None:
        """The step of the query's own episode that answers it; None where there is none, or it is not known that the answer still holds."""
        if kind_of(query.action) not in self._varying:
            unchanged = _own_step(query.history, acting, query.action, None)
            if unchanged is not None:
                return unchanged
        if invalidated_by is None or not self._answers_again or "continues" not in self._reliable:
            return None
        return _own_step(query.history, acting, query.action, invalidated_by)

    def _answer(self, query: Query, outcome: Outcome, memory: Memory) -> Memory | None:
        """A memory with that outcome after the query's state; None where the rules cannot put it there."""
        after = self.rules.apply_delta(query.state, query.action, outcome[0])
        if after is None:
            return None
        return replace(memory, state=query.state.text, next_state=after.text, reward=outcome[1], terminated=outcome[2])

    def first_answers(self, env: str, task: str, *, without: str = "") -> dict[Action, str]:
        """The answers by action that real episodes of the task saw before they had taken any action on which the answer depends, or, of an
        action that reads, any that acts; where they agree, and without the episode `without`."""
        self._follow()
        answers = self._recorded.first(env, task, without=without)
        for action in self._first.get((env, task), ()):
            outcomes = {outcome for outcome, origins in self._outcomes[env, task, action].items() if origins != {(without, without)}}
            if len(outcomes) == 1 and action not in self._unreliable:
                ((text, _, terminated),) = outcomes
                answers |= {} if terminated else {action: text}
        return answers

    def agreements(self) -> list[Agreement]:
        """How well precedents of the same task predict real rows of other trajectories."""
        self._follow()
        return self._agreements

    def dependencies(self) -> list[Dependency]:
        """List what was mined, by kind of action."""
        self._follow()
        return self._dependencies

    def _add(self, episodes: Iterator[Iterable[Memory]]) -> None:
        """A dependency rests on all pairs, so they are mined again."""
        added = self._add_rows(episodes)
        if not added:
            return
        for task in added:
            if task.repeated:
                task.pair(self._pairs)
        self._dependencies = list(_mine(self._pairs, self._acting()))
        self._invalidated_by = {dependency.kind: frozenset(dependency.invalidated_by) for dependency in self._dependencies}
        self._outcomes, self._rows, self._first = defaultdict(lambda: defaultdict(set)), {}, defaultdict(list)
        for row in (row for task in self._tasks.values() for row in task.rows) if self._invalidated_by else ():
            invalidated_by = self._invalidated_by.get(kind_of(row.memory.action))
            if invalidated_by is not None:
                key = _key(row.memory.env, row.memory.task, row.memory.action, row.earlier, invalidated_by)
                self._outcomes[key][row.outcome].add((row.memory.trajectory, row.memory.trajectory))
                if self._rows.setdefault(key, row.memory) is row.memory and len(key) == 3:
                    self._first[key[:2]].append(key[2])
        self._estimate()

    def _add_rows(self, episodes: Iterator[Iterable[Memory]]) -> list[_Task]:
        """Add rows to those of their tasks; the tasks that have new ones."""
        added: dict[tuple[str, str], _Task] = {}
        for rows in episodes:
            earlier: tuple[Action, ...] = ()
            start = ""
            for expected, memory in enumerate(memory for memory in rows if memory.task):
                if memory.step != expected:
                    break  # a step is missing, and with it what it may have changed
                name = (memory.env, memory.task)
                added[name] = self._tasks[name]
                real = RealStep.read(memory, self.rules)
                added[name].rows.append(row := _Row(real, earlier))
                start = start if expected else memory.state
                if self.rules.encodes_deltas:
                    self._recorded.add(memory, start, earlier, row.outcome, acts=real.acts)
                if real.acts:
                    earlier = (*earlier, memory.action)
        return list(added.values())

    def _acting(self) -> set[str]:
        """The kinds of action that may have changed something before a row of a task that several trajectories have."""
        return {kind_of(action) for task in self._tasks.values() if task.paired for row in task.rows for action in row.earlier}

    def _asked_again(self, invalidated_by: Mapping[str, frozenset[str] | None]) -> Iterator[tuple[str, bool]]:
        """The kind of each action that a real episode took again and that it would answer itself, and whether that is right, if answers
        are invalidated so, by kind; None: by all that acts."""
        for task in self._tasks.values() if invalidated_by else ():
            for _, group in groupby(task.rows, key=lambda row: row.memory.trajectory):
                rows = list(group)
                steps, acting = [row.real.step for row in rows], [row.real.acts for row in rows]
                for i, row in enumerate(rows):
                    action = row.memory.action
                    if kind_of(action) not in invalidated_by:
                        continue
                    if (own_step := _own_step(steps[:i], acting[:i], action, invalidated_by[kind_of(action)])) is not None:
                        yield kind_of(action), row.outcome == (rows[own_step].real.delta, 0.0, False)

    def _estimate(self) -> None:
        """Predict every real row from other trajectories with its key, and from its own earlier rows, and choose what is reliable."""
        by_class: dict[OutcomeClass, list[bool]] = {name: [] for name in get_args(OutcomeClass)}
        by_action: dict[Action, list[bool]] = defaultdict(list)
        for key, outcomes in self._outcomes.items():
            for outcome, right in leave_one_out(outcomes):
                by_class[outcome_class(*outcome)].append(right)
                by_action[key[2]].append(right)
        self._agreements = [*(measure_agreement("task", name, hits) for name, hits in by_class.items()), self._recorded.estimate()]
        self._reliable = {agreement.outcome_class for agreement in self._agreements if agreement.used and agreement.situation == "task"}
        again = measure_agreement("again", "continues", [right for _, right in self._asked_again(self._invalidated_by)])
        kinds = {kind_of(row.memory.action) for task in self._tasks.values() for row in task.rows}
        by_kind: dict[str, list[bool]] = defaultdict(list)
        for kind, right in self._asked_again(dict.fromkeys(kinds)):
            by_kind[kind].append(right)
        self._varying = {kind for kind, hits in by_kind.items() if measure_agreement("unchanged", "continues", hits).doubtful}
        unchanged = [right for kind, hits in by_kind.items() if kind not in self._varying for right in hits]
        if unchanged:
            self._agreements.append(replace(measure_agreement("unchanged", "continues", unchanged), used=True))
        self._answers_again = again.used or (again.predicted < MIN_SAMPLES and "continues" in self._reliable)
        self._agreements.append(replace(again, used=self._answers_again))
        self._unreliable = {action for action, hits in by_action.items() if measure_agreement("task", "continues", hits).doubtful}


def _mine(pairs: _Pairs, acting: set[str]) -> Iterator[Dependency]:
    """The dependencies that hold in pairs of rows of one task."""
    for kind, cases in sorted(pairs.items()):
        rule = changing_kinds(cases)
        if rule is not None:
            invalidated_by, support, exceptions = rule
            after_itself = [agrees for between, agrees in cases if kind in between and not between.intersection(invalidated_by)]
            if kind in acting and not holds(len(after_itself), after_itself.count(False)):
                invalidated_by = tuple(sorted({*invalidated_by, *kind.split("+")}))
            yield Dependency(kind, invalidated_by, support, exceptions)


def _action_kind_difference(actions: tuple[Action, ...], other_actions: tuple[Action, ...]) -> frozenset[str]:
    """The kinds of the actions that one of the two has more often than the other."""
    if actions == other_actions:
        return frozenset()
    counts, other_counts = Counter(actions), Counter(other_actions)
    return frozenset(
        kind for action in counts.keys() | other_counts.keys() if counts[action] != other_counts[action] for kind in kinds_of(action)
    )


def _own_step(history: Sequence[Transition], acting: Sequence[bool], action: Action, invalidated_by: frozenset[str] | None) -> int | None:
    """The step in which an episode itself took the action, if it went on then and the answer cannot have changed since. `invalidated_by`
    None: all that acts may change it."""
    for i in range(len(history) - 1, -1, -1):
        step = history[i]
        changes = acting[i] and (invalidated_by is None or not invalidated_by.isdisjoint(kinds_of(step.action)))
        if step.action == action and not step.reward and step.is_answer:
            return None if changes else i
        if changes:
            return None
    return None


def _key(env: str, task: str, action: Action, earlier: Sequence[Action], invalidated_by: frozenset[str]) -> Key:
    return (env, task, action, *sorted(taken for taken in earlier if not invalidated_by.isdisjoint(kinds_of(taken))))


def synthetic_memory(query: Query) -> Memory:
    """A memory of the query's own episode, which is no row of the buffer."""
    task = query.task
    return Memory(0, "", len(query.history), task.env, task.instruction, "dream", "", query.action, "", 0.0, False, False, task=task.id)
