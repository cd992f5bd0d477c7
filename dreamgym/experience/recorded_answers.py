"""What recordings of a task were shown after the same acting actions in the same order.

A dream of a recorded task that began as a recording and has done what it did is where the recording was, so that its answer needs no proof
by other episodes: it holds unless recordings of one task contradict each other about such an action. This is all that logs which hold
every task once say of what a task hides. Where a state shows everything (not `TextRules.encodes_deltas`), the state itself says where an
episode is, and `experience.recall` answers. Rewards and ends are not taken from a recording: they stay the model's judgement, which the
actions of recorded episodes, taken again in a dream, then test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from dreamgym.envs.actions import kind_of
from dreamgym.experience.recall import Agreement, Origin, Outcome, leave_one_out, measure_agreement, outcome_class
from dreamgym.types import Action, Memory

Place = tuple[str, str, str, Action, tuple[Action, ...]]
"""(environment, task, first state, action, the actions before it that may have changed something, in order)"""


class RecordedAnswers:
    """The answers of real rows by place."""

    def __init__(self) -> None:
        self._outcomes: dict[Place, dict[Outcome, set[Origin]]] = defaultdict(lambda: defaultdict(set))
        self._rows: dict[Place, Memory] = {}
        self._first: dict[tuple[str, str], list[Place]] = defaultdict(list)  # of a task, of actions that only read, before anything acted
        self._contradicted: set[str] = set()

    def add(self, memory: Memory, start: str, earlier: tuple[Action, ...], outcome: Outcome, *, acts: bool) -> None:
        """Add a real row with what it showed, after these acting actions from the first state; `acts`: whether it is one itself."""
        place = (memory.env, memory.task, start, memory.action, earlier)
        self._outcomes[place][outcome].add((memory.trajectory, memory.trajectory))
        if self._rows.setdefault(place, memory) is memory and not earlier and not acts:
            self._first[memory.env, memory.task].append(place)

    def estimate(self) -> Agreement:
        """How well recordings of a task predict each other; the kinds of action of which they do not are answered no more."""
        by_kind: dict[str, list[bool]] = defaultdict(list)
        for place, outcomes in self._outcomes.items():
            for outcome, right in leave_one_out(outcomes):
                if outcome_class(*outcome) == "continues":
                    by_kind[kind_of(place[3])].append(right)
        agreements = {kind: measure_agreement("recording", "continues", hits) for kind, hits in by_kind.items()}
        self._contradicted = {kind for kind, agreement in agreements.items() if agreement.doubtful}
        kept = [right for kind, hits in by_kind.items() if kind not in self._contradicted for right in hits]
        return Agreement("recording", "continues", sum(kept), len(kept), used=bool(self._outcomes))

    def find(self, place: Place) -> tuple[Outcome, Memory] | None:
        """The outcome on which the recordings agree, and a row that has it; None where there is none, or it pays or ends."""
        outcome = self._agreed(place, self._outcomes.get(place, {}), without="")
        return (outcome, self._rows[place]) if outcome else None

    def first(self, env: str, task: str, *, without: str) -> dict[Action, str]:
        """The answers by reading action that recordings of the task saw before anything acted; the episode `without` is left out."""
        shown: dict[Action, set[str | None]] = defaultdict(set)  # None: they do not agree
        for place in self._first.get((env, task), ()):
            if any(origins != {(without, without)} for origins in self._outcomes[place].values()):
                outcome = self._agreed(place, self._outcomes[place], without=without)
                shown[place[3]].add(outcome[0] if outcome else None)
        return {action: text for action, texts in shown.items() if len(texts) == 1 and (text := next(iter(texts))) is not None}

    def _agreed(self, place: Place, outcomes: Mapping[Outcome, set[Origin]], *, without: str) -> Outcome | None:
        left = [outcome for outcome, origins in outcomes.items() if origins != {(without, without)}]
        agreed = len(left) == 1 and outcome_class(*left[0]) == "continues" and kind_of(place[3]) not in self._contradicted
        return left[0] if agreed else None
