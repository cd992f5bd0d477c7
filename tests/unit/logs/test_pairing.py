"""A result answers a call that was made before it, also where ids come again, are missing, or have no result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from log_samples import imported

from dreamgym.logs.pairing import UNASKED, paired
from dreamgym.logs.records import Account, Call, Message, Result


def call(file: str, call_id: str | None, name: str = "read") -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps({"f": file})}
    return {"type": "function", "function": function} | ({} if call_id is None else {"id": call_id})


def asks(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls)}


def answer(text: str, call_id: str | None, **more: str) -> dict[str, Any]:
    return {"role": "tool", "content": text} | ({} if call_id is None else {"tool_call_id": call_id}) | more


def shown(tmp_path: Path, *messages: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """The last state, without the agent's last words, and what was left out."""
    (episode,), account = imported(tmp_path, [{"messages": [{"role": "user", "content": "Go."}, *messages]}])
    return episode.transitions[-1].next_state.text.partition("\n> respond")[0], account["dropped"]


DONE = {"role": "assistant", "content": "Done."}
anonymous = pytest.mark.parametrize("name", ["call_0", None])  # an id that restarts every turn, and none


@anonymous
def test_a_result_that_is_missing_moves_no_later_one(tmp_path: Path, name: str | None):
    b = asks(call("b", name))
    text, dropped = shown(
        tmp_path, *(one for f in "acd" for one in (*[b] * (f == "c"), asks(call(f, name)), answer(f.upper(), name))), DONE
    )
    assert text == '> read(f="a")\nA\n> read(f="c")\nC\n> read(f="d")\nD'
    assert dropped == {"calls without a result": 1}


@anonymous
def test_a_result_before_its_call_answers_none_and_is_counted(tmp_path: Path, name: str | None):
    stray = [DONE, {"role": "user", "content": "And?"}, answer("old", name)]
    text, dropped = shown(tmp_path, *stray, asks(call("a", name)), answer("A", name), asks(call("b", name)), answer("B", name))
    assert text.endswith('> read(f="a")\nA\n> read(f="b")\nB') and "old" not in text
    assert dropped == {"results without a call": 1}


def test_parallel_calls_without_ids_are_told_apart_by_the_names_of_their_tools(tmp_path: Path):
    calls = asks(call("a", None, "weather"), call("a", None, "time"), call("b", None, "time"))
    results = [answer("10:00", None, tool_name="time"), answer("sunny", None, name="weather"), answer("11:00", None, tool_name="time")]
    text, dropped = shown(tmp_path, calls, *results, DONE)
    assert text == '> weather(f="a")\nsunny\n& time(f="a")\n10:00\n& time(f="b")\n11:00' and not dropped
    text, dropped = shown(tmp_path, asks(call("a", None)), answer("A", None), asks(call("b", None)), answer("sunny", None, name="weather"))
    assert text == '> read(f="a")\nA\n> read(f="b")\n(empty)' and dropped == {"results without a call": 1}


def test_turns_of_one_call_each_before_all_their_results_are_answered_in_order(tmp_path: Path):
    text, dropped = shown(tmp_path, asks(call("a", None)), asks(call("b", None)), answer("A", None), answer("B", None), DONE)
    assert text == '> read(f="a")\nA\n> read(f="b")\nB' and not dropped


def test_every_call_has_an_id_of_its_own_and_results_too_many_are_counted():
    ask, account = Message("agent", "", (Call("0", "f", {}), Call("0", "g", {}, refused=True))), Account()
    results = Message("tool", results=tuple(Result("0", text) for text in "abc"))
    messages = paired([ask, results, ask, results], account)
    calls = [one.id for message in messages for one in message.calls]
    assert len(set(calls)) == len(calls) == 2
    assert [(one.call_id, one.text) for message in messages for one in message.results] == [(name, "a") for name in calls]
    assert account.dropped == {UNASKED: 4}


def test_a_result_before_the_agents_first_turn_is_counted(tmp_path: Path):
    text, dropped = shown(tmp_path, answer("old", "call_0"), asks(call("a", "call_0")), answer("A", "call_0"), DONE)
    assert text == '> read(f="a")\nA' and dropped == {"results without a call": 1}
