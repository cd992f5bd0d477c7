"""Acting in many episodes: what answers at once and what answers later look the same from outside."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dreamgym.envs import batch
from dreamgym.envs.batch import AsyncBatchEnv, SyncBatchEnv, timed
from dreamgym.errors import InvariantError
from dreamgym.types import Observation, StepResult


def result(text: str) -> StepResult:
    return StepResult(Observation(text), 0.0, False)


class AtOnce(SyncBatchEnv):
    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult]:
        return [result(f"{slot} {action}") for slot, action in zip(slots, actions, strict=True)]


class LastFirst(AsyncBatchEnv):
    def __init__(self) -> None:
        self.under_way: list[tuple[int, str]] = []

    def submit(self, slots: Sequence[int], actions: Sequence[str]) -> None:
        self.under_way += zip(slots, actions, strict=True)

    def poll(self) -> list[tuple[int, StepResult]]:
        return [(slot, result(f"{slot} {action}")) for slot, action in [self.under_way.pop()]] if self.under_way else []


def test_what_is_submitted_is_answered_by_the_next_poll_and_only_once():
    env = AtOnce()
    env.submit([2, 0], ["b", "a"])
    assert env.poll() == [(2, result("2 b")), (0, result("0 a"))] and env.poll() == []


def test_a_step_waits_for_all_and_keeps_the_order_of_its_slots():
    assert LastFirst().step([3, 1, 2], ["a", "b", "c"]) == [result("3 a"), result("1 b"), result("2 c")]


def test_an_environment_that_loses_a_step_stops_the_run():
    env = LastFirst()
    env.submit = lambda slots, actions: None  # type: ignore[method-assign]
    with pytest.raises(InvariantError, match="1 steps are open"):
        env.step([0], ["a"])


def test_seconds_of_waiting_add_up_also_where_a_method_fails(monkeypatch: pytest.MonkeyPatch):
    clock = iter([1.0, 3.0, 10.0, 14.0])
    monkeypatch.setattr(batch.time, "monotonic", lambda: next(clock))

    class Real:
        seconds = 0.0

        @timed
        def start(self, n: int) -> int:
            return 1 // n

    real = Real()
    assert real.start(1) == 1 and real.seconds == 2.0
    with pytest.raises(ZeroDivisionError):
        real.start(0)
    assert real.seconds == 6.0
