"""A site as a web benchmark: a world for each episode, a login by a cookie that is kept, and a score when the agent stops."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from dreamgym.envs.web.session import WebSession
from dreamgym.envs.web.sites.experts import MIX, Script, act
from dreamgym.envs.web.sites.server import HEADER, SiteServer, require_package
from dreamgym.envs.web.sites.site import Site
from dreamgym.envs.web.sites.tasks import SiteTask
from dreamgym.types import Action, Observation, Task


class SiteBenchmark:
    """The `Benchmark` of a site. The site starts with the first episode, and again with the next one where it has ended or hangs."""

    repeats = True
    score_s = 0.0
    viewport: Mapping[str, int] = {"width": 1280, "height": 720}
    scripted_policies: Mapping[str, float] = MIX
    max_steps = 20

    def __init__(self, site: Site, seed: int, tasks: Iterable[SiteTask], scripts: Mapping[str, Script]) -> None:
        """`seed` names the content. `scripts` are the expert's, by template."""
        self.site, self.seed, self.scripts = site, seed, scripts
        self._worlds: dict[int, str] = {}  # by slot
        self._count = itertools.count()
        self.known = {f"{site.name}/{seed}/{task.template}/{place}": task for place, task in enumerate(tasks)}

    @cached_property
    def server(self) -> SiteServer:
        """The running site of this process."""
        return SiteServer(self.site, self.seed)

    def all_tasks(self) -> Iterable[Task]:
        for name, task in self.known.items():
            yield Task(name, task.instruction, "web", goal={self.site.name: name})

    def task_key(self, task: Task) -> str:
        """What of the content it is about."""
        found = self.known.get(self._name(task))
        return found.about if found else task.instruction

    def accepts(self, task: Task) -> bool:
        return self._name(task) in self.known

    def check(self) -> None:
        require_package(self.site)

    def prepare(self, slot: int, task: Task) -> Mapping[str, Any]:
        self.server.start()
        # Under a name that no world had before: a request of the episode before it in this slot may still be under way.
        if earlier := self._worlds.pop(slot, ""):
            self.server.remove(earlier)
        world = self._worlds[slot] = f"episode-{next(self._count)}"
        self.server.reset(world)
        cookie = {"name": "sessionid", "value": self.server.sessions[self._task(task).role], "domain": "127.0.0.1", "path": "/"}
        whole = {**cookie, "expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax"}
        return {"extra_http_headers": {HEADER: world}, "storage_state": {"cookies": [whole], "origins": []}}

    def sites(self, task: Task) -> Sequence[str]:
        return [self.server.address]

    def begin(self, session: WebSession, task: Task) -> None:
        session.open(f"http://{self.server.address}{self.site.accounts[self._task(task).role].start}")

    def score(self, session: WebSession, slot: int, task: Task, answer: str | None) -> tuple[float, bool]:
        """1.0 where the agent stops and the task is done."""
        if answer is None:
            return 0.0, False
        return float(self._task(task).solved(partial(self.server.query, self._worlds[slot]), answer)), True

    def scripted_action(self, task: Task, policy: str, state: Observation, rng: random.Random) -> Action:
        return act(self.scripts, self._task(task), policy, state, rng)

    def close(self) -> None:
        if "server" in self.__dict__:
            self.server.close()

    def _name(self, task: Task) -> str:
        return str((task.goal or {}).get(self.site.name))

    def _task(self, task: Task) -> SiteTask:
        return self.known[self._name(task)]
