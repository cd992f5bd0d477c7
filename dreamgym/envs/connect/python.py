"""`python:module:function`: the function returns an environment with `reset(task)` and `step(action)`, or tools with
`call(name, arguments)`.

`reset` returns a raw state; `step` returns (raw state, reward, terminated), or truncated as a fourth. Tools may have `reset(task)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dreamgym.envs.connect import Connection, ConnectionConfig, function_at, raw_state
from dreamgym.envs.connect.tools import ToolConnection, require_score
from dreamgym.errors import ConfigError
from dreamgym.types import Action, Task


class PythonConnection:
    """Implements `Connection` over an object with `reset` and `step`."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, task: Task) -> dict[str, Any]:
        return raw_state(self.env.reset(task))

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool, bool]:
        state, reward, terminated, *truncated = self.env.step(action)
        return raw_state(state), float(reward), bool(terminated), bool(truncated and truncated[0])

    def close(self) -> None:
        getattr(self.env, "close", lambda: None)()


class PythonTools:
    """Implements `ToolBox` over an object with `call`, which every call reaches."""

    def __init__(self, tools: Any) -> None:
        self.tools = tools

    def begin(self, task: Task) -> None:
        getattr(self.tools, "reset", lambda task: None)(task)

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        return str(self.tools.call(name, arguments)), True

    def close(self) -> None:
        getattr(self.tools, "close", lambda: None)()


def make(target: str, config: ConnectionConfig) -> Callable[[], Connection]:
    """Calls the function for every environment. ConfigError where there is no such function, and for tools without a score: where there is
    none, and the function is no class that has `step`, it is called once here to see what it returns."""
    function = function_at(target, "env.connect", "python:")

    def connect() -> Connection:
        made = function(**config.options)
        if hasattr(made, "step"):
            return PythonConnection(made)
        if hasattr(made, "call"):
            require_score(f"python:{target}", config)
            return ToolConnection(PythonTools(made), config.final_calls)
        raise ConfigError(
            f"env.connect = 'python:{target}' returned {type(made).__name__}. Expected an object with reset and step, or with call."
        )

    if not config.score and not hasattr(function, "step"):
        try:
            connect().close()
        except Exception as error:  # another error than of the configuration may be gone in an episode, and else is told there
            if isinstance(error, ConfigError):
                raise
    return connect
