"""`mcp:COMMAND` or `mcp:http://...`: the tools of a Model Context Protocol server, over stdio or streamable HTTP (extra `mcp`).

An error that a tool reports is its result, but one of `reset_tool` begins no episode. An error of the protocol ends the episode, but for
invalid parameters and unknown tools.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

import mcp
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from dreamgym.envs.connect import ConnectionConfig
from dreamgym.envs.connect.tools import ToolConnection, require_score
from dreamgym.errors import ConfigError, EnvironmentFailure, nearest
from dreamgym.tool_calls import RESPOND
from dreamgym.types import Task

INVALID = (-32601, -32602)
"""JSON-RPC codes of calls that the agent got wrong: no such method, invalid parameters."""
HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A name of an HTTP header."""
ENDING_S = 8.0
"""How long a session may take to end: the client waits for its server's end, terminates it, and kills it, for some two seconds each."""


class McpTools:
    """Implements `ToolBox` over one session with a server. The session lives in an event loop of its own thread."""

    def __init__(self, server: StdioServerParameters | str, config: ConnectionConfig) -> None:
        """EnvironmentFailure where no session can be had, or the server has no tools."""
        self.server, self.config = server, config
        self.loop = asyncio.new_event_loop()
        self.client: Any = None
        self.names: frozenset[str] = frozenset()
        self._keeper: asyncio.Task[None] | None = None  # has the session, open or not
        self._refusal = ""  # the last status of a server over HTTP that refused a message
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()  # its sockets, which else stay open until the garbage is collected

    def begin(self, task: Task) -> None:
        reset = self.config.reset_tool
        if self.client is not None and not reset:
            self._end_session()
        if self.client is None:
            self._begin_session()
        for name in self.config.final_calls:
            if name != RESPOND:
                self._require("final_calls", name)
        if not reset:
            return
        self._require("reset_tool", reset)
        text, failed, _ = self._result(reset, {"task": task.id})
        if failed:
            raise EnvironmentFailure(f"The tool '{reset}' (env.connection.reset_tool) began no episode: {text:.200}")

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        if name not in self.names:
            return f"Error: there is no tool {name}.", False
        text, failed, reached = self._result(name, arguments)
        return f"Error: {text}" if failed and not text.startswith("Error") else text, reached

    def _require(self, setting: str, name: str) -> None:
        """ConfigError where the server does not list the tool that a setting names."""
        if name not in self.names:
            raise ConfigError(
                f"env.connection.{setting} = '{name}': the server has no such tool.{nearest(name, self.names)} "
                f"It has: {', '.join(sorted(self.names)):.500}."
            )

    def _result(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool, bool]:
        """What a tool returns, whether that is an error, and whether the call reached the tool."""
        self._refusal = ""
        try:
            result = self._run(self.client.call_tool(name, arguments), f"the tool '{name}'")
        except mcp.MCPError as error:
            if error.error.code in INVALID:
                return error.error.message, True, False
            raise EnvironmentFailure(
                f"The MCP server answered '{name}' with an error of the protocol: {error.error.message:.200}{self._refusal}"
            ) from error
        return _text_of(result), bool(result.is_error), True

    def close(self) -> None:
        if self._keeper is not None:
            with suppress(Exception):  # a server that does not leave in order is left
                self._end_session()
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _begin_session(self) -> None:
        self._stop, self._refusal = asyncio.Event(), ""
        ready = asyncio.run_coroutine_threadsafe(self._opened(), self.loop)
        try:
            self.client, self.names = ready.result(self.config.timeout_s)
        except TimeoutError as error:
            self._end_session()
            ready.cancel()
            raise EnvironmentFailure(f"The MCP server did not open a session in {self.config.timeout_s:g} s.") from error
        if not self.names:
            self._end_session()
            raise EnvironmentFailure("The MCP server lists no tools.")

    async def _opened(self) -> tuple[Any, frozenset[str]]:
        """A session and the names of its tools; a task keeps it until `_stop` is set."""
        opened: asyncio.Future[Any] = self.loop.create_future()

        async def keep() -> None:
            try:
                async with AsyncExitStack() as held:
                    transport = await self._transport(held)
                    client = await held.enter_async_context(mcp.Client(transport, read_timeout_seconds=self.config.timeout_s))
                    names, cursor = set[str](), None
                    while True:
                        page = await client.list_tools(cursor=cursor)
                        names |= {tool.name for tool in page.tools}
                        if not (cursor := page.next_cursor) or len(names) > 10_000:
                            break
                    opened.set_result((client, frozenset(names)))
                    await self._stop.wait()
            except BaseException as error:
                if opened.done():
                    raise
                where = f" at {self.server}" if isinstance(self.server, str) else ""
                opened.set_exception(EnvironmentFailure(f"No session with the MCP server{where}: {_first(error)}{self._refusal}"))

        self._keeper = asyncio.create_task(keep())
        return await opened

    async def _transport(self, held: AsyncExitStack) -> Any:
        """The messages to and from the server, kept open by `held` where that takes anything."""
        if not isinstance(self.server, str):  # sys.stderr of a notebook is no file that a process could write to
            return stdio_client(self.server, errlog=sys.__stderr__)  # type: ignore[arg-type]  # None: the process has this one's
        http: Any = await held.enter_async_context(create_mcp_http_client(headers=_headers(self.config)))

        async def note(response: Any) -> None:
            if response.request.method == "POST" and response.status_code >= 300:
                self._refusal = f" (status {response.status_code})"

        http.event_hooks = {"response": [note]}
        return streamable_http_client(self.server, http_client=http)

    def _end_session(self) -> None:
        """End the session and with it the process of a command, also where it has not been opened yet."""
        is_open, self.client = self.client is not None, None

        async def end() -> None:
            keeper, self._keeper = self._keeper, None
            if keeper is None:
                return
            self._stop.set()
            if is_open:
                await asyncio.wait([keeper], timeout=ENDING_S)
            keeper.cancel()  # once, for a second time would interrupt the client while it ends the process
            await asyncio.wait([keeper], timeout=ENDING_S)
            if keeper.done() and not keeper.cancelled():
                keeper.exception()  # else asyncio reports it

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(2 * ENDING_S + 1.0)

    def _run(self, work: Coroutine[Any, Any, Any], what: str) -> Any:
        running = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return running.result(self.config.timeout_s)
        except TimeoutError as error:
            running.cancel()
            raise EnvironmentFailure(f"No answer of {what} in {self.config.timeout_s:g} s.") from error


