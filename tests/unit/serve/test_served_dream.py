"""What is served of a run is what its own policy trains in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dreams import LOGS, SUITE, corridor_dream

from dreamgym.experience.action_support import ActionSupport
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.models.no_model import NoModel
from dreamgym.recipes import factory, serve
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.serve.sessions import outcome

HORIZON = 2


class Generating(NoModel):
    """Says of every answer that the model generated it."""

    answers_by = "generated"

    def __init__(self, inner: NoModel) -> None:
        self.__dict__.update(inner.__dict__)

    def poll(self) -> Any:
        return [(ticket, replace(one, info=replace(one.info, decided_by="generated"))) for ticket, one in super().poll()]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose dreams are shorter than its suite's episodes, and whose logs have no action "dance"."""
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(LOGS)
    model = Generating(corridor_dream())
    batch = DreamBatch(model, SUITE.rules, horizon=HORIZON, support=ActionSupport(replay))
    monkeypatch.setattr(serve.RunDir, "view", lambda path: SimpleNamespace(done=lambda stage: True))
    monkeypatch.setattr(serve, "open_context", lambda path: SimpleNamespace(suite=SUITE))
    monkeypatch.setattr(factory, "replay_in_memory", lambda context: replay)
    monkeypatch.setattr(factory, "make_dream", lambda context, replay: (batch, model))
    return Path("run")


def test_a_served_episode_is_cut_at_the_horizon_of_the_runs_own_dreams(run: Path) -> None:
    assert SUITE.max_steps > HORIZON
    dream = serve.open_dream(run)
    assert dream.horizon == dream.batch().horizon == HORIZON
    with serve.open_dream(run).sessions() as sessions:
        opened = sessions.open(dream.tasks[0].id).result(10)
        assert [sessions.step(opened.session, "left").result(10).truncated for _ in range(HORIZON)] == [False, True]
    with serve.shared_sessions.__wrapped__(str(run)) as shared:
        assert shared.horizon == HORIZON


def test_a_served_step_that_no_recorded_action_supports_is_marked(run: Path) -> None:
    batch = serve.open_dream(run).batch()
    batch.start(serve.open_dream(run).tasks[:1], seed=0)
    assert [batch.step([0], [action])[0].info.out_of_support for action in ("left", "dance")] == [False, True]
    with serve.open_dream(run).sessions() as sessions:
        opened = sessions.open().result(10)
        steps = [sessions.step(opened.session, action).result(10) for action in ("left", "dance")]
        assert [outcome(step)["out_of_support"] for step in steps] == [False, True]
