"""OpenTelemetry traces of agents: GenAI conventions (current and legacy) and OpenInference. A trace is an episode.

Spans of a model repeat the history. The one whose messages are longest is taken, if the others are prefixes of it; where they are not,
further conversations of the trace are left out and counted. Without messages, tool spans alone make the episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dreamgym.envs.tools.schemas import Tool
from dreamgym.logs.formats import _values as values
from dreamgym.logs.formats._spans import attributes, indexed, spans_of
from dreamgym.logs.formats.openai import messages_of
from dreamgym.logs.records import Account, Call, LoggedEpisode, Message, Result

ARGUMENTS = ("gen_ai.tool.call.arguments", "tool.arguments", "tool.input", "request.arguments", "tool.parameters", "input.value")
OUTPUT = (
    "gen_ai.tool.call.result",
    "gen_ai.tool.message",
    "tool.output",
    "tool.call.result",
    "tool.result",
    "completion",
    "output.value",
    "output",
)
Span = dict[str, Any]


class OTelFormat:
    name = "otel"

    def recognises(self, value: Any) -> bool:
        if isinstance(value, dict) and "resourceSpans" in value:
            return True
        return any(("traceId" in one or "trace_id" in one) and "attributes" in one for one in spans_of(value))

    def units(self, value: Any) -> Iterator[dict[str, Any]]:
        yield from spans_of(value)

    def key(self, unit: dict[str, Any]) -> str | None:
        found = attributes(unit.get("attributes"))
        return values.text(values.first([unit.get("traceId"), unit.get("trace_id"), values.table(unit.get("context")).get("trace_id"),
                                         found.get("gen_ai.conversation.id")])) or "trace"  # fmt: skip

    def read(self, units: Sequence[dict[str, Any]], account: Account) -> Iterator[LoggedEpisode]:
        spans = [dict(unit, attributes=_all_attributes(unit)) for unit in sorted(units, key=_order)]
        histories = [(messages, span) for span in spans if (messages := _history(span, account))]
        scores = {name: value for unit in spans for name, value in _scores(unit)}
        record = {name: value for span in reversed(spans) for name, value in span["attributes"].items()}
        record["metadata"] = values.table(values.first([record.get("metadata"), record.get("wmh.trace.metadata")]))
        found, tools = list[Message](), tuple[Tool, ...]()
        if histories:
            longest, span = max(histories, key=lambda one: len(one[0]))
            found, tools = longest, _tools(span["attributes"])
            whole = _texts(longest)
            parted = [one for one, _ in histories if (mine := _texts(one)) != whole[: len(mine)] and not _is_subset(mine, whole)]
            account.drop("model spans that are no prefix of the trace's longest conversation", len(parted))
            results = {result.call_id for message in found for result in message.results}
            for one in spans:  # the results of the last calls stand only in tool spans
                call_id = values.text(one["attributes"].get("gen_ai.tool.call.id"))
                output = values.first(one["attributes"].get(key) for key in OUTPUT)
                if call_id and call_id not in results and output is not None:
                    found.append(Message("tool", results=(Result(call_id, values.text(output)),)))
        else:
            found = list(_from_tool_spans(spans, account))
        if not found:
            account.drop("traces without messages or tool calls")
            return
        name = self.key(units[0]) or ""
        yield LoggedEpisode(name, tuple(found), tools, record, scores, agent=values.text(record.get("gen_ai.request.model")))


def _order(span: Span) -> tuple[int, str]:
    start = values.first([span.get("startTimeUnixNano"), span.get("start_time_unix_nano"), span.get("start_time"), 0])
    try:
        return int(start), ""
    except (TypeError, ValueError, OverflowError):
        return 0, str(start)


def _all_attributes(span: Span) -> dict[str, Any]:
    """Of the span, and of the events that carry its content."""
    found = dict(attributes(span.get("attributes")))
    for event in values.tables(span.get("events")):
        found |= {key: value for key, value in attributes(event.get("attributes")).items() if key.startswith("gen_ai.")}
    return found


def _history(span: Span, account: Account) -> list[Message]:
    """The conversation that a model span holds, by whichever dialect it is written in."""
    found = span["attributes"]
    if any(key in found for key in ("gen_ai.input.messages", "gen_ai.output.messages")):
        system = values.content(values.parsed(found.get("gen_ai.system_instructions")), account)
        both = [*values.tables(found.get("gen_ai.input.messages")), *values.tables(found.get("gen_ai.output.messages"))]
        return [*([Message("system", system)] if system else []), *(one for message in both for one in _parts(message, account))]
    for inputs, outputs in (("llm.input_messages", "llm.output_messages"), ("gen_ai.prompt", "gen_ai.completion")):
        both = [_openai(one) for one in (*indexed(found, inputs), *indexed(found, outputs))]
        if both:
            return list(messages_of(both, account))
    return []


def _parts(message: dict[str, Any], account: Account) -> Iterator[Message]:
    parts = [part if isinstance(part, dict) else {"type": "text", "content": part} for part in message.get("parts") or []]
    calls, results, content_parts = list[Call](), list[Result](), list[Any]()
    for part in parts:
        if part.get("type") == "tool_call":
            calls.append(values.call(part.get("name"), part.get("arguments"), part.get("id"), account))
        elif part.get("type") == "tool_call_response":
            response = values.first([part.get("response"), part.get("result")])
            results.append(Result(values.text(part.get("id")), values.content(response, account)))
        else:
            content_parts.append(part)
    text = values.content(content_parts, account) or values.text(message.get("content"))
    role = {"assistant": "agent", "model": "agent", "system": "system", "developer": "system", "tool": "tool"}.get(
        str(message.get("role")), "user"
    )
    yield Message(role, text if role != "tool" else "", tuple(calls), tuple(results))  # type: ignore[arg-type]


def _openai(one: dict[str, Any]) -> dict[str, Any]:
    """An indexed message as OpenAI writes it."""
    message = one.get("message") if isinstance(one.get("message"), dict) else one
    assert isinstance(message, dict)
    calls = []
    for given in values.tables(message.get("tool_calls")):
        inner = given.get("tool_call") if isinstance(given.get("tool_call"), dict) else given
        assert isinstance(inner, dict)
        calls.append({"id": inner.get("id"), "function": values.table(inner.get("function")) or inner})
    content_parts = message.get("content")
    if content_parts is None and message.get("contents"):
        content_parts = [values.table(part.get("message_content")) for part in values.tables(message["contents"])]
    return {
        "role": message.get("role", "assistant"),
        "content": content_parts,
        "tool_calls": calls,
        "tool_call_id": message.get("tool_call_id"),
    }


def _from_tool_spans(spans: Sequence[Span], account: Account) -> Iterator[Message]:
    """Episodes whose model spans hold no messages: a task, then a call and its output a tool span."""
    pending: Call | None = None
    for i, span in enumerate(spans):
        found = span["attributes"]
        task = found.get("gen_ai.prompt")
        if isinstance(task, str) and task:
            yield Message("user", task)
        name, operation = values.first([found.get("gen_ai.tool.name"), found.get("tool.name")]), found.get("gen_ai.operation.name")
        output = values.first(found.get(key) for key in OUTPUT)
        is_tool = operation == "execute_tool" or found.get("openinference.span.kind") == "TOOL"
        if name is None:
            if isinstance(content_parts := found.get("gen_ai.completion"), str) and content_parts:
                yield Message("agent", content_parts)
            continue
        arguments = values.first(found.get(key) for key in ARGUMENTS)
        call_id = values.text(found.get("gen_ai.tool.call.id")) or f"span {i}"
        if not is_tool:
            pending = values.call(name, arguments, call_id, account)
            yield Message("agent", calls=(pending,))
            continue
        if pending and pending.name == name and arguments is None:  # the model span before it has the arguments
            call_id = pending.id
        else:
            yield Message("agent", calls=(values.call(name, arguments, call_id, account),))
        pending = None
        yield Message("tool", results=(Result(call_id, values.text(output)),))


def _tools(found: dict[str, Any]) -> tuple[Tool, ...]:
    flat = [values.parsed(values.table(one.get("tool")).get("json_schema")) for one in indexed(found, "llm.tools")]
    return values.schemas(found.get("gen_ai.tool.definitions")) or values.schemas(flat)


def _scores(span: Span) -> Iterator[tuple[str, Any]]:
    for found in (span["attributes"], *(attributes(event.get("attributes")) for event in values.tables(span.get("events")))):
        for prefix, value in (("gen_ai.evaluation", ("score.value", "score.label")), ("evaluation", ("score", "label"))):
            if (name := found.get(f"{prefix}.name")) is not None:
                yield values.text(name), values.first(found.get(f"{prefix}.{key}") for key in value)


def _texts(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    return [(one.role, one.text, tuple(call.id for call in one.calls), tuple(result.call_id for result in one.results)) for one in messages]


def _is_subset(part: list[tuple[Any, ...]], whole: list[tuple[Any, ...]]) -> bool:
    """Whether a history without its system text is a prefix: some clients send that only once."""
    mine = [one for one in part if one[0] != "system"]
    return mine == [one for one in whole if one[0] != "system"][: len(mine)]


def make() -> OTelFormat:
    return OTelFormat()
