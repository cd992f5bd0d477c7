"""Features of claims: any text has some."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from dreamgym.experience.learned_verifier.features import DIM, features, rows_of
from dreamgym.experience.learned_verifier.head import LabelledClaim, fit
from dreamgym.types import Observation, Transition

TEXT = st.text(st.characters(), max_size=40)


@given(TEXT, TEXT, TEXT)
def test_every_text_has_features(instruction: str, action: str, state: str):
    step = Transition(Observation(state), action, Observation(state[::-1]), 1.0, True)
    assert all(isinstance(value, float) for value in features(instruction, [step], 0).values())


def test_a_digit_that_is_no_number_is_a_word():
    step = Transition(Observation("⁴ GB of 5"), "buy 2²", Observation("½ left"), 1.0, True)
    assert features("at most ⁴ for 7", [step], 0)


def test_the_number_of_an_element_stands_for_the_words_beside_it():
    """An action says `click [3]`, and the state what [3] is: whether that was asked for is learned from names that no other claim has."""
    rng = random.Random(0)

    def claim(i: int) -> LabelledClaim:
        names = [f"word{rng.randrange(10**6)}" for _ in range(4)]
        state = "\n".join(f"[{n}] link '{name}' | of page {i}" for n, name in enumerate(names, 1))
        right, label = rng.randrange(4), float(i % 2)
        clicked = right if label else (right + rng.randrange(1, 4)) % 4
        step = Transition(Observation(state), f"click [{clicked + 1}]", Observation("the task has ended."), 1.0, True)
        return LabelledClaim(f'Click on the link "{names[right]}".', (step,), label)

    seen, others = ([claim(i) for i in range(60)] for _ in range(2))
    head, _ = fit(seen, rows_of(seen), members=1)
    assert head.weights.shape == (1, DIM)
    scores = head.logits(rows_of(others))[0]
    assert all((score > 0) == bool(other.label) for score, other in zip(scores, others, strict=True))
