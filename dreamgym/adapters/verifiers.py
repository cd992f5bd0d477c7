"""A served dream as a taskset of verifiers (https://github.com/PrimeIntellect-ai/verifiers, its v1), and so of prime-rl.

    dreamgym serve runs/mine --port 8000     # MCP, in dreamgym's own environment

    # my_dream.py, in a folder that Python imports from: verifiers finds a taskset by the name of a module without dots
    from dreamgym.adapters.verifiers import *

    [env.taskset]
    id = "my_dream"
    url = "http://127.0.0.1:8000/mcp"
    tasks = ["find a red mug", "..."]

The dream plays the user: each reply of the model holds one action, and the next message is the state that follows. verifiers keeps the
tokens itself: its trace marks what the model sampled.

A reward is a number there, so an episode that the guard masks, or that failed, gets none: it ends with a `BrokenEpisode`, which verifiers
records as an error of the episode and which trainers leave out. What was decided, and by whom, is in `trace.info["dream"]`, step by step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import httpx2
import verifiers.v1 as vf
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from dreamgym.adapters.versions import check_version
from dreamgym.errors import DreamGymError, UsageError
from dreamgym.policy.templates.chat import action_in
from dreamgym.policy.templates.tools import signature
from dreamgym.tool_calls import calls_of

KNOWN = ("0.4", "0.5")
"""The first version of verifiers that this was written for, and the first that it was not."""
ACT = "act"
"""The tool of a served dream whose actions are no tool calls."""
OURS = ("dream_start", "dream_outcome")
"""The tools of a served dream that are no actions."""
EPISODE = "dream_episode"
"""The argument in which every tool of a served dream takes the name of the episode. The adapter gives it."""
PATIENCE = httpx2.Timeout(30.0, read=300.0)
"""For one answer of a dream that asks for a secret; as the MCP client waits without one."""


class BrokenEpisode(DreamGymError):
    """An episode that the guard masked, or that failed: no failure of the policy, and to be left out of training."""


class DreamData(vf.TaskData):
    """One task: where its dream is served, what is asked, and the seed that names the episode."""

    url: str
    asked: str
    seed: int
    token_env: str = ""


class DreamConfig(vf.TasksetConfig):
    """A served dream and the tasks that are opened in it."""

    url: str = ""  # has a default, because verifiers makes a taskset's settings by its id alone before it reads the others
    """Of `dreamgym serve RUN --port N`: http://HOST:N/mcp."""
    token_env: str = ""
    """The name of the environment variable that holds the secret of `dreamgym serve --token-env`; empty where the dream asks for none."""
    tasks: list[str] = []
    """Ids or instructions; empty: those that the seeds draw from the training tasks of the run."""
    episodes: int = 1000
    """How many tasks the taskset has; their seeds are 0, 1, ..."""
    instructions: str = ""
    """The system prompt: how actions are written. Empty: none, and the first message says it, with the tools of the dream."""


class DreamTask(vf.Task[DreamData, vf.State, vf.TaskConfig]):
    """A task of the dream."""


class DreamEnvConfig(vf.EnvConfig):
    """Who acts: a model that chats, in a process of this machine. verifiers' own default is an agent with a shell in a hosted sandbox."""

    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})


class DreamEnv(vf.Env[DreamEnvConfig]):
    """One dreamed episode a run."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play to the end of the episode, or until the model stops. BrokenEpisode for one that has no reward."""
        data = task.data
        if not data.token_env:
            await played(task, agents, data.url)
            return
        async with httpx2.AsyncClient(headers=_authorization(data.token_env), timeout=PATIENCE, follow_redirects=True) as http:
            await played(task, agents, streamable_http_client(data.url, http_client=http))


class DreamTaskset(vf.Taskset[DreamTask, DreamConfig]):
    """The tasks, in order and again with other seeds until there are `episodes`."""

    def load(self) -> Iterator[DreamTask]:
        """UsageError without the address of a dream, or its secret."""
        check_version("verifiers", *KNOWN)
        config = self.config
        if not config.url:
            raise UsageError("No dream is named. Set env.taskset.url to that of `dreamgym serve RUN --port N`: http://HOST:N/mcp.")
        if config.token_env:
            _authorization(config.token_env)
        for i in range(config.episodes):
            asked = config.tasks[i % len(config.tasks)] if config.tasks else ""
            prompts = {"prompt": None, "system_prompt": config.instructions or None}
            data = DreamData(name=f"dream#{i}", **prompts, url=config.url, asked=asked, seed=i, token_env=config.token_env)
            yield DreamTask(data, config.task)


