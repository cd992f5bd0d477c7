"""The experience model beside the control on held-out recorded steps, in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dreamgym.evals.held_out import sentence, warning
from dreamgym.statistics import wilson


def measured(model: int, control: int, n: int) -> dict[str, Any]:
    def side(right: int) -> dict[str, Any]:
        return {"with_guard": {"state_exact_valid": asdict(wilson(right, n))}}

    return {"held_out": side(model), "no_model": side(control)}


def test_the_control_stands_beside_the_model():
    assert sentence(measured(38, 47, 81)) == (
        "Of 81 next states in held-out recorded episodes 46.9 % [36.4, 57.7] are exactly right, and 58.0 % [47.2, 68.2] without a model, "
        "from memories and conditions alone."
    )
    assert sentence({"held_out": measured(1, 0, 2)["held_out"]}).endswith("are exactly right.")
    assert sentence({"held_out": None, "reason": "No episode was held out."}) == "No episode was held out."


def test_a_control_that_is_ahead_is_warned_of_as_far_as_the_intervals_say():
    overlapping, apart = warning(measured(38, 47, 81)), warning(measured(300, 600, 800))
    assert "The intervals overlap" in overlapping and "58.0 %" in overlapping and "experience.training.epochs" in overlapping
    assert apart.startswith("The experience model is worse than none") and "overlap" not in apart
    assert warning(measured(47, 38, 81)) == warning(measured(40, 40, 81)) == ""
    assert warning({"held_out": None, "reason": "none"}) == warning({}) == ""
