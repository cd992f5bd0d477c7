"""Actions in the grammar `verb[argument]`: one way to take them apart, and one to put them together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.bracket_actions import join_action, split_action


@pytest.mark.parametrize(
    ("action", "parts"),
    [
        ("click[buy now]", ("click", "buy now")),
        ("search[]", ("search", "")),
        ("click[a [b] c]", ("click", "a [b] c")),
        ("go right", ("go right", None)),
        ("", ("", None)),
    ],
)
def test_an_action_is_its_verb_and_its_argument(action: str, parts: tuple[str, str | None]):
    assert split_action(action) == parts
    assert join_action(*parts) == action


def test_a_missing_last_bracket_is_forgiven():
    assert split_action("click[red") == ("click", "red")


@given(st.text().filter(lambda verb: "[" not in verb), st.none() | st.text())
def test_what_is_put_together_is_taken_apart_again(verb: str, argument: str | None):
    assert split_action(join_action(verb, argument)) == (verb, argument)
