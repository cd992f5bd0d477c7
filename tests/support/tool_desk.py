"""Recorded episodes of an agent with three tools: a lamp that is switched on where it is off. One in five forgets to."""

from __future__ import annotations

import random

from dreamgym.envs.tools.conversation import Exchange, conversation_state
from dreamgym.tool_calls import ToolCall, action_of
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

ROOMS = ("attic", "bath", "cellar", "den", "entry", "garage", "hall", "kitchen", "loft", "office", "porch", "study")


def episode(i: int) -> Trajectory:
    """The i-th episode; its instruction names a room."""
    rng = random.Random(f"desk/{i}")
    room, lit, forgets = ROOMS[i % len(ROOMS)], rng.random() < 0.3, rng.random() < 0.2
    calls = [(ToolCall("get_lamp", {"room": room}), f'{{"room": "{room}", "on": {str(lit).lower()}}}')]
    if not lit and not forgets:
        calls.append((ToolCall("switch", {"on": True, "room": room}), "switched on"))
    calls.append((ToolCall("done", {}), ""))
    exchanges = [Exchange((call,), (result,)) for call, result in calls]
    states = [conversation_state(exchanges[:n]) for n in range(len(exchanges) + 1)]
    success = lit or not forgets
    turns = []
    for n, exchange in enumerate(exchanges):
        last = n == len(exchanges) - 1
        reward = float(last and success)
        turns.append(Turn(Transition(Observation(states[n].text), action_of(exchange.calls), states[n + 1], reward, last)))
    task = Task(f"desk/{i}", f"There must be light in the {room} ({i // len(ROOMS)}).", "desk")
    return Trajectory(f"desk/{i}", task, "demo", tuple(turns), success=success, behaviour="agent")


def episodes(n: int) -> list[Trajectory]:
    """The first n episodes."""
    return [episode(i) for i in range(n)]
