"""The baseline of a learned verifier: the hand-written check of success of the suite's rules, in a run that has no rules otherwise.

With `rules = "none"` the experience model, the guard and the logs know nothing of the environment's texts. This verifier alone asks the
suite's `TextRules.check_success`, so that two runs differ in who judges and in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.envs.base import TextRules
from dreamgym.envs.wrappers.without_rules import StateMapping
from dreamgym.experience.verifiers import VerifierInputs
from dreamgym.types import Transition, Verdict

ON_DISAGREEMENT = "zero"  # as the guard does with the same check


def make(inputs: VerifierInputs) -> TextCheck:
    """The check of the suite's own rules, also where `rules = "none"` or `"induced"` took them away."""
    rules = inputs.rules
    while isinstance(rules, StateMapping):
        rules = rules.inner
    return TextCheck(rules)


class TextCheck:
    """Passes what `check_success` confirms, and all claims where the rules judge no success."""

    def __init__(self, rules: TextRules) -> None:
        self.rules = rules

    @property
    def judges(self) -> bool:
        """Whether somebody wrote a check for the suite."""
        return type(self.rules).check_success is not TextRules.check_success

    def verify(self, cases: Sequence[tuple[str, Sequence[Transition], Transition]]) -> list[Verdict | None]:
        """A verdict per (instruction, history, claim), in order; None where the rules have none. Only successes are doubted."""
        return [Verdict("passed") if claim.reward <= 0 else self._checked(task, past, claim) for task, past, claim in cases]

    def _checked(self, task: str, past: Sequence[Transition], claim: Transition) -> Verdict | None:
        verdict = self.rules.check_success(task, past, claim)
        return verdict if verdict is None or verdict.passed else Verdict("refused", verdict.reasons)
