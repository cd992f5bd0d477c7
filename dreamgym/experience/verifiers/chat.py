"""A second opinion by an instruct model: does what the experience model claims follow from what is shown?

It sees the instruction, the history and the claim, and not the reasoning of the model that made it. Several samples vote; a tie accepts the
claim. Use another model than the one that dreams: a model agrees with itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from pydantic import Field

from dreamgym import config
from dreamgym.engines import build_engine
from dreamgym.experience import chat_prompts as prompts
from dreamgym.experience.chat_requests import AskConfig, ChatEngine, Reply, ask, require_budget
from dreamgym.experience.json_replies import flag_in, messages, read_object, text_in
from dreamgym.experience.verifiers import VerifierInputs
from dreamgym.protocols import Chat
from dreamgym.types import Transition, Verdict
from dreamgym.usage import Usage


class VotesConfig(config.Config):
    """How the second opinion is asked for."""

    samples: int = Field(default=1, ge=1)
    """Votes on each claim; more than one want a temperature above 0."""
    history: int = Field(default=16, ge=0)
    """Steps of history that are shown."""
    ask: AskConfig = AskConfig(max_tokens=1024)


class ChatVerifierConfig(VotesConfig):
    """Settings of the plug-in."""

    engine: ChatEngine
    """The engine that answers chats: `{base_url = "http://localhost:8000/v1", model = "verifier"}`, or another by `name`."""


Config = ChatVerifierConfig


def make(inputs: VerifierInputs, **settings: Any) -> ChatVerifier:
    """A verifier over an engine that answers chats."""
    verifier_config = config.build(ChatVerifierConfig, settings, prefix="experience.verifier.")
    return ChatVerifier(build_engine(verifier_config.engine), verifier_config, seed=inputs.seed)


class ChatVerifier:
    """Asks an instruct model. Implements `protocols.Verifier`; `counts` says how its replies could be read."""

    def __init__(self, chat: Chat, config: VotesConfig | None = None, *, seed: int = 0) -> None:
        self.chat, self.config, self.seed = chat, config or VotesConfig(), seed
        self.counts: Counter[str] = Counter()

    @property
    def usage(self) -> Usage:
        return self.chat.usage

    def verify(self, cases: Sequence[tuple[str, Sequence[Transition], Transition]]) -> list[Verdict | None]:
        """A verdict per (instruction, history, claim) by the majority of the samples that could be read; None where none could. UsageError
        when the budget is spent: a claim that nobody looked at would count."""
        n, size = self.config.samples, self.config.history
        talks = [messages(prompts.verify(), prompts.claim(task, past[max(0, len(past) - size) :], claim)) for task, past, claim in cases]
        votes = ask(
            self.chat,
            [talk for talk in talks for _ in range(n)],
            lambda _, text: _read(text),
            self.config.ask,
            prompts.VERIFY_PROPERTIES,
            name="verdict",
            seeds=[(self.seed, crc32(str(talk).encode("utf-8", "replace")), i) for talk in talks for i in range(n)],
        )
        self.counts.update(vote.kind for vote in votes)
        require_budget(votes, "verifier")
        return [_majority(votes[i : i + n]) for i in range(0, len(votes), n)]


def _read(reply: str) -> Verdict:
    fields = read_object(reply, list(prompts.VERIFY_PROPERTIES))
    return Verdict("passed" if flag_in(fields, "believable") else "refused", (text_in(fields, "reasoning"),))


def _majority(votes: Sequence[Reply[Verdict]]) -> Verdict | None:
    """The verdict of most, with the reasons of those who share it."""
    read = [vote.value for vote in votes if vote.value is not None]
    if not read:
        return None
    passed = 2 * sum(verdict.passed for verdict in read) >= len(read)
    reasons = tuple(reason for verdict in read if verdict.passed == passed for reason in verdict.reasons)
    return Verdict("passed" if passed else "refused", reasons)
