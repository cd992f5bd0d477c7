"""Connections to a real environment, for a suite that has none: `gymnasium:ENV_ID`, `mcp:COMMAND or URL`, `python:module:function`.

A scheme is a module of this folder with `make(target, config)`. `limits` keeps time-outs, retries and call limits for all of them. Whatever
a connected environment does wrong ends one episode as a failed rollout; what it says stays data.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from pydantic import Field

from dreamgym import plugins
from dreamgym.config import Config
from dreamgym.errors import ConfigError, nearest
from dreamgym.tool_calls import RESPOND
from dreamgym.types import Action, Task

SCHEMES = ("gymnasium", "mcp", "python")


class ConnectionConfig(Config):
    """How a real environment is connected."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of `gymnasium.make` or of the function, variables of the environment of an MCP command, or HTTP headers for an MCP URL."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Seconds for one connection, reset or action. What takes longer is given up, and the episode is a failed rollout."""
    retries: int = Field(default=2, ge=0, le=100)
    """Further attempts to connect and reset. An action is never repeated: it may have taken effect."""
    max_calls_per_episode: int | None = Field(default=None, ge=1)
    """Calls, or actions that are no calls, after which an episode is cut."""
    max_calls: int | None = Field(default=None, ge=1)
    """Calls that one command may make. It stops before a call beyond them."""
    max_result_chars: int = Field(default=200_000, ge=1)
    """Characters of a result; a longer one ends the episode as a failed rollout."""
    score: str = ""
    """`module:function`, called as function(task, steps) when the environment or a final call ends an episode, or a limit of calls cuts it,
    and not at the horizon; `steps` are (action, raw state). It returns a number, 1.0 for a success, or a truth value. Empty: the
    environment's own reward."""
    reset_tool: str = ""
    """For MCP: a tool that begins an episode, called with {"task": id}. Empty: every episode has a session of its own."""
    final_calls: tuple[str, ...] = (RESPOND,)
    """Calls that end an episode: tools once they have answered, and always `respond`, a message to the user, which nobody answers in a
    connected environment."""


class Connection(Protocol):
    """One real episode at a time; raises what it likes."""

    def reset(self, task: Task) -> dict[str, Any]:
        """The first raw state."""
        ...

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool, bool]:
        """The next raw state, its reward, terminated, truncated."""
        ...

    def close(self) -> None: ...


def open_connection(target: str, config: ConnectionConfig) -> Callable[[], Connection]:
    """A function that connects. ConfigError for an unknown scheme or settings that cannot be right."""
    scheme, colon, rest = target.partition(":")
    if scheme not in SCHEMES or not colon or not rest.strip():
        raise ConfigError(
            f"env.connect = '{target:.200}' names no connection.{nearest(scheme, SCHEMES)} Known: gymnasium:ENV_ID, mcp:COMMAND or URL, "
            "python:module:function."
        )
    made: Callable[[], Connection] = plugins.make("envs.connect", scheme, target=rest.strip(), config=config)
    return made


def function_at(path: str, where: str, scheme: str = "") -> Callable[..., Any]:
    """The function that `module:function` names, which `where` gives behind a scheme such as `python:`. ConfigError where there is none."""
    written = f"{where} = '{scheme}{path}'"
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"{written} names no function. Write {scheme}module:function.")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{written} cannot be loaded: {error}. Give an importable module and a function in it; for a module in this folder, put "
            "PYTHONPATH=. before the command."
        ) from error
    if not callable(found):
        raise ConfigError(f"{written} is no function, but {type(found).__name__}.")
    function: Callable[..., Any] = found
    return function


def raw_state(value: Any) -> dict[str, Any]:
    """What an environment shows as a raw state: a table of named values as it is, anything else as its text."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    return {"text": value if isinstance(value, str) else str(value)}
