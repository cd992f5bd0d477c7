"""A dream as an OpenEnv environment, over HTTP and WebSocket; runs where the package is installed (`make test-peers`)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from dreams import CANCEL_RULES, CANCEL_TASK, SUITE, TALK, TASKS, corridor_dream, talking_dream

pytest.importorskip("openenv")
import uvicorn
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.generic_client import GenericEnvClient

from dreamgym.experience.env import DreamBatch, DreamEnv
from dreamgym.experience.models.no_model import NoModel
from dreamgym.serve import openenv as served
from dreamgym.serve.sessions import DreamSessions, SessionError


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps) as dream:
        server = uvicorn.Server(uvicorn.Config(served.make(dream, host="127.0.0.1", idle_s=60), port=port, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join()


def test_an_episode_is_the_one_that_python_plays(address: str):
    env: Any = DreamEnv(DreamBatch(corridor_dream(), SUITE.rules, horizon=SUITE.max_steps))
    expected = [env.reset(TASKS[0]).text, *(env.step(action).observation.text for action in ("right", "left"))]
    with GenericEnvClient(base_url=address).sync() as client:
        begun = client.reset(seed=1, task=TASKS[0].id)
        steps = [client.step({"message": action}) for action in ("right", "left")]
    assert [begun.observation["text"], *(one.observation["text"] for one in steps)] == expected
    assert begun.observation["task"] == TASKS[0].instruction and steps[-1].reward == 0.0 and not steps[-1].done


def test_a_step_before_the_reset_is_an_error_of_that_step(address: str):
    with GenericEnvClient(base_url=address).sync() as client:
        assert "no session" in client.step({"message": "right"}).observation["error"]
        assert client.reset(seed=0).observation["text"]


def test_the_agent_speaks_with_the_user_and_an_episode_ends_with_a_message():
    with DreamSessions(talking_dream(), CANCEL_RULES, [CANCEL_TASK], horizon=6) as dream:
        env = served.DreamEnvironment(dream)
        env.reset()
        assert [tool.name for tool in env.step(ListToolsAction()).tools] == ["cancel", "respond"]
        steps = [env.step(CallToolAction(tool_name=call.name, arguments=dict(call.arguments))) for call in TALK]
        assert "(the user says) yes" in steps[0].result and steps[-1].done and steps[-1].reward == 1.0


def test_no_task_is_one_that_the_seed_draws_and_what_is_no_text_is_refused():
    with DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps) as dream:
        env = served.DreamEnvironment(dream)
        drawn = env.reset(seed=1)
        assert drawn.task == TASKS[1 % len(TASKS)].instruction == env.reset(seed=1, task=None).task
        with pytest.raises(SessionError, match="The task is 3"):
            env.reset(task=3)


def test_without_a_seed_tasks_differ_and_the_seed_is_in_the_metadata():
    with DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps) as dream:
        env = served.DreamEnvironment(dream)
        drawn = [env.reset().metadata["dreamgym"] for _ in range(12)]
        assert len({one["task"] for one in drawn}) > 1
        assert env.reset(seed=drawn[-1]["seed"]).metadata["dreamgym"] == drawn[-1]


class Slow(NoModel):
    """Answers when it is let."""

    def __init__(self, inner: NoModel) -> None:
        self.__dict__.update(inner.__dict__)
        self.free = threading.Event()

    def poll(self) -> Any:
        return super().poll() if self.free.wait(0.01) else []


def test_the_answer_that_came_too_late_is_that_of_the_same_action_again_and_no_other_action_is_taken_before():
    model = Slow(talking_dream())
    ask, cancel, end = (CallToolAction(tool_name=call.name, arguments=dict(call.arguments)) for call in TALK)
    with DreamSessions(model, CANCEL_RULES, [CANCEL_TASK], horizon=6) as dream:
        env = served.DreamEnvironment(dream)
        env.reset()
        for _ in range(2):
            assert "Send the same action again" in env.step(ask, timeout_s=0.1).error.message and env.state.step_count == 0
        assert "still to come" in env.step(cancel).error.message and env.step(ListToolsAction()).tools
        model.free.set()
        assert "still to come" in env.step(cancel).error.message, "its answer is not taken for another action's"
        assert "(the user says) yes" in env.step(ask).result and env.state.step_count == 1
        assert [env.step(one).reward for one in (cancel, end)] == [0.0, 1.0]
        model.free.clear()
        env.reset()
        assert env.step(ask, timeout_s=0.1).error
        env.reset()
        model.free.set()
        assert env.step(ask).result, "a new episode owes no answer"


def test_a_reset_that_takes_too_long_says_so_and_leaves_no_session(monkeypatch: pytest.MonkeyPatch):
    model, begin = talking_dream(), threading.Event()
    start = model.start
    monkeypatch.setattr(model, "start", lambda tasks, *, seed: start(tasks, seed=seed) if begin.wait(10) else [])
    monkeypatch.setattr(served, "PATIENCE_S", 0.1)
    with DreamSessions(model, CANCEL_RULES, [CANCEL_TASK], horizon=6) as dream:
        env = served.DreamEnvironment(dream)
        with pytest.raises(SessionError, match="did not begin within 0.1 s. Reset again"):
            env.reset()
        begin.set()
        monkeypatch.setattr(served, "PATIENCE_S", 10.0)
        assert env.reset() and len(dream) == 1
