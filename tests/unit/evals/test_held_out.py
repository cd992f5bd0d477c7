"""The experience model beside the control on held-out recorded steps, in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dreamgym.evals.held_out import sentence, unpaid, warning
from dreamgym.statistics import paired_rate_difference, wilson


def measured(model: int, control: int, n: int) -> dict[str, Any]:
    """Both sides are right in the first steps."""

    def side(right: int) -> dict[str, Any]:
        return {"with_guard": {"state_exact_valid": asdict(wilson(right, n))}}

    found = {"held_out": side(model), "no_model": side(control)}
    hits = [[k < right for k in range(n)] for right in (model, control)]
    found["held_out"]["with_guard"]["over_no_model"] = paired_rate_difference(hits[0], hits[1]).json()
    return found


def test_the_control_stands_beside_the_model():
    assert sentence(measured(38, 47, 81)) == (
        "Of 81 next states in held-out recorded episodes 46.9 % [36.4, 57.7] are exactly right, and 58.0 % [47.2, 68.2] without a model, "
        "from memories and conditions alone."
    )
    assert sentence({"held_out": measured(1, 0, 2)["held_out"]}).endswith("are exactly right.")
    assert sentence({"held_out": None, "reason": "No episode was held out."}) == "No episode was held out."


def test_a_control_that_is_ahead_is_warned_of_as_far_as_the_difference_in_the_same_steps_says():
    unclear, apart = warning(measured(38, 40, 81)), warning(measured(300, 600, 800))
    assert "difference includes 0" in unclear and "49.4 %" in unclear and "experience.training.epochs" in unclear
    assert apart.startswith("The experience model is worse than none") and "includes" not in apart
    paired = measured(38, 47, 81)  # the two intervals overlap, and every step that differs is the control's
    assert warning(paired).startswith("The experience model is worse than none")
    assert warning(measured(47, 38, 81)) == warning(measured(40, 40, 81)) == ""
    assert warning({"held_out": None, "reason": "none"}) == warning({}) == ""


def ends(paid_with_guard: int, paid_without_guard: int, *, masked: int, n: int = 18) -> dict[str, Any]:
    """Real successes by what is predicted of them, with and without guard."""

    def side(paid: int, left_out: int) -> dict[str, Any]:
        return {"confusion": {"success": {"success": paid, "failure": n - paid - left_out, "goes on": 0, "left out": left_out}}}

    return {"held_out": {"with_guard": side(paid_with_guard, masked), "without_guard": side(paid_without_guard, 0)}}


def test_a_guard_that_masks_most_real_successes_is_warned_of_and_a_model_that_misses_them_is_not_blamed_on_it():
    text = unpaid(ends(0, 15, masked=15))
    assert text.startswith("Of 18 real successes in held-out episodes the dream pays for 0: 15 are masked and 3 are called no success.")
    assert "Without the guard it pays for 15." in text and unpaid(ends(1, 15, masked=0))
    assert unpaid(ends(10, 15, masked=5)) == unpaid(ends(0, 2, masked=2)) == ""
    assert unpaid({"held_out": None}) == unpaid({}) == unpaid(measured(1, 1, 2)) == ""
