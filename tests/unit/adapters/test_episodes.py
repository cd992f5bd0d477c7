"""Episodes as rows of tokens and plain records."""

from __future__ import annotations

import pytest

from dreamgym.adapters.episodes import TokenRow, record, token_row, token_rows
from dreamgym.errors import UsageError
from dreamgym.types import Completion, Observation, StepInfo, Task, Trajectory, Transition, Turn, Verdict


def turn(prompt: tuple[int, ...], ids: tuple[int, ...], reward: float = 0.0, info: StepInfo | None = None) -> Turn:
    said = Completion(prompt, ids, tuple(-0.5 for _ in ids), "", "stop")
    return Turn(Transition(Observation("a"), "b", Observation("c"), reward, False, info or StepInfo(decided_by="recalled")), said)


def episode(*turns: Turn, error: str | None = None) -> Trajectory:
    return Trajectory("e", Task("t", "go", "w"), "dream", turns, success=False, error=error)


def test_a_conversation_is_one_row_whose_mask_is_one_on_sampled_tokens_only():
    row = token_row(episode(turn((1, 2), (3, 4)), turn((1, 2, 3, 4, 5), (6,), 1.0)), filler=9)
    assert (row.prompt, row.response, row.mask) == ([1, 2], [3, 4, 5, 6], [1, 1, 0, 1])
    assert row.logprobs == [-0.5, -0.5, 0.0, -0.5]


def test_a_masked_episode_has_no_reward_and_no_trained_token_and_says_why():
    info = StepInfo(verdict=Verdict("masked", ("contradiction",)), decided_by="generated", reward_by="rule", error="masked by the guard")
    masked = episode(turn((1,), (2,), 1.0, info), error="masked by the guard")
    assert token_row(masked, filler=9).mask == [0]
    found = record(masked)
    assert found["reward"] is None and found["masked"] and found["failed"] and found["verdict"] == "masked"
    assert (found["reasons"], found["decided_by"], found["reward_by"]) == (["contradiction"], ["generated"], ["rule"])


def test_an_episode_that_failed_before_its_first_step_is_a_row_without_trained_tokens():
    row = token_row(episode(error="too long"), filler=9)
    assert (row.prompt, row.response, row.mask, row.logprobs) == ([9], [9], [0], [0.0])


def test_a_window_of_turns_is_no_single_conversation():
    with pytest.raises(UsageError, match="no single conversation"):
        token_row(episode(turn((1, 2), (3,)), turn((1, 7), (3,))), filler=9)


def test_a_window_of_turns_is_a_row_for_each_conversation():
    turns = turn((1, 2), (3,)), turn((1, 2, 3, 4), (5,)), turn((1, 4, 5, 6), (7,), 1.0)
    first, second = token_rows(episode(*turns), filler=9)
    assert first == TokenRow([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0.0, -0.5])
    assert second == TokenRow([1, 4, 5, 6], [7], [1], [-0.5])
    assert [row.mask for row in token_rows(episode(*turns, error="broken"), filler=9)] == [[0, 0, 0], [0]]
