"""Templates: how a task, states and replies become token ids. `markers` is for small models, `chat` for instruct models, `tools` for
instruct models that call tools.

The prompt of a turn extends the one before it and the reply, exactly as sampled:

    opening(instruction, s0) + reply + follow(reply, s1) + reply + follow(reply, s2) + ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dreamgym.types import Action


class Template(Protocol):
    """The layout of a conversation between an environment and a policy."""

    stop: tuple[int, ...]
    """The token ids that end a reply."""
    max_reply_tokens: int
    """The default limit of a reply."""

    def opening(self, instruction: str, state: str) -> list[int]:
        """The prompt of the first turn."""
        ...

    def follow(self, reply: Sequence[int], state: str) -> list[int]:
        """The ids between a sampled reply and the next one. A reply that was cut short is ended where the layout needs it."""
        ...

    def reply(self, action: Action) -> list[int]:
        """A demonstrated action as a reply, with its end."""
        ...

    def action_of(self, text: str, ids: Sequence[int] = ()) -> Action:
        """The action in a sampled reply, given as its text and its ids; the text lacks control tokens."""
        ...
