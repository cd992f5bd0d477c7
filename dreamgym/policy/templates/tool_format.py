"""Native tool calls: how a chat template writes calls and their results, found by rendering it with marks in their place.

Known shapes of a call are a JSON object behind an opening (Qwen and Hermes: `<tool_call>{...}</tool_call>`), a JSON list (Mistral:
`[TOOL_CALLS][{...}]`), a bare JSON object (Llama 3, also behind `<|python_tag|>`), and a name before its JSON arguments (DeepSeek). A
template with none of them, or that cannot be continued token by token, is refused with `NoToolFormat`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.llm.chat_format import SYSTEM, ChatFormat, Unstable, between
from dreamgym.runs.files import without_lone_surrogates
from dreamgym.tool_calls import NAME, ToolCall, action_of, calls_of
from dreamgym.types import Action

USER, RESULT, REPLY, ASKED = "dguserdg", "dgresult{}dg", "dgreplydg", "dgaskeddg"
NAMES, KEYS, VALUES = ("dgnameadg", "dgnamebdg"), ("dgkeyadg", "dgkeybdg"), ("dgvalueadg", "dgvaluebdg")
PYTHON_TAG = "<|python_tag|>"
_LETTERS = re.compile(r"</?[\w|]+>|\[/?[A-Z_]+\]")
_DECODER = json.JSONDecoder()


def call_id(i: int) -> str:
    """The id of the call at a place of its turn, where the model gave none. Mistral's templates demand nine letters or digits."""
    return f"call{i:05d}"


class NoToolFormat(UsageError):
    """The template has no way of writing tool calls that can be used."""


@dataclass(frozen=True)
class Reply:
    """What a reply says: its calls, each with the id it was given; `calls` is None for calls that cannot be read."""

    text: str  # without thinking
    calls: tuple[ToolCall, ...] | None = ()  # empty: a message
    ids: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Shape:
    """How one call is written."""

    opener: str  # before every call, or before the list of them; "" for bare JSON
    separator: str | None  # between name and JSON arguments; None where both are in one JSON object
    name: str = "name"
    arguments: str = "arguments"


