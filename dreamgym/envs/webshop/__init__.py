"""WebShop: a text shop over a generated catalogue (or the original files), its scripted policies, and its text rules."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dreamgym.config import Config, build, paths
from dreamgym.envs.base import EnvSuite, play
from dreamgym.envs.webshop import catalogue, goals, originals, pages, products, replay, search, states, store
from dreamgym.envs.webshop.lucene import LuceneIndex
from dreamgym.envs.webshop.pages import Mode
from dreamgym.envs.webshop.rules import ShopRules
from dreamgym.envs.webshop.scripted_policies import MIX, SCRIPTED_POLICIES, ScriptMemory
from dreamgym.envs.webshop.shop import Search, WebShop
from dreamgym.envs.webshop.tagger import TaggerName
from dreamgym.errors import ConfigError
from dreamgym.types import Observation, Task, Trajectory


class WebShopConfig(Config):
    """Which shop to open."""

    preset: str = "mini"
    """Size of the generated catalogue: mini, small, medium or large."""
    seed: int = 0
    """Names the catalogue, its prices and the split of its products."""
    items: Path | None = None
    """An original items_shuffle*.json instead of a generated catalogue."""
    attributes: Path | None = None
    """The items_ins_v2*.json that belongs to `items`."""
    built: Path | None = None
    """A folder made by `dreamgym webshop build`, instead of the files: it opens in moments, however large."""
    human: Path | None = None
    """The items_human_ins.json that belongs to `items`, for human goals."""
    num_products: int | None = Field(None, ge=1)
    """Read only the first products of `items`."""
    goals: Literal["graded", "synthetic", "human"] = "graded"
    """Our own goals of one to five requirements, or the original's, in its order and splits (these want `items`)."""
    split_by: Literal["index", "product"] = "index"
    """Splits of the original's goals: its ranges of indices, which share products, or by target product, as graded goals always are. A
    synthetic goal that is worded as one to train on is held out in neither."""
    engine: Literal["auto", "plain", "lucene"] = "auto"
    """The search engine: Lucene's BM25 with its analyser and rounding, or plain BM25. "auto": lucene for the original's files."""
    corrected: bool | None = None
    """Score the options of graded and synthetic goals by name and value, so that every goal can be met. By default for graded goals alone:
    the others are scored as in the original."""
    tagger: TaggerName | None = None
    """Who finds nouns for the title score: spacy, rule, or auto (spaCy if a model is there). By default rule for generated catalogues."""
    mode: Mode = "text_rich"
    outcome: bool = True
    """Reward 1 for a perfect purchase and 0 otherwise, as in the paper; false gives WebShop's score in [0, 1], which no text check can
    confirm: runs with an experience model then want `guard.grounding` off and no copies under other goals."""
    logged_products: float = Field(1.0, gt=0, le=1)
    """Share of the products that scripted policies open; they overlook the others in results. So the logs hold the pages of these alone,
    and a dream has to make up the rest. Tasks may ask for any product."""
    compose_results: bool = False
    """Answer searches that no log holds with results composed from the products in memory, by the shop's own ranking: knowledge of the
    simulator in the dream."""
    max_steps: int = Field(8, ge=1)


def _check(config: WebShopConfig) -> None:
    """Refuse settings that clash."""
    if (config.items is None) != (config.attributes is None) or (config.items and config.built):
        raise ConfigError("env webshop: 'items' and 'attributes' go together, and 'built' stands alone. Give both files or one folder.")
    if config.goals != "graded" and config.items is None and config.built is None:
        raise ConfigError(f"env webshop: goals = '{config.goals}' go together with 'items' and 'attributes', or 'built'. Give them.")
    if config.goals == "human" and config.human is None:
        raise ConfigError("env webshop: goals = 'human' want 'human', the original's items_human_ins.json. Give it.")


