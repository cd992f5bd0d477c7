"""MiniWoB++ (arXiv:1802.08802): small tasks on one page, from the package `miniwob`, begun and scored by `browsergym-miniwob`.

A task is a page and a seed, from which the page draws what it asks for. The pages are served on loopback. Tasks are told apart, and split,
by page and wording.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dreamgym.envs.web.actions import WebAction
from dreamgym.envs.web.chromium import Browser, in_browser_thread
from dreamgym.envs.web.loopback import FolderServer
from dreamgym.envs.web.rules import Element, elements
from dreamgym.envs.web.session import WebSession
from dreamgym.errors import EnvironmentFailure, MissingExtra, UsageError, nearest
from dreamgym.types import Action, Observation, Task

MIX = {"expert": 0.4, "noisy": 0.3, "random": 0.2, "invalid": 0.1}
"""Shares of scripted policies in the logs. `noisy` does something at random in a third of its steps, `invalid` names what is not there."""
DEFAULT = ("click-button", "click-checkboxes", "click-link", "click-option", "choose-list", "enter-text", "login-user", "click-tab-2")
"""Pages for which there is a scripted expert."""


class MiniWob:
    """The `Benchmark` of MiniWoB pages."""

    repeats = True
    score_s = 0.0
    viewport: Mapping[str, int] = {"width": 332, "height": 214}
    scripted_policies: Mapping[str, float] = MIX

    def __init__(self, pages: Sequence[str], seeds: int, browser: Browser, *, max_steps: int = 10) -> None:
        """`seeds` instances of every page. MissingExtra without the packages; UsageError for a page that there is not."""
        try:
            import browsergym.miniwob as benchmark
            import miniwob
        except ModuleNotFoundError as error:
            raise MissingExtra(f"MiniWoB needs {error.name}. Install it with: pip install 'dreamgym[web]'") from error
        self.known = {one.subdomain: one for one in benchmark.ALL_MINIWOB_TASKS}
        for page in pages:
            if page not in self.known:
                raise UsageError(f"No MiniWoB page '{page}'.{nearest(page, self.known)} There are {len(self.known)}.")
        self.pages, self.seeds, self.browser, self.max_steps = tuple(pages), seeds, browser, max_steps
        self.folder = Path(miniwob.__file__).parent / "html"

    @cached_property
    def server(self) -> FolderServer:
        return FolderServer(self.folder)

    @cached_property
    @in_browser_thread
    def _tasks(self) -> list[Task]:
        """Every instance, as the pages word them."""
        found: dict[str, Task] = {}
        session = WebSession(self.browser, [self.server.site], timeout_s=10, quiet_s=0, viewport=self.viewport)
        try:
            for page in self.pages:
                opened = False
                for seed in range(self.seeds):
                    if not opened:
                        self._begin(session, page, seed)
                    else:
                        session.page.evaluate(f"Math.seedrandom({self._stock(page, seed)[1]}); core.startEpisodeReal()")
                    opened = True
                    wording = " ".join(self._goal(session).split())
                    found.setdefault(
                        f"{page}: {wording}", Task(f"miniwob/{page}/{seed}", wording, "web", goal={"page": page, "seed": seed})
                    )
        finally:
            session.close()
        return list(found.values())

    def all_tasks(self) -> Iterable[Task]:
        return self._tasks

    def task_key(self, task: Task) -> str:
        return f"{(task.goal or {}).get('page')}: {task.instruction}"

    def accepts(self, task: Task) -> bool:
        goal = task.goal or {}
        return goal.get("page") in self.known and isinstance(goal.get("seed"), int)

    def check(self) -> None:
        """The pages come with the package, whose absence is told when it is loaded."""

    def prepare(self, slot: int, task: Task) -> Mapping[str, Any]:
        return {}

    def sites(self, task: Task) -> Sequence[str]:
        return [self.server.site]

    def begin(self, session: WebSession, task: Task) -> None:
        goal = task.goal or {}
        wording = self._begin(session, goal["page"], goal["seed"])
        if " ".join(wording.split()) != task.instruction:
            raise EnvironmentFailure(
                f"{task.id} asks for '{wording:.200}', and its record says '{task.instruction:.200}'. Another version of miniwob?"
            )

    def score(self, session: WebSession, slot: int, task: Task, answer: str | None) -> tuple[float, bool]:
        """BrowserGym's: 1.0 where the page's raw reward is above 0. Leaving the page ends the episode."""
        goal = task.goal or {}
        if session.page.url != self._url(goal["page"]):
            return 0.0, True
        raw, done = session.evaluate("() => [WOB_RAW_REWARD_GLOBAL, WOB_DONE_GLOBAL]")
        return float(raw > 0), bool(done)

    def close(self) -> None:
        if "server" in self.__dict__:
            self.server.close()

    def scripted_action(self, task: Task, policy: str, state: Observation, rng: random.Random) -> Action:
        """One action of a scripted policy, by what the state shows."""
        found = list(elements(state.text).values())
        if policy == "invalid" and rng.random() < 0.5:
            return str(rng.choice([WebAction("click", len(found) + rng.randint(1, 9)), WebAction("select", 1, "nothing of the kind")]))
        if policy == "random" or (policy != "expert" and rng.random() < 1 / 3):
            return _anything(found, task.instruction, rng)
        expert = EXPERTS.get(str((task.goal or {})["page"]))
        if expert is None:
            raise UsageError(f"There is no scripted expert for the page of {task.id}. There is one for {', '.join(EXPERTS)}.")
        return str(expert(task.instruction, found))

    def _url(self, page: str) -> str:
        return f"http://{self.server.site}/miniwob/{page}.html"

    def _stock(self, page: str, seed: int) -> tuple[Any, int]:
        """The package's task object, and the number that it seeds the page with."""
        made = self.known[page](seed=seed, base_url=f"http://{self.server.site}/miniwob/")
        return made, self.known[page](seed=seed, base_url="").random.randint(0, 1000000)

    def _begin(self, session: WebSession, page: str, seed: int) -> str:
        goal, _ = self._stock(page, seed)[0].setup(session.page)
        return str(goal)

    def _goal(self, session: WebSession) -> str:
        answer = session.evaluate("() => core.getUtterance()")
        return str(answer["utterance"] if isinstance(answer, dict) else answer)


