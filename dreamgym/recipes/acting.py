"""A trained policy in the agent that it is for: chat messages in, tool calls out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.envs.tools.conversation import START, Exchange, Limits, extend
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.wrappers.placeholders import PLACEHOLDER, Names, PlaceholderSuite
from dreamgym.envs.wrappers.without_rules import StateMapping
from dreamgym.errors import UsageError, counted
from dreamgym.logs.conversion import exchanges, task_and_turns
from dreamgym.logs.formats.openai import messages_of
from dreamgym.logs.records import Account, LoggedEpisode, Message
from dreamgym.logs.redaction import Redactor
from dreamgym.recipes.context import open_context
from dreamgym.recipes.settings import policy_of
from dreamgym.tool_calls import ToolCall, action_of, calls_of
from dreamgym.types import Observation, Task, Transition

LEFT_OUT = {
    "system texts (--system keeps them)",
    "thinking of the agent",
    "texts beside tool calls",
    "agent messages before the task",
    "images, audio and files",
}
"""What `dreamgym import` leaves out of conversations, so that the policy was trained without it."""


class TrainedPolicy:
    """The policy of a run over tools. It reads a conversation as `dreamgym import` reads logs, so that it sees what it was trained on.

    `policy` names one of the run, by default the one that came last. `system` and `redact` are to be as the logs were imported: whether the
    system text opens the instruction, and whether secrets are placeholders. Placeholders in the calls become the secrets again. Without
    `system` a system message may be given and is not read.
    """

    def __init__(self, run: Path | str, policy: str | None = None, *, system: bool = False, redact: bool = True) -> None:
        """RunDirError where there is no policy yet; UsageError for a run whose actions are no tool calls."""
        path = Path(run)
        name = policy_of(path, policy)
        context = open_context(path)
        rules = context.suite.rules.inner if isinstance(context.suite.rules, StateMapping) else context.suite.rules  # below induced ones
        if not isinstance(rules, ToolRules):
            raise UsageError(f"The actions of '{path}' ({context.suite.name}) are no tool calls. Give a run over recorded tool calls.")
        self.env, self.limits, self.system, self.redact = context.suite.name, rules.limits, system, redact
        self.agent = context.agent(context.load_policy(name))
        self.namer = context.suite.namer if isinstance(context.suite, PlaceholderSuite) else None
        self._numbers = itertools.count()

    def act(self, messages: Sequence[Mapping[str, Any]], *, temperature: float = 0.0, seed: int = 0) -> list[ToolCall]:
        """The next turn: tool calls, of which `respond(content=...)` is a message to the user.

        `messages` are OpenAI chat messages, from the first on: "user", "assistant" with `tool_calls`, "tool" with `tool_call_id`.
        Temperature 0 is greedy, as `eval` calls it. UsageError for messages without an instruction, what is no message of these roles,
        calls without a result and results without a call, a conversation that no longer fits, a reply that is no tool call, and one with a
        placeholder that stands for nothing.
        """
        for one in messages:
            if not isinstance(one, Mapping) or "role" not in one:
                raise UsageError(f"{one!r:.100} is no chat message. Expected an object with 'role' and 'content'.")
        account, redactor = Account(), Redactor()
        episode = LoggedEpisode("", tuple(messages_of([dict(one) for one in messages], account)))
        instruction, rest = task_and_turns(episode, account, system=self.system)
        if not instruction:
            raise UsageError("The messages hold no instruction. Begin with a message of the role 'user'.")
        turns = _turns(rest, account)
        if self.redact:
            instruction, turns = redactor.conversation(instruction, turns)
        else:
            redactor.begin(instruction, turns)
        steps, state = _played(turns, self.limits)
        if lost := [reason for reason in account.dropped if reason not in LEFT_OUT]:
            raise UsageError(
                f"The policy would not see all of the conversation: {', '.join(lost)}. Expected OpenAI chat messages: the roles system, "
                "user, assistant with `tool_calls`, and tool with the `tool_call_id` of its call."
            )
        names = Names()
        if self.namer:  # without it the policy learned identifiers as they are
            names = self.namer.names(instruction)
            instruction = names.hide(instruction)
            steps, state = [names.hide_step(step) for step in steps], Observation(names.hide(state.text))
        number = next(self._numbers)
        talk = self.agent.resume(Task("", instruction, self.env), steps, name=f"act/{number}")
        try:
            self.agent.submit([talk], [state], temperature=temperature, seeds=[(seed, 0, len(steps))])
            found = self.agent.poll()
            while not found:
                found = self.agent.poll()
        finally:
            self.agent.end([talk])
        ((_, completion),) = found
        if completion.finish_reason == "overflow":
            raise UsageError(f"The conversation of {counted(len(steps), 'turn')} no longer fits into the policy's context.")
        try:
            calls = calls_of(names.show(completion.text))
        except UsageError as error:
            raise UsageError(f"The policy's reply is no tool call: {error} Ask with temperature=1 and another seed.") from error
        if self.namer and (unknown := PLACEHOLDER.search(names.show(completion.text))):
            raise UsageError(
                f"The policy's call cannot be made: {unknown[0]} stands for nothing in the conversation. Do not make it. Ask with "
                "temperature=1 and another seed."
            )
        return [_restored(call, redactor) for call in calls]


def _restored(call: ToolCall, redactor: Redactor) -> ToolCall:
    """The call with secrets in place of placeholders. UsageError where one stands for nothing: no tool is to be sent it."""
    try:
        return ToolCall(call.name, redactor.restored(call.arguments))
    except UsageError as error:
        raise UsageError(
            f"The policy's call of {call.name} cannot be made: {error}. Do not make it. Ask with temperature=1 and another seed, and give "
            "`system` and `redact` as the logs were imported."
        ) from error


def _turns(messages: Sequence[Message], account: Account) -> list[Exchange]:
    """The turns of a conversation in which every call has its result."""
    answered = {result.call_id for message in messages for result in message.results}
    for call in (call for message in messages for call in message.calls):
        if call.id not in answered:
            raise UsageError(f"The call of {call.name} has no result. Give a message of the role 'tool' with its `tool_call_id`.")
    return exchanges(messages, account)


def _played(turns: Sequence[Exchange], limits: Limits) -> tuple[list[Transition], Observation]:
    """The steps of a conversation, and the state that it is in."""
    steps, state = list[Transition](), Observation(START)
    for turn in turns:
        after = extend(state, turn, limits)
        steps.append(Transition(state, action_of(turn.calls), after, 0.0, False))
        state = after
    return steps, state
