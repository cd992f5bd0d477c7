"""The layout of tool-calling agents: calls and results in the model's own tool format, or as text where its template has none.

    system: who you are, the tools        user: the task and the first state
    assistant: (thinking) calls           tool: what each call returned           assistant: a message          user: the answer

An action is the calls of a turn in the spelling of `dreamgym.tool_calls`; a reply without a call is a message to the user, `respond`. Calls
that cannot be read are an action that no environment accepts: the reply's own text. Replies stay as they were sampled.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.policy.templates.chat import THOUGHT_END, opens_thinking, with_control_tokens, without_thoughts
from dreamgym.policy.templates.tool_format import NoToolFormat, Reply, ToolFormat
from dreamgym.runs.files import without_lone_surrogates
from dreamgym.tool_calls import RESPOND, action_of, calls_of, respond
from dreamgym.types import Action, Observation

log = logging.getLogger(__name__)
Results = Callable[[Observation], tuple[Sequence[str], str]]
"""`TextRules.tool_results`: what the latest calls returned, in order, and what the user said."""
NATIVE = "Act by calling tools. A reply without a call is a message to the user."
TEXT = (
    'Act by calling tools, one call a line: the name and the arguments as JSON values, such as get_user(id="u1", fields=["name"]). '
    'A message to the user is respond(content="..."). The tools:'
)


class Tools:
    """Implements `Template` for agents that call tools."""

    max_reply_tokens = 256

    def __init__(
        self,
        chat: ChatFormat,
        env: str,
        instructions: str,
        tools: Sequence[Mapping[str, Any]],
        results: Results,
        *,
        native: bool | None = None,
    ) -> None:
        """`native`: the template's tool format (True; NoToolFormat where it has none), the text form (False), or whichever there is."""
        self.chat, self.stop, self.results = chat, chat.stop, results
        self.form: ToolFormat | None = None
        if native is not False:
            try:
                self.form = ToolFormat(chat, tools)
                self.stop = tuple(dict.fromkeys([*chat.stop, self.form.end]))
            except NoToolFormat as error:
                if native:
                    raise NoToolFormat(f"{error} Set policy.tool_calls = 'text', or leave it out.") from error
                log.info("Tool calls are written as text: %s", error)
        self.names = {str(tool["name"]) for tool in tools} | {RESPOND}
        reply_read = [NATIVE] if self.form else [TEXT, *map(signature, tools)]
        self.system = "\n".join([f"You are an agent in the environment '{env}'.", *([instructions] if instructions else []), *reply_read])
        self._opens_thinking = opens_thinking(chat, self.opening("x", "x"))

    def opening(self, instruction: str, state: str) -> list[int]:
        return (self.form or self.chat).opening(self.system, f"Task: {instruction}\n\n{state}")

    def follow(self, reply: Sequence[int], state: str) -> list[int]:
        texts, user = self.results(Observation(state))
        reply_read = self._written(self._text(reply)) if self.form else Reply("")
        if self.form and reply_read.calls:
            ended = bool(reply) and reply[-1] in self.stop
            return [*(() if ended else (self.form.end,)), *self.form.results(reply_read.ids, texts, user)]
        return self.chat.follow(reply, "\n".join(text for text in (*texts, user) if text))

    def reply(self, action: Action) -> list[int]:
        """A demonstrated action as a reply: in the native format, as a message, or where neither gives it back, in its own spelling.
        UsageError for one that is not read back from there either: the model would learn replies that mean something else."""
        lead = without_thoughts(self.chat) if self._opens_thinking else []
        try:
            calls = tuple(calls_of(action))
        except UsageError:
            calls = ()
        if self.form and calls:
            message = calls[0].arguments.get("content") if len(calls) == 1 and isinstance(calls[0].arguments, Mapping) else None
            if isinstance(message, str) and calls[0] == respond(message):
                written = [*lead, *self.chat.encode(message)]
                if self.action_of("", written) == action:
                    return [*written, self.chat.end]
            try:
                written = [*lead, *self.form.write(calls)]
                if self.action_of("", written) == action_of(calls):
                    return [*written, self.form.end]
            except UsageError:
                pass  # the template refuses these calls
        written = [*lead, *self.chat.encode(action)]
        if (read := self.action_of("", written)) != without_lone_surrogates(action_of(calls) if calls else action.strip()):
            raise UsageError(
                f"The action {action!r} cannot be shown to a model that calls tools: of its reply, {read!r} would be read. Expected calls "
                'that its format can write, or a message as respond(content="..."). Leave its episode out of the logs.'
            )
        return [*written, self.chat.end]

    def action_of(self, text: str, ids: Sequence[int] = ()) -> Action:
        """The calls of a reply; its text where they cannot be read, so that the environment refuses it."""
        reply_read = self._written(self._text(ids) if ids else text)
        if reply_read.calls is None or not (reply_read.calls or reply_read.text):
            return reply_read.text
        return without_lone_surrogates(action_of(reply_read.calls or (respond(reply_read.text),)))

    def _written(self, text: str) -> Reply:
        reply_read = self._spoken(text)
        return self.form.read(reply_read) if self.form else self._read_text(reply_read)

    def _text(self, ids: Sequence[int]) -> str:
        return with_control_tokens(self.chat, ids, self.stop)

    def _spoken(self, text: str) -> str:
        """A reply without the thinking at its beginning; nothing of one that was cut short while thinking."""
        if self._opens_thinking or text.lstrip().startswith("<think>"):
            return text.partition(THOUGHT_END)[2]
        return text

    def _read_text(self, text: str) -> Reply:
        """The calls of a reply in the text form: all of its lines, else those that begin as a call of a known tool. None: a message."""
        try:
            return Reply(text.strip(), tuple(calls_of(text)))
        except UsageError:
            pass
        lines = [line.strip() for line in text.split("\n")]
        calls = "\n".join(line for line in lines if line.partition("(")[0] in self.names and "(" in line)
        try:
            return Reply(text.strip(), tuple(calls_of(calls)) if calls else ())
        except UsageError:
            return Reply(calls, None)


def signature(tool: Mapping[str, Any]) -> str:
    """A tool in one line: `get_user(id: string, fields?: array)  Looks a user up.`"""
    parameters = tool.get("parameters") or {}
    required = parameters.get("required") or ()
    properties = parameters.get("properties") or {}
    described = (f"{name}{'' if name in required else '?'}: {_kind(schema)}" for name, schema in properties.items())
    about = " ".join(str(tool.get("description") or "").split())
    return f"{tool['name']}({', '.join(described)})  {about}".rstrip()


def _kind(schema: Any) -> str:
    """The values of a parameter in short form."""
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list) and len(schema["enum"]) <= 8:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    type_name = schema.get("type", "any")
    return " | ".join(map(str, type_name)) if isinstance(type_name, list) else str(type_name)
