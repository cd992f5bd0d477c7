"""Exact recall: where real memory holds a query's situation and all its precedents agree, the precedent is the answer.

What counts as the same situation is estimated from the real rows themselves. The candidates:

    state        (state, action)
    previous     (previous state, previous action, state, action)
    instruction  (instruction, state, action)

For every candidate and class of outcome (steps that go on without a reward; steps that pay or end), each real row is predicted from
other rows with the same key: of other instructions, or for `instruction` of other trajectories. So a reward that depends on the
instruction is not recalled for another one, even where logged agents seldom end an episode in a state that is not their goal. A
candidate is used for a class where the lower confidence bound of being right reaches `MIN_AGREEMENT`, and never for an action whose own
rows are significantly below it: going back leads elsewhere by another way. A finer key without rows of its own to judge by is as
reliable as `state`. Dreamed rows are no precedents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, Literal, get_args

from dreamgym.envs.real_rows import RealRows
from dreamgym.statistics import wilson
from dreamgym.types import Memory, Query

Situation = Literal["state", "previous", "instruction", "task", "recording", "again", "unchanged"]
"""What precedents share with a step. The last four are of `experience.task_recall`."""
KEYED: tuple[Situation, ...] = ("state", "previous", "instruction")
OutcomeClass = Literal["continues", "pays_or_ends"]
MIN_AGREEMENT = 0.98
"""The share of real rows that other trajectories' precedents must predict exactly, for a key to be used."""
MIN_SAMPLES = 20
"""Predicted rows by which one action is judged on its own."""
Key = tuple[str, ...]
Origin = tuple[str, str]
"""(group that is left out together, trajectory)"""
Outcome = tuple[str, float, bool]
"""(next state, reward, whether the episode ended)"""


@dataclass(frozen=True)
class Agreement:
    """How well precedents of one kind of situation predict real rows of one class: across instructions, unless the situation has one."""

    situation: Situation
    outcome_class: OutcomeClass
    right: int
    predicted: int
    used: bool
    """Whether recall answers from such precedents."""

    @property
    def doubtful(self) -> bool:
        """Whether there are enough rows to say that precedents are not reliable."""
        return self.predicted >= MIN_SAMPLES and wilson(self.right, self.predicted).high < MIN_AGREEMENT


SITUATIONS = {
    "state": "the same state and action",
    "previous": "the same last two states and actions",
    "instruction": "the same instruction, state and action",
    "again": "the same action earlier in the episode",
    "unchanged": "the same action earlier in the episode and nothing since that acts",
    "task": "the same task, action and earlier actions that matter to it",
    "recording": "the same task, action and earlier actions that act, in the same order",
}
CLASSES = {"continues": "go on without a reward", "pays_or_ends": "pay or end"}


def why_unused(right: int, predicted: int) -> str:
    """Why precedents that predicted so many rows, so many of them right, are not recalled."""
    wrong = predicted - right
    if wilson(right, predicted).high < MIN_AGREEMENT:
        return f"{wrong:,} of {predicted:,} predictions are wrong, and more than 2 in 100 are too many"
    needed = next(n for n in count(predicted) if wilson(n - wrong, n).low >= MIN_AGREEMENT)
    errors = f"with {wrong:,} of them wrong" if wrong else "all of them right"
    return f"{predicted:,} predictions are too few: to be sure of 98 in 100, it takes {needed:,}, {errors}"


