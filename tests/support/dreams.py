"""Dreams that need no training: the control without a model over a handful of logs."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.envs import corridor
from dreamgym.envs.base import TextRules
from dreamgym.envs.tools.conversation import Exchange, conversation_state
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import Tool
from dreamgym.experience.guard import Guard
from dreamgym.experience.models.no_model import NoModel, NoModelConfig
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.tool_calls import ToolCall, action_of, respond
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

SUITE = corridor.make(length=4)
TASKS = SUITE.tasks("train", 6)
LOGS = [SUITE.demonstrate(task, name, seed=i) for i, task in enumerate(TASKS) for name in ("expert", "noisy", "random")]


def corridor_dream() -> NoModel:
    """A dream of the corridor. Another instance each time; all answer alike."""
    return _dream(LOGS, SUITE.rules)


CANCEL = Tool("cancel", "Cancel an order.", {"properties": {"order": {"type": "string"}}, "required": ["order"]})
CANCEL_RULES = ToolRules("orders", [CANCEL])
CANCEL_TASK = Task("orders/1", "Cancel order W1", "orders")
TALK = (respond("Do you confirm?"), ToolCall("cancel", {"order": "W1"}), respond("It is cancelled."))


def talking_dream() -> NoModel:
    """A dream of an agent that asks the user, cancels an order, and ends with a message, which is rewarded: the actions are `TALK`."""
    exchanges = [Exchange(TALK[:1], ("",), "yes"), Exchange(TALK[1:2], ("cancelled",)), Exchange(TALK[2:], ("",))]
    states = [conversation_state(exchanges[:n]) for n in range(len(TALK) + 1)]
    turns = [
        Turn(Transition(Observation(states[n].text), action_of([call]), states[n + 1], float(n == 2), n == 2))
        for n, call in enumerate(TALK)
    ]
    return _dream([Trajectory("orders/1", CANCEL_TASK, "demo", tuple(turns), success=True)], CANCEL_RULES)


def _dream(logs: Sequence[Trajectory], rules: TextRules) -> NoModel:
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(logs)
    openings = {log.task.instruction: log.turns[0].transition.state.text for log in logs}
    return NoModel(replay, Guard(rules), NoModelConfig(), openings=openings)
