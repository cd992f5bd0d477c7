"""Calls that no action could hold are left out with their results, whichever format they stand in: ids may come again, or be missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from log_samples import imported

Make = Callable[[str, str], list[dict[str, Any]]]
"""A call of a tool and what it returned, as messages or entries of a format."""


def openai(name: str, result: str) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": name, "arguments": "{}"}}
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": result}]


def unreadable(name: str, result: str) -> list[dict[str, Any]]:
    messages = openai(name, result)
    return [{"role": "assistant", "tool_calls": ["search("]}, messages[1]] if name == "a b" else messages


def anthropic(name: str, result: str) -> list[dict[str, Any]]:
    call, answer = (
        {"type": "tool_use", "id": "0", "name": name, "input": {}},
        {"type": "tool_result", "tool_use_id": "0", "content": result},
    )
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [answer]}]


def responses(name: str, result: str) -> list[dict[str, Any]]:
    return [{"type": "function_call", "name": name, "arguments": "{}"}, {"type": "function_call_output", "output": result}]


def tau2(name: str, result: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": [{"name": name, "arguments": {}}]}, {"role": "tool", "content": result}]


def otel(name: str, result: str) -> list[dict[str, Any]]:
    call, answer = {"type": "tool_call", "name": name}, {"type": "tool_call_response", "response": result}
    return [{"role": "assistant", "parts": [call]}, {"role": "tool", "parts": [answer]}]


def atif(name: str, result: str) -> list[dict[str, Any]]:
    observation = {"results": [{"source_call_id": "0", "content": result}]}
    call = {"tool_call_id": "0", "function_name": name, "arguments": {}}
    return [{"source": "agent", "message": "", "tool_calls": [call], "observation": observation}]


def in_messages(turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Go."}, *turns]}


def in_simulation(turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {**in_messages(turns), "termination_reason": "user_stop"}


def in_items(turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {"items": [{"role": "user", "content": "Go."}, *turns]}


def in_span(turns: list[dict[str, Any]]) -> dict[str, Any]:
    talk = [{"role": "user", "parts": [{"type": "text", "content": "Go."}]}, *turns]
    return {"traceId": "t", "attributes": {"gen_ai.input.messages": json.dumps(talk)}}


def in_steps(turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schema_version": "ATIF-v1.4", "steps": [{"source": "user", "message": "Go."}, *turns]}


@pytest.mark.parametrize(
    ("form", "make", "around"),
    [
        ("openai", openai, in_messages), ("openai", unreadable, in_messages), ("anthropic", anthropic, in_messages),
        ("openai_responses", responses, in_items), ("tau2", tau2, in_simulation), ("otel", otel, in_span), ("atif", atif, in_steps),
    ],
)  # fmt: skip
def test_the_result_of_a_refused_call_answers_no_later_call(form: str, make: Make, around: Any, tmp_path: Path):
    turns = [*make("first", "1"), *make("a b", "2"), *make("third", "3")]
    (episode,), account = imported(tmp_path, [around(turns)], form=form)
    assert [step.action for step in episode.transitions] == ["first()", "third()"]
    assert episode.transitions[-1].next_state.text == "> first()\n1\n> third()\n3"
    assert account["dropped"] == {"calls without a usable tool name": 1, "results without a call": 1}


def test_only_columns_that_messages_are_read_from_count_what_is_no_message(tmp_path: Path):
    beside = {"prompt": [1, 2, 3], "completion": "[1, 2]", "conversations": ["a"]}
    _, account = imported(tmp_path, [{**in_messages([*openai("first", "1")]), **beside}])
    assert not account["dropped"]
    _, account = imported(tmp_path, [{"prompt": [{"role": "user", "content": "Go."}, 3], "completion": [*openai("first", "1"), "x"]}])
    assert account["dropped"] == {"messages that are no JSON object": 2}
