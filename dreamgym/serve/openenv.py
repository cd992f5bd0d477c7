"""A dream as an OpenEnv environment (https://github.com/meta-pytorch/OpenEnv): reset, step and state over HTTP and WebSocket.

The package pins an older MCP than ours, so that this module has its extra `openenv` and an environment of its own. `reset` takes `task`
and `seed`; `step` takes a tool call (`CallToolAction`), the list of tools (`ListToolsAction`), or an action as text (`DreamAction`). What
is decided beside the text is in `metadata["dreamgym"]`: a masked episode has no reward there, and is to be left out of training.
"""

from __future__ import annotations

import secrets
from concurrent.futures import Future
from concurrent.futures import TimeoutError as OutOfTime
from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State

from dreamgym.errors import DreamGymError
from dreamgym.serve.sessions import SIMULATION, DreamSessions, SessionError, outcome, text_of, tools_served
from dreamgym.tool_calls import ToolCall, action_of
from dreamgym.types import StepResult

PATIENCE_S = 300.0  # for one answer of the dream


class DreamAction(Action):
    """An action as text."""

    message: str


class DreamObservation(Observation):
    """A state as text; after `reset` also the task."""

    text: str = ""
    task: str = ""
    error: str = ""


class DreamEnvironment(Environment):
    """One client's episode among the sessions of a dream."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, sessions: DreamSessions) -> None:
        super().__init__()
        self.sessions, self.session, self._state = sessions, "", State()
        self._unanswered: tuple[str, Future[StepResult]] | None = None  # the action whose answer the client did not wait for

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> DreamObservation:
        """Begin an episode of `task`, or of one that the seed draws; without a seed one is drawn, and is in the metadata. SessionError when
        all sessions are taken, and for a task that is no text."""
        self.close()
        opening = self.sessions.open(options.get("task"), seed=seed)
        try:
            opened = opening.result(PATIENCE_S)
        except OutOfTime as error:
            opening.cancel()  # so that no session is kept whose name nobody has
            raise SessionError(f"The episode did not begin within {PATIENCE_S:g} s. Reset again when the dream is less busy.") from error
        self.session = opened.session
        self._state = State(episode_id=episode_id or secrets.token_hex(8), step_count=0)
        metadata_of_step = {"dreamgym": {"task": opened.task.id, "seed": opened.seed, "simulation": True}}
        return DreamObservation(
            text=text_of(self.sessions.rules, opened.observation), task=opened.task.instruction, metadata=metadata_of_step
        )

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        """One action. What cannot be done is an observation with an error, and leaves the episode as it was. An action whose answer takes
        too long is done all the same: the same action again gets its answer and is not done twice; any other one is refused till then."""
        if isinstance(action, ListToolsAction):
            tools = tools_served(self.sessions.rules)
            return ListToolsObservation(
                tools=[Tool(name=one["name"], description=one["description"], input_schema=one["parameters"]) for one in tools]
            )
        calls = isinstance(action, CallToolAction)
        try:
            text = action_of([ToolCall(action.tool_name, action.arguments)]) if calls else action.message
            result = self._answer(text, timeout_s or PATIENCE_S)
        except (DreamGymError, OutOfTime) as error:
            problem = str(error) or "The dream did not answer in time. Send the same action again for its answer: it is not done twice."
            if not calls:
                return DreamObservation(error=problem)
            kind = ToolErrorType.TIMEOUT if isinstance(error, OutOfTime) else ToolErrorType.EXECUTION_ERROR
            return CallToolObservation(tool_name=action.tool_name, error=ToolError(error_type=kind, message=problem))
        self._state.step_count += 1
        shown, metadata_of_step = text_of(self.sessions.rules, result.observation), _step_metadata(result)
        return (
            CallToolObservation(tool_name=action.tool_name, result=shown, **metadata_of_step)
            if calls
            else DreamObservation(text=shown, **metadata_of_step)
        )

    def _answer(self, text: str, patience_s: float) -> StepResult:
        asked, answer = self._unanswered or (text, self.sessions.step(self.session, text))
        if asked != text:
            raise SessionError(f"The answer to '{asked:.200}' is still to come. Send that action again for it, or call reset.")
        self._unanswered = asked, answer
        try:
            result = answer.result(patience_s)
        except OutOfTime:
            raise
        except Exception:
            self._unanswered = None
            raise
        self._unanswered = None
        return result

    @property
    def state(self) -> State:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="dreamgym", description=SIMULATION)

    def close(self) -> None:
        self._unanswered = None
        if self.session:
            self.sessions.end(self.session)
            self.session = ""


def make(sessions: DreamSessions, *, host: str, idle_s: float) -> Any:
    """The environment as an ASGI application. Host and idle time are the server's and the sessions' own."""
    return create_fastapi_app(
        lambda: DreamEnvironment(sessions), DreamAction, DreamObservation, max_concurrent_envs=sessions.limits.sessions
    )


def _step_metadata(result: StepResult) -> dict[str, Any]:
    """What OpenEnv's observations have beside the text. A failed rollout, masked or broken, ends the episode without a reward."""
    failed = result.info.error is not None
    return {
        "done": result.terminated or result.truncated or failed,
        "reward": None if failed else result.reward,
        "metadata": {"dreamgym": outcome(result)},
    }
