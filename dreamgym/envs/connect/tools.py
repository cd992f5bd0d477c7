"""Episodes over tools: an action's calls are made one by one, and the raw state is the conversation so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dreamgym.envs.connect import ConnectionConfig
from dreamgym.envs.tools.conversation import Exchange, conversation_state, no_call
from dreamgym.envs.tools.schemas import fault
from dreamgym.errors import ConfigError, UsageError
from dreamgym.tool_calls import RESPOND, calls_of
from dreamgym.types import Action, Task


class ToolBox(Protocol):
    """Tools with a state of their own."""

    def begin(self, task: Task) -> None: ...
    def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """The result, and whether the call reached its tool."""
        ...

    def close(self) -> None: ...


class ToolConnection:
    """Implements `Connection` over tools. A raw state has the `exchanges` so far and, as `text`, the state that they make.

    The reward is 0: a callable scores the episode. An action that is no call reaches no tool and is answered with an error. An action whose
    last call is a message to the user, or one of `final_calls` that reached its tool, ends the episode.
    """

    def __init__(self, box: ToolBox, final_calls: Sequence[str]) -> None:
        self.box, self.final_calls = box, frozenset(final_calls)
        self.exchanges: list[Exchange] = []

    def reset(self, task: Task) -> dict[str, Any]:
        self.box.begin(task)
        self.exchanges = []
        return self._raw()

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool, bool]:
        try:
            calls = calls_of(action)
        except UsageError as error:
            self.exchanges.append(no_call(action, str(error)))
            return self._raw(), 0.0, False, False
        results, final = list[str](), False
        for call in calls:
            final = False
            if isinstance(call.arguments, str):
                results.append("Error: the arguments are no JSON object.")
            elif call.name == RESPOND:
                why = fault({}, call)
                results.append(f"Error: {why}." if why else "")
                final = not why
            else:
                result, reached = self.box.call(call.name, dict(call.arguments))
                results.append(result)
                final = reached and call.name in self.final_calls
        self.exchanges.append(Exchange(tuple(calls), tuple(results)))
        return self._raw(), 0.0, final, False

    def close(self) -> None:
        self.box.close()

    def _raw(self) -> dict[str, Any]:
        return {"text": conversation_state(self.exchanges).text, "exchanges": tuple(self.exchanges)}


def require_score(target: str, config: ConnectionConfig) -> None:
    """ConfigError where nothing says whether an episode of tools succeeded."""
    if not config.score:
        raise ConfigError(
            f"env.connect = '{target:.200}': tools do not say whether a task is solved. Set env.connection.score = 'module:function'."
        )
