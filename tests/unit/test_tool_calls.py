"""Tool calls as actions: one spelling, read back as it was written."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import UsageError
from dreamgym.tool_calls import ToolCall, action_of, calls_of, respond

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.:-]{0,12}", fullmatch=True)
CALLS = st.builds(ToolCall, NAMES, st.dictionaries(st.text(max_size=8), VALUES, max_size=4) | st.text(max_size=30))


@given(st.lists(CALLS, min_size=1, max_size=4))
def test_an_action_is_read_back_as_the_calls_it_was_made_of(calls: list[ToolCall]):
    assert calls_of(action_of(calls)) == calls


def test_one_call_is_a_line_with_its_arguments_sorted_by_name():
    call = ToolCall("exchange_items", {"order_id": "#W1", "items": ["1", {"size": "A5"}], "dry run": False})
    assert str(call) == 'exchange_items("dry run"=false, items=["1", {"size": "A5"}], order_id="#W1")'
    assert action_of([ToolCall("reboot", {}), respond("Done.\nBye.")]) == 'reboot()\nrespond(content="Done.\\nBye.")'


@pytest.mark.parametrize(
    "action", ["", "  \n", "reboot", "reboot(", "f(a)", "f(a=1 b=2)", "f(a=1, a=2)", "f(a=NaN)", "f(a=[1)", "(a=1)", "f g(a=1)"]
)
def test_a_text_that_is_no_call_is_refused_with_what_was_expected(action: str):
    with pytest.raises(UsageError, match="xpected|such as"):
        calls_of(action)


@given(st.text(max_size=60))
def test_no_text_crashes_the_reader(text: str):
    with contextlib.suppress(UsageError):
        assert calls_of(text)


@pytest.mark.parametrize("name", ["", "two words", "f(", 'a"b', "a=b"])
def test_a_tool_name_that_could_not_be_read_back_is_refused(name: str):
    with pytest.raises(UsageError, match="name"):
        ToolCall(name, {})
