"""Reasoning traces from what a step changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.experience.trace import trace_of_changes
from dreamgym.types import Observation, Transition

TEXT = st.text(st.characters(), max_size=30)


def step(before: str, after: str, *, reward: float = 0.0, end: bool = False) -> Transition:
    return Transition(Observation(before), "act", Observation(after), reward, end)


@pytest.mark.parametrize(
    ("before", "after", "visible", "memories", "trace"),
    [
        ("a", "a", ("a",), ("act\na",), "nothing changes; it goes on"),
        ("a", "b\nc", ("a",), ("act\nz", "act\nb\nc"), "as memory 2 shows; it goes on"),
        ("a", "b", ("b", "a"), (), "back to an earlier state; it goes on"),
        ("a\nb\nc", "a\nb\nd", ("a\nb\nc",), (), "the same state but for 1 lines; it goes on"),
        ("x", "a\nb\nd", ("x",), ("act\na\nb\nc",), "like memory 1 but for 1 lines; it goes on"),
        ("x", "y", ("x",), ("act\nz",), "a new state; it goes on"),
    ],
)
def test_a_trace_names_where_the_next_state_comes_from(before: str, after: str, visible, memories, trace: str):  # type: ignore[no-untyped-def]
    assert trace_of_changes(step(before, after), visible, memories) == trace


def test_a_trace_ends_with_the_outcome():
    ends = [trace_of_changes(step("a", "b", reward=r, end=e), ("a",), ()).partition("; ")[2] for r, e in ((0, False), (0, True), (1, True))]
    assert ends == ["it goes on", "it ends without success", "the task is done"]


@given(TEXT, TEXT, st.lists(TEXT, max_size=3), st.lists(TEXT, max_size=3))
def test_every_step_has_a_trace_of_one_line(before: str, after: str, visible: list[str], memories: list[str]):
    assert "\n" not in trace_of_changes(step(before, after), visible, memories)
