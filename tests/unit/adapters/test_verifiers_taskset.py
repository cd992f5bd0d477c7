"""A served dream as a taskset of verifiers; runs where the package is installed (`make test-peers`)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verifiers")
import uvicorn
from documents import python_of
from dreams import CANCEL_RULES, CANCEL_TASK, SUITE, TALK, TASKS, corridor_dream, talking_dream
from verifiers.v1.utils.loaders import load_taskset

from dreamgym.adapters.verifiers import BrokenEpisode, DreamConfig, DreamEnv, DreamEnvConfig, DreamTaskset, played
from dreamgym.errors import UsageError
from dreamgym.experience.env import DreamBatch
from dreamgym.recipes.serve import TokenRequired
from dreamgym.serve import bound
from dreamgym.serve.mcp import make_server
from dreamgym.serve.sessions import DreamSessions
from dreamgym.types import StepInfo, Verdict


class Player:
    """An agent that says given texts, and what it was shown."""

    def __init__(self, replies: Sequence[str]) -> None:
        self.replies, self.shown = list(replies), list[str]()
        self.trace = SimpleNamespace(info={}, rewards={}, record_reward=lambda name, value: self.trace.rewards.update({name: value}))

    async def turn(self, message: str) -> Any:
        self.shown.append(message)
        return SimpleNamespace(terminated=not self.replies, last_reply=self.replies.pop(0) if self.replies else "")

    @asynccontextmanager
    async def interaction(self, task: Any) -> Any:
        yield self


def corridor() -> DreamSessions:
    return DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps)


def talking() -> DreamSessions:
    return DreamSessions(talking_dream(), CANCEL_RULES, [CANCEL_TASK], horizon=6)


def play(replies: Sequence[str], served: Callable[[], DreamSessions] = corridor, *, instructions: str | None = "Act.") -> Player:
    player = Player(replies)

    async def run() -> None:
        with served() as dream:
            task = SimpleNamespace(data=SimpleNamespace(asked=dream.tasks[0].id, seed=1, system_prompt=instructions))
            await played(task, SimpleNamespace(player=player), make_server(dream, single=False))

    asyncio.run(run())
    return player


def test_the_dream_plays_the_user_and_the_reward_and_who_decided_are_in_the_trace():
    expert = SUITE.demonstrate(TASKS[0], "expert", seed=0)
    player = play([f"I go on. Action: {step.action}" for step in expert.transitions])
    assert TASKS[0].instruction in player.shown[0] and expert.transitions[0].state.text in player.shown[0]
    assert player.shown[1:] == [step.next_state.text for step in expert.transitions[:-1]]
    assert player.trace.rewards == {"dream": expert.total_reward}
    steps = player.trace.info["dream"]["steps"]
    assert len(steps) == len(expert.transitions) and all(step["decided_by"] and step["simulation"] for step in steps)


def test_a_model_that_stops_has_what_it_earned():
    player = play(["Action: dance"])
    assert player.trace.rewards == {"dream": 0.0} and len(player.trace.info["dream"]["steps"]) == 1


def test_a_message_to_the_user_is_an_action():
    player = play([f"Action: {call}" for call in TALK], talking)
    assert "(the user says) yes" in player.shown[1] and player.trace.rewards == {"dream": 1.0}


@pytest.mark.parametrize(("served", "says"), [(corridor, "Walk to the room"), (talking, "\nrespond(content: string)  (simulated) ")])
def test_without_instructions_the_first_message_says_how_actions_are_written(served: Callable[[], DreamSessions], says: str):
    shown = play([], served, instructions=None).shown[0]
    assert "one line that holds one" in shown and says in shown and "dream_" not in shown
    assert shown.endswith(play([], served).shown[0])


def test_a_call_that_the_server_refuses_is_no_step_and_the_model_reads_why():
    wrong = ["Action: no_such_tool(x=1)", 'Action: dream_start(task="another")', "Action: dream_outcome()"]
    player = play([*wrong, f"Action: {TALK[1]}"], talking)
    assert "There is no tool 'no_such_tool'" in player.shown[1] and all("a tool of the environment" in one for one in player.shown[2:4])
    assert player.shown[4] == "cancelled" and len(player.trace.info["dream"]["steps"]) == 1


def test_a_masked_episode_has_no_reward_and_is_an_error_of_its_episode(monkeypatch: pytest.MonkeyPatch):
    result = DreamBatch.result

    def masking(self: DreamBatch, *arguments: Any) -> Any:
        from dataclasses import replace

        found = result(self, *arguments)
        return replace(found, info=StepInfo(verdict=Verdict("masked", ("contradiction",)), error="masked by the guard: contradiction"))

    monkeypatch.setattr(DreamBatch, "result", masking)
    with pytest.raises(BrokenEpisode, match="masked: masked by the guard: contradiction"):
        play(["Action: right"])


def test_the_taskset_is_found_by_the_module_of_the_tutorial_and_seeds_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_dream.py").write_text(python_of("tutorials/verifiers.md")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    config = DreamConfig(id="my_dream", url="http://127.0.0.1:1/mcp", tasks=["a", "b"], episodes=3)
    tasks = list(DreamTaskset(config))
    assert [(task.data.asked, task.data.seed) for task in tasks] == [("a", 0), ("b", 1), ("a", 2)]
    assert isinstance(load_taskset(config), DreamTaskset)


def test_the_player_chats_on_this_machine_and_the_settings_can_be_made_by_the_id_alone():
    player = DreamEnvConfig(taskset=DreamConfig()).player
    assert player.harness is not None and player.harness.id == "null" and player.runtime.type == "subprocess"
    other = DreamEnvConfig.model_validate({"player": {"harness": {"id": "bash"}, "max_turns": 3}}).player
    assert other.harness is not None and other.harness.id == "bash" and other.max_turns == 3
    with pytest.raises(UsageError, match="Set env.taskset.url"):
        next(iter(DreamTaskset(DreamConfig())))


def test_a_dream_with_a_secret_is_played_by_who_knows_it(monkeypatch: pytest.MonkeyPatch):
    (listener,) = bound("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    expert = SUITE.demonstrate(TASKS[0], "expert", seed=0)
    player = Player([f"Action: {step.action}" for step in expert.transitions])
    config = DreamConfig(url=url, tasks=[TASKS[0].id], episodes=1, token_env="SECRET_OF_A_DREAM")
    with pytest.raises(UsageError, match="'SECRET_OF_A_DREAM' is empty"):
        list(DreamTaskset(config))
    monkeypatch.setenv("SECRET_OF_A_DREAM", "open sesame")
    (task,) = DreamTaskset(config)
    with corridor() as dream:
        app = TokenRequired(make_server(dream, single=False).streamable_http_app(host="127.0.0.1"), "open sesame")
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        run: Any = DreamEnv.run
        asyncio.run(run(None, task, SimpleNamespace(player=player)))
        with pytest.raises(BaseException, match="401|unhandled errors in a TaskGroup|Connection closed"):
            asyncio.run(played(task, SimpleNamespace(player=Player([])), url))
        server.should_exit = True
        thread.join()
    assert player.trace.rewards == {"dream": expert.total_reward}
    assert "open sesame" not in task.data.model_dump_json()
