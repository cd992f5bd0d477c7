"""The web in a real browser: MiniWoB, WebArena-Lite, and a shop and a forum that start with one command.

    pip install 'dreamgym[web]' && apt install chromium-headless-shell
    dreamgym web up                                       # the shop, to look at; dreamgym web up forum
    dreamgym train runs/web env.name=web env.options='{benchmark = "miniwob"}'

One browser a process is kept, with a context for each episode. With `env.workers` every worker has a browser of its own.
"""

from __future__ import annotations

import atexit
import random
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dreamgym.config import Config, build, paths
from dreamgym.envs.base import EnvSuite, check_split, in_split
from dreamgym.envs.web import chromium
from dreamgym.envs.web.chromium import Browser
from dreamgym.envs.web.env import Benchmark, OpenSessions, WebEnv
from dreamgym.envs.web.forum.site import FORUM, forum
from dreamgym.envs.web.miniwob import DEFAULT, MiniWob
from dreamgym.envs.web.rules import WebRules
from dreamgym.envs.web.shop.site import SHOP, shop
from dreamgym.envs.web.sites.site import Site
from dreamgym.envs.web.webarena import WebArenaLite
from dreamgym.types import Action, Observation, Task

SITES: Mapping[str, Site] = {one.name: one for one in (SHOP, FORUM)}
"""What `dreamgym web up` starts."""


class WebConfig(Config):
    """Which benchmark, and how the browser is used."""

    benchmark: Literal["miniwob", "webarena_lite", "shop", "forum"] = "miniwob"
    tasks_file: Path | None = None
    """For WebArena-Lite: the wheel of `browsergym-webarenalite`, or the JSON file in it. Empty: the installed package."""
    judge: str = ""
    """For WebArena-Lite: `module:function` that returns a judge (`webarena.evaluators.Judge`). Empty: tasks that need one are left out."""
    pages: tuple[str, ...] = DEFAULT
    """Pages of MiniWoB, such as `click-button`."""
    seeds: int = Field(30, ge=1, le=10_000)
    """Instances of each page of MiniWoB."""
    content: int = Field(0, ge=0)
    """Seed of what the shop or the forum holds, and of the tasks in it."""
    browser: str = ""
    """Path or name of a Chromium. Empty: the first that is installed (see `chromium.NAMES`)."""
    max_tokens: int = Field(1500, ge=200)
    """Of a state, by the estimate of `page_text.rough_tokens`."""
    max_open: int | None = Field(None, ge=1)
    """Episodes whose pages are open at the same time in one browser, at 30 to 60 MB each. Empty: 16, and 4 for WebArena-Lite, whose
    episodes share sites that nothing resets between them. The original's script for parallel runs has 4 as well."""
    timeout_s: float = Field(5.0, gt=0)
    """Of one navigation or action of the browser."""
    step_limit_s: float = Field(60.0, gt=0)
    """Of a whole reset or step. What takes longer ends the browser, and the episode is a failed rollout. For WebArena-Lite the time that
    an evaluator may take for the pages that it visits comes on top."""
    quiet_s: float = Field(0.1, ge=0)
    """How long the page's scripts may run between an action and the reading of the page."""


class WebSuite(EnvSuite):
    """Tasks of one benchmark in a real browser."""

    name = "web"
    rules: WebRules

    def __init__(self, config: WebConfig) -> None:
        self.config, self.data_paths = config, paths(config)
        self.rules = WebRules(max_tokens=config.max_tokens)
        self.browser = Browser(chromium.find(config.browser))
        self.benchmark = self._benchmark()
        self.scripted_policies, self.repeats = self.benchmark.scripted_policies, self.benchmark.repeats
        self.max_steps = self.benchmark.max_steps
        self.max_parallel = config.max_open or (4 if config.benchmark == "webarena_lite" else 16)
        atexit.register(self.close)

    @cached_property
    def sessions(self) -> OpenSessions:
        """The open contexts of this process."""
        return OpenSessions(self.browser, self.max_parallel)

    def all_tasks(self) -> Iterable[Task]:
        return self.benchmark.all_tasks()

    def task_key(self, task: Task) -> str:
        """What the task is about, so that splits are by content. A recorded task has no goal record: it is that of its wording."""
        known = self._worded.get(" ".join(task.instruction.split())) if task.goal is None else None
        return self.benchmark.task_key(known or task)

    @cached_property
    def _worded(self) -> dict[str, Task]:
        """The tasks by their wording, of several that share one a held-out task, so that recordings of it stay out of the logs."""
        key = self.benchmark.task_key
        tasks = sorted(self.all_tasks(), key=lambda task: not in_split(key(task), "train"))  # the last of a wording stays
        return {" ".join(task.instruction.split()): task for task in tasks}

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        """Tasks whose content belongs to the split; several can share it."""
        check_split(split)
        found = [task for task in self.all_tasks() if in_split(self.task_key(task), split)]
        random.Random(f"tasks/{split}/{seed}").shuffle(found)
        return found[:n]

    def env(self) -> WebEnv:
        config = self.config
        return WebEnv(
            self.benchmark,
            self.sessions,
            self.rules,
            timeout_s=config.timeout_s,
            quiet_s=config.quiet_s,
            step_limit_s=config.step_limit_s + self.benchmark.score_s,
            horizon=self.max_steps if config.benchmark == "webarena_lite" else None,
        )

    def check_env(self) -> None:
        self.benchmark.check()

    def scripted_action(self, task: Task, policy: str, state: Observation, rng: random.Random) -> Action:
        return self.benchmark.scripted_action(task, policy, state, rng)

    def close(self) -> None:
        """End the browser and what was started for the tasks."""
        self.browser.close()
        self.benchmark.close()

    def _benchmark(self) -> Benchmark:
        if self.config.benchmark == "webarena_lite":
            return WebArenaLite(self.config.tasks_file, self.config.judge)
        if self.config.benchmark == "shop":
            return shop(self.config.content)
        if self.config.benchmark == "forum":
            return forum(self.config.content)
        return MiniWob(self.config.pages, self.config.seeds, self.browser)


def make(**config: Any) -> WebSuite:
    """The web, by configuration (see WebConfig)."""
    return WebSuite(build(WebConfig, config, where="env web"))
