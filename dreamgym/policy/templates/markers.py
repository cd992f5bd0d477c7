"""The layout of small models, trained from scratch with markers as special tokens:

    <|task|> instruction <|state|> s0 <|act|> a0 <|end|> <|state|> s1 <|act|> a1 <|end|> ...

The policy samples everything between `<|act|>` and `<|end|>`: the action and its end.
"""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.llm.vocabulary import ACT, END, STATE, TASK, Vocabulary
from dreamgym.types import Action


class Markers:
    """Implements `Template` over a vocabulary of markers."""

    max_reply_tokens = 24

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        self.stop: tuple[int, ...] = (vocab[END],)

    def opening(self, instruction: str, state: str) -> list[int]:
        return [self.vocab[TASK], *self.vocab.encode(instruction), *self._state(state)]

    def follow(self, reply: Sequence[int], state: str) -> list[int]:
        return self._state(state)

    def reply(self, action: Action) -> list[int]:
        return [*self.vocab.encode(action), self.vocab[END]]

    def action_of(self, text: str, ids: Sequence[int] = ()) -> Action:
        return text

    def _state(self, text: str) -> list[int]:
        return [self.vocab[STATE], *self.vocab.encode(text), self.vocab[ACT]]
