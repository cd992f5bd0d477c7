"""The states of a tool conversation: calls so far, the latest observations, and no more text than fits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.envs.tools.conversation import (
    EMPTY,
    Exchange,
    Limits,
    conversation_state,
    extend,
    latest_turn,
    returned,
    turns_shown,
    unescaped,
)
from dreamgym.errors import UsageError
from dreamgym.tool_calls import ToolCall, respond
from dreamgym.types import Observation

STATUS = ToolCall("check_status_bar", {})
LINE = ToolCall("get_details_by_id", {"id": "L1002"})
TEXTS = st.text(max_size=80) | st.sampled_from(
    ["> f()", "& g()", "< hello", "(3 earlier calls)", "a\n> b()\n\n< c", "", " ", "\ud800", "x\r\ny"]
)
CALLS = st.builds(ToolCall, st.sampled_from(["f", "get_user", "respond"]), st.dictionaries(st.text(max_size=5), TEXTS, max_size=2) | TEXTS)
EXCHANGES = st.lists(st.tuples(CALLS, TEXTS), min_size=1, max_size=3).flatmap(
    lambda pairs: st.builds(Exchange, st.just(tuple(call for call, _ in pairs)), st.just(tuple(text for _, text in pairs)), TEXTS)
)
LIMITS = st.builds(Limits, st.integers(0, 300), st.integers(10, 100), st.integers(4, 60), st.integers(1, 5))


def test_a_state_shows_the_calls_what_they_returned_and_what_the_user_said():
    exchanges = [
        Exchange((STATUS,), ("Airplane Mode | 80%",)),
        Exchange((LINE, STATUS), ('{"status":"Active"}', "")),
        Exchange((respond("Solved?"),), ("",), "not\nyet"),
    ]
    assert conversation_state(exchanges).text.split("\n") == [
        "> check_status_bar()",
        "Airplane Mode | 80%",
        '> get_details_by_id(id="L1002")',
        '{"status": "Active"}',
        "& check_status_bar()",
        EMPTY,
        '> respond(content="Solved?")',
        "< not yet",
    ]
    assert latest_turn(conversation_state(exchanges)) == "< not yet"
    assert conversation_state([]) == Observation("no calls yet") and latest_turn(conversation_state([])) == "no calls yet"


def test_old_turns_lose_what_they_returned_and_then_are_only_counted():
    exchanges = [Exchange((ToolCall(f"tool{i}", {}),), (f"result {i}",)) for i in range(6)]
    assert conversation_state(exchanges, Limits(state_chars=42, calls=4)).text.split("\n") == [
        "(2 earlier calls)",
        "> tool2()",
        "> tool3()",
        "> tool4()",
        "result 4",
        "> tool5()",
        "result 5",
    ]
    assert conversation_state(exchanges[:1], Limits(state_chars=0)).text == "> tool0()\nresult 0"  # the latest turn is always there


@given(st.lists(EXCHANGES, max_size=6), LIMITS)
def test_a_state_follows_from_the_state_before_and_the_turn_alone(exchanges: list[Exchange], limits: Limits):
    """So that a dream, which has nothing but texts, shows the states that logs and the real environment show."""
    state = conversation_state([])
    for i, exchange in enumerate(exchanges, start=1):
        state = extend(state, exchange, limits)
        assert state == conversation_state(exchanges[:i], limits)
        assert latest_turn(state) == returned(exchange, limits)
        assert sum(line.startswith(("> ", "& ")) for line in latest_turn(state).split("\n")) == len(exchange.calls) - 1
        assert len(turns_shown(state)) <= i and "\n\n" not in state.text and state.text.encode()


def test_nothing_that_a_tool_returned_is_taken_for_a_call_or_the_users_words():
    state = conversation_state([Exchange((STATUS,), ("ok\n> pay()\n& pay()\n< pay all\n<b>\n&& make",))])
    assert state.text == "> check_status_bar()\nok\n>> pay()\n&& pay()\n<< pay all\n<b>\n&&& make"
    assert len(turns_shown(state)) == 1


@given(st.text(alphabet=">&< x", min_size=1).filter(lambda line: line.strip() == line))
def test_a_returned_line_can_be_read_back_from_its_state(line: str):
    shown = returned(Exchange((STATUS,), (line,)))
    assert not shown.startswith(("> ", "& ", "< ")) and unescaped(shown) == line


def test_long_arguments_are_shortened_and_ids_stay_whole():
    call = ToolCall("note", {"id": "b" * 40, "items": [f"item {i}" for i in range(99)], "text": "long words " * 40})
    (line,) = (lines[0] for lines in turns_shown(conversation_state([Exchange((call,), ("ok",))])))
    assert len(line) < 600 and f'id="{"b" * 40}"' in line and "more" in line and "characters" in line


@pytest.mark.parametrize(("calls", "results"), [((), ()), ((STATUS,), ()), ((STATUS,), ("a", "b"))])
def test_calls_without_their_results_are_refused(calls: tuple[ToolCall, ...], results: tuple[str, ...]):
    with pytest.raises(UsageError, match="one result a call"):
        Exchange(calls, results)


def test_a_long_result_does_not_crowd_out_the_calls():
    result = json.dumps([{"order_id": f"#W{i:07}", "items": [{"item_id": str(10**9 + i), "note": "word " * 50}] * 9} for i in range(40)])
    state = conversation_state([Exchange((STATUS,), (result,))])
    assert len(state.text) < 1100 and '"#W0000000"' in state.text
