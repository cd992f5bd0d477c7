"""The layout of instruct models: a conversation in the model's own chat template.

    system: who you are, how actions are written        user: the task and the first state
    assistant: (thinking) Action: search[red mug]       user: the next state          assistant: ...

Replies stay as they were sampled, thinking included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dreamgym.errors import UsageError
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.types import Action

THOUGHT_END = "</think>"
_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)
_WORD = r"[\"'`(]*([*_]*)action(?:\1)?:(?:\1)?"  # emphasised or not
_LINE = re.compile(r"^[ \t]*(?:(?:[-*>#]+|\d+[.)])[ \t]+)*" + _WORD, re.IGNORECASE | re.MULTILINE)
_SENTENCE = re.compile(r"[.!?:;][ \t]+" + _WORD, re.IGNORECASE)


class Chat:
    """Implements `Template` over a chat format."""

    max_reply_tokens = 256

    def __init__(self, form: ChatFormat, env: str, instructions: str) -> None:
        """`env` names the environment in the system message; `instructions` say how actions are written."""
        self.form, self.stop = form, form.stop
        self.system = f"You are an agent in the environment '{env}'.\n{instructions}"
        self._opens_thinking = opens_thinking(form, form.turn("x"))  # without the instructions, which may speak of <think>

    def opening(self, instruction: str, state: str) -> list[int]:
        return self.form.opening(self.system, f"Task: {instruction}\n\n{state}")

    def follow(self, reply: Sequence[int], state: str) -> list[int]:
        return self.form.follow(reply, state)

    def reply(self, action: Action) -> list[int]:
        lead = without_thoughts(self.form) if self._opens_thinking else []
        return [*lead, *self.form.encode(demonstrated_reply(action)), self.form.end]

    def action_of(self, text: str, ids: Sequence[int] = ()) -> Action:
        """See `action_in`. A reply whose thinking the prompt opened, and that never closes it, holds none: ""."""
        if self._opens_thinking and THOUGHT_END not in text:
            text = with_control_tokens(self.form, ids, self.stop)  # where </think> is one of them
            if THOUGHT_END not in text:
                return ""
        return action_in(text)


def action_in(text: str) -> Action:
    """The text inside the last <action>...</action>, else the line behind the last "Action:", else the whole reply.

    "Action:" begins a line or, where no line begins so, a sentence; elsewhere it is part of an action. Text before the last </think>, and
    text behind a <think> that was cut short, is not searched.
    """
    visible = text.rpartition(THOUGHT_END)[2].partition("<think>")[0]
    tagged = _TAGGED.findall(visible)
    if tagged:
        return str(tagged[-1]).strip()
    for begins in (_LINE, _SENTENCE):
        if named := list(begins.finditer(visible)):
            return visible[named[-1].end() :].strip().partition("\n")[0].strip()
    return visible.strip()


def demonstrated_reply(action: Action) -> str:
    """A reply in which `action_in` finds this action, but for spaces around it: its line, or the tags where one line cannot hold it.

    UsageError for an action that is found in neither: the model would learn replies that mean something else to the environment.
    """
    line = f"Action: {action}"
    for reply in (line, f"<action>{action}</action>"):
        if action_in(reply) == action.strip():
            return reply
    raise UsageError(
        f"The action {action!r} cannot be shown to a chat model: of its reply, {action_in(line)!r} would be read. Leave its episode out of "
        "the logs, or let the environment write the action without <think>, </think> and <action> tags."
    )


def opens_thinking(chat: ChatFormat, prompt: Sequence[int]) -> bool:
    """Whether the prompt leaves a <think> open."""
    _, opened, thoughts = chat.tokenizer.decode(list(prompt)).rpartition("<think>")
    return bool(opened) and THOUGHT_END not in thoughts


def without_thoughts(chat: ChatFormat) -> list[int]:
    """The ids by which a demonstrated reply closes the thinking that its prompt opened."""
    text = f"{THOUGHT_END}\n\n"
    return chat.encode_parts([text]) if THOUGHT_END in chat.tokenizer.get_added_vocab() else chat.encode(text)


def with_control_tokens(chat: ChatFormat, ids: Sequence[int], stop: Sequence[int]) -> str:
    """The text of a reply's ids, its control tokens included, without its end."""
    kept = list(ids[:-1]) if ids and ids[-1] in stop else list(ids)
    text: str = chat.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
