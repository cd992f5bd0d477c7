"""A dream of the corridor that needs no training: the control without a model over a handful of logs."""

from __future__ import annotations

from dreamgym.envs import corridor
from dreamgym.experience.guard import Guard
from dreamgym.experience.models.no_model import NoModel, NoModelConfig
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical

SUITE = corridor.make(length=4)
TASKS = SUITE.tasks("train", 6)
LOGS = [SUITE.demonstrate(task, name, seed=i) for i, task in enumerate(TASKS) for name in ("expert", "noisy", "random")]


def corridor_dream() -> NoModel:
    """Another instance each time; all answer alike."""
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(LOGS)
    openings = {log.task.instruction: log.turns[0].transition.state.text for log in LOGS}
    return NoModel(replay, Guard(SUITE.rules), NoModelConfig(), openings=openings)
