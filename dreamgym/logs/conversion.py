"""From the normal form to the project's episodes: calls and results are paired (`logs.pairing`), a turn of the agent is an action, and the
state before and after it is the conversation so far (`envs.tools.conversation`)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dreamgym.envs.tools.conversation import START, Exchange, Limits, extend
from dreamgym.envs.tools.schemas import Tool
from dreamgym.envs.tools.shortening import shorten_arguments, shorten_result, shorten_text
from dreamgym.logs.pairing import UNASKED, paired
from dreamgym.logs.records import Account, Call, LoggedEpisode, Message
from dreamgym.logs.redaction import Redactor
from dreamgym.tool_calls import RESPOND, ToolCall, action_of, respond
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

UNANSWERED = "calls without a result"
HOLLOW = "episodes most of whose calls have no result"
"""What would be left of such an episode is words: an outcome without what led to it."""
RENAMED = "respond_tool"
"""The name of a tool that a log calls `respond`, which is a message to the user in an action."""


@dataclass(frozen=True)
class Conversion:
    """`env` names the tasks' environment. With `system`, the system text opens the instruction."""

    env: str = "tools"
    system: bool = False


def trajectory(
    episode: LoggedEpisode, how: Conversion, success: bool | None, account: Account, redactor: Redactor | None = None
) -> Trajectory | None:
    """The episode; None, and an account of it, where it has no instruction or no action. Reward is 1 at the end of a success, else 0: one
    that was truncated has no end, and its last step pays nothing. Secrets are taken out of what is kept."""
    instruction, rest = task_and_turns(episode, account, system=how.system)
    if not instruction:
        account.drop("episodes without an instruction")
        return None
    before = account.dropped[UNANSWERED]
    turns = exchanges(rest, account)
    if 2 * (account.dropped[UNANSWERED] - before) > sum(len(message.calls) for message in rest):
        account.drop(HOLLOW)
        return None
    if not turns:
        account.drop("episodes without an action")
        return None
    if redactor:
        instruction, turns = redactor.conversation(instruction, turns)
    state, steps = Observation(START), list[Turn]()
    for i, one in enumerate(turns):
        after, ends = extend(state, one), i + 1 == len(turns) and not episode.truncated
        steps.append(Turn(Transition(state, action_of(one.calls), after, float(ends and bool(success)), ends)))
        state = after
        _note_shortened(one, account)
    task = Task(episode.task or episode.id, instruction, how.env, difficulty=0)
    account.note("successes that were truncated", int(episode.truncated and bool(success)))
    return Trajectory(
        episode.id, task, "demo", tuple(steps), bool(success), episode.truncated, behaviour=episode.agent, scored=success is not None
    )


def task_and_turns(episode: LoggedEpisode, account: Account, *, system: bool) -> tuple[str, Sequence[Message]]:
    """The instruction, "" where there is none, and the messages from the agent's first turn on, with calls and results paired."""
    messages = paired(episode.messages, account)
    start = next((i for i, message in enumerate(messages) if message.role == "user" and message.text.strip()), None)
    begin = 0 if episode.instruction or start is None else start
    early = sum(message.role == "agent" for message in messages[:begin])
    account.drop("agent messages before the task", early)
    opening, rest = _opening(messages[begin:])
    system_text = "\n".join(message.text for message in messages if message.role == "system" and message.text.strip())
    account.drop("system texts (--system keeps them)", int(bool(system_text) and not system))
    return "\n".join(filter(None, [system_text if system else "", episode.instruction, opening])).strip(), rest


def exchanges(messages: Sequence[Message], account: Account) -> list[Exchange]:
    """Turns of the agent with what came back, of messages that are `paired`. A call that was never answered is left out, unless it is in
    the last turn."""
    results = {result.call_id: result.text for message in messages for result in message.results}
    turns: list[tuple[Message, list[str]]] = []
    for message in messages:
        if message.role == "agent" and (message.calls or message.text.strip()):
            turns.append((message, []))
        elif message.role == "user" and message.text.strip() and turns:
            turns[-1][1].append(message.text)
    found = list[Exchange]()
    for i, (message, user_texts) in enumerate(turns):
        calls, answers = list[ToolCall](), list[str]()
        for call in message.calls:
            if call.id in results:
                answers.append(results.pop(call.id))
            elif i + 1 < len(turns):
                account.drop(UNANSWERED, detail=call.name)
                continue
            else:
                account.note("calls of the last turn without a result, kept", detail=call.name)
                answers.append("")
            calls.append(_renamed(call, answers[-1], account))
        if message.calls:
            account.drop("texts beside tool calls", int(bool(message.text.strip())))
        else:
            calls, answers = [respond(message.text)], [""]
        if calls:
            found.append(Exchange(tuple(calls), tuple(answers), "\n".join(user_texts)))
        elif user_texts and found:
            before = found[-1]
            found[-1] = Exchange(before.calls, before.results, "\n".join(filter(None, [before.user_text, *user_texts])))
        else:
            account.drop("user messages after a call without a result", len(user_texts))
    account.drop(UNASKED, len(results))
    return found


def renamed(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools of a log, none of which is called as a message to the user is."""
    return tuple(replace(tool, name=RENAMED) if tool.name == RESPOND else tool for tool in tools)


def _renamed(call: Call, result: str, account: Account) -> ToolCall:
    """The call under a name that no message to the user has, unless it is one: its one argument is the text, and it returns nothing."""
    named = call.name == RESPOND and not (is_message(call.arguments) and not result.strip())
    account.note(f"calls of a tool that is called {RESPOND}, which is {RENAMED} now", int(named))
    return ToolCall(RENAMED if named else call.name, call.arguments)


def is_message(arguments: Mapping[str, Any] | str) -> bool:
    """Whether a call of `respond` with these arguments says a text to the user and nothing else."""
    return isinstance(arguments, Mapping) and arguments.keys() == {"content"} and isinstance(arguments["content"], str)


def _note_shortened(exchange: Exchange, account: Account) -> None:
    """Say what a state does not show in full."""
    limits, whole = Limits(), sys.maxsize
    for call, result in zip(exchange.calls, exchange.results, strict=True):
        cut = len(result) > limits.result_chars and shorten_result(result, limits.result_chars) != shorten_result(result, whole)
        account.note(f"results longer than {limits.result_chars:,} characters, shortened", int(cut), call.name)
        long = shorten_arguments(call, limits.argument_chars) != call
        account.note(f"calls with an argument longer than {limits.argument_chars} characters, shortened", int(long), call.name)
    words = shorten_text(exchange.user_text, limits.result_chars) != exchange.user_text
    account.note(f"user messages longer than {limits.result_chars:,} characters, shortened", int(words))


def _opening(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """What the user says before the agent's first turn, and the messages from that turn on."""
    first = next((i for i, message in enumerate(messages) if message.role == "agent" and (message.calls or message.text.strip())), None)
    user_texts = [message.text for message in messages[:first] if message.role == "user" and message.text.strip()]
    return "\n".join(user_texts), messages[first:] if first is not None else ()
