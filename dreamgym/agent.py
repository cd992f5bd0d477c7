"""The agent: turns a task and observations into the policy's prompt, and the policy's tokens into actions.

The conversation is append-only, so that the key-value cache of an episode stays valid from turn to turn and a whole episode is
one training row:

    <|task|> instruction <|state|> s0 <|act|> a0 <|end|> <|state|> s1 <|act|> a1 <|end|> ...

With a window a prompt shows the task and at most so many turns before the present state; once turns fall out, each is a row of its own.
States are shown as the Domain's `view` of them, and a completion's text is the action in the environment's own words.
The policy samples everything between `<|act|>` and `<|end|>`, both the action and its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from dreamgym.errors import ConfigError, UsageError
from dreamgym.layout import ACT, END, STATE, TASK, Vocabulary, rows_in
from dreamgym.llm.overflow import generate
from dreamgym.protocols import LLM, Domain
from dreamgym.types import Completion, Observation, Request, Sampling, Task, Trajectory, View


@dataclass
class Conversation:
    """The tokens of one episode so far, exactly as the policy saw and sampled them: its task, and each turn's state and action."""

    session: str
    task: list[int]
    turns: list[list[int]] = field(default_factory=list)

    def ids(self, window: int | None = None) -> list[int]:
        """The task and the last turn, with at most `window` turns before it."""
        shown = self.turns if window is None else self.turns[max(0, len(self.turns) - 1 - window) :]
        return [*self.task, *chain.from_iterable(shown)]


class Agent:
    """A policy that acts in many episodes at once."""

    def __init__(self, llm: LLM, vocabulary: Vocabulary, domain: Domain, *, max_action_tokens: int = 24, window: int | None = None) -> None:
        """`window`: how many turns a prompt shows before the present state; 0 is for states that say all that matters, None shows all."""
        if window is not None and window < 0:
            raise ConfigError(f"window={window} must be 0 (only the present state) or more, or None for all turns.")
        self.llm, self.vocabulary, self.domain = llm, vocabulary, domain
        self.max_action_tokens, self.window = max_action_tokens, window

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
            conversation.turns.append(_shown(words, view))
        sampling = Sampling(self.max_action_tokens, stop=(words[END],), temperature=temperature)
        completions = generate(
            self.llm,
            [Request(talk.ids(self.window), sampling, tuple(seed), talk.session) for talk, seed in zip(conversations, seeds, strict=True)],
        )
        for conversation, completion in zip(conversations, completions, strict=True):
            conversation.turns[-1] += completion.ids
        return [replace(completion, text=view.resolve(completion.text)) for completion, view in zip(completions, views, strict=True)]

    def closing(self, trajectory: Trajectory) -> list[int]:
        """The prompt that would have followed the last turn: where a critic values an episode that the horizon cut."""
        words = self.vocabulary
        talk = self.begin([trajectory.task], name=trajectory.id)[0]
        for turn in trajectory.turns:
            if turn.completion is None:
                raise UsageError(
                    f"A turn of '{trajectory.id}' has no tokens, so nothing can follow them. Give an episode that was sampled."
                )
            talk.turns.append([*_shown(words, self.domain.view(turn.transition.state)), *turn.completion.ids])
        talk.turns.append(_shown(words, self.domain.view(trajectory.turns[-1].transition.next_state)))
        return talk.ids(self.window)

    def end(self, conversations: Sequence[Conversation]) -> None:
        """Free what the engine keeps for these conversations."""
        self.llm.release([conversation.session for conversation in conversations])


def demonstrations(
    trajectory: Trajectory, vocabulary: Vocabulary, domain: Domain, *, window: int | None = None
) -> list[tuple[list[int], list[float]]]:
    """A logged episode in the agent's layout, as rows of token ids and weights that are 1.0 on actions and their ends, else 0.0.

    Without a window it is one row. With one, a turn before which others have fallen out is a row of its own, as it is asked.
    """
    words, rows = vocabulary, []
    views = [(domain.view(transition.state), transition.action) for transition in trajectory.transitions]
    task = [words[TASK], *words.encode(trajectory.task.instruction)]
    turns = [(_shown(words, view), [*words.encode(view.refer(action)), words[END]]) for view, action in views]
    for first, fresh, end in rows_in(len(turns), window):
        ids, weights = list(task), [0.0] * len(task)
        for i, (given, said) in enumerate(turns[first:end], first):
            ids += given + said
            weights += [0.0] * len(given) + [float(i >= fresh)] * len(said)
        rows.append((ids, weights))
    return rows


def _shown(words: Vocabulary, view: View) -> list[int]:
    return [words[STATE], *words.encode(view.text), words[ACT]]
