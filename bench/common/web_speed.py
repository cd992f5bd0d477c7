"""Seconds and memory of the web in a browser, and seconds of BrowserGym's own environment on the same pages, seeds and actions.

Steps after which an episode goes on are kept apart from those that end one: the former wait for the page's scripts and read the page, the
latter only ask for the score. BrowserGym waits and reads after both.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.isolation import isolated
from dreamgym import plugins
from dreamgym.envs.web.actions import WebAction, parse
from dreamgym.errors import MissingExtra
from dreamgym.types import Task

SITES = ("shop", "forum")
FIELDS = (
    "web_reset_s", "web_step_s", "web_end_s", "web_stock_reset_s", "web_stock_step_s", "web_stock_end_s", "web_stock_step_same_wait_s",
    "web_wait_s", "web_compared", "web_identical", "web_compared_episodes", "web_eight_contexts_mb", "web_grown_mb", "web_grown_browser_mb",
    "web_grown_late_mb", "web_grown_driver_mb", "web_grown_python_mb", "web_episodes", "web_state_tokens", "web_browser",
    "web_stock_browser",
    *(f"web_{site}_{what}" for site in SITES for what in ("reset_s", "step_s", "end_s", "eight_contexts_mb", "server_mb", "state_tokens")),
)  # fmt: skip
"""Without what was not measured. Seconds are medians, and `step` is a step after which the episode goes on."""
Script = dict[str, Any]
"""An episode for BrowserGym: its `page` and `seed`, and `steps`, each (action as BrowserGym writes it, reward, whether it ended)."""


@dataclass
class Played:
    """What episodes took, in seconds, and what their states hold."""

    resets: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    """Of steps after which the episode goes on."""
    ends: list[float] = field(default_factory=list)
    """Of steps that end one."""
    tokens: list[int] = field(default_factory=list)
    scripts: list[Script] = field(default_factory=list)

    def medians(self, name: str) -> dict[str, float | None]:
        """None where there is no such step."""
        return {f"{name}_{kind}_s": median(getattr(self, f"{kind}s")) for kind in ("reset", "step", "end")}


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def measure(episodes: int, leak_episodes: int, kept: Path | None = None) -> dict[str, Any]:
    """Every contender in a process of its own. What is in the file `kept` is not measured again; what is measured joins it."""
    found: dict[str, Any] = {}
    done: dict[str, Any] = json.loads(kept.read_text("utf-8")) if kept and kept.exists() else {}

    def once(name: str, contender: Any, *arguments: Any) -> dict[str, Any]:
        if name not in done:
            done[name] = isolated(contender, *arguments)
            if kept and "missing" not in done[name]:
                kept.write_text(json.dumps(done), "utf-8")
        measured: dict[str, Any] = done[name]
        found.update({"web_missing": measured["missing"]} if "missing" in measured else {k: measured[k] for k in FIELDS if k in measured})
        return measured

    ours = once(f"miniwob/{episodes}", miniwob, episodes)
    once(f"leak/{leak_episodes}", leak, leak_episodes)
    if "missing" not in ours:
        once(f"stock/{episodes}", stock, ours["scripts"], None)
        once(f"stock with our wait/{episodes}", stock, ours["scripts"], ours["web_wait_s"])
    for name in SITES:
        once(f"{name}/{episodes}", site, name, episodes)
    return found


def miniwob(episodes: int) -> dict[str, Any]:
    """Scripted episodes in MiniWoB, and the memory of a browser with eight contexts."""
    suite = opened(seeds=3)
    tasks = suite.tasks("train", 24)
    suite.env().reset(tasks[0])  # starts the browser
    played = play(suite, [tasks[i % len(tasks)] for i in range(episodes)])
    found = {
        **played.medians("web"), "web_state_tokens": max(played.tokens), "web_wait_s": suite.config.quiet_s, "scripts": played.scripts,
        "web_eight_contexts_mb": with_eight_contexts(suite, tasks)["browser"], "web_browser": suite.browser.path,
        "web_compared_episodes": episodes,
    }  # fmt: skip
    suite.close()
    return found


def leak(episodes: int) -> dict[str, Any]:
    """By how much the browser, Playwright's driver and this process grow over scripted episodes, after the first tenth of them, and in
    their second half: what starts slowly has ended there, a leak has not."""
    suite = opened(seeds=3)
    tasks = suite.tasks("train", 24)
    several = [tasks[i % len(tasks)] for i in range(episodes)]
    memory, start = list[dict[str, float]](), 0
    for end in (episodes // 10 + 1, episodes // 2 + 1, episodes):
        play(suite, several[start:end])
        memory.append(memory_mb(suite))
        start = end
    suite.close()
    first, half, last = memory
    grown = {part: mb - first[part] for part, mb in last.items()}
    return {
        "web_grown_mb": sum(grown.values()), "web_grown_late_mb": sum(last.values()) - sum(half.values()), "web_episodes": episodes,
        **{f"web_grown_{part}_mb": mb for part, mb in grown.items()},
    }  # fmt: skip


def site(name: str, episodes: int) -> dict[str, Any]:
    """Scripted episodes in an example site, and the memory of a browser with eight contexts and of the site's process."""
    suite = opened(benchmark=name)
    tasks = suite.tasks("train", max(8, episodes))
    suite.env().reset(tasks[0])
    played = play(suite, tasks[:episodes])
    memory = with_eight_contexts(suite, tasks)
    suite.close()
    return {
        **played.medians(f"web_{name}"), f"web_{name}_state_tokens": max(played.tokens),
        f"web_{name}_eight_contexts_mb": memory["browser"], f"web_{name}_server_mb": memory["server"],
    }  # fmt: skip


