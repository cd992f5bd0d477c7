"""A dream as a server of the Model Context Protocol (https://modelcontextprotocol.io), over stdio or streamable HTTP. Extra `mcp`.

The tools are those of the logs and `respond`, a message to the user; where the agent's actions are no tool calls, there is one tool `act`.
Two more are ours: `dream_start` begins an episode, `dream_outcome` tells reward and end of the episode so far. The result of each step
carries what was decided of it in its `_meta` under "dreamgym".

Since its version of 2026-07-28 the protocol has no sessions, so an episode has a name: `dream_start` gives it, and every tool takes it as
`dream_episode`. Over stdio, where there is one client, the name may be left out: it is then the episode that was begun last.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, cast

import mcp_types as types
from mcp.server.lowlevel import Server

from dreamgym.envs.base import TextRules
from dreamgym.errors import DreamGymError, UsageError
from dreamgym.serve.sessions import LARGEST_BODY, SIMULATION, DreamSessions, SessionError, outcome, text_of, tools_served
from dreamgym.tool_calls import ToolCall, action_of

START, OUTCOME, ACT, EPISODE = "dream_start", "dream_outcome", "act", "dream_episode"


def tools_of(rules: TextRules) -> list[types.Tool]:
    """The tools that clients see. UsageError where a recorded tool has the name of one of ours."""
    annotations = types.ToolAnnotations(title="simulated", destructive_hint=False, open_world_hint=False)
    recorded = [(one["name"], one["description"], one["parameters"]) for one in tools_served(rules)]
    if clash := {name for name, *_ in recorded} & {START, OUTCOME}:
        raise UsageError(f"A recorded tool is called '{min(clash)}', which is the name of a tool of this server. Rename it in the logs.")
    if not recorded:
        about = " ".join(filter(None, ("Take one action, as text.", rules.about, rules.action_format)))
        recorded = [(ACT, about, _object({"action": {"type": "string"}}, ["action"]))]
    start = _object({"task": {"type": "string"}, "seed": {"type": "integer", "minimum": 0}}, [])
    ours = [
        (START, "Begin a simulated episode, of this task or of one that the seed draws; the same task and seed give the same one.", start),
        (OUTCOME, "Reward and end of the episode so far, as JSON.", _object({}, [])),
    ]
    named = {EPISODE: {"type": "string", "description": f"The episode, as {START} named it."}}
    return [
        types.Tool(
            name=name,
            description=f"(simulated) {about}",
            input_schema={**schema, "type": "object", "properties": {**schema.get("properties", {}), **({} if name == START else named)}},
            annotations=annotations,
        )
        for name, about, schema in [*recorded, *ours]
    ]


def make_server(sessions: DreamSessions, *, single: bool) -> Server[Any]:
    """The server. `single`: it has one client, whose last episode is meant where none is named, and ends when the next one begins."""
    tools, rules = tools_of(sessions.rules), sessions.rules
    names = {tool.name for tool in tools}
    latest = ""

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        name, arguments = params.name, dict(params.arguments or {})
        try:
            if name not in names:
                raise SessionError(f"There is no tool '{name:.64}'.")
            if name == START:
                return await start(arguments)
            episode = arguments.pop(EPISODE, None) or (latest if single else "")
            if not episode:
                raise SessionError(f"Which episode? Call {START} first" + ("." if single else f", and give the {EPISODE} that it tells."))
            if name == OUTCOME:
                return _result(json.dumps(sessions.outcome_so_far(str(episode))))
            action = str(arguments.get("action", "")) if name == ACT and not rules.tools else action_of([ToolCall(name, arguments)])
            step = await asyncio.wrap_future(sessions.step(str(episode), action))
            return _result(text_of(rules, step.observation), meta=outcome(step))
        except DreamGymError as error:
            return _result(f"Error: {error}", failed=True)

    async def start(arguments: dict[str, Any]) -> types.CallToolResult:
        nonlocal latest
        task, seed = arguments.get("task", ""), arguments.get("seed")
        if not isinstance(task, str) or not isinstance(seed, int | None) or isinstance(seed, bool):
            raise SessionError(f"{START} takes task, a text, and seed, a whole number.")
        if single and latest:
            await asyncio.wrap_future(sessions.end(latest))
        opened = await asyncio.wrap_future(sessions.open(task, seed=seed))
        latest = opened.session
        metadata = {"task": opened.task.id, "seed": opened.seed, EPISODE: opened.session, "simulation": True}
        text = f"{EPISODE}: {opened.session}\nTask: {opened.task.instruction}\n{text_of(rules, opened.observation)}"
        return _result(text, meta=metadata)

    return Server(
        "dreamgym", title="A dream of your environment", instructions=SIMULATION, on_list_tools=list_tools, on_call_tool=call_tool
    )


async def serve_stdio(sessions: DreamSessions) -> None:
    """Serve one client over standard input and output, until its input ends, nobody reads the output, or the task is cancelled."""
    from mcp.server.stdio import stdio_server

    server, lines = make_server(sessions, single=True), _lines_of(os.dup(0))
    try:
        async with stdio_server(stdin=cast(Any, lines)) as (read, write):
            await server.run(read, write, server.create_initialization_options())
    except* BrokenPipeError:  # the client is gone
        pass


async def _lines_of(descriptor: int) -> AsyncIterator[str]:
    """The lines that arrive at a descriptor. The library's own reader cannot be cancelled while it waits for a line, so that Ctrl-C would
    not end the server; nobody waits for this thread."""
    lines, loop = asyncio.Queue[bytes](), asyncio.get_running_loop()

    def read() -> None:
        with suppress(RuntimeError), os.fdopen(descriptor, "rb") as source:  # RuntimeError: the loop is closed
            for line in source:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, b"")

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while line := await lines.get():
        yield line.decode("utf-8", "replace")


def make(sessions: DreamSessions, *, host: str, idle_s: float) -> Any:
    """The server as an ASGI application at /mcp."""
    return make_server(sessions, single=False).streamable_http_app(
        host=host, max_request_body_size=LARGEST_BODY, session_idle_timeout=idle_s, max_sessions=4 * sessions.limits.sessions
    )


def _result(text: str, *, meta: dict[str, Any] | None = None, failed: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], is_error=failed, _meta={"dreamgym": meta} if meta else None
    )


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
