"""A verifier that accepts everything and counts what it was asked, as one behind a server does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dreamgym.experience.verifiers import VerifierInputs
from dreamgym.types import Transition, Verdict
from dreamgym.usage import Usage


class PaidVerifier:
    def __init__(self) -> None:
        self.usage = Usage(price_per_million_input=1.0, price_per_million_output=1.0)

    def verify(self, cases: Sequence[tuple[str, Sequence[Transition], Transition]]) -> list[Verdict | None]:
        self.usage.requests += len(cases)
        self.usage.prompt_tokens += 100 * len(cases)
        return [Verdict("passed") for _ in cases]


def make(inputs: VerifierInputs, **settings: Any) -> PaidVerifier:
    return PaidVerifier()