def opened(**options: Any) -> Any:
    """A suite of the web; ImportError where an extra is missing."""
    try:
        return plugins.make("envs", "web", **options)
    except MissingExtra as error:
        raise ImportError(str(error)) from error


def play(suite: Any, tasks: Sequence[Task]) -> Played:
    """Episodes of the expert, the state mapping included in the times."""
    from dreamgym.envs.web.page_text import rough_tokens

    env, rng, found = suite.env(), random.Random(0), Played()
    for task in tasks:
        start = time.perf_counter()
        state = suite.rules.abstract(env.reset(task))
        found.resets.append(time.perf_counter() - start)
        steps: list[tuple[str, float, bool]] = []
        for _ in range(suite.max_steps):
            action = suite.scripted_action(task, "expert", state, rng)
            written = as_browsergym(parse(action), env._shown.bids)
            start = time.perf_counter()
            raw, reward, ended = env.step(action)
            state = suite.rules.abstract(raw)
            (found.ends if ended else found.steps).append(time.perf_counter() - start)
            steps.append((written, reward, ended))
            found.tokens.append(rough_tokens(state.text))
            if ended:
                break
        if (goal := task.goal or {}).keys() >= {"page", "seed"}:
            found.scripts.append({"page": goal["page"], "seed": goal["seed"], "steps": steps})
    env.close()
    return found


def as_browsergym(action: WebAction | None, bids: dict[int, str]) -> str:
    """An action of MiniWoB's experts as BrowserGym writes it; `stop` and all others are a message there."""
    bid = repr(bids.get((action.element if action else None) or 0, ""))
    match action:
        case WebAction("click"):
            return f"click({bid})"
        case WebAction("select", text=text):
            return f"select_option({bid}, {text!r})"
        case WebAction("type", text=text, enter=enter):
            return f"fill({bid}, {text!r})" + (f"\npress({bid}, 'Enter')" if enter else "")
    return f"send_msg_to_user({(action.text if action else '')!r})"