async def played(task: Any, agents: Any, server: Any) -> None:
    """Have the player act in the dream behind `server` (an address or a transport), and record its reward."""
    async with Client(server) as client:
        listed = (await client.list_tools()).tools
        tools = {tool.name for tool in listed}
        begun = await client.call_tool("dream_start", {"task": task.data.asked, "seed": task.data.seed})
        episode = _metadata(begun).get(EPISODE)
        if begun.is_error or not episode:
            raise UsageError(f"The served dream began no episode: {_text(begun)}")
        steps, shown = list[dict[str, Any]](), _text(begun).partition("\n")[2]
        if not task.data.system_prompt:
            shown = f"{how_to_act(listed)}\n\n{shown}"
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn(shown)
            while not segment.terminated:
                try:
                    name, arguments = _call(action_in(segment.last_reply), tools)
                except UsageError as error:  # no step of the dream, as for an agent whose call cannot be read
                    segment = await interaction.turn(f"Error: {error}")
                    continue
                result = await client.call_tool(name, {**arguments, EPISODE: episode})
                if step := _metadata(result):  # else the call was refused, and the episode is as it was
                    steps.append(step)
                if steps and any(steps[-1][key] for key in ("terminated", "truncated", "error")):
                    break
                segment = await interaction.turn(_text(result))
            trace = interaction.trace
            trace.info["dream"] = {"steps": steps, "simulation": True}
    if steps and steps[-1]["error"] is not None:
        raise BrokenEpisode(f"{'masked' if steps[-1]['masked'] else 'failed'}: {steps[-1]['error']}")
    trace.record_reward("dream", sum(step["reward"] for step in steps))


def how_to_act(tools: Iterable[Any]) -> str:
    """What the first message says of actions, from the server's list of tools."""
    shown = [tool for tool in tools if tool.name not in OURS]
    if [tool.name for tool in shown] == [ACT]:
        return f"{shown[0].description}\nEnd each reply with one line that holds one action, such as Action: search[red mug]."
    lines = []
    for tool in shown:
        properties = {name: value for name, value in tool.input_schema.get("properties", {}).items() if name != EPISODE}
        lines.append(
            signature({"name": tool.name, "description": tool.description, "parameters": {**tool.input_schema, "properties": properties}})
        )
    return "\n".join(['End each reply with one line that holds one call of these tools, such as Action: get_user(id="u1").', *lines])


def _authorization(token_env: str) -> dict[str, str]:
    """The header of a dream that asks for a secret. UsageError where the environment variable is empty."""
    secret = os.environ.get(token_env, "")
    if not secret:
        raise UsageError(f"The environment variable '{token_env}' is empty. Set it to the secret of `dreamgym serve --token-env`.")
    return {"Authorization": f"Bearer {secret}"}


def _call(action: str, tools: set[str]) -> tuple[str, Mapping[str, Any]]:
    """An action as a call of the server. UsageError for what is none."""
    if ACT in tools:
        return ACT, {"action": action}
    calls = calls_of(action)
    if len(calls) != 1 or isinstance(calls[0].arguments, str) or calls[0].name in OURS:
        raise UsageError('Write one call of a tool of the environment, such as get_user(id="u1").')
    return calls[0].name, calls[0].arguments


def _metadata(result: Any) -> dict[str, Any]:
    """What the dream tells beside the text; empty for a call that it refused. A result of MCP 2 has other metadata of its own."""
    found: dict[str, Any] = (result.meta or {}).get("dreamgym") or {}
    return found


def _text(result: Any) -> str:
    return "\n".join(str(part.text) for part in result.content if part.type == "text")


__all__ = ["DreamConfig", "DreamEnv", "DreamEnvConfig", "DreamTask", "DreamTaskset"]
