"""The layout of answers: what is written of a reward can be read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import UsageError
from dreamgym.experience.parse import OUTCOME
from dreamgym.experience.prompts import NUMBER, outcome


@given(st.one_of(st.floats(-9e6, 9e6), st.integers(-9_999_999, 9_999_999).map(float), st.sampled_from([0.0, -0.0, 1e-5, 100.0, 1e6])))
def test_every_reward_is_written_as_it_is_read_or_refused(reward: float):
    try:
        written = outcome(reward, True)
    except UsageError:
        assert 0 < abs(reward) < 1e-12
        return
    found = OUTCOME.fullmatch(written)
    assert found and found["flag"] == "stop" and float(found["reward"]) == pytest.approx(reward, rel=1e-5, abs=1e-12)
    assert re.fullmatch(f"{NUMBER} (go|stop)", written), "what the grammar of answers allows"


@pytest.mark.parametrize("reward", [1e7, -1e12, float("inf"), float("nan"), 1e-30])
def test_a_reward_that_cannot_be_written_is_named(reward: float):
    with pytest.raises(UsageError, match=r"A reward of .* cannot be written.*Scale the rewards"):
        outcome(reward, False)
