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

from collections.abc import Iterator, Mapping
from typing import Any

import verifiers.v1 as vf
from mcp.client.client import Client

from dreamgym.adapters.versions import check_version
from dreamgym.errors import DreamGymError, UsageError
from dreamgym.policy.templates.chat import action_in
from dreamgym.tool_calls import calls_of

KNOWN = ("0.4", "0.5")
"""The first version of verifiers that this was written for, and the first that it was not."""
ACT = "act"
"""The tool of a served dream whose actions are no tool calls."""
OURS = ("dream_start", "dream_outcome")
"""The tools of a served dream that are no actions."""


class BrokenEpisode(DreamGymError):
    """An episode that the guard masked, or that failed: no failure of the policy, and to be left out of training."""


class DreamData(vf.TaskData):
    """One task: where its dream is served, what is asked, and the seed that names the episode."""

    url: str
    asked: str
    seed: int


class DreamConfig(vf.TasksetConfig):
    """A served dream and the tasks that are opened in it."""

    url: str
    """Of `dreamgym serve RUN --port N`: http://HOST:N/mcp."""
    tasks: list[str] = []
    """Ids or instructions; empty: those that the seeds draw from the training tasks of the run."""
    episodes: int = 1000
    """How many tasks the taskset has; their seeds are 0, 1, ..."""
    instructions: str = "Reply with one line such as Action: search[red mug]."
    """The system prompt: how actions are written."""


class DreamTask(vf.Task[DreamData, vf.State, vf.TaskConfig]):
    """A task of the dream."""


class DreamEnvConfig(vf.EnvConfig):
    """Who acts."""

    player: vf.AgentConfig = vf.AgentConfig()


class DreamEnv(vf.Env[DreamEnvConfig]):
    """One dreamed episode a run."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play to the end of the episode, or until the model stops. BrokenEpisode for one that has no reward."""
        await played(task, agents, task.data.url)


class DreamTaskset(vf.Taskset[DreamTask, DreamConfig]):
    """The tasks, in order and again with other seeds until there are `episodes`."""

    def load(self) -> Iterator[DreamTask]:
        check_version("verifiers", *KNOWN)
        config = self.config
        for i in range(config.episodes):
            asked = config.tasks[i % len(config.tasks)] if config.tasks else ""
            data = DreamData(name=f"dream#{i}", prompt=None, system_prompt=config.instructions, url=config.url, asked=asked, seed=i)
            yield DreamTask(data, config.task)


async def played(task: Any, agents: Any, server: Any) -> None:
    """Have the player act in the dream behind `server` (an address), and record its reward."""
    async with Client(server) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        begun = await client.call_tool("dream_start", {"task": task.data.asked, "seed": task.data.seed})
        episode = _metadata(begun).get("dream_episode")
        if begun.is_error or not episode:
            raise UsageError(f"The served dream began no episode: {_text(begun)}")
        steps, shown = list[dict[str, Any]](), _text(begun).partition("\n")[2]
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn(shown)
            while not segment.terminated:
                try:
                    name, arguments = _call(action_in(segment.last_reply), tools)
                except UsageError as error:  # no step of the dream, as for an agent whose call cannot be read
                    segment = await interaction.turn(f"Error: {error}")
                    continue
                result = await client.call_tool(name, {**arguments, "dream_episode": episode})
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
