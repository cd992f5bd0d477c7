"""The expert of each site: it solves a task of every template, most of them need four steps, and repeating it blindly solves little."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import pytest
from web_pages import browser

from dreamgym import plugins
from dreamgym.envs.web import SITES, WebSuite
from dreamgym.envs.web.actions import parse
from dreamgym.envs.web.page_text import rough_tokens
from dreamgym.envs.web.shop.content import content
from dreamgym.envs.web.sites.tasks import SiteTask
from dreamgym.types import Task, Trajectory, Turn

pytestmark = pytest.mark.slow
TITLES = [product.title.lower() for product in content(0).products]
NAMES = {"shop": [*TITLES, *sorted({product.kind for product in content(0).products}), *(name for name, _ in content(0).customers)]}
"""What the wordings of a site name without quotes."""


@dataclass
class Played:
    """A site, and an episode of the expert for each template."""

    suite: WebSuite
    episodes: dict[str, Trajectory]

    def tasks(self, split: str, template: str) -> Iterator[Task]:
        return (task for task in self.suite.tasks(split, 10_000) if f"/{template}/" in task.id)

    def known(self, task: Task) -> SiteTask:
        return self.suite.benchmark.known[task.id]


@pytest.fixture(scope="module", params=sorted(SITES))
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    site = SITES[request.param]
    if importlib.util.find_spec(site.module) is None:
        pytest.skip(f"{site.distribution} is not installed: pip install 'dreamgym[web]'")
    browser()
    suite = plugins.make("envs", "web", benchmark=request.param)
    try:
        made = Played(suite, {})
        for template in suite.benchmark.scripts:
            made.episodes[template] = suite.demonstrate(next(made.tasks("train", template)), "expert", seed=0)
        yield made
    finally:
        suite.close()


def test_the_expert_solves_a_task_of_every_template_in_the_browser(played: Played):
    assert not [episode.task.instruction for episode in played.episodes.values() if not episode.success]


def test_at_least_twenty_templates_take_the_expert_four_steps_or_more(played: Played):
    assert sum(len(episode.turns) >= 4 for episode in played.episodes.values()) >= 20


@pytest.mark.parametrize("played", ["shop"], indirect=True)
def test_the_expert_that_chooses_between_two_products_looks_at_both(played: Played):
    for template in ("basket_cheaper", "basket_stocked"):
        for task in islice(played.tasks("train", template), 2):
            episode = played.suite.demonstrate(task, "expert", seed=0)
            pages = [turn.transition.state.text.split("\n")[0].lower() for turn in episode.turns]
            named = [title for title in TITLES if title in task.instruction]
            assert episode.success and len(named) == 2
            assert all(any(page.startswith(f"page: {title} /") for page in pages) for title in named)
            typed = [action.text for turn in episode.turns if (action := parse(turn.transition.action)) and action.name == "type"]
            assert typed and all(text in task.instruction for text in typed)


def words(site: str, task: SiteTask) -> list[str]:
    """What the wording of a task gives to type or choose, in order."""
    names = "".join(f"{re.escape(name)}|" for name in NAMES.get(site, ()))
    found = [quoted or other for quoted, other in re.findall(rf"'(.*?)'|\b({names}\d+ \w{{3}} \d{{4}}|\d+(?:\.\d+)?)\b", task.instruction)]
    return found + [one for one in map(str, task.wanted) if one in task.instruction and one not in found]


def test_who_repeats_the_experts_actions_with_the_words_of_the_task_and_does_not_read_solves_at_most_15_percent(played: Played):
    site, env = played.suite.benchmark.site.name, played.suite.require_env()

    def repeated(seen: Task, turns: Sequence[Turn], task: Task) -> bool:
        """Whether a task is solved by the actions of another, with this task's words in place of the other's."""
        pairs = list(zip(words(site, played.known(seen)), words(site, played.known(task)), strict=False))
        given = {old.lower(): new.lower() for old, new in pairs} | dict(pairs)
        env.reset(task)
        for turn in turns:
            action = parse(turn.transition.action)
            assert action
            _, reward, ended = env.step(str(replace(action, text=given.get(action.text, action.text))))
            if ended:
                return reward > 0
        return False

    found = [
        repeated(episode.task, episode.turns, task)
        for template, episode in played.episodes.items()
        for task in islice(played.tasks("test", template), 1)
    ]
    assert len(found) > 25 and sum(found) / len(found) <= 0.15


def test_the_pages_of_every_template_have_at_most_the_tokens_allowed(played: Played):
    most = played.suite.config.max_tokens
    states = [state.text for episode in played.episodes.values() for t in episode.transitions for state in (t.state, t.next_state)]
    assert most == 1500 and len(set(states)) > 100
    assert not [text.split("\n")[0] for text in states if rough_tokens(text) > most]


def test_pages_that_do_not_fit_are_cut_to_the_viewport_at_the_start_and_after_a_step(played: Played, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(played.suite.rules, "max_tokens", 300)
    env, cut = played.suite.require_env(), 0
    for template in islice(played.episodes, 6):
        env.reset(next(played.tasks("train", template)))
        for action in ("scroll [down]", "scroll [up]"):
            text = played.suite.rules.abstract(env.step(action)[0]).text
            assert rough_tokens(text) <= 300
            cut += "scroll" in text
    assert cut, "some pages are longer than that"
