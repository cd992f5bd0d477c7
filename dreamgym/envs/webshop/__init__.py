"""WebShop: a text shop over a generated catalogue (or the original files), its scripted shoppers, and its domain knowledge."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from dreamgym.config import Config, build
from dreamgym.envs._episode import play
from dreamgym.envs.webshop import catalogue, goals, products, search
from dreamgym.envs.webshop.behaviours import MIX, SHOPPERS, Memo
from dreamgym.envs.webshop.domain import ShopDomain
from dreamgym.envs.webshop.shop import Mode, WebShop
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
    mode: Mode = "text_rich"
    outcome: bool = True
    """Reward 1 for a perfect purchase and 0 otherwise, as in the paper; false gives WebShop's score in [0, 1]."""
    max_steps: int = 8


class WebShopFamily:
    """Everything a run needs of the shop: tasks by split, fresh environments, logged behaviours, the domain."""

    name = "webshop"
    behaviours = MIX

    def __init__(self, config: WebShopConfig) -> None:
        self.config = config
        self.domain = ShopDomain()
        self.max_steps = config.max_steps
        if config.items and config.attributes:
            self.per_page = 10
            raw = products.read(config.items, config.attributes)
        else:
            self.per_page = catalogue.preset(config.preset).per_page
            raw = catalogue.generate(config.preset, config.seed)
        self.products = products.load(*raw, seed=config.seed)
        self.index = search.Index(self.products)
        self.errands = self.tasks("train", 300)

    def tasks(self, split: goals.Split, n: int, *, seed: int = 0) -> list[Task]:
        """`n` tasks of a split; no target product is shared between splits."""
        return goals.tasks(split, n, self.products, seed=seed, catalogue_seed=self.config.seed, env=self.name)

    def env(self) -> WebShop:
        """A fresh shop that shares the catalogue."""
        return WebShop(self.products, self.index, per_page=self.per_page, mode=self.config.mode, outcome=self.config.outcome)

    def behave(self, task: Task, behaviour: str, *, seed: int) -> Trajectory:
        """One logged episode by a scripted shopper; the one who pursues the wrong goal is given another training task's list."""
        rng = random.Random(f"behave/{behaviour}/{task.id}/{seed}")
        memo = Memo(other=rng.choice(self.errands).instruction)
        shopper = SHOPPERS[behaviour]

        def act(state: Observation) -> str:
            return shopper(task.instruction, state.text, rng, memo)

        return play(self.env(), self.domain, task, act, max_steps=self.max_steps, behaviour=behaviour, name=f"{behaviour}/{task.id}/{seed}")


def make(**config: Any) -> WebShopFamily:
    """The shop family, by configuration (see WebShopConfig)."""
    return WebShopFamily(build(WebShopConfig, config, where="env webshop"))
