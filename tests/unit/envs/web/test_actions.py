"""The actions of WebArena as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.envs.web.actions import BARE, ONE_ELEMENT, WebAction, canonical, parse

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=30).map(lambda text: " ".join(text.split()))
numbers = st.integers(0, 999_999)
actions = st.one_of(
    st.sampled_from(BARE).map(WebAction),
    st.builds(WebAction, st.sampled_from((*ONE_ELEMENT, "tab_focus")), numbers),
    st.builds(WebAction, st.just("type"), numbers, words, st.booleans()),
    st.builds(WebAction, st.just("select"), numbers, words),
    st.builds(WebAction, st.just("stop"), st.none(), words),
    st.builds(WebAction, st.just("scroll"), st.none(), st.sampled_from(("up", "down"))),
)


@given(actions)
def test_an_action_is_read_as_it_is_written(action: WebAction):
    assert parse(str(action)) == action
    assert canonical(str(action)) == str(action)


@given(st.text(max_size=80))
def test_the_canonical_spelling_of_any_text_is_stable(text: str):
    assert canonical(canonical(text)) == canonical(text)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click [12]", WebAction("click", 12)),
        ("  click[ 12 ]\n", WebAction("click", 12)),
        ("type [3] [red  scarf]", WebAction("type", 3, "red scarf", enter=True)),
        ("type [3] [red scarf] [press_enter_after=0]", WebAction("type", 3, "red scarf")),
        ("type [3] [array[0]] [1]", WebAction("type", 3, "array[0]", enter=True)),
        ("press [Control+Shift+a]", WebAction("press", text="Control+Shift+a")),
        ("press [Control+Delete]", WebAction("press", text="Control+Delete")),
        ("press [Shift+C]", WebAction("press", text="Shift+C")),
        ("press [Control++]", WebAction("press", text="Control++")),
        ("press [v]", WebAction("press", text="v")),
        ("stop []", WebAction("stop")),
        ("stop [a [b] c]", WebAction("stop", text="a [b] c")),
        ("scroll [Down]", WebAction("scroll", text="down")),
    ],
)
def test_spellings_that_are_read(text: str, action: WebAction):
    assert parse(text) == action


@pytest.mark.parametrize(
    "text",
    ["", "click", "click 12", "click [a]", "click [1] [2]", "type [3]", "type [x] [y]", "scroll [left]", "press [no key]", "go_back [1]",
     "goto []", "clicking [1]", "stop", "click [1234567]", "exec [rm]",
     # what one episode copies, another would paste
     "press [Control+c]", "press [Control+C]", "press [Control+x]", "press [Meta+v]", "press [Control+Shift+v]",
     "press [Shift+Control+KeyV]", "press [Control+Insert]", "press [Shift+Insert]", "press [Shift+Delete]", "press [Control+Numpad0]"],
)  # fmt: skip
def test_texts_that_are_no_action(text: str):
    assert parse(text) is None
