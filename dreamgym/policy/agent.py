"""The agent: turns a task and observations into the policy's prompt, and the policy's tokens into actions.

A conversation only grows, so that the key-value cache of an episode stays valid from turn to turn and a whole episode is one training
row. With a window, a prompt shows the task and at most `window` turns before the present state; once turns are left out, each turn is a
row of its own. States are shown as the `view` of the TextRules, and a completion's text is the action in the environment's own words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dreamgym.envs.base import TextRules
from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm.vocabulary import rows_in
from dreamgym.policy.templates import Template
from dreamgym.protocols import LLM
from dreamgym.types import Completion, Observation, Request, Sampling, Task, Trajectory, Transition, View


@dataclass
class Conversation:
    """One episode so far: the task, every (state shown, reply sampled), and the ids of the last prompt and its reply."""

    session: str
    instruction: str
    turns: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


class _PendingAction(NamedTuple):
    """An action that the engine is asked for: the policy's ticket, the conversation, and the state as it is shown there."""

    ticket: int
    conversation: Conversation
    view: View


class Agent:
    """A policy that acts in many episodes at once. Implements `protocols.Policy`."""

    def __init__(
        self, llm: LLM, template: Template, rules: TextRules, *, max_reply_tokens: int | None = None, window: int | None = None
    ) -> None:
        """`window`: how many turns a prompt shows before the present state; 0 shows the present state alone, None shows all turns."""
        if window is not None and window < 0:
            raise ConfigError(f"window={window} must be 0 (only the present state) or more, or None for all turns.")
        self.llm, self.template, self.rules, self.window = llm, template, rules, window
        self.max_reply_tokens = max_reply_tokens or template.max_reply_tokens
        self._tickets = itertools.count()
        self._pending: dict[int, _PendingAction] = {}  # by the engine's ticket
        self._overflowed: list[tuple[int, Completion]] = []  # answers to prompts that do not fit

    @property
    def concurrent(self) -> bool:
        return self.llm.concurrent

    def begin(self, tasks: Sequence[Task], *, name: str) -> list[Conversation]:
        """One conversation per task; `name` keeps the sessions of different rollouts apart."""
        return [Conversation(f"{name}/{i}", task.instruction) for i, task in enumerate(tasks)]

    def resume(self, task: Task, steps: Sequence[Transition], *, name: str) -> Conversation:
        """The conversation of an episode that others have played so far, as if this policy had taken their actions."""
        (conversation,) = self.begin([task], name=name)
        for step in steps:
            self.append(conversation, step)
        return conversation

    def append(self, conversation: Conversation, step: Transition) -> None:
        """Let the conversation go on by a step that others have played, as if this policy had taken its action."""
        view = self.rules.view(step.state)
        reply = tuple(self.template.reply(view.refer(step.action)))
        conversation.ids = [*self._prompt(conversation, view.text), *reply]
        conversation.turns.append((view.text, reply))

    def submit(
        self,
        conversations: Sequence[Conversation],
        observations: Sequence[Observation],
        *,
        temperature: float,
        seeds: Sequence[Sequence[int]],
    ) -> list[int]:
        """Ask for one action per conversation, which grows by the state and, with the answer, by the reply.

        A prompt that does not fit the context is answered by an empty completion that ends by "overflow": a conversation that is too long
        fails alone. An engine without a known `max_context` refuses such a prompt itself.
        """
        views = [self.rules.view(observation) for observation in observations]
        for conversation, view in zip(conversations, views, strict=True):
            conversation.ids = self._prompt(conversation, view.text)
        sampling = Sampling(self.max_reply_tokens, stop=self.template.stop, temperature=temperature)
        requests = [
            Request(conversation.ids, sampling, tuple(seed), conversation.session)
            for conversation, seed in zip(conversations, seeds, strict=True)
        ]
        tickets = [next(self._tickets) for _ in requests]
        fits = [self._fits(request.prompt) for request in requests]
        for ticket, request, fit in zip(tickets, requests, fits, strict=True):
            if not fit:
                self._overflowed.append((ticket, Completion(tuple(request.prompt), (), (), "", "overflow", self.llm.version)))
        fitting = [i for i, fit in enumerate(fits) if fit]
        for i, llm_ticket in zip(fitting, self.llm.submit([requests[i] for i in fitting]) if fitting else (), strict=True):
            self._pending[llm_ticket] = _PendingAction(tickets[i], conversations[i], views[i])
        return tickets

    def poll(self) -> list[tuple[int, Completion]]:
        """The actions that have come, each with its ticket. A completion's text is the action, its ids the reply."""
        if self._overflowed or not self._pending:
            overflowed, self._overflowed = self._overflowed, []
            return overflowed
        actions = []
        for llm_ticket, completion in self.llm.poll(self._pending):
            ticket, conversation, view = self._pending.pop(llm_ticket)
            conversation.turns.append((view.text, completion.ids))
            conversation.ids = [*conversation.ids, *completion.ids]
            actions.append((ticket, replace(completion, text=view.resolve(self.template.action_of(completion.text, completion.ids)))))
        return actions

    def next_prompt(self, trajectory: Trajectory) -> list[int] | None:
        """The prompt after the last turn: where a critic values an episode that the horizon cut. None where it does not fit the context:
        there the policy came to no end, and nothing would have followed."""
        conversation = Conversation(trajectory.id, trajectory.task.instruction)
        for turn in trajectory.turns:
            if turn.completion is None:
                raise UsageError(
                    f"A turn of '{trajectory.id}' has no tokens, so no prompt can follow it. Give an episode that was sampled."
                )
            conversation.turns.append((self.rules.view(turn.transition.state).text, turn.completion.ids))
            conversation.ids = [*turn.completion.prompt_ids, *turn.completion.ids]
        ids = self._prompt(conversation, self.rules.view(trajectory.turns[-1].transition.next_state).text)
        return ids if self._fits(ids) else None

    def _fits(self, prompt: Sequence[int]) -> bool:
        """Whether the context holds a prompt and the longest reply to it."""
        return len(prompt) + self.max_reply_tokens <= (getattr(self.llm, "max_context", None) or math.inf)

    def end(self, conversations: Sequence[Conversation]) -> None:
        """Drop what is still asked for in these conversations, and free what the engine keeps for them."""
        ended = set(map(id, conversations))
        dropped = [llm_ticket for llm_ticket, pending in self._pending.items() if id(pending.conversation) in ended]
        for llm_ticket in dropped:
            del self._pending[llm_ticket]
        self.llm.cancel(dropped)
        self.llm.release([conversation.session for conversation in conversations])

    def _prompt(self, conversation: Conversation, state: str) -> list[int]:
        return next_prompt(conversation, state, self.template, window=self.window)


