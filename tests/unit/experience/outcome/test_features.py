"""Features of claims: any text has some."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dreamgym.experience.outcome.features import features
from dreamgym.types import Observation, Transition

TEXT = st.text(st.characters(), max_size=40)


@given(TEXT, TEXT, TEXT)
def test_every_text_has_features(instruction: str, action: str, state: str):
    step = Transition(Observation(state), action, Observation(state[::-1]), 1.0, True)
    assert all(isinstance(value, float) for value in features(instruction, [step], 0).values())


def test_a_digit_that_is_no_number_is_a_word():
    step = Transition(Observation("⁴ GB of 5"), "buy 2²", Observation("½ left"), 1.0, True)
    assert features("at most ⁴ for 7", [step], 0)