def make(target: str, config: ConnectionConfig) -> Callable[[], ToolConnection]:
    """Connects to the server at a URL, or starts the command. ConfigError for a command that cannot be read, options that are no headers,
    or without a score."""
    require_score(f"mcp:{target}", config)
    server: StdioServerParameters | str = target
    if target.startswith(("http://", "https://")):
        _headers(config)
    else:
        try:
            command, *arguments = shlex.split(target)
        except ValueError as error:
            raise ConfigError(
                f"env.connect = 'mcp:{target:.200}': the command cannot be read ({error}). Give a command or a URL."
            ) from error
        server = StdioServerParameters(command=command, args=arguments, env={key: str(value) for key, value in config.options.items()})
    return lambda: ToolConnection(McpTools(server, config), config.final_calls)


def _headers(config: ConnectionConfig) -> dict[str, str]:
    """The options as HTTP headers. ConfigError, which does not show the value, for one that no header takes."""
    headers = {key: str(value).strip() for key, value in config.options.items()}  # a file that holds a token ends in a newline
    for key, value in headers.items():
        if not (HEADER.fullmatch(key) and value.isascii() and value.isprintable()):
            raise ConfigError(
                f"env.connection.options: '{key:.64}' cannot be sent as a header. For a server at a URL the options are HTTP headers: "
                "names without blanks, values of printable ASCII characters."
            )
    return headers


def _text_of(result: Any) -> str:
    """The texts of a result, embedded files included, and the kind of each part that has none; the structured content where there is no
    part."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    sources = [getattr(part, "resource", part) for part in result.content]
    texts = [getattr(source, "text", None) for source in sources]
    return "\n".join(f"({part.type})" if text is None else text for text, part in zip(texts, result.content, strict=True))


def _first(error: BaseException) -> str:
    """The first cause of an error, which may be a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:300]
