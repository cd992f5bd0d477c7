"""ALFWorld: household games in text, on the real engine, with their scripted housekeepers and what is known of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dreamgym.config import Config, build
from dreamgym.envs._episode import play
from dreamgym.envs.alfworld.behaviours import HOUSEKEEPERS, MIX, OFFLINE, Memo, keep_house
from dreamgym.envs.alfworld.domain import HouseDomain
from dreamgym.envs.alfworld.goals import read_goal
from dreamgym.envs.alfworld.state import Told
from dreamgym.errors import UsageError, nearest
from dreamgym.types import Action, Observation, Task, Trajectory

if TYPE_CHECKING:
    from dreamgym.envs.alfworld.games import Game

Split = Literal["train", "dev", "test"]
HORIZON = {"mini": 24, "full": 50}
"""Steps of an episode; 50 is the original's limit."""


class AlfWorldConfig(Config):
    """Which houses to enter."""

    preset: Literal["mini", "full"] = "mini"
    """Size of the generated houses: a few places and things, for small models, or as many as the official ones have."""
    seed: int = 0
    """Names the generated games."""
    train: int = Field(default=400, ge=1)
    """Generated games to train on; they stand in other scenes than those of `test`."""
    dev: int = Field(default=64, ge=1)
    test: int = Field(default=256, ge=1)
    data: Path | None = None
    """Official games instead of generated ones: a folder with `train`, `valid_seen` and `valid_unseen`, as `alfworld-download` makes it."""
    engine: Literal["fast", "stock"] = "fast"
    """`stock` is textworld's own, some fifty times slower, for comparison."""
    max_steps: int | None = Field(default=None, ge=1)
    """Horizon of an episode; by default 24 in mini houses and 50 elsewhere."""
    mix: Literal["mixed", "paper"] = "mixed"
    """Who makes the logs: housekeepers of all skills, or the paper's offline set, 3,200 by experts to 2,000 by an oracle and at random."""


class AlfWorldFamily:
    """Everything a run needs of household games: tasks by split, fresh environments, logged behaviours, the domain."""

    name = "alfworld"

    def __init__(self, config: AlfWorldConfig) -> None:
        self.config = config
        self.domain = HouseDomain(crowded=config.data is not None)
        self.max_steps = config.max_steps or (HORIZON["full"] if config.data else HORIZON[config.preset])
        self.behaviours: Mapping[str, float] = OFFLINE if config.mix == "paper" else MIX
        self.games = Shelf(config)

    def tasks(self, split: Split, n: int, *, seed: int = 0) -> list[Task]:
        """`n` tasks of a split in an order that `seed` names, fewer when it holds fewer. Test houses stand in scenes of their own."""
        games = list(self.games.of(split))
        random.Random(f"tasks/{split}/{seed}").shuffle(games)
        return [self._task(game) for game in games[:n]]

    def env(self) -> Told:
        """A fresh house that loads the games of its tasks."""
        from dreamgym.envs.alfworld.world import House

        return Told(House(self.games, engine=self.config.engine, max_steps=self.max_steps))

    def behave(self, task: Task, behaviour: str, *, seed: int) -> Trajectory:
        """One logged episode by a scripted housekeeper; `planner` repeats the walkthrough that is stored with the game."""
        if behaviour not in HOUSEKEEPERS:
            raise UsageError(f"No behaviour '{behaviour}'.{nearest(behaviour, HOUSEKEEPERS)} Known: {', '.join(HOUSEKEEPERS)}.")
        name = f"{behaviour}/{task.id}/{seed}"
        rng, memo = random.Random(f"behave/{name}"), Memo(self.games[task.id].walkthrough)

        def act(state: Observation) -> Action:
            return keep_house(behaviour, task.instruction, state, rng, memo)

        return play(self.env(), self.domain, task, act, max_steps=self.max_steps, behaviour=behaviour, name=name)

    def _task(self, game: Game) -> Task:
        record = {"game": game.id, "kind": game.kind, "scene": game.scene}
        goal = read_goal(game.goal)
        asked = 1 + bool(goal.quality) + (goal.count == 2) if goal else 0
        return Task(id=game.id, instruction=game.goal, env=self.name, difficulty=asked, goal=record)


class Shelf(Mapping[str, "Game"]):
    """All games of a configuration by their id; a split is made, or read, when somebody asks for it."""

    def __init__(self, config: AlfWorldConfig) -> None:
        self.config = config
        self._splits: dict[Split, dict[str, Game]] = {}

    def of(self, split: Split) -> list[Game]:
        """The games of a split, in a fixed order."""
        if split not in ("train", "dev", "test"):
            raise UsageError(f"No split '{split}'. Known: train, dev, test.")
        if split not in self._splits:
            self._splits[split] = {game.id: game for game in self._made(split)}
        return list(self._splits[split].values())

    def __getitem__(self, name: str) -> Game:
        for split in ("train", "dev", "test"):
            if split in self._splits and name in self._splits[split]:
                return self._splits[split][name]
        for split in ("train", "dev", "test"):
            if found := next((game for game in self.of(split) if game.id == name), None):
                return found
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (game.id for split in ("train", "dev", "test") for game in self.of(split))

    def __len__(self) -> int:
        return sum(len(self.of(split)) for split in ("train", "dev", "test"))

    def _made(self, split: Split) -> list[Game]:
        from dreamgym.envs.alfworld import generator

        config = self.config
        many = {"train": config.train, "dev": config.dev, "test": config.test}[split]
        return generator.generate(split, many, config.seed, preset=config.preset)


def make(**config: Any) -> AlfWorldFamily:
    """The ALFWorld family, by configuration (see AlfWorldConfig)."""
    return AlfWorldFamily(build(AlfWorldConfig, config, where="env alfworld"))
