"""An agent with three tools: a lamp that is switched on where it is off. One in five recorded episodes forgets to."""

from __future__ import annotations

import random
from typing import Any

from dreamgym.envs.tools.conversation import Exchange, conversation_state
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import tools_of
from dreamgym.tool_calls import ToolCall, action_of, calls_of
from dreamgym.types import Action, Observation, Task, Trajectory, Transition, Turn

ROOMS = ("attic", "bath", "cellar", "den", "entry", "garage", "hall", "kitchen", "loft", "office", "porch", "study")
ROOM, ON = {"room": {"type": "string"}}, {"on": {"type": "boolean"}}
TOOLS = tools_of(
    [
        {"name": name, "parameters": {"properties": properties, "required": list(properties), "additionalProperties": False}}
        for name, properties in {"get_lamp": ROOM, "switch": ON | ROOM, "done": {}}.items()
    ]
)
RULES = ToolRules("desk", TOOLS, refusals="unchanged")


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


class Desk:
    """The rooms as an environment. Calls that the schemas exclude change nothing, and an unknown room is an error."""

    name = "desk"

    def accepts(self, task: Task) -> bool:
        return True

    def reset(self, task: Task) -> dict[str, Any]:
        self.room = task.instruction.split(" in the ")[1].split(" ")[0]
        self.lit = {self.room: random.Random(task.id).random() < 0.3}
        self.exchanges: list[Exchange] = []
        return {"exchanges": ()}

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        ended = False
        if not RULES.fault(action):
            (call,) = calls_of(action)
            ended = call.name == "done"
            self.exchanges.append(Exchange((call,), ("" if ended else self._answer(call),)))
        return {"exchanges": tuple(self.exchanges)}, float(ended and self.lit[self.room]), ended

    def _answer(self, call: ToolCall) -> str:
        assert not isinstance(call.arguments, str)
        room = call.arguments["room"]
        if room not in ROOMS:
            return "Error: no such room"
        if call.name == "get_lamp":
            return f'{{"room": "{room}", "on": {str(self.lit.get(room, False)).lower()}}}'
        self.lit[room] = call.arguments["on"]
        return f"switched {'on' if self.lit[room] else 'off'}"
