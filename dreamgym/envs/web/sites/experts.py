"""Scripted policies for sites. They read the state, as an agent does, and what no agent is told: the task's template and the values that
its check compares with, such as which of two products is the cheaper. Most of what a question asks for they read from pages.

`expert` does the task, by the script of its template. `noisy` does something else in a quarter of its steps, `careless` stops too early or
answers with what it has not looked up, `random` clicks anything, `invalid` names what is not there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from dreamgym.envs.web.actions import WebAction
from dreamgym.envs.web.rules import Element, elements
from dreamgym.envs.web.sites.tasks import SiteTask
from dreamgym.types import Action, Observation

MIX: Mapping[str, float] = {"expert": 0.4, "noisy": 0.25, "careless": 0.15, "random": 0.1, "invalid": 0.1}
CLICKED = ("link", "button", "clickable", "checkbox", "radio", "tab", "menuitem")


class Page:
    """A state, and how its elements are found."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.title = self.lines[0].removeprefix("page: ").lower()
        self.elements = elements(text)

    def find(self, name: str, *roles: str) -> Element | None:
        """The first element of that name, whatever its case."""
        wanted = name.lower()
        return next((one for one in self.elements.values() if one.name.lower() == wanted and (not roles or one.role in roles)), None)

    def click(self, name: str, *roles: str) -> WebAction | None:
        """A click on the first element of that name; None where there is none."""
        found = self.find(name, *roles)
        return WebAction("click", found.number) if found else None

    def line(self, *parts: str) -> str:
        """The first line that holds all parts, in lower case."""
        return next((line for line in self.text.lower().split("\n") if all(part.lower() in line for part in parts)), "")

    def cell(self, label: str) -> str:
        """What stands beside a label in a table."""
        line = next((line for line in self.lines if line.lower().startswith(f"{label.lower()} | ")), "")
        return line.partition(" | ")[2].strip()


def answer(*parts: object) -> WebAction:
    """The end of an episode with an answer: the parts, with blanks between them."""
    return WebAction("stop", text=" ".join(map(str, parts)))


Script = Callable[[SiteTask, Page], WebAction | None]
"""The next step of a template's task on a page; None where the script knows none, which ends the episode."""


def act(scripts: Mapping[str, Script], task: SiteTask, policy: str, state: Observation, rng: random.Random) -> Action:
    """What a scripted policy does in a state. `scripts` are the site's, by template."""
    page = Page(state.text)
    if policy == "invalid" and rng.random() < 0.5:
        return str(WebAction("click", len(page.elements) + rng.randint(1, 50)))
    if policy == "random" or (policy in ("noisy", "invalid") and rng.random() < 0.25):
        found = [one for one in page.elements.values() if one.role in CLICKED and not one.blocked]
        return str(WebAction("click", rng.choice(found).number)) if found and rng.random() < 0.95 else "stop []"
    if policy == "careless" and rng.random() < 0.2:
        return str(WebAction("stop", text=str(rng.randint(1, 60)) if task.answered else ""))
    return str(scripts[task.template](task, page) or WebAction("stop"))