def next_prompt(conversation: Conversation, state: str, template: Template, *, window: int | None = None) -> list[int]:
    """The conversation with `state` as its last message: the one before it, extended, until the window slides."""
    if conversation.turns and (window is None or len(conversation.turns) <= window):
        return [*conversation.ids, *template.follow(conversation.turns[-1][1], state)]
    window_turns = conversation.turns[len(conversation.turns) - window :] if window else []
    states = [*(before for before, _ in window_turns), state]
    ids = template.opening(conversation.instruction, states[0])
    for (_, reply), following in zip(window_turns, states[1:], strict=True):
        ids += [*reply, *template.follow(reply, following)]
    return ids


def demonstrations(
    trajectory: Trajectory, template: Template, rules: TextRules, *, window: int | None = None
) -> list[tuple[list[int], list[float]]]:
    """A logged episode in the agent's layout, as rows of token ids and weights: 1.0 on actions and their ends, else 0.0.

    Without a window it is one row. With one, each turn before which others are left out is a row of its own.
    """
    views = [(rules.view(transition.state), transition.action) for transition in trajectory.transitions]
    turns = [(view.text, template.reply(view.refer(action))) for view, action in views]
    rows = []
    for first, fresh, end in rows_in(len(turns), window):
        ids, weights = list[int](), list[float]()
        for i, (state, reply) in enumerate(turns[first:end], first):
            given = template.follow(turns[i - 1][1], state) if ids else template.opening(trajectory.task.instruction, state)
            ids += given + reply
            weights += [0.0] * len(given) + [float(i >= fresh)] * len(reply)
        rows.append((ids, weights))
    return rows
