"""`dreamgym serve`: the dream of a run for agents and trainers outside."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated

import typer

from dreamgym.cli._show import Run

DRAIN_S = 20  # for steps under way when the server is ended


def serve(
    run: Run,
    protocol: Annotated[str, typer.Option(help="mcp or openenv.")] = "mcp",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Serve over HTTP at this port; 0 is standard input and output (mcp only).")
    ] = 0,
    host: Annotated[str, typer.Option(help="The address to listen at. Any but this machine's own needs --token-env.")] = "127.0.0.1",
    token_env: Annotated[str, typer.Option(help="The environment variable that holds the secret which clients must send.")] = "",
    sessions: Annotated[int, typer.Option(min=1, max=100_000, help="Episodes that may be open at the same time.")] = 256,
    idle: Annotated[float, typer.Option(min=1, max=1e6, help="Seconds without a call after which an episode is closed.")] = 1800,
) -> None:
    """Serve a fitted dream, guard included, as an MCP server or an OpenEnv environment. Everything in it is simulated."""
    from dreamgym import plugins
    from dreamgym.errors import UsageError
    from dreamgym.runs.rundir import RunDir
    from dreamgym.serve import address_of, bound, check_address, listen

    plugins.require("serve", protocol)
    if protocol != "mcp" and not port:
        raise UsageError(f"'{protocol:.64}' is served over HTTP: give --port.")
    token = os.environ.get(token_env, "").strip() if token_env else ""  # a file that holds a secret ends in a newline
    if token_env and not token:
        raise UsageError(f"The environment variable '{token_env:.64}' is not set. It must hold the secret which clients send.")
    if not (token.isascii() and token.isprintable()):
        raise UsageError(
            f"The secret in '{token_env:.64}' holds a character that no HTTP header takes, such as a line break or a letter with an "
            "accent. Copy it again."
        )
    check_address(host, token)
    RunDir.view(run)
    sockets = bound(host, port) if port else []  # before the model is loaded
    from dreamgym.recipes.serve import application, open_dream
    from dreamgym.serve.sessions import LARGEST_BODY, Limits

    module = plugins.load("serve", protocol)
    with open_dream(run).sessions(Limits(sessions, idle)) as dream:
        if not port:
            import asyncio

            return asyncio.run(module.serve_stdio(dream))
        import uvicorn

        app = application(protocol, dream, host=host, idle_s=idle, token=token)
        server = uvicorn.Server(
            uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=DRAIN_S, ws_max_size=LARGEST_BODY)
        )
        listen(sockets, host, port)
        path = "/mcp" if protocol == "mcp" else ""
        print(f"serving a simulation of '{run}' at http://{address_of(host, port)}{path}", file=sys.stderr, flush=True)
        with suppress(KeyboardInterrupt):
            server.run(sockets=sockets)
        if not server.started:
            raise typer.Exit(1)
