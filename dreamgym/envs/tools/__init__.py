"""Tool-calling agents from their logs: a suite made of recorded episodes and the tools' schemas, without code.

    dreamgym train runs/mine env.name=tools env.options='{files = ["episodes.jsonl"], tools = "tools.json"}'

States are tool conversations (`conversation`), actions are calls (`dreamgym.tool_calls`). Without a file of tools, the schemas are inferred
from the recorded calls (`schemas`), and so is which tools change something (`changes`). Everything else is as in the suite `logs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamgym.config import build
from dreamgym.envs.base import in_split
from dreamgym.envs.logs import LogConfig, LogSuite
from dreamgym.envs.tools.changes import says_reading, tools_that_change
from dreamgym.envs.tools.rules import Shown, ToolRules
from dreamgym.envs.tools.schemas import inferred_tools, read_tools
from dreamgym.errors import UsageError
from dreamgym.runs.episodes import read_trajectories
from dreamgym.tool_calls import RESPOND, ToolCall, calls_of
from dreamgym.types import Trajectory


class ToolsConfig(LogConfig):
    """Which episodes and tools the suite is made from."""

    tools: Path | None = None
    """A JSON list of tools: {"name", "description", "parameters"}, the latter a JSON schema. Not set: inferred from the recorded calls."""
    shown: Shown = "latest"
    """What the policy reads of a state: what its latest calls returned, or the `whole` state, which goes with `policy.window = 0`."""


class ToolSuite(LogSuite):
    """Recorded conversations with tools."""

    rules: ToolRules

    def __init__(self, config: ToolsConfig) -> None:
        super().__init__(config)
        self.input_files = {**self.input_files, "tools": (config.tools,) if config.tools else ()}
        episodes = [episode for file in self.log_files for episode in read_trajectories(file)]
        tools = read_tools(config.tools) if config.tools else inferred_tools(recorded_calls(episodes))
        if not tools:
            if called := sorted({call.name for call in recorded_calls(episodes)} - {RESPOND}):
                raise UsageError(
                    f"'{config.tools}' lists no tools, and the episodes call {', '.join(called)}. List them, or leave `tools` out: then "
                    "they are inferred from the calls."
                )
            raise UsageError("The recorded episodes hold no tool call. For agents that write plain text, use the suite 'logs'.")
        self.declared = any(tool.reads_only for tool in tools)
        """Whether the file of tools says which of them only read; else their names do, unless the episodes show otherwise."""
        if not self.declared:
            changing = tools_that_change(self._learned_from(episodes))
            tools = [replace(tool, reads_only=says_reading(tool.name) and tool.name not in changing) for tool in tools]
        self.rules = ToolRules(self.name, tools, shown=config.shown, about=config.about)
        if config.action_format:
            self.rules.action_format = config.action_format

    def _learned_from(self, episodes: list[Trajectory]) -> list[Trajectory]:
        """The episodes that no run holds out, to measure its dream on. Their answers say which tools only read; schemas are of all, because
        they are what anybody may know of an interface."""
        tasks = {self.task_key(task) for task in self.tasks("train", len(episodes))}
        few = not self.tasks("dev", 1)  # then a run holds out by the episodes' ids
        return [one for one in episodes if self.task_key(one.task) in tasks and not (few and in_split(one.id, "dev"))]


def make(**config: Any) -> ToolSuite:
    """The suite of recorded tool conversations, by configuration (see ToolsConfig)."""
    return ToolSuite(build(ToolsConfig, config, where="env tools"))


def recorded_calls(episodes: Sequence[Trajectory]) -> list[ToolCall]:
    """Every call of the episodes; actions that are none are left out."""
    calls = list[ToolCall]()
    for episode in episodes:
        for step in episode.transitions:
            try:
                calls += calls_of(step.action)
            except UsageError:
                continue
    return calls
