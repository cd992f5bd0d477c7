"""Tool calls that differ little from a recorded one, as agents write them. All can be read as calls.

Schemas exclude unknown tools, missing arguments and wrong types, and unknown arguments where they are closed. They allow other identifiers:
whether these are refused, only the environment knows.
"""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dreamgym.envs.near_misses import Miss, changed
from dreamgym.envs.tools.schemas import MESSAGE, Tool, fault
from dreamgym.errors import UsageError
from dreamgym.tool_calls import RESPOND, ToolCall, calls_of
from dreamgym.types import Action, Trajectory

EXTRA: Mapping[str, Any] = {"format": "json", "limit": 10, "reason": "as requested", "verbose": True}
"""Arguments that agents add to tools of all kinds."""
IDENTIFIER = re.compile(r"[#\w][\w.@+:-]*")


def near_misses(tools: Mapping[str, Tool], episodes: Sequence[Trajectory]) -> Mapping[str, Miss]:
    """By name, the ways to change a call of the step, or of another step of its episode where that one offers none."""
    changes = _Changes(tools, episodes)

    def way(change: Callable[[Trajectory, ToolCall, random.Random], ToolCall | None], excluded: bool | None) -> Miss:
        """`excluded` is what the schemas must say of the changed call; None: either."""

        def miss(episode: Trajectory, step: int, rng: random.Random) -> Action | None:
            for steps in ((step,), range(len(episode.turns))):
                calls = [call for call in _calls(episode, steps) if not fault(tools, call)]
                for call in rng.sample(calls, len(calls)):
                    found = change(episode, call, rng)
                    if found and excluded in (None, bool(fault(tools, found))):
                        return str(found)
            return None

        return miss

    return {
        "unknown tool": way(changes.tool, True),
        "missing argument": way(changes.missing, True),
        "unknown argument": way(changes.argument, None),
        "wrong type": way(changes.type, True),
        "changed identifier": way(changes.identifier, False),
        "identifier elsewhere": way(changes.elsewhere, False),
    }


class _Changes:
    """The ways to change a call of an episode; None where a call offers none."""

    def __init__(self, tools: Mapping[str, Tool], episodes: Sequence[Trajectory]) -> None:
        self.tools = tools
        self.extra = sorted(EXTRA.keys() - {key for tool in tools.values() for key in tool.parameters.get("properties") or {}})
        self.words = sorted({word for name in tools for word in name.split("_")})
        self.identifiers: dict[tuple[str, str], set[str]] = defaultdict(set)  # recorded ones, by tool and argument
        for episode in episodes:
            for call in _calls(episode, range(len(episode.turns))):
                for key, value in _identifiers(call).items():
                    self.identifiers[call.name, key].add(value)

    def tool(self, episode: Trajectory, call: ToolCall, rng: random.Random) -> ToolCall:
        """A name with one letter changed, or with a word of another tool's name."""
        parts = call.name.split("_")
        place = rng.randrange(len(parts))
        mixed = ["_".join([*parts[:place], word, *parts[place + 1 :]]) for word in self.words]
        unknown = [name for name in mixed if name not in self.tools]
        return ToolCall(rng.choice(unknown) if unknown and rng.random() < 0.5 else changed(call.name, rng), call.arguments)

    def missing(self, episode: Trajectory, call: ToolCall, rng: random.Random) -> ToolCall | None:
        """One required argument is left out."""
        required = (MESSAGE if call.name == RESPOND else self.tools[call.name]).parameters.get("required") or ()
        left_out = rng.choice(required) if required else None
        arguments = {key: value for key, value in _arguments(call).items() if key != left_out}
        return ToolCall(call.name, arguments) if required else None

    def argument(self, episode: Trajectory, call: ToolCall, rng: random.Random) -> ToolCall | None:
        """One more argument, which no schema has."""
        key = rng.choice(self.extra) if self.extra and call.name != RESPOND else ""
        return ToolCall(call.name, {**_arguments(call), key: EXTRA[key]}) if key else None

    def type(self, episode: Trajectory, call: ToolCall, rng: random.Random) -> ToolCall | None:
        """One value that its schema excludes."""
        arguments = _arguments(call)
        others = [ToolCall(call.name, {**arguments, key: value}) for key in sorted(arguments) for value in _other_types(arguments[key])]
        wrong = [other for other in others if fault(self.tools, other)]
        return rng.choice(wrong) if wrong else None

    def identifier(self, episode: Trajectory, call: ToolCall, rng: random.Random) -> ToolCall | None:
        """One letter or digit of an identifier changed."""
        found = _identifiers(call)
        key = rng.choice(sorted(found)) if found else ""
        return ToolCall(call.name, {**_arguments(call), key: changed(found[key], rng)}) if found else None

    def elsewhere(self, episode: Trajectory, call: ToolCall, rng: random.Random) -> ToolCall | None:
        """An identifier that only other episodes have."""
        here = "\n".join([episode.task.instruction, *(f"{t.action}\n{t.next_state.text}" for t in episode.transitions)])
        others = [(key, one) for key in sorted(_identifiers(call)) for one in sorted(self.identifiers[call.name, key]) if one not in here]
        key, value = rng.choice(others) if others else ("", "")
        return ToolCall(call.name, {**_arguments(call), key: value}) if others else None


def invalid_call(call: ToolCall, rng: random.Random) -> ToolCall:
    """A call under a name that is too long or in another style, or with its arguments as text. `near_misses` makes none of these."""
    name = rng.choice((f"{call.name}_now", f"the_{call.name}", call.name.title().replace("_", "")))
    text = call.arguments if isinstance(call.arguments, str) else " ".join(map(str, call.arguments.values()))
    return rng.choice((ToolCall(name, call.arguments), ToolCall(call.name, text)))


def _calls(episode: Trajectory, steps: Sequence[int]) -> Iterator[ToolCall]:
    """The calls of some steps; actions that are none are left out."""
    for step in steps:
        try:
            yield from calls_of(episode.transitions[step].action)
        except UsageError:
            continue


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    return {} if isinstance(call.arguments, str) else call.arguments


def _identifiers(call: ToolCall) -> dict[str, str]:
    """The arguments that are one word. A message to the user has none."""
    words = {key: value for key, value in _arguments(call).items() if isinstance(value, str) and IDENTIFIER.fullmatch(value)}
    return {} if call.name == RESPOND else words


def _other_types(value: Any) -> list[Any]:
    """A value as agents write it by mistake: numbers as text and text as numbers, in a list or out of it."""
    digits = "".join(filter(str.isdecimal, value)) if isinstance(value, str) else ""
    other = (int(digits[:15]) if digits else True) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [other, value[0] if isinstance(value, list) and len(value) == 1 else [value]]
