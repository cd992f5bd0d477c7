"""The agent of instruct models: a conversation in the model's own chat template, whose replies are read for an action.

    system: who you are, how actions are written        user: the task and the first state
    assistant: (thinking) Action: search[red mug]       user: the next state          assistant: ...

Replies stay as they were sampled, thinking included: the prompt of each turn extends the one before it, so that a whole episode is one
training row and its key-value cache stays valid. With a window the conversation begins anew at each turn that has more than so many
before it; such turns are rows of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dreamgym.chat import ChatFormat
from dreamgym.errors import ConfigError, UsageError
from dreamgym.layout import rows_in
from dreamgym.llm.overflow import generate
from dreamgym.protocols import LLM, Domain
from dreamgym.types import Action, Completion, Observation, Request, Sampling, Task, Trajectory

_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_NAMED = re.compile(r"(?<![\w-])action:", re.IGNORECASE)


@dataclass
class ChatConversation:
    """One episode so far: the task, every (state shown, reply sampled), and the tokens of prompt and replies at present."""

    session: str
    instruction: str
    turns: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


class ChatAgent:
    """A policy over an instruct model that acts in many episodes at once. Implements `protocols.Policy`."""

    def __init__(
        self,
        llm: LLM,
        form: ChatFormat,
        domain: Domain,
        *,
        instructions: str,
        max_reply_tokens: int = 256,
        window: int | None = None,
    ) -> None:
        """`instructions` say how actions are written; the system message names the domain before them. `window` is how many past turns a
        prompt shows at most; None shows all.
        """
        if window is not None and window < 0:
            raise ConfigError(f"window={window} must be 0 (only the present state) or more, or None for all turns.")
        self.llm, self.form, self.domain = llm, form, domain
        self.system = system_message(domain, instructions)
        self.max_reply_tokens, self.window = max_reply_tokens, window

    def begin(self, tasks: Sequence[Task], *, name: str) -> list[ChatConversation]:
        """One conversation per task; `name` keeps the sessions of different rollouts apart."""
        return [ChatConversation(f"{name}/{i}", task.instruction) for i, task in enumerate(tasks)]

    def act(
        self,
        conversations: Sequence[ChatConversation],
        observations: Sequence[Observation],
        *,
        temperature: float,
        seeds: Sequence[Sequence[int]],
    ) -> list[Completion]:
        """One action per conversation, which grows by the state and by the reply. A completion's text is the action, its ids the reply."""
        views = [self.domain.view(observation) for observation in observations]
        for talk, view in zip(conversations, views, strict=True):
            talk.ids = self._prompt(talk, view.text)
        sampling = Sampling(self.max_reply_tokens, stop=self.form.stop, temperature=temperature)
        completions = generate(
            self.llm, [Request(talk.ids, sampling, tuple(seed), talk.session) for talk, seed in zip(conversations, seeds, strict=True)]
        )
        for talk, view, completion in zip(conversations, views, completions, strict=True):
            talk.turns.append((view.text, completion.ids))
            talk.ids = [*talk.ids, *completion.ids]
        return [
            replace(completion, text=view.resolve(action_of(completion.text))) for completion, view in zip(completions, views, strict=True)
        ]

    def closing(self, trajectory: Trajectory) -> list[int]:
        """The prompt that would have followed the last turn: where a critic values an episode that the horizon cut."""
        talk = ChatConversation(trajectory.id, trajectory.task.instruction)
        for turn in trajectory.turns:
            if turn.completion is None:
                raise UsageError(
                    f"A turn of '{trajectory.id}' has no tokens, so nothing can follow them. Give an episode that was sampled."
                )
            talk.turns.append((self.domain.view(turn.transition.state).text, turn.completion.ids))
            talk.ids = [*turn.completion.prompt_ids, *turn.completion.ids]
        return self._prompt(talk, self.domain.view(trajectory.turns[-1].transition.next_state).text)

    def end(self, conversations: Sequence[ChatConversation]) -> None:
        """Free what the engine keeps for these conversations."""
        self.llm.release([talk.session for talk in conversations])

    def _prompt(self, talk: ChatConversation, state: str) -> list[int]:
        """The conversation with `state` as its last message: the one before it, extended, until the window slides."""
        if talk.turns and (self.window is None or len(talk.turns) <= self.window):
            return [*talk.ids, *self.form.follow(talk.turns[-1][1], state)]
        shown = talk.turns[len(talk.turns) - self.window :] if self.window else []
        states = [*(before for before, _ in shown), state]
        ids = self.form.opening(self.system, first_message(talk.instruction, states[0]))
        for (_, reply), following in zip(shown, states[1:], strict=True):
            ids += [*reply, *self.form.follow(reply, following)]
        return ids


def system_message(domain: Domain, instructions: str) -> str:
    """Who the agent is and how it acts."""
    return f"You are an agent in the environment '{domain.name}'.\n{instructions}"


def first_message(instruction: str, state: str) -> str:
    """The user's first message: what to do, and where things stand."""
    return f"Task: {instruction}\n\n{state}"


def action_of(reply: str) -> Action:
    """The action in a reply: inside the last <action>...</action>, else the line behind the last "Action:", else the reply itself.

    Thinking is no place for actions: what stands before the last </think> does not count, nor what follows a <think> that was cut short.
    """
    said = reply.rpartition("</think>")[2].partition("<think>")[0]
    tagged = _TAGGED.findall(said)
    if tagged:
        return str(tagged[-1]).strip()
    named = _NAMED.split(said)
    if len(named) > 1:
        return named[-1].strip().partition("\n")[0].strip()
    return said.strip()


def chat_demonstrations(
    trajectory: Trajectory, form: ChatFormat, domain: Domain, *, instructions: str, window: int | None = None
) -> list[tuple[list[int], list[float]]]:
    """A logged episode as conversations: rows of token ids, and weights that are 1.0 on "Action: ..." and its end token, else 0.0.

    Without a window it is one row; see `layout.rows_in`.
    """
    rows = []
    for first, fresh, end in rows_in(len(trajectory.transitions), window):
        ids, weights = list[int](), list[float]()
        for i, transition in enumerate(trajectory.transitions[first:end], first):
            view = domain.view(transition.state)
            if ids:
                given = form.turn(view.text)
            else:
                given = form.opening(system_message(domain, instructions), first_message(trajectory.task.instruction, view.text))
            said = [*form.encode(f"Action: {view.refer(transition.action)}"), form.end]
            ids += given + said
            weights += [0.0] * len(given) + [float(i >= fresh)] * len(said)
        rows.append((ids, weights))
    return rows
