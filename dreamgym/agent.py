"""The agent: turns a task and observations into the policy's prompt, and the policy's tokens into actions.

The conversation is append-only, so that the key-value cache of an episode stays valid from turn to turn and a whole episode is
one training row:

    <|task|> instruction <|state|> s0 <|act|> a0 <|end|> <|state|> s1 <|act|> a1 <|end|> ...

States are shown as the Domain's `view` of them, and a completion's text is the action in the environment's own words.
The policy samples everything between `<|act|>` and `<|end|>`, both the action and its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dreamgym.errors import UsageError
from dreamgym.layout import ACT, END, STATE, TASK, Vocabulary
from dreamgym.llm.overflow import generate
from dreamgym.protocols import LLM, Domain
from dreamgym.types import Completion, Observation, Request, Sampling, Task, Trajectory


@dataclass
class Conversation:
    """The tokens of one episode so far, exactly as the policy saw and sampled them."""

    session: str
    ids: list[int] = field(default_factory=list)


class Agent:
    """A policy that acts in many episodes at once."""

    def __init__(self, llm: LLM, vocabulary: Vocabulary, domain: Domain, *, max_action_tokens: int = 24) -> None:
        self.llm, self.vocabulary, self.domain, self.max_action_tokens = llm, vocabulary, domain, max_action_tokens

    def begin(self, tasks: Sequence[Task], *, name: str) -> list[Conversation]:
        """One conversation per task; `name` keeps the sessions of different rollouts apart."""
        words = self.vocabulary
        return [Conversation(f"{name}/{i}", [words[TASK], *words.encode(task.instruction)]) for i, task in enumerate(tasks)]

    def act(
        self,
        conversations: Sequence[Conversation],
        observations: Sequence[Observation],
        *,
        temperature: float,
        seeds: Sequence[Sequence[int]],
    ) -> list[Completion]:
        """One action per conversation, which grows by the observation and by what was sampled."""
        words = self.vocabulary
        views = [self.domain.view(observation) for observation in observations]
        for conversation, view in zip(conversations, views, strict=True):
            conversation.ids += [words[STATE], *words.encode(view.text), words[ACT]]
        sampling = Sampling(self.max_action_tokens, stop=(words[END],), temperature=temperature)
        completions = generate(
            self.llm, [Request(talk.ids, sampling, tuple(seed), talk.session) for talk, seed in zip(conversations, seeds, strict=True)]
        )
        for conversation, completion in zip(conversations, completions, strict=True):
            conversation.ids += completion.ids
        return [replace(completion, text=view.resolve(completion.text)) for completion, view in zip(completions, views, strict=True)]

    def closing(self, trajectory: Trajectory) -> list[int]:
        """The prompt that would have followed the last turn: where a critic values an episode that the horizon cut."""
        words, last = self.vocabulary, trajectory.turns[-1]
        if last.completion is None:
            raise UsageError(
                f"The last turn of '{trajectory.id}' has no tokens, so nothing can follow them. Give an episode that was sampled."
            )
        view = self.domain.view(last.transition.next_state)
        return [*last.completion.prompt_ids, *last.completion.ids, words[STATE], *words.encode(view.text), words[ACT]]

    def end(self, conversations: Sequence[Conversation]) -> None:
        """Free what the engine keeps for these conversations."""
        self.llm.release([conversation.session for conversation in conversations])


def demonstration(trajectory: Trajectory, vocabulary: Vocabulary, domain: Domain) -> tuple[list[int], list[float]]:
    """A logged episode in the agent's layout: token ids, and weights that are 1.0 on actions and their ends, else 0.0."""
    words = vocabulary
    ids = [words[TASK], *words.encode(trajectory.task.instruction)]
    weights = [0.0] * len(ids)
    for transition in trajectory.transitions:
        view = domain.view(transition.state)
        given = [words[STATE], *words.encode(view.text), words[ACT]]
        said = [*words.encode(view.refer(transition.action)), words[END]]
        ids += given + said
        weights += [0.0] * len(given) + [1.0] * len(said)
    return ids, weights
