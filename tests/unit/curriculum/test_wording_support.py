"""Which synthetic instructions are worded like real ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dreamgym import plugins
from dreamgym.curriculum.wording_support import WordingSupport

COLOURS, THINGS = ("red", "blue", "green", "black"), ("mug", "vest", "lamp", "shoe", "bowl")
REAL = [f"find a {colour} {thing} under {price} dollars" for colour in COLOURS for thing in THINGS for price in (10, 20)]


def test_another_combination_and_another_number_are_supported_and_other_words_are_not():
    support = WordingSupport([text for text in REAL if "red mug" not in text])
    assert "find a red mug under 15 dollars" not in WordingSupport(["sell the house"]) and "find a blue mug under 99 dollars" in support
    assert "find a submarine made of cheese" not in support and "" not in support


def test_most_held_out_real_instructions_are_supported_and_scrambled_ones_are_not():
    suite = plugins.make("envs", "webshop")
    support = WordingSupport(task.instruction for task in suite.tasks("train", 500))
    held = [task.instruction for task in suite.tasks("test", 200)]
    scrambled = [" ".join(sorted(text.split())) for text in held]
    assert sum(text in support for text in held) >= 0.85 * len(held)
    assert sum(text in support for text in scrambled) <= 0.05 * len(scrambled)


def test_without_real_instructions_nothing_is_supported():
    assert "find a mug" not in WordingSupport([])


@given(st.lists(st.text(max_size=20), max_size=8), st.text(max_size=40))
def test_any_text_is_judged(real: list[str], text: str):
    assert (text in WordingSupport(real)) in (True, False)
