"""The gap of a policy: the same tasks in the dream and, acting anew, in the real environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from dreamgym.evals.gap import compare_success, gap_sentence
from dreamgym.statistics import wilson
from dreamgym.types import Observation, Source, StepInfo, Task, Trajectory, Transition, Turn, Verdict


def episode(task: int, source: Source, *, success: bool, error: str | None = None, masked: bool = False) -> Trajectory:
    verdict: Any = "masked" if masked else "passed"
    step = Transition(Observation("a"), "act", Observation("b"), float(success), True, StepInfo(verdict=Verdict(verdict)))
    reason = "masked by the guard: unsure" if masked else error
    return Trajectory(f"{source}/{task}", Task(str(task), "t", "toy"), source, (Turn(step),), success, error=reason)


def test_the_gap_is_over_the_tasks_that_have_an_outcome_on_both_sides():
    dreamed = [episode(i, "dream", success=i < 8) for i in range(10)]
    real = [episode(i, "real", success=i < 5) for i in range(10)]
    whole = compare_success(dreamed, real)
    assert (whole.dream_success.value, whole.real_success.value, whole.masked, whole.failed_rollouts) == (0.8, 0.5, 0, 0)
    assert (whole.gap.value, whole.gap.low, whole.gap.high) == pytest.approx((0.3, -0.05295, 0.56655), abs=1e-5)
    dreamed[0] = episode(0, "dream", success=False, masked=True)
    real[9] = episode(9, "real", success=False, error="the environment broke")
    fewer = compare_success(dreamed, real)
    assert (fewer.masked, fewer.failed_rollouts, fewer.gap.n) == (1, 1, 8)
    assert (fewer.dream_success.value, fewer.real_success.value) == (7 / 8, 4 / 8)


def test_a_gap_of_episodes_that_all_agree_has_an_interval_with_a_width():
    agreed = compare_success([episode(i, "dream", success=True) for i in range(4)], [episode(i, "real", success=True) for i in range(4)])
    assert agreed.gap.value == 0.0 and agreed.gap.low is not None and agreed.gap.high is not None
    assert agreed.gap.low < -0.3 and agreed.gap.high > 0.3


def recorded(dreamed: Sequence[Trajectory], real: Sequence[Trajectory]) -> dict[str, Any]:
    """What the phase of a policy's gap leaves."""
    return {"policy": "dream", **asdict(compare_success(dreamed, real))}


def test_the_sentence_says_what_was_left_out_and_that_nothing_was_measured_without_tasks():
    dreamed = [episode(0, "dream", success=True), episode(1, "dream", success=True, masked=True)]
    found = gap_sentence(recorded(dreamed, [episode(0, "real", success=True), episode(1, "real", success=True)]))
    assert found.startswith("On 1 training task the policy 'dream' succeeds in 100.0 % [") and found.endswith("Left out: 1 masked dream.")
    assert "was not measured" in gap_sentence(recorded([], []))


def test_the_sentence_says_how_consistent_dreams_are_where_one_came_back_to_what_it_had_shown():
    found = recorded([episode(0, "dream", success=True)], [episode(0, "real", success=True)])
    assert gap_sentence(found | {"revisits": asdict(wilson(3, 4))}).endswith(
        "Of 4 returns of a dream to what it had shown, 75.0 % [30.1, 95.4] showed the same."
    )
    control = {"revisits": asdict(wilson(4, 4)), "revisits_no_model": asdict(wilson(1, 2))}
    assert gap_sentence(found | control).endswith("showed the same. In the dream without a model, of 2, 50.0 % [9.5, 90.5].")
    assert gap_sentence(found | {"revisits": asdict(wilson(0, 0))}) == gap_sentence(found)
    repeated = gap_sentence(found | {"accepted_false": asdict(wilson(1, 4))})
    assert repeated.endswith("Of 4 dreamed successes, repeated in the real environment, 25.0 % [4.6, 69.9] are false.")
