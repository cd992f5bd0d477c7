"""The guard: what may be believed of a dream.

Two rules stand between the experience model and the policy, both the Domain's, neither of which knows the answer:

* **admissibility** (before): an action that names nothing in the state is answered by the failure-state rule of the paper's
  section 4.1, nothing happens and the reward is zero, and never by imagination;
* **grounded success** (after): a positive reward, at the end or before it, stands only when the state and history show what the
  instruction asks for.

The guard only ever lowers a reward. Its verdicts travel with the transition, and the replay buffer admits only what passed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dreamgym.config import Config
from dreamgym.protocols import Domain
from dreamgym.types import Prediction, Query, Transition, Verdict

FAILURE_STATE = "no such element, so nothing changes."
DISPUTED = "the model says failure, and the state shows every requirement met"


class GuardConfig(Config):
    """Which rules are on. Off is the control of the ablations, not a way to train."""

    admissibility: bool = True
    grounding: bool = True
    mask_disputed: bool = True
    """Leave out an episode that the model calls a failure while the state shows every requirement met: neither verdict is trusted."""


class Guard:
    """Applies the rules of a Domain and counts what it did."""

    def __init__(self, domain: Domain, config: GuardConfig | None = None) -> None:
        self.domain, self.config = domain, config or GuardConfig()
        self.counts: Counter[str] = Counter()

    def before(self, query: Query) -> Prediction | None:
        """The failure-state answer to an inadmissible action, or None when the model should be asked."""
        if not self.config.admissibility or self.domain.admissible(query.state, query.history, query.action) is not False:
            return None
        self.counts["inadmissible"] += 1
        return Prediction(FAILURE_STATE, query.state, 0.0, False, Verdict(True, ("failure state by rule",)), by_rule=True)

    def after(self, query: Query, prediction: Prediction) -> Prediction:
        """The prediction with its verdict; an ungrounded success is worth nothing."""
        self.counts["asked"] += 1
        if not self.config.grounding:
            return prediction
        claim = Transition(query.state, query.action, prediction.next_state, prediction.reward, prediction.terminated, prediction.reasoning)
        if prediction.reward <= 0:
            return self._dispute(query, claim, prediction) if prediction.terminated and self.config.mask_disputed else prediction
        verdict = self.domain.check(query.task.instruction, query.history, claim)
        self.counts["success_granted" if verdict.passed else "success_refused"] += 1
        return Prediction(
            reasoning=prediction.reasoning,
            next_state=prediction.next_state,
            reward=prediction.reward if verdict.passed else 0.0,
            terminated=prediction.terminated,
            verdict=verdict,
            neighbours=prediction.neighbours,
            raw_reward=prediction.raw_reward,
            raw=prediction.raw,
        )

    def _dispute(self, query: Query, claim: Transition, prediction: Prediction) -> Prediction:
        """A failure whose state shows a success is disputed: still a failure, with a verdict that keeps it out of training and memory."""
        if not self.domain.check(query.task.instruction, query.history, replace(claim, reward=1.0)).passed:
            return prediction
        self.counts["failure_disputed"] += 1
        return replace(prediction, verdict=Verdict(False, (DISPUTED,)))