def _anything(found: Sequence[Element], instruction: str, rng: random.Random) -> Action:
    """An action that the state offers, at random."""
    open_ = [one for one in found if not one.blocked]
    if not open_:
        return "stop []"
    chosen = rng.choice(open_)
    if chosen.role in ("textbox", "searchbox"):
        return str(WebAction("type", chosen.number, rng.choice(re.findall(r"\w+", instruction))))
    if chosen.options:
        choices = re.findall(r"'(.*?)'(?:, |$)", chosen.options)
        return str(WebAction("select", chosen.number, rng.choice(choices)))
    return str(WebAction("click", chosen.number))


Expert = Callable[[str, Sequence[Element]], WebAction]
"""(instruction, elements of the state) -> what to do."""


def _quoted(instruction: str) -> list[str]:
    return re.findall(r'"(.*?)"', instruction)


def _named(found: Sequence[Element], name: str, *roles: str) -> WebAction:
    """A click on the element of that name; `stop` where there is none."""
    number = next((one.number for one in found if one.name.lower() == name.lower() and (not roles or one.role in roles)), None)
    return WebAction("click", number) if number else WebAction("stop")


def _button(instruction: str, found: Sequence[Element]) -> WebAction:
    exact = next((one.number for one in found if one.role == "button" and one.name == _quoted(instruction)[0]), None)
    return WebAction("click", exact) if exact else _named(found, _quoted(instruction)[0], "button")


def _boxes(instruction: str, found: Sequence[Element]) -> WebAction:
    wanted = instruction.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
    for one in found:
        if one.role in ("checkbox", "radio") and one.name in wanted and "checked" not in one.flags:
            return WebAction("click", one.number)
    return _named(found, "Submit", "button")


def _list(instruction: str, found: Sequence[Element]) -> WebAction:
    wanted = re.sub(r"^Select (.*) from the list and click Submit\.$", r"\1", instruction)
    for one in found:
        if one.role == "combobox" and one.value != wanted:
            return WebAction("select", one.number, wanted)
    return _named(found, "Submit", "button")


def _fields(instruction: str, found: Sequence[Element]) -> WebAction:
    texts = _quoted(instruction)
    for one, text in zip((one for one in found if one.role == "textbox"), texts, strict=False):
        if one.value != text and not (one.value and set(one.value) == {"•"}):
            return WebAction("type", one.number, text)
    return _named(found, "Login" if len(texts) > 1 else "Submit", "button")


def _tab(instruction: str, found: Sequence[Element]) -> WebAction:
    link = _link(instruction, found)
    if link.element:
        return link
    tabs = [one for one in found if one.role == "tab"]
    place = next((place for place, one in enumerate(tabs) if "selected" in one.flags), -1)
    return WebAction("click", tabs[(place + 1) % len(tabs)].number) if tabs else WebAction("stop")


def _link(instruction: str, found: Sequence[Element]) -> WebAction:
    """The element of the quoted name: as it is written, or else without case and punctuation."""
    wanted = _quoted(instruction)[0]
    exact = (one.number for one in found if one.name == wanted)
    close = (one.number for one in found if one.name.strip(".,").lower() == wanted.strip(".,").lower())
    number = next(exact, None) or next(close, None)
    return WebAction("click", number) if number else WebAction("stop")


EXPERTS: Mapping[str, Expert] = {
    "click-button": _button, "click-checkboxes": _boxes, "click-option": _boxes, "click-link": _link, "choose-list": _list,
    "enter-text": _fields, "login-user": _fields, "click-tab-2": _tab,
}  # fmt: skip