def stock(scripts: Sequence[Script], wait_s: float | None) -> dict[str, Any]:
    """The same episodes in BrowserGym's own environment, with its defaults but for `slow_mo`, which only slows it for spectators.

    `wait_s`: how long it waits after an action in place of its own half second; then its seconds alone are given, under another name.
    """
    import gymnasium

    changed: dict[str, Any] = {} if wait_s is None else {"pre_observation_delay": wait_s}
    played, same, compared = Played(), 0, 0
    with tempfile.TemporaryDirectory() as name:
        program = as_playwrights_own(Path(name))
        try:
            import browsergym.miniwob  # noqa: F401
            import miniwob as pages
        except ModuleNotFoundError as error:
            raise ImportError(str(error)) from error
        os.environ["MINIWOB_URL"] = f"file://{Path(pages.__file__).parent}/html/miniwob/"
        for page in dict.fromkeys(script["page"] for script in scripts):
            env = gymnasium.make(f"browsergym/miniwob.{page}", slow_mo=0, disable_env_checker=True, **changed)
            for script in (one for one in scripts if one["page"] == page):
                start = time.perf_counter()
                env.reset(seed=script["seed"])
                played.resets.append(time.perf_counter() - start)
                compared += len(script["steps"])
                for action, reward, ended in script["steps"]:
                    start = time.perf_counter()
                    _, found, over, *_ = env.step(action)
                    (played.ends if over else played.steps).append(time.perf_counter() - start)
                    same += (float(found), over) == (reward, ended)
                    if over:
                        break
            env.close()
    if wait_s is not None:
        return {"web_stock_step_same_wait_s": median(played.steps)}
    return {
        **played.medians("web_stock"),
        "web_stock_browser": Path(program).name,
        "web_compared": compared,
        "web_identical": same,
    }


def as_playwrights_own(folder: Path) -> str:
    """Have Playwright find the system's Chromium where it keeps its own builds: a whole one where there is one, as BrowserGym starts."""
    import playwright

    from dreamgym.envs.web import chromium

    listed = json.loads((Path(playwright.__file__).parent / "driver/package/browsers.json").read_text())["browsers"]
    revision = next(one["revision"] for one in listed if one["name"] == "chromium")
    program = folder / f"chromium-{revision}" / "chrome-linux" / "chrome"
    program.parent.mkdir(parents=True)
    whole = next(filter(None, map(shutil.which, chromium.NAMES[1:])), None) or chromium.find()
    program.write_text(f'#!/bin/sh\nexec {whole} --no-sandbox --disable-gpu "$@"\n')
    program.chmod(0o755)
    os.environ["PLAYWRIGHT_BROWSERS_PATH"] = str(folder)
    return whole


def with_eight_contexts(suite: Any, tasks: Sequence[Task]) -> dict[str, float]:
    """The memory while eight episodes are open."""
    several = [suite.env() for _ in range(8)]
    for i, one in enumerate(several):
        one.reset(tasks[i % len(tasks)])
    return memory_mb(suite)


def memory_mb(suite: Any) -> dict[str, float]:
    """Proportional memory of the browser, of the site's process where there is one, of this process, and of what else it has started:
    Playwright's driver, in which Node runs."""
    import psutil

    gc.collect()  # what is only waiting to be freed is no growth
    me = psutil.Process()
    below = {one.pid: one for one in me.children(recursive=True)}
    found, counted = {"python": _pss_mb([me])}, set[int]()
    server = getattr(suite.benchmark, "server", None)
    for name, root in (("browser", suite.browser.pid), ("server", getattr(getattr(server, "process", None), "pid", 0))):
        if root:
            tree = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
            found[name] = _pss_mb(tree)
            counted |= {one.pid for one in tree}
    return {**found, "driver": _pss_mb([one for pid, one in below.items() if pid not in counted])}


def _pss_mb(processes: Sequence[Any]) -> float:
    import psutil

    total = 0
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a page that was just closed
            total += one.memory_full_info().pss
    return total / 2**20
