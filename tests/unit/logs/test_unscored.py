"""Episodes without a known outcome: their end teaches no reward and counts nowhere as a failure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dreamgym.envs import corridor
from dreamgym.errors import UsageError
from dreamgym.evals.success import success
from dreamgym.experience.dataset import RowBuilder, SegmentWeights
from dreamgym.experience.prompts import PromptParts
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes import factory
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.runs.episodes import read_trajectories, trajectory_from_json, trajectory_to_json, write_trajectories
from dreamgym.train.dpo import dpo_pairs
from dreamgym.types import Trajectory

SUITE = corridor.make(length=4)


def episodes() -> tuple[Trajectory, Trajectory]:
    """A success, and the same with its outcome unknown."""
    known = next(one for one in collect(SUITE, 8, seed=0, mix={"expert": 1.0}) if one.success)
    last = known.turns[-1]
    end = replace(last, transition=replace(last.transition, reward=0.0))
    return known, replace(known, id="unknown", turns=(*known.turns[:-1], end), success=False, scored=False)


def test_old_records_are_scored_and_an_unknown_success_is_refused(tmp_path: Path):
    known, unknown = episodes()
    record = trajectory_to_json(known)
    del record["scored"]
    assert trajectory_from_json(record).scored
    write_trajectories(tmp_path / "e.jsonl", [unknown])
    assert read_trajectories(tmp_path / "e.jsonl") == [unknown]
    write_trajectories(tmp_path / "e.jsonl", [replace(unknown, success=True)])
    with pytest.raises(UsageError, match="its outcome is unknown"):
        read_trajectories(tmp_path / "e.jsonl")


def test_only_the_reward_of_an_unscored_end_weighs_nothing():
    known, unknown = episodes()
    tokenizer = factory.learn_tokenizer([known], SUITE.rules, 300)
    builder = RowBuilder(factory.make_vocabulary(tokenizer), PromptParts(), SegmentWeights(), SUITE.rules)
    (full,), (row,) = (builder.episode(one, [()] * len(one.turns)) for one in (known, unknown))
    end = len(full.segments) - next(i for i, segment in enumerate(reversed(full.segments)) if segment != "reward")
    assert row.segments == full.segments[:end] + [""] * (len(full.segments) - end)
    assert all(weight == 0 for weight, segment in zip(row.weights, row.segments, strict=True) if not segment)


def test_an_unscored_end_is_no_precedent_no_failure_and_no_part_of_a_rate():
    known, unknown = episodes()
    with ReplayBuffer.open(None, lexical.make()) as buffer:
        assert buffer.add([unknown]) == len(unknown.turns) - 1
    assert success([known, unknown]).n == 1
    assert dpo_pairs([known, unknown], seed=0) == []
