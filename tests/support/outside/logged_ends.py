"""A verifier without a language model: an end of an episode is believed where a logged success ended in the same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dreamgym import config
from dreamgym.experience.verifiers import VerifierInputs
from dreamgym.types import Transition, Verdict


class Config(config.Config):
    at_least: int = 1


def make(inputs: VerifierInputs, **settings: Any) -> LoggedEnds:
    return LoggedEnds(inputs, config.build(Config, settings))


class LoggedEnds:
    def __init__(self, inputs: VerifierInputs, settings: Config) -> None:
        self.ends = [log.transitions[-1].next_state.text for log in inputs.logs if log.success]
        self.at_least = settings.at_least

    def verify(self, cases: Sequence[tuple[str, Sequence[Transition], Transition]]) -> list[Verdict | None]:
        counts = [self.ends.count(claim.next_state.text) for _, _, claim in cases]
        return [Verdict("passed" if n >= self.at_least else "refused", (f"{n} logged successes end so",)) for n in counts]