class WebShopSuite(EnvSuite):
    """Everything a run needs of the shop: tasks by split, fresh environments, logs of scripted policies, the text rules."""

    name = "webshop"
    scripted_policies = MIX

    def __init__(self, config: WebShopConfig) -> None:
        self.config, self.data_paths = config, paths(config)
        self.max_steps = config.max_steps
        self.fractional_reward_option = "" if config.outcome else "outcome = false"
        _check(config)
        original = config.items is not None or config.built is not None
        self.rules: ShopRules = ShopRules(wide=original, compose_results=config.compose_results)
        self.per_page = 10 if original else catalogue.preset(config.preset).per_page
        loaded = self._open(config)
        self.products, self.goals = loaded.products, loaded.goals
        engine = config.engine if config.engine != "auto" else "lucene" if original else "plain"
        self.index: Search = search.Index(self.products) if engine == "plain" else loaded.index or LuceneIndex.of(self.products)
        corrected = config.goals == "graded" if config.corrected is None else config.corrected
        self.scoring = replay.scored(corrected=corrected, name=config.tagger or ("auto" if original else "rule"))
        self._by_asin: Mapping[str, products.Product] = (
            self.products.by_asin
            if isinstance(self.products, store.ProductStore)
            else {product.asin.lower(): product for product in self.products}
        )
        self.other_tasks = self.tasks("train", 300)
        self.can_ground_tasks = not original and not self.goals

    def _open(self, config: WebShopConfig) -> replay.Loaded:
        """The products, from files, a built folder or the generator, and the original's goals where they are asked for."""
        kind = None if config.goals == "graded" else config.goals
        if config.built:
            return replay.load_built(config.built, human=config.human, kind=kind, seed=config.seed)
        if config.items and config.attributes:
            many = config.num_products
            return replay.load(config.items, config.attributes, human=config.human, kind=kind, seed=config.seed, num_products=many)
        raw = catalogue.generate(config.preset, config.seed)
        return replay.Loaded(products.load(*raw, seed=config.seed), [], random.Random(config.seed))

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        """`n` tasks of a split. Graded goals share no target product and no request between splits, and within one several can ask for the
        same in other words (`goals.tasks`). The original's splits are ranges of goal indices."""
        if self.goals:
            return self._original_tasks(split, n, seed)
        key = self.rules.task_key if self.rules.wide else None
        return goals.tasks(split, n, self.products, seed=seed, catalogue_seed=self.config.seed, env=self.name, task_key=key)

    def task_key(self, task: Task) -> str:
        """What is asked for: recorded tasks have ids of their own, and lists of other seeds ask for the same under other ids."""
        return self.rules.task_key(task.instruction)

    def knows_task(self, task: Task) -> bool:
        return self.rules.read(task.instruction) is not None

    def _original_tasks(self, split: str, n: int, seed: int) -> list[Task]:
        """The original's goals as tasks; seed 0 keeps their order, which is the one its indices mean. A synthetic goal that is worded as a
        training goal is in no other split."""
        places = self._places(split)
        if self.config.goals == "synthetic" and split != "train":
            places = [place for place in places if self.goals[place]["instruction_text"] not in self._trained_on]
        if seed:
            random.Random(f"tasks/{split}/{seed}").shuffle(places)
        return [originals.task(self.goals[place], f"{self.name}/{self.config.goals}/{place}", self.name) for place in places[:n]]

    def _places(self, split: str) -> list[int]:
        if self.config.split_by == "index":
            return originals.split(self.goals, split)
        aimed_at = sorted({goal["asin"] for goal in self.goals})
        return originals.split_by_product(self.goals, goals.targets_of(split, aimed_at, self.config.seed))

    @cached_property
    def _trained_on(self) -> frozenset[str]:
        return frozenset(self.goals[place]["instruction_text"] for place in self._places("train"))

    def ground_task(self, task: Task) -> Task | None:
        """A synthetic task with the goal record that its words mean, aimed at the first product that meets it; None when none does."""
        goal = goals.goal_of(task.instruction, self._asked_for)
        return None if goal is None else replace(task, goal=goal)

    @cached_property
    def _asked_for(self) -> Mapping[str, list[products.Product]]:
        """The products by the noun that asks for them."""
        found: dict[str, list[products.Product]] = {}
        for product in self.products:
            found.setdefault(product.query, []).append(product)
        return found

    def inventory(self) -> Iterator[Observation]:
        """Every product as a line of results and as a page: for measures that ask whether a dreamed product exists."""
        for product in self.products:
            shown = (
                pages.results("", 1, 1, [product], ()),
                pages.item("", product, ""),
                pages.sub_page("", product, pages.SUB_PAGES[0]),
                pages.sub_page("", product, pages.SUB_PAGES[1]),
            )
            for nodes in shown:
                yield self.rules.abstract({"mode": "text_rich", "text": pages.rich(nodes)})

    def env(self) -> WebShop:
        """A fresh shop that shares the catalogue."""
        return WebShop(
            self.products,
            self.index,
            per_page=self.per_page,
            mode=self.config.mode,
            outcome=self.config.outcome,
            scoring=self.scoring,
            by_asin=self._by_asin,
        )

    @cached_property
    def overlooked(self) -> frozenset[str]:
        """The products that no scripted policy opens, as results name them."""
        share = self.config.logged_products
        names = [product.asin.lower() for product in self.products] if share < 1 else []
        random.Random(f"logged/{self.config.seed}").shuffle(names)
        return frozenset(names[round(share * len(names)) :])

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        """One logged episode by a scripted policy; `wrong_goal` pursues another training task."""
        rng = random.Random(f"behave/{policy}/{task.id}/{seed}")
        memory = ScriptMemory(other=rng.choice(self.other_tasks).instruction)

        def act(state: Observation) -> str:
            seen = states.without_results(state.text, self.overlooked)
            action = SCRIPTED_POLICIES[policy](task.instruction, seen, rng, memory)
            return "click[back to search]" if action[len("click[") : -1] in self.overlooked else action  # a name that was guessed

        return play(self.env(), self.rules, task, act, max_steps=self.max_steps, behaviour=policy, name=f"{policy}/{task.id}/{seed}")


def make(**config: Any) -> WebShopSuite:
    """The shop suite, by configuration (see WebShopConfig)."""
    return WebShopSuite(build(WebShopConfig, config, where="env webshop"))
