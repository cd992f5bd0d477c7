"""A web benchmark of pages that a test writes: `PageBenchmark` serves a folder, and a page is solved when its `window.solved` is true."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dreamgym.envs.web import chromium
from dreamgym.envs.web.chromium import Browser
from dreamgym.envs.web.env import OpenSessions, WebEnv
from dreamgym.envs.web.loopback import FolderServer
from dreamgym.envs.web.rules import WebRules
from dreamgym.envs.web.session import WebSession
from dreamgym.errors import MissingExtra
from dreamgym.types import Task

TREES = Path(__file__).parent / "web_trees.json.gz"


@cache
def recorded_trees() -> dict[str, dict[str, Any]]:
    """Observations of real pages by name: MiniWoB's."""
    with gzip.open(TREES, "rt", encoding="utf-8") as file:
        found: dict[str, dict[str, Any]] = json.load(file)
    return found


@cache
def browser() -> Browser:
    """The browser of this test process; the test is skipped where there is none."""
    try:
        found = Browser(chromium.find())
        chromium.playwright()
    except MissingExtra as error:
        pytest.skip(str(error))
    return found


@contextmanager
def silent_site() -> Iterator[str]:
    """The "host:port" of a server that is connected to, by the system, and never answers."""
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        line.listen(64)
        yield f"127.0.0.1:{line.getsockname()[1]}"


class PageBenchmark:
    """The pages of a folder as tasks."""

    viewport = {"width": 1280, "height": 720}
    max_steps = 10
    score_s = 0.0
    scripted_policies: Mapping[str, float] = {}

    def __init__(self, folder: Path, *, repeats: bool = True) -> None:
        self.server, self.repeats = FolderServer(folder), repeats

    def all_tasks(self) -> Sequence[Task]:
        return []

    def task_key(self, task: Task) -> str:
        return task.id

    def accepts(self, task: Task) -> bool:
        return bool(task.goal)

    def prepare(self, slot: int, task: Task) -> Mapping[str, Any]:
        return {}

    def sites(self, task: Task) -> Sequence[str]:
        return [self.server.site]

    def begin(self, session: WebSession, task: Task) -> None:
        session.open(f"http://{self.server.site}/{(task.goal or {})['page']}")

    def score(self, session: WebSession, slot: int, task: Task, answer: str | None) -> tuple[float, bool]:
        solved = bool(session.evaluate("() => Boolean(window.solved)"))
        return float(solved), solved

    def close(self) -> None:
        self.server.close()


def page_env(folder: Path, *, repeats: bool = True, max_open: int = 4, **limits: float) -> WebEnv:
    """An environment of the pages in a folder."""
    times = {"timeout_s": 3.0, "quiet_s": 0.05, "step_limit_s": 60.0, **limits}
    return WebEnv(PageBenchmark(folder, repeats=repeats), OpenSessions(browser(), max_open), WebRules(), **times)


def page_task(page: str) -> Task:
    return Task(f"page/{page}", f"do {page}", "web", goal={"page": page})
