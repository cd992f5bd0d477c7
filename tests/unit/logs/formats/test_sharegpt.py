"""ShareGPT conversations: calls and results without ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log_samples import imported


def call(*names: str) -> dict[str, str]:
    calls = [{"name": name, "arguments": {"id": name}} for name in names]
    return {"from": "function_call", "value": json.dumps(calls if len(calls) > 1 else calls[0])}


def turn(kind: str, value: Any) -> dict[str, Any]:
    return {"from": kind, "value": value}


ASK, DONE = turn("human", "Look."), turn("gpt", "Done.")


def test_results_answer_the_calls_of_a_turn_in_their_order(tmp_path: Path):
    answers = [turn("observation", "first"), turn("observation", "second")]
    for calls in ([call("a", "b")], [call("a"), call("b")]):
        (episode,), account = imported(tmp_path, [{"conversations": [ASK, *calls, *answers, DONE]}])
        step, _ = episode.transitions
        assert step.action == 'a(id="a")\nb(id="b")' and step.next_state.text == '> a(id="a")\nfirst\n& b(id="b")\nsecond'
        assert not account["dropped"] and not account["notes"]


def test_a_call_without_a_result_takes_none_of_a_later_call(tmp_path: Path):
    talk = [ASK, call("a"), turn("human", "Go on."), call("b"), turn("observation", "of b"), call("c"), turn("observation", "of c"), DONE]
    (episode,), account = imported(tmp_path, [{"conversations": talk}])
    assert [step.action for step in episode.transitions][:2] == ['b(id="b")', 'c(id="c")']
    assert "of b" in episode.transitions[0].next_state.text and account["dropped"]["calls without a result"] == 1


def test_a_turn_with_fewer_results_than_calls_is_noted(tmp_path: Path):
    talk = [ASK, call("a", "b"), turn("observation", "one"), call("c"), turn("observation", "two"), DONE]
    _, account = imported(tmp_path, [{"conversations": talk}])
    assert account["notes"]["turns with fewer results than calls, paired in their order"] == 1
    assert account["dropped"]["calls without a result"] == 1


def test_what_is_no_call_and_who_is_unknown_is_counted(tmp_path: Path):
    talk = [ASK, turn("function_call", "search()"), turn("bystander", "Hm."), turn("gpt", "<tool_call>{'name': 1}</tool_call>Hello."), DONE]
    (episode,), account = imported(tmp_path, [{"conversations": talk}])
    assert account["dropped"] == {"calls without a usable tool name": 2, "messages of an unknown role": 1}
    assert episode.transitions[0].action == 'respond(content="Hello.\\nDone.")'


def test_several_calls_and_results_in_the_tags_of_one_text_are_one_turn(tmp_path: Path):
    calls = "".join(f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in "ab")
    answers = "".join(f"<tool_response>\nof {name}\n</tool_response>" for name in "ab")
    (episode,), account = imported(tmp_path, [{"conversations": [ASK, turn("gpt", f"I look. {calls}"), turn("tool", answers), DONE]}])
    assert episode.transitions[0].next_state.text == "> a()\nof a\n& b()\nof b"
    assert account["dropped"] == {"texts beside tool calls": 1}


def test_what_a_refused_call_returned_answers_no_other_call(tmp_path: Path):
    blocks = "".join(f"<tool_call>{block}</tool_call>" for block in ("price(n=2)", '{"name": "book", "arguments": {}}'))
    answers = "<tool_response>price: 20</tool_response><tool_response>booked</tool_response>"
    (episode,), account = imported(tmp_path, [{"conversations": [ASK, turn("gpt", blocks), turn("tool", answers), DONE]}])
    assert episode.transitions[0].next_state.text == "> book()\nbooked"
    assert account["dropped"] == {"calls without a usable tool name": 1, "results without a call": 1} and not account["notes"]


def test_calls_are_read_from_the_python_literals_that_hermes_writes(tmp_path: Path):
    blocks = "<tool_call>\n{'arguments': {'n': 2, 'deep': True, 'to': None, 'at': (1, 2), 3: '\\d'}, 'name': 'price'}\n</tool_call>"
    (episode,), account = imported(tmp_path, [{"conversations": [ASK, turn("gpt", blocks), turn("tool", "20"), DONE]}])
    assert episode.transitions[0].action == 'price(3="\\\\d", at=[1, 2], deep=true, n=2, to=null)' and not account["dropped"]


@pytest.mark.parametrize(
    "literal", ["{'name': f()}", "{'name': {1}}", "{'name': b'a'}", "{" * 500, "{'a': " + "-" * 90_000 + "1}", "{'\0'}"]
)
def test_what_is_no_value_of_json_is_no_call(literal: str, tmp_path: Path):
    _, account = imported(tmp_path, [{"conversations": [ASK, turn("function_call", literal), DONE]}])
    assert account["dropped"] == {"calls without a usable tool name": 1}


def test_only_the_column_that_turns_are_read_from_counts_what_is_no_turn(tmp_path: Path):
    _, account = imported(tmp_path, [{"conversations": [ASK, "?", DONE], "messages": ["a", "b"]}])
    assert account["dropped"] == {"messages that are no JSON object": 1}


def test_conversations_with_roles_are_read_as_openais(tmp_path: Path):
    talk = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": "Done."}]
    _, account = imported(tmp_path, [{"conversations": talk}])
    assert list(account["formats"].values()) == ["openai"]
