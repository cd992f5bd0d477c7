"""The baseline that any experience model must beat: remember the logs word for word, and know nothing else."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from dreamgym.envs.base import TextRules
from dreamgym.types import Observation, Prediction, Query, StepInfo, Trajectory, Verdict

PASSED, NOT_SEEN = StepInfo(verdict=Verdict("passed")), StepInfo(verdict=Verdict("refused", ("not in the logs",)))
Outcome = tuple[str, float, bool]
"""(next state, reward, whether it ended)"""


class LookupBaseline:
    """Exact-match memory of logs: (task, state, action), else (state, action), to what followed most often.

    White space and case are forgiven, and actions are put in the domain's one spelling. What was never seen is an empty prediction.
    `counts` says how often which key was found.
    """

    def __init__(self, logs: Sequence[Trajectory], rules: TextRules) -> None:
        self.rules = rules
        self.counts: Counter[str] = Counter()
        self._seen: dict[tuple[str, ...], Counter[Outcome]] = defaultdict(Counter)
        for trajectory in logs:
            for t in trajectory.transitions:
                if t.terminated and not trajectory.scored:
                    continue  # nobody knows the reward
                outcome = (t.next_state.text, t.reward, t.terminated)
                for key in self._keys(trajectory.task.instruction, t.state.text, t.action):
                    self._seen[key][outcome] += 1

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """What followed in the logs, for each query in order."""
        return [self._predict(query) for query in queries]

    def _predict(self, query: Query) -> Prediction:
        for name, key in zip(("with_task", "any_task"), self._keys(query.task.instruction, query.state.text, query.action), strict=True):
            if key in self._seen:
                self.counts[name] += 1
                (state, reward, terminated), _ = max(self._seen[key].items(), key=lambda one: (one[1], one[0]))
                return Prediction(Observation(state), reward, terminated, PASSED)
        self.counts["not_seen"] += 1
        return Prediction(Observation(""), 0.0, False, NOT_SEEN)

    def _keys(self, instruction: str, state: str, action: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        here, done = _plain(state), _plain(self.rules.canonical(action))
        return (_plain(instruction), here, done), (here, done)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.lower()).strip()