class ToolFormat:
    """The calls and results of one chat template, as ids.

    `parallel` says whether the template writes several calls of one turn itself; otherwise they are joined with "; ". `end` is the token
    that ends a turn of calls.
    """

    def __init__(self, chat: ChatFormat, tools: Sequence[Mapping[str, Any]]) -> None:
        """`tools` are schemas {"name", "description", "parameters"}. NoToolFormat where the template has no usable form."""
        self.chat = chat
        self.control = {name: i for i, name in chat.special.items()}
        self._forged = re.compile("|".join(map(re.escape, sorted(self.control, key=len, reverse=True))) or "(?!)")
        self.tools = [{"type": "function", "function": dict(self._harmless(tool))} for tool in tools]
        self._content, self._json_arguments = self._call_settings()
        self._lead = self._reply_lead()
        single = self._call_text([_marked(0)])
        try:
            double = self._call_text([_marked(0), _marked(1)])
            self.parallel = all(mark in double for mark in (*NAMES, *VALUES))
        except NoToolFormat:
            double, self.parallel = "", False
        self.shape = _shape_of(single, double if self.parallel else "")
        self.end = self._end
        self._escape_json, self._strips = self._result_settings()
        self._result_parts = lru_cache(maxsize=256)(self._find_result_parts)
        self.letters = self._tags(single)
        self._written = lru_cache(maxsize=20_000)(self._write)
        self._check()

    def opening(self, system: str | None, user: str) -> list[int]:
        """The beginning of a conversation, with the tools, up to where the model replies."""
        system, user = self.chat.framed(system, user)
        texts = {SYSTEM: self.chat.shown("system", system)} if system is not None else {}
        texts |= {USER: self.chat.shown("user", user)}
        messages = [*([_message("system", SYSTEM)] if system is not None else []), _message("user", USER)]
        first, *rest = between(self.chat.render(messages, tools=self.tools), list(texts))
        return self.chat.encode_parts([first, *(part for pair in zip(texts.values(), rest, strict=True) for part in pair)])

    def read(self, text: str) -> Reply:
        """The calls in a reply's text, from which thinking has been taken."""
        opener, at = self.shape.opener, 0
        python = text.strip().startswith(PYTHON_TAG)
        if python:
            text = text.strip().removeprefix(PYTHON_TAG)
        if not (python or (opener in text if opener else text.lstrip().startswith("{"))):
            return Reply(text.strip())
        calls, ids = list[ToolCall](), list[str]()
        try:
            at = text.index(opener) + len(opener) if opener in text else 0
            while at < len(text):
                parsed, at = self._next(text, at)
                for call, name in parsed:
                    calls.append(call)
                    ids.append(name or call_id(len(ids)))
                if opener:
                    at = following + len(opener) if (following := text.find(opener, at)) >= 0 else len(text)
                else:
                    at += len(text[at:]) - len(text[at:].lstrip(" \n\t;,"))
        except (ValueError, RecursionError, UsageError):
            return Reply(text.strip(), self._python_call(text) if python else None, (call_id(0),))
        return Reply(text.strip(), tuple(calls) or None, tuple(ids))

    def results(self, ids: Sequence[str], texts: Sequence[str], user: str) -> list[int]:
        """The ids between a turn of calls, its end included, and the next reply. A text a call; more or fewer are made to fit."""
        n = len(ids)
        texts = [*texts[: n - 1], "\n".join(texts[n - 1 :])] if len(texts) >= n else [*texts, *[""] * (n - len(texts))]
        parts, slots = self._result_parts(n, bool(user), tuple(ids))
        if slots < n + bool(user):  # the template has no place for all of them
            keep = min(slots, n)
            texts = [*texts[: keep - 1], "\n".join([*texts[keep - 1 :], *([user] if user and slots == keep else [])])]
        written = [self._result(text) for text in texts]
        written += [self.chat.shown("user", self._plain(user))] if user and slots > len(written) else []
        ends = self.chat.special[self.end] + parts[0]
        return self.chat.encode_parts([ends, *(part for pair in zip(written, parts[1:], strict=True) for part in pair)])[1:]

    def write(self, calls: Sequence[ToolCall]) -> list[int]:
        """The ids of a turn of calls, without its end. NoToolFormat for what the template refuses."""
        return list(self._written(action_of(calls)))

    def _write(self, action: Action) -> tuple[int, ...]:
        calls = calls_of(action)
        values, forged = list[tuple[str, Any]](), list[str]()
        stem = "dgx"
        while any(stem in str(call) for call in calls):
            stem += "x"

        def cover(match: re.Match[str]) -> str:
            forged.append(match[0])
            return f"{stem}{len(forged) - 1}dg"

        for call in calls:
            arguments = call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
            values.append(
                (self._forged.sub(cover, call.name), json.loads(self._forged.sub(cover, json.dumps(arguments, ensure_ascii=False))))
            )
        texts = [self._call_text(values)] if self.parallel or len(calls) == 1 else [self._call_text([value]) for value in values]
        fragments = re.split(rf"{stem}(\d+)dg", "; ".join(texts))
        return tuple(self.chat.encode_parts([forged[int(piece)] if i % 2 else piece for i, piece in enumerate(fragments)]))

    def _next(self, text: str, at: int) -> tuple[list[tuple[ToolCall, str]], int]:
        """The calls of the JSON value, or of the name and its JSON, from a position on, with their ids, and where it ends."""
        at += len(text[at:]) - len(text[at:].lstrip())
        if self.shape.separator is None:
            value, end = _DECODER.raw_decode(text, at)
            return [self._call(item) for item in (value if isinstance(value, list) else [value])], end
        bar = text.index(self.shape.separator or "{", at)
        value, end = _DECODER.raw_decode(text, text.index("{", bar))
        return [(_tool_call(text[at:bar].strip(), value), "")], end

    def _call(self, value: Any) -> tuple[ToolCall, str]:
        """A call and its id from a JSON object."""
        if not isinstance(value, dict):
            raise ValueError("no object")
        inner = value["function"] if isinstance(value.get("function"), dict) else value
        arguments = next((inner[key] for key in (self.shape.arguments, "arguments", "parameters") if key in inner), None)
        given = value.get("id")
        name = inner.get(self.shape.name, inner.get("name"))
        return _tool_call(name, arguments), given if isinstance(given, str) and re.fullmatch(r"[\w-]{1,64}", given) else ""

    def _python_call(self, text: str) -> tuple[ToolCall, ...] | None:
        """`brave_search.call(query="...")`, as Llama 3 calls its built-in tools."""
        try:
            return tuple(ToolCall(call.name.removesuffix(".call"), call.arguments) for call in calls_of(text.strip()))
        except UsageError:
            return None

    def _messages(self, calls: Sequence[tuple[str, Any]], results: Sequence[str], ids: Sequence[str] = ()) -> list[dict[str, Any]]:
        """A turn of calls and their results, as a template takes them."""
        ids = [*ids, *map(call_id, range(len(ids), max(len(calls), len(results))))]
        functions = [{"name": name, "arguments": json.dumps(a) if self._json_arguments else a} for name, a in calls]
        tool_calls = [{"id": ids[i], "type": "function", "function": function} for i, function in enumerate(functions)]
        names = [name for name, _ in calls] + [calls[0][0]] * len(results)
        tool_messages = [{"role": "tool", "tool_call_id": ids[i], "name": names[i], "content": text} for i, text in enumerate(results)]
        return [{"role": "assistant", "content": self._content, "tool_calls": tool_calls}, *tool_messages]

    def _after_user(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Render the messages and return what follows the first user message. NoToolFormat where it refuses the messages."""
        user = USER
        while user in str(messages):  # somebody's argument is the placeholder
            user += "x"
        try:
            text = self.chat.render([_message("user", user), *messages], tools=self.tools)
        except Exception as error:  # a boundary: templates raise what they like
            raise NoToolFormat(f"The chat template of '{self.chat.name}' refuses tool calls ({error}).") from error
        return text.rpartition(user)[2]

    def _call_settings(self) -> tuple[str | None, bool]:
        """(content of a turn of calls, whether arguments are given as JSON text), as the template wants them."""
        for self._content, self._json_arguments in product(("", None), (False, True)):
            try:
                text = self._after_user(self._messages([_marked(0)], [RESULT.format(0)]))
            except NoToolFormat:
                continue
            if all(mark in text for mark in (NAMES[0], KEYS[0], VALUES[0], RESULT.format(0))):
                return self._content, self._json_arguments
        raise NoToolFormat(f"The chat template of '{self.chat.name}' shows no tool calls.")

    def _reply_lead(self) -> str:
        """Find what the template writes between a user's message and a past reply."""
        plain = self._after_user([_message("assistant", REPLY), _message("user", ASKED)])
        called = self._after_user(self._messages([_marked(0)], [RESULT.format(0)]))
        same = next((i for i, (a, b) in enumerate(zip(plain, called, strict=False)) if a != b), 0)
        if plain[same:].lstrip()[: len(REPLY)] != REPLY:
            raise NoToolFormat(f"The chat template of '{self.chat.name}' begins a turn of calls in another way than a reply.")
        return plain[:same]

    def _call_text(self, calls: Sequence[tuple[str, Any]]) -> str:
        """The text of a turn of calls, without its end."""
        text = self._after_user(self._messages(calls, [RESULT.format(i) for i in range(len(calls))]))
        text = text.removeprefix(self._lead)
        match = re.search("|".join(re.escape(self.chat.special[i]) for i in self.chat.stop), text)
        if not match or not all(name in text[: match.start()] for name, _ in calls):
            raise NoToolFormat(f"The chat template of '{self.chat.name}' ends a turn of calls with no token that ends replies.")
        self._end = self.control[match[0]]
        return text[: match.start()]

    def _find_result_parts(self, n: int, user: bool, ids: tuple[str, ...]) -> tuple[tuple[str, ...], int]:
        """The fixed parts around `n` results and a user's message, and how many of these the template has a place for."""
        shapes = [(n, n, user), (1, n, user), (n, n, False), (1, n, False), (1, 1, False)]
        for calls, results, with_user in shapes:
            marks = [RESULT.format(i) for i in range(results)] + [ASKED] * with_user
            called = [(NAMES[0], {KEYS[0]: VALUES[0]})] * calls
            call_ids, covered = list(ids), [f"dgid{i:05d}" for i in range(n)]
            for given in (covered, call_ids):  # ids are text; a template that checks them gets them as they are
                try:
                    text = self._after_user([*self._messages(called, marks[:results], given), *([_message("user", ASKED)] * with_user)])
                    _, _, rest = text.removeprefix(self._lead).partition(self.chat.special[self.end])
                    parts = between(rest, marks)
                except (NoToolFormat, Unstable):
                    continue
                for cover, name in zip(covered, call_ids, strict=False):
                    parts = [part.replace(cover, name) for part in parts]
                return tuple(parts), len(marks)
        raise NoToolFormat(f"The chat template of '{self.chat.name}' does not show the results of calls.")

    def _result_settings(self) -> tuple[bool | None, bool]:
        """(how results are escaped: None as they are, else JSON with or without ASCII alone; whether they are stripped)."""
        wide = f' {RESULT.format(0)} "é\n '
        text = self._after_user(self._messages([_marked(0)], [wide]))
        for escaped, strips in product((None, False, True), (False, True)):
            written = wide.strip() if strips else wide
            if escaped is not None:
                written = json.dumps(written, ensure_ascii=escaped)[1:-1]
            if written in text:
                return escaped, strips
        raise NoToolFormat(f"The chat template of '{self.chat.name}' changes the text of results.")

    def _result(self, text: str) -> str:
        text = self._plain(text.strip() if self._strips else text)
        return text if self._escape_json is None else json.dumps(text, ensure_ascii=self._escape_json)[1:-1]

    def _plain(self, text: str) -> str:
        """A text in which no tag of the format that is mere letters can be mistaken for one: a space follows its first letter."""
        for tag in self.letters:
            text = text.replace(tag, f"{tag[0]} {tag[1:]}")
        return text

    def _tags(self, call: str) -> tuple[str, ...]:
        """The tags of calls and results that are no tokens of their own."""
        parts, _ = self._result_parts(1, False, (call_id(0),))
        return tuple(sorted({tag for text in (call, *parts) for tag in _LETTERS.findall(text)} - set(self.control)))

    def _harmless(self, value: Any) -> Any:
        """A schema without spellings of control tokens. UsageError for a tool whose name has one."""
        if isinstance(value, Mapping):
            name = value.get("name")
            if isinstance(name, str) and self._forged.search(name):
                raise UsageError(f"The name of the tool {name!r:.100} holds a control token of '{self.chat.name}'. Leave the tool out.")
            return {self._harmless(key): self._harmless(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._harmless(item) for item in value]
        return self._forged.sub(lambda match: f"{match[0][0]} {match[0][1:]}", value) if isinstance(value, str) else value

    def _check(self) -> None:
        """A second turn is written as the first, and our ids are the template's. NoToolFormat where it is not so."""
        turn = self._messages([_marked(0)], [RESULT.format(0)])
        once, twice = self._after_user(turn), self._after_user([*turn, *turn])
        if not twice.endswith(once.removeprefix(self._lead)):
            raise NoToolFormat(f"The chat template of '{self.chat.name}' writes calls in another way from turn to turn.")
        if self.read(self._call_text([_marked(0)])).calls != (ToolCall(*_marked(0)),):
            raise NoToolFormat(f"The calls of the chat template of '{self.chat.name}' cannot be read back.")
        try:
            self.opening(SYSTEM, USER)
        except Exception as error:  # a boundary: templates raise what they like
            raise NoToolFormat(f"The chat template of '{self.chat.name}' cannot show tools ({error}).") from error
        ours = [*self.write((ToolCall(*_marked(0)),)), self.end, *self.results((call_id(0),), [RESULT.format(0)], "")]
        text = self.chat.render([_message("user", USER), *turn], tools=self.tools)
        template_ids = self.chat.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=False)
        if template_ids[-len(ours) :] != ours:
            raise NoToolFormat(f"The tokenizer of '{self.chat.name}' joins letters across the borders of calls and results.")


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _marked(i: int) -> tuple[str, dict[str, str]]:
    return NAMES[i], {KEYS[i]: VALUES[i]}


def _tool_call(name: Any, arguments: Any) -> ToolCall:
    """A call as the normal form has it. ValueError or UsageError for what is none."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError("no name")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = parsed if isinstance(parsed := json.loads(arguments), dict) else arguments
    elif arguments is None:
        arguments = {}
    elif not isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    call = ToolCall(name, arguments)
    return calls_of(without_lone_surrogates(str(call)))[0]


def _shape_of(single: str, double: str) -> _Shape:
    """The shape of a call, from the text of one and of two. NoToolFormat for one that is not known."""
    for at, letter in enumerate(single):
        if letter in "{[" and (parsed := _json_at(single, at)) and NAMES[0] in single[at : parsed[1]]:
            value, _ = parsed
            call = value[0] if isinstance(value, list) and value else value
            inner = call.get("function", call) if isinstance(call, dict) else None
            if not isinstance(inner, dict):
                break
            name = next((key for key, text in inner.items() if text == NAMES[0]), None)
            arguments = next((key for key, text in inner.items() if VALUES[0] in str(text)), None)
            if name is None or arguments is None:
                break
            begun = single[at:].partition(NAMES[0])[0]
            opener = single[:at].strip() if isinstance(value, list) else _opener(single[:at], double, begun)
            return _Shape(opener, None, name, arguments)
    before, _, after = single.partition(NAMES[0])
    brace = after.find("{")
    if brace >= 0 and _json_at(after, brace) and (opener := _opener(before, double, "")):
        return _Shape(opener, after[:brace].strip())
    raise NoToolFormat("Its chat template writes calls in a form that is not known: no JSON arguments.")


def _opener(before: str, double: str, begun: str) -> str:
    """Find what stands before every call: what the texts before the two names have in common at their end, without `begun`, the part of the
    call itself; what stands before the one call where there are no two."""
    first, second = double.partition(NAMES[0])[0], double.partition(NAMES[1])[0]
    same = 0
    while double and same < len(first) and first[-same - 1] == second[-same - 1]:
        same += 1
    return first[len(first) - same : len(first) - len(begun)].strip() if same > len(begun) else before.strip()


def _json_at(text: str, at: int) -> tuple[Any, int] | None:
    try:
        return _DECODER.raw_decode(text, at)
    except ValueError:
        return None
