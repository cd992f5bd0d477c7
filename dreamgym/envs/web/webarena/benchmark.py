"""WebArena-Lite as a web benchmark: addresses, logins, and when a score is taken.

An episode is scored once, when the agent stops or after `max_steps`, as WebArena does. (BrowserGym scores after every step, and its pages
are visited in the agent's own tab.) At `max_steps` the answer is empty, where the original's is "Early stop: Reach max steps 30". Leaving
the sites of a task is not possible, so it needs no rule. A login is made once for each set of sites, and its cookies are kept for later
episodes, which log in anew where the site asks for a password again. A login for each episode would end those of others: Magento lets an
administrator be logged in once. The sites themselves are not reset between tasks, as in VisualAgentBench.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dreamgym.envs.connect import function_at
from dreamgym.envs.web.session import WebSession, host_port
from dreamgym.envs.web.webarena import evaluators, tasks
from dreamgym.envs.web.webarena.evaluators import Judge
from dreamgym.envs.web.webarena.helpers import LOGINS, login_expired, site_helpers
from dreamgym.envs.web.webarena.tasks import SITES, WebArenaTask
from dreamgym.errors import ServerError, UsageError
from dreamgym.types import Action, Observation, Task

VARIABLES = {site: f"WA_{site.upper()}" for site in (*SITES, "homepage")}
RESET_VARIABLE = "WA_FULL_RESET"
RESET_S, ASK_S = 900.0, 20.0
"""How long a reset of all sites may take (200 to 500 s is usual), and how often it is asked about."""
VISIT_S = 30.0
"""How long a page may take that an evaluator visits: Playwright's default, which the original has."""
log = logging.getLogger(__name__)


