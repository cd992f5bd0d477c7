"""Every protocol over HTTP refuses a body that is too long, and answers the next client."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from dreams import SUITE, TASKS, corridor_dream

pytest.importorskip("uvicorn")
import uvicorn

import dreamgym.serve
from dreamgym.recipes.serve import application
from dreamgym.serve.sessions import LARGEST_BODY, DreamSessions

MCP_HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
    "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}  # fmt: skip
TOO_LONG = 5_000_000


@contextmanager
def serving(protocol: str) -> Iterator[int]:
    """The port of a server in this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with DreamSessions(corridor_dream(), SUITE.rules, TASKS, horizon=SUITE.max_steps) as dream:
        app = application(protocol, dream, host="127.0.0.1", idle_s=60)
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield port
        server.should_exit = True
        thread.join()


@pytest.fixture
def fake_openenv(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The names that `serve.openenv` imports. Its application reads the whole body and answers with what it read, as FastAPI does."""
    monkeypatch.delitem(sys.modules, "dreamgym.serve.openenv", raising=False)
    names = {
        "http_server": "",
        "interfaces": "Environment",
        "types": "Action EnvironmentMetadata Observation State",
        "mcp_types": "CallToolAction CallToolObservation ListToolsAction ListToolsObservation Tool ToolError ToolErrorType",
    }
    for package in ("openenv", "openenv.core", "openenv.core.env_server"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    for name, members in names.items():
        module = ModuleType(f"openenv.core.env_server.{name}")
        for member in members.split():
            setattr(module, member, type(member, (), {}))
        monkeypatch.setitem(sys.modules, module.__name__, module)

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] in ("http", "lifespan")
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": message["type"] + ".complete"})
            return await send({"type": "lifespan.shutdown.complete"})
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    sys.modules["openenv.core.env_server.http_server"].create_fastapi_app = lambda *_, **__: echo  # type: ignore[attr-defined]
    yield
    sys.modules.pop("dreamgym.serve.openenv", None)  # the one that was made of these names
    vars(dreamgym.serve).pop("openenv", None)


def posted(port: int, path: str, body: Any, headers: dict[str, str], *, chunked: bool = False) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", path, body, headers, encode_chunked=chunked)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def check(protocol: str, path: str, good: bytes) -> None:
    with serving(protocol) as port:
        assert posted(port, path, b"x" * TOO_LONG, MCP_HEADERS)[0] == 413
        parts, undeclared = (b"x" * 50_000 for _ in range(TOO_LONG // 50_000)), {**MCP_HEADERS, "transfer-encoding": "chunked"}
        assert posted(port, path, parts, undeclared, chunked=True)[0] == 413
        status, text = posted(port, path, good, MCP_HEADERS)
        assert status == 200 and text
        assert posted(port, path, iter([good[:9], good[9:]]), undeclared, chunked=True) == (status, text) or protocol == "mcp"


def test_a_body_that_is_too_long_is_refused_over_mcp():
    pytest.importorskip("mcp")
    check("mcp", "/mcp", json.dumps(HELLO).encode())


def test_a_body_that_is_too_long_is_refused_over_openenv(fake_openenv: None):
    check("openenv", "/step", b"y" * LARGEST_BODY)
