"""The recorded tools of a dream as the methods of an environment of TRL's GRPOTrainer (`environment_factory`). TRL samples.

    with dg.open_dream("runs/mine").sessions() as dream:
        GRPOTrainer(model, None, args, dataset, environment_factory=environment_factory(dream))

TRL leaves an episode whose reward is None out of its group's mean and gives it the advantage 0: so it does with one that the guard masks,
or that failed. What was decided, and by whom, is in `environment.outcomes`, step by step; reward functions get `environments`.
"""

from __future__ import annotations

import inspect
import itertools
import os
import random
from collections.abc import Callable, Mapping
from typing import Any, Literal

from dreamgym.adapters.trl import KNOWN
from dreamgym.adapters.versions import check_version
from dreamgym.errors import UsageError
from dreamgym.serve.sessions import SIMULATION, DreamSessions, outcome, text_of, tools_served
from dreamgym.tool_calls import ToolCall, action_of

PYTHON_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
TAKEN = ("reset", "get_reward", "outcomes", "task")


def environment_factory(dream: DreamSessions, *, seed: int = 0) -> Callable[[], Any]:
    """The `environment_factory` of GRPOTrainer: episodes whose methods are the recorded tools and `respond`, or else `act(action)`.

    `reset` reads the dataset's columns `task` (an id or an instruction; else the text of `prompt`) and `seed`. UsageError for a tool that
    cannot be a method. Rollouts wait for each other's calls, because TRL makes them one by one: `DreamRollouts` is faster.
    """
    check_version("trl", *KNOWN)
    tools = tools_served(dream.rules) or [_ACT]
    serial, rank = itertools.count(), os.environ.get("RANK", "0")

    class Dream:
        outcomes: list[dict[str, Any]]  # of each step, as `serve.sessions.outcome` gives them

        def reset(self, prompt: Any = "", task: str = "", **columns: Any) -> str:
            if session := getattr(self, "_session", ""):
                dream.end(session).result()
            drawn = columns.get("seed", random.Random(f"trl/{seed}/{rank}/{next(serial)}").getrandbits(62))
            asked = task or (prompt if isinstance(prompt, str) else prompt[-1]["content"] if prompt else "")
            opened = dream.open(asked, seed=int(drawn)).result()
            self._session, self.outcomes, self.task = opened.session, [], opened.task
            return f"\n\n{text_of(dream.rules, opened.observation)}"

        def get_reward(self) -> float | None:
            """The sum of rewards so far; None for an episode that the guard masked or that failed."""
            failed = any(one["error"] is not None for one in self.outcomes)
            return None if failed else float(sum(one["reward"] for one in self.outcomes))

        def _act(self, action: str) -> str:
            result = dream.step(self._session, action).result()
            self.outcomes.append(outcome(result))
            return text_of(dream.rules, result.observation)

    for tool in tools:
        setattr(Dream, tool["name"], _method(tool, plain=tool is _ACT))
    return Dream


_ACT: Mapping[str, Any] = {
    "name": "act",
    "description": f"Act in the environment. {SIMULATION}",
    "parameters": {"properties": {"action": {"type": "string", "description": "The action."}}, "required": ["action"]},
}


def _method(tool: Mapping[str, Any], *, plain: bool) -> Callable[..., str]:
    """A tool as a method with the signature and the docstring that transformers makes a JSON schema of."""
    name, schema = str(tool["name"]), tool["parameters"]
    if name.startswith("_") or name in TAKEN:
        raise UsageError(f"The recorded tool '{name:.64}' cannot be a method of a TRL environment: that name is taken. Use DreamRollouts.")
    required = set(schema.get("required", ()))
    parameters, described = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)], list[str]()
    for key, given in sorted(schema.get("properties", {}).items(), key=lambda one: one[0] not in required):
        value = given if isinstance(given, Mapping) else {}  # true: any value
        default = inspect.Parameter.empty if key in required else None
        try:
            made = inspect.Parameter(
                key, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=_type(value, key in required)
            )
        except ValueError as error:
            raise UsageError(f"Tool '{name:.64}': argument '{key:.64}' is no name of Python ({error}). Use DreamRollouts.") from error
        parameters.append(made)
        described.append(f"    {key}: " + " ".join(str(value.get("description") or key).split()))

    def call(self: Any, **arguments: Any) -> str:
        given = {key: value for key, value in arguments.items() if value is not None or key in required}
        shown: str = self._act(str(arguments.get("action", "")) if plain else action_of([ToolCall(name, given)]))
        return shown

    call.__name__ = name
    call.__doc__ = "\n".join([str(tool.get("description") or name), *(["", "Args:", *described] if described else [])])
    call.__annotations__ = {one.name: one.annotation for one in parameters[1:]} | {"return": str}
    call.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    return call


def _type(schema: Mapping[str, Any], required: bool) -> Any:
    names = schema.get("type", "string")
    found = {PYTHON_TYPES.get(name, str) for name in ([names] if isinstance(names, str) else names) if name != "null"} or {str}
    enum = schema.get("enum")
    made: Any = (
        Literal[tuple(enum)] if enum and all(isinstance(one, str) for one in enum) else next(iter(found)) if len(found) == 1 else str
    )
    return made if required else made | None