def account(agreements: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which precedents are recalled and which are not, with the reason, of agreements as plain values."""

    def name(one: Mapping[str, Any]) -> str:
        return f"{SITUATIONS[one['situation']]} (steps that {CLASSES[one['outcome_class']]})"

    lines = [f"recalled: precedents with {name(one)}" for one in agreements if one["used"]]
    if not any(one["predicted"] for one in agreements):
        return [
            *lines,
            "not recalled: no recorded step has a precedent in another episode, so that nothing says whether precedents are right",
        ]
    unused = [one for one in agreements if not one["used"] and (one["predicted"] or one["situation"] == "task")]
    return lines + [f"not recalled: {name(one)}; {why_unused(one['right'], one['predicted'])}" for one in unused]


class ExactRecall(RealRows):
    """The precedents in the real rows of a replay buffer."""

    def recall(self, query: Query) -> Memory | None:
        """A real row with the query's outcome; None where no precedent is known, they disagree, or their agreement is not established."""
        self._follow()
        for i, key in enumerate(_keys(query)):
            outcomes = self._outcomes[i].get(key, {})
            if (
                len(outcomes) == 1
                and (i, query.action) not in self._unreliable
                and (i, outcome_class(*next(iter(outcomes)))) in self._reliable
            ):
                return self._rows[i, key]
        return None

    def agreements(self) -> list[Agreement]:
        """List how well precedents agree, for every situation and class of outcome: the determinism that recall rests on."""
        self._follow()
        return self._agreements

    def _clear(self) -> None:
        n = len(KEYED)
        self._outcomes: list[dict[Key, dict[Outcome, set[Origin]]]] = [defaultdict(lambda: defaultdict(set)) for _ in range(n)]
        self._rows: dict[tuple[int, Key], Memory] = {}
        self._agreements: list[Agreement] = []
        self._reliable: set[tuple[int, OutcomeClass]] = set()
        self._unreliable: set[tuple[int, str]] = set()

    def _add(self, episodes: Iterator[Iterable[Memory]]) -> None:
        added = False
        for rows in episodes:
            previous = ("", "")
            for memory in rows:
                added = True
                outcome = (memory.next_state, memory.reward, memory.terminated)
                for i, key in enumerate(_situations(memory.env, memory.instruction, previous, memory.state, memory.action)):
                    group = memory.trajectory if KEYED[i] == "instruction" else memory.instruction
                    self._outcomes[i][key][outcome].add((group, memory.trajectory))
                    self._rows.setdefault((i, key), memory)
                previous = (memory.state, memory.action)
        if added:
            self._estimate()

    def _estimate(self) -> None:
        """Predict every real row from other groups' rows with the same key, and choose what is reliable."""
        self._agreements, self._reliable, self._unreliable = [], set(), set()
        for i, situation in enumerate(KEYED):
            by_class: dict[OutcomeClass, list[bool]] = {class_name: [] for class_name in get_args(OutcomeClass)}
            by_action: dict[str, list[bool]] = defaultdict(list)
            for key, outcomes in self._outcomes[i].items():
                for outcome, right in leave_one_out(outcomes):
                    by_class[outcome_class(*outcome)].append(right)
                    by_action[key[-1]].append(right)
            for class_name, hits in by_class.items():
                agreement = measure_agreement(situation, class_name, hits)
                if not agreement.used and len(hits) < MIN_SAMPLES and (0, class_name) in self._reliable:
                    agreement = replace(agreement, used=True)
                self._agreements.append(agreement)
                if agreement.used:
                    self._reliable.add((i, class_name))
            for action in {*by_action, *(action for j, action in self._unreliable if j == 0)}:
                hits = by_action[action]
                if (0, action) in self._unreliable if len(hits) < MIN_SAMPLES else measure_agreement(situation, "continues", hits).doubtful:
                    self._unreliable.add((i, action))


def measure_agreement(situation: Situation, outcome_class: OutcomeClass, hits: Sequence[bool]) -> Agreement:
    """Measure how often rows that were predicted from other trajectories were right; `hits` says it of each."""
    return Agreement(situation, outcome_class, sum(hits), len(hits), wilson(sum(hits), len(hits)).low >= MIN_AGREEMENT)


def leave_one_out(outcomes: dict[Outcome, set[Origin]]) -> Iterator[tuple[Outcome, bool]]:
    """The outcome that all trajectories of other groups agree on, and whether it is the trajectory's own, for each trajectory with the key;
    nothing where they disagree."""
    groups = {outcome: {group for group, _ in origins} for outcome, origins in outcomes.items()}
    for origin in set().union(*outcomes.values()):
        others = list(islice((outcome for outcome, members in groups.items() if len(members) > (origin[0] in members)), 2))
        if len(others) == 1:
            own_outcomes = {outcome for outcome, origins in outcomes.items() if origin in origins}
            yield others[0], own_outcomes == {others[0]}


def outcome_class(next_state: str, reward: float, terminated: bool) -> OutcomeClass:
    """Whether an outcome goes on without a reward, or pays or ends."""
    return "pays_or_ends" if reward or terminated else "continues"


def _keys(query: Query) -> Iterable[Key]:
    last = query.history[-1] if query.history else None
    previous = (last.state.text, last.action) if last else ("", "")
    return _situations(query.task.env, query.task.instruction, previous, query.state.text, query.action)


def _situations(env: str, instruction: str, previous: tuple[str, str], state: str, action: str) -> tuple[Key, ...]:
    """The key of a step for every situation of `KEYED`."""
    return (env, state, action), (env, *previous, state, action), (env, instruction, state, action)
