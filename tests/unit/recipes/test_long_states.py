"""States that no context of the small models has room for are left out of the logs, because a state is never cut."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from dreamgym.config import resolve
from dreamgym.envs import corridor
from dreamgym.errors import UsageError
from dreamgym.llm import tiny
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.context import drop_too_long
from dreamgym.types import Observation, Trajectory, Turn

SUITE = corridor.make(length=4, keys=False)
LOGS = [SUITE.demonstrate(task, "expert", seed=0) for task in SUITE.tasks("train", 4)]
TOKENIZER = tiny.train_tokenizer([t.state.text for log in LOGS for t in log.transitions], vocab_size=300)


def with_a_long_end(log: Trajectory) -> Trajectory:
    *turns, last = log.turns
    return replace(log, turns=(*turns, Turn(replace(last.transition, next_state=Observation("[1]" * 2000)))))


def test_an_episode_with_too_long_a_state_is_left_out_with_a_warning(caplog: pytest.LogCaptureFixture):
    logs = [with_a_long_end(LOGS[0]), *LOGS[1:]]
    with caplog.at_level(logging.WARNING):
        assert drop_too_long(logs, TOKENIZER, TrainConfig()) == LOGS[1:]
    assert "1 of 4 logged episodes hold a state of more than 4,096 tokens" in caplog.text
    assert drop_too_long(logs, TOKENIZER, resolve(TrainConfig, {"experience": {"max_context": 100_000}})) == logs


def test_without_a_success_that_fits_there_is_nothing_to_learn_from():
    with pytest.raises(UsageError, match="no success is left without them"):
        drop_too_long([with_a_long_end(log) for log in LOGS], TOKENIZER, TrainConfig())
