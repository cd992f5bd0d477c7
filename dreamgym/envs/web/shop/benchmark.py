"""The shop as a web benchmark: a world for each episode, a login by a cookie that is kept, and a score when the agent stops."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from dreamgym.envs.web.session import WebSession
from dreamgym.envs.web.shop.content import content
from dreamgym.envs.web.shop.experts import MIX, act
from dreamgym.envs.web.shop.server import HEADER, ShopServer
from dreamgym.envs.web.shop.tasks import ShopTask, every_task
from dreamgym.types import Action, Observation, Task

START = {"customer": "/catalogue/", "staff": "/dashboard/orders/"}


class Shop:
    """The `Benchmark` of the practice shop. The shop starts with the first episode."""

    repeats = True
    viewport: Mapping[str, int] = {"width": 1280, "height": 720}
    scripted_policies: Mapping[str, float] = MIX
    max_steps = 20

    def __init__(self, seed: int = 0) -> None:
        """`seed` names the content, and the tasks with it."""
        self.seed = seed
        self.known: dict[str, ShopTask] = {}
        for place, task in enumerate(every_task(content(seed), seed)):
            self.known[f"shop/{seed}/{task.template}/{place}"] = task

    @cached_property
    def server(self) -> ShopServer:
        """The running shop of this process."""
        return ShopServer(self.seed)

    def all_tasks(self) -> Iterable[Task]:
        for name, task in self.known.items():
            yield Task(name, task.instruction, "web", goal={"shop": name})

    def task_key(self, task: Task) -> str:
        """The products, the order or the customer that it is about."""
        found = self.known.get(str((task.goal or {}).get("shop")))
        return found.about if found else task.instruction

    def accepts(self, task: Task) -> bool:
        return (task.goal or {}).get("shop") in self.known

    def prepare(self, slot: int, task: Task) -> Mapping[str, Any]:
        self.server.reset(_world(slot))
        cookie = {"name": "sessionid", "value": self.server.sessions[self._task(task).role], "domain": "127.0.0.1", "path": "/"}
        whole = {**cookie, "expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax"}
        return {"extra_http_headers": {HEADER: _world(slot)}, "storage_state": {"cookies": [whole], "origins": []}}

    def sites(self, task: Task) -> Sequence[str]:
        return [self.server.site]

    def begin(self, session: WebSession, task: Task) -> None:
        session.visit(f"http://{self.server.site}{START[self._task(task).role]}")

    def score(self, session: WebSession, slot: int, task: Task, answer: str | None) -> tuple[float, bool]:
        """1.0 where the agent stops and the task is done."""
        if answer is None:
            return 0.0, False
        return float(self._task(task).solved(partial(self.server.query, _world(slot)), answer)), True

    def scripted_action(self, task: Task, policy: str, state: Observation, rng: random.Random) -> Action:
        return act(self._task(task), policy, state, rng)

    def close(self) -> None:
        if "server" in self.__dict__:
            self.server.close()

    def _task(self, task: Task) -> ShopTask:
        return self.known[(task.goal or {})["shop"]]


def _world(slot: int) -> str:
    return f"episode-{slot}"
