"""Serving the dream of a run: what `dreamgym serve` makes of a run directory."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from dreamgym import plugins
from dreamgym.envs.base import TextRules
from dreamgym.experience.action_support import ActionSupport
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.pipeline import ExperienceModel
from dreamgym.recipes import factory
from dreamgym.recipes.context import open_context
from dreamgym.runs.rundir import RunDir, unfinished
from dreamgym.serve.sessions import LARGEST_BODY, DreamSessions, Limits
from dreamgym.types import Task

TASKS = 1000  # training tasks that clients may open


@dataclass(frozen=True)
class Dream:
    """The dream of a run: its experience model, with guard and replay buffer, and the training tasks without their goals."""

    model: ExperienceModel
    rules: TextRules
    tasks: list[Task]
    horizon: int
    """The horizon of the run's own dreams: `experience.horizon`, or the suite's where it is less."""
    support: ActionSupport | None = None

    def batch(self) -> DreamBatch:
        """Episodes side by side. One user of a model at a time."""
        return DreamBatch(self.model, self.rules, horizon=self.horizon, support=self.support)

    def sessions(self, limits: Limits | None = None) -> DreamSessions:
        """Episodes of many clients, as a context manager. One user of a model at a time."""
        return DreamSessions(self.model, self.rules, self.tasks, horizon=self.horizon, support=self.support, limits=limits or Limits())


def open_dream(run_dir: str | Path) -> Dream:
    """The dream of a run, from Python: `dg.open_dream("runs/mine")`. RunDirError while the run has no experience model."""
    path = Path(run_dir)
    run = RunDir.view(path)
    if not run.done("experience") and not run.done("tokenizer"):
        raise unfinished(path, "has no experience model yet")
    context = open_context(path)
    batch, model = factory.make_dream(context, factory.replay_in_memory(context))
    tasks = [replace(task, goal=None) for task in context.suite.tasks("train", TASKS, seed=factory.TASK_SEED)]
    return Dream(model, context.suite.rules, tasks, batch.horizon, batch.support)


@cache
def shared_sessions(run: str, sessions: int = 1 << 16) -> DreamSessions:
    """The sessions of a run's dream, the same ones in a process and open as long as it is, for trainers that make their environments anew
    for every episode."""
    return open_dream(run).sessions(Limits(sessions=sessions))


def application(protocol: str, dream: DreamSessions, *, host: str, idle_s: float, token: str = "") -> Any:
    """The dream behind a protocol as an ASGI application: bodies are limited, and, with a `token`, nobody else is answered."""
    app = BodyLimited(plugins.load("serve", protocol).make(dream, host=host, idle_s=idle_s))
    return TokenRequired(app, token) if token else app


class BodyLimited:
    """An ASGI application whose requests have at most `limit` bytes of body. A longer one gets 413 and is not kept, whether its length is
    declared or not. Bodies are collected before the application is asked."""

    def __init__(self, app: Any, limit: int = LARGEST_BODY) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        declared = dict(scope.get("headers") or ()).get(b"content-length", b"")
        body, message = b"", {"type": "http.request", "more_body": True}
        is_long = declared.isdigit() and int(declared[:20]) > self.limit
        while not is_long and message["type"] == "http.request" and message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
            is_long = len(body) > self.limit
        if is_long:
            await send({"type": "http.response.start", "status": 413, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": f"A request has at most {self.limit:,} bytes.\n".encode()})
        elif message["type"] == "http.request":  # else the client has gone
            await self.app(scope, _again({"type": "http.request", "body": body, "more_body": False}, receive), send)


def _again(first: dict[str, Any], receive: Any) -> Any:
    """`receive` with a message that was received before it."""
    waiting = [first]

    async def received() -> Any:
        return waiting.pop() if waiting else await receive()

    return received


class TokenRequired:
    """An ASGI application that answers only to those who send `Authorization: Bearer TOKEN`."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.expected = app, token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        kind, _, sent = headers.get(b"authorization", b"").partition(b" ")
        if scope["type"] == "lifespan" or (kind.lower() == b"bearer" and hmac.compare_digest(sent.strip(), self.expected)):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"A token is needed: Authorization: Bearer TOKEN\n"})
