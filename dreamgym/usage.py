"""What a model behind a server was used for, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class Usage:
    """What the server was asked for and what it reported. Tokens and money are those of good answers; one that does not report its tokens
    counts as the most it may have used. `lost_tokens` are prompts that were sent and whose answer never came whole or was of no use, and
    `lost_completion_tokens` the most that those answers may have had: a host may bill them all the same.
    """

    requests: int = 0  # answered
    attempts: int = 0
    retries: int = 0
    failures: int = 0  # requests given up
    cancelled: int = 0  # while they were at work, not in the queue
    prompt_tokens: int = 0
    completion_tokens: int = 0
    lost_tokens: int = 0
    lost_completion_tokens: int = 0
    unreported: int = 0  # answers that did not report their tokens
    seconds: float = 0.0  # summed over attempts, which overlap
    price_per_million_input: float = 0.0
    price_per_million_output: float = 0.0

    @property
    def cost(self) -> float:
        """Of the good answers, in the currency of the prices."""
        return self._cost(self.prompt_tokens, self.completion_tokens)

    @property
    def lost_cost(self) -> float:
        """Of the lost answers, if the host bills them, at most."""
        return self._cost(self.lost_tokens, self.lost_completion_tokens)

    def state_dict(self) -> dict[str, float]:
        """The counts, for a checkpoint: what was spent before an interruption counts against a limit after it."""
        return {name: value for name, value in vars(self).items() if not name.startswith("price_")}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from counts that `state_dict` gave, at the prices of now."""
        for name, value in state.items():
            setattr(self, name, value)

    def _cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self.price_per_million_input + completion_tokens * self.price_per_million_output) / 1e6


@dataclass(frozen=True)
class Tokens:
    """What one answer used, or may have used."""

    prompt: int
    completion: int