class WebArenaLite:
    """The `Benchmark` of WebArena-Lite. Tasks that cannot be scored here are left out, counted and named in a warning."""

    repeats = False  # nothing resets the sites between episodes
    viewport: Mapping[str, int] = {"width": 1280, "height": 720}
    scripted_policies: Mapping[str, float] = {}
    max_steps = 30

    def __init__(self, file: Path | None = None, judge: str = "") -> None:
        """`judge`: `module:function`, called without arguments, that returns an `evaluators.Judge`."""
        found, self.malformed = tasks.read(file)
        self.judge: Judge | None = function_at(judge, "env.options.judge")() if judge else None
        self.unjudged = [] if self.judge else [task.id for task in found if task.judged]
        self.known = {task.id: task for task in found if task.id not in self.unjudged}
        for name, why in self.malformed.items():
            log.warning("WebArena task %d is malformed and left out: %s", name, why)
        if self.unjudged:
            log.warning("%d WebArena tasks need a judge (env.options.judge) and are left out", len(self.unjudged))
        self.score_s = max((task.visits for task in self.known.values()), default=0) * (VISIT_S + evaluators.PAGE_S)
        self._logins: dict[tuple[str, ...], Any] = {}

    @cached_property
    def addresses(self) -> Mapping[str, str]:
        """Where each site is. UsageError that names every missing variable."""
        missing = [name for name in VARIABLES.values() if not os.environ.get(name)]
        if missing:
            raise UsageError(
                f"WebArena's sites are named by environment variables. Not set: {', '.join(missing)}. "
                "Start the images (https://github.com/web-arena-x/webarena/tree/main/environment_docker), then for example: "
                f"export {missing[0]}=http://127.0.0.1:7770"
            )
        for name in VARIABLES.values():
            try:
                host_port(os.environ[name])
            except ValueError as error:
                raise UsageError(f"{name} = '{os.environ[name]}' is no address. Expected one such as http://127.0.0.1:7770.") from error
        return {site: os.environ[name].rstrip("/") for site, name in VARIABLES.items()}

    def all_tasks(self) -> Iterable[Task]:
        for task in self.known.values():
            yield Task(f"webarena/{task.id}", task.intent, "web", difficulty=0, goal={"webarena": task.id})

    def task_key(self, task: Task) -> str:
        """What it asks for."""
        return task.instruction

    def accepts(self, task: Task) -> bool:
        return (task.goal or {}).get("webarena") in self.known

    def check(self) -> None:
        """UsageError that names every missing variable, or a wrong one."""
        _ = self.addresses

    def prepare(self, slot: int, task: Task) -> Mapping[str, Any]:
        login = self._logins.get(_with_login(self._record(task)))
        return {"storage_state": login} if login else {}

    def sites(self, task: Task) -> Sequence[str]:
        """All of them: links lead from one to the other."""
        return sorted({host_port(address) for address in self.addresses.values()})

    def begin(self, session: WebSession, task: Task) -> None:
        record = self._record(task)
        self._log_in(session, _with_login(record))
        first = session.page
        for place, url in enumerate(self._resolved(record).start_url.split(" |AND| ")):
            if place:
                session.page = session.context.new_page()
            session.open(url)
        if session.page is not first:  # the original begins in the first of several tabs
            session.page = first
            first.bring_to_front()

    def score(self, session: WebSession, slot: int, task: Task, answer: str | None) -> tuple[float, bool]:
        if answer is None:
            return 0.0, False
        page, fresh = session.page, session.context.new_page()
        fresh.set_default_navigation_timeout(1e3 * VISIT_S)
        found = evaluators.score(
            self._resolved(self._record(task)),
            answer,
            page,
            judge=self.judge,
            helpers=site_helpers(self.addresses),
            fresh=fresh,
            wait=lambda seconds: fresh.wait_for_timeout(1e3 * seconds),
        )
        return found, True

    def scripted_action(self, task: Task, policy: str, state: Observation, rng: random.Random) -> Action:
        raise UsageError("There are no scripted policies for WebArena.")

    def close(self) -> None:
        """The sites are somebody else's."""

    def _log_in(self, session: WebSession, sites: tuple[str, ...]) -> None:
        """Log in where that was not done before, or where what was kept of it is not valid any more."""
        first, tab = session.page, session.context.new_page
        if sites in self._logins and any(login_expired(tab(), site, self.addresses[site]) for site in sites):
            log.info("a login at WebArena's %s has expired and is made anew", " and ".join(sites))
            del self._logins[sites]
            session.context.clear_cookies()  # the forms are not shown to whoever is still logged in at one of several sites
        if sites not in self._logins:
            for site in sites:
                LOGINS[site](tab(), self.addresses[site])
            self._logins[sites] = session.context.storage_state()
        session.page = first  # each tab became the active one, and was closed

    def _record(self, task: Task) -> WebArenaTask:
        return self.known[(task.goal or {})["webarena"]]

    def _resolved(self, record: WebArenaTask) -> WebArenaTask:
        """The record with the sites' addresses in place of their names, such as `__REDDIT__`."""
        text = json.dumps({"start_url": record.start_url, "eval": record.eval})
        for site in (*SITES, "homepage"):
            text = text.replace(f"__{site.upper()}__", self.addresses[site])
        filled = json.loads(text)
        return WebArenaTask(record.id, record.sites, record.intent, filled["start_url"], filled["eval"], record.template)


def _with_login(record: WebArenaTask) -> tuple[str, ...]:
    """The sites of a task that somebody logs in at."""
    return tuple(site for site in record.sites if site in LOGINS)


def reset_sites(*, get: Callable[[str], tuple[int, str]], wait: Callable[[float], None] = time.sleep) -> None:
    """Have the server at WA_FULL_RESET bring all sites into their first state, and wait for it. `get`: an address to (status, text).

    UsageError without the variable; ServerError where it refuses or is not ready in time.
    """
    base = os.environ.get(RESET_VARIABLE, "").rstrip("/")
    if not base:
        raise UsageError(
            f"{RESET_VARIABLE} is not set: the address of a server that resets WebArena's sites at /reset. Without one, stop and start "
            "the images by hand."
        )
    status, text = get(f"{base}/reset")
    if status not in (200, 418):  # 418: a reset is under way already
        raise ServerError(f"{base}/reset answered {status}: {text:.200}", status=status)
    for _ in range(int(RESET_S / ASK_S)):
        status, text = get(f"{base}/status")
        if status != 200:
            raise ServerError(f"{base}/status answered {status}: {text:.200}", status=status)
        if text.strip() == "Ready for duty!":
            return
        wait(ASK_S)
    raise ServerError(f"{base} did not finish its reset within {RESET_S:g} s.")
