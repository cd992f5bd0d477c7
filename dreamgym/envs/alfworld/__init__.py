"""ALFWorld: household games in text, on the real engine, with their scripted housekeepers and what is known of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dreamgym.config import Config, build, paths
from dreamgym.envs.alfworld import games
from dreamgym.envs.alfworld.games import Game
from dreamgym.envs.alfworld.goals import read_goal
from dreamgym.envs.alfworld.rules import HouseRules
from dreamgym.envs.alfworld.scripted_policies import MIX, OFFLINE, SCRIPTED_POLICIES, ScriptMemory, scripted_action
from dreamgym.envs.alfworld.state import TrackedHouse
from dreamgym.envs.base import EnvSuite, play
from dreamgym.errors import UsageError, nearest
from dreamgym.types import Action, Observation, Task, Trajectory

HORIZON = {"mini": 20, "full": 50}
"""Steps of an episode; 50 is the original's limit."""


class AlfWorldConfig(Config):
    """Which houses to enter."""

    preset: Literal["mini", "full"] = "mini"
    """Size of the generated houses: a few places and things, for small models, or as many as the official ones have."""
    seed: int = 0
    """Names the generated games."""
    train: int = Field(default=400, ge=1)
    """Games to train on: generated, or a fixed sample of the official ones. They stand in other scenes than those of `test`."""
    dev: int = Field(default=64, ge=1)
    test: int = Field(default=256, ge=1)
    data: Path | None = None
    """Official games instead of generated ones: what `$ALFWORLD_DATA` names, or a folder of packs; see `games.read`."""
    engine: Literal["fast", "stock"] = "fast"
    """`stock` is textworld's own, some fifty times slower, for comparison."""
    max_steps: int | None = Field(default=None, ge=1)
    """Horizon of an episode; by default 20 in mini houses and 50 elsewhere."""
    mix: Literal["mixed", "paper"] = "mixed"
    """Who makes the logs: housekeepers of all skills, or the paper's offline set, 3,200 by experts to 2,000 by an oracle and at random."""


class AlfWorldSuite(EnvSuite):
    """Everything a run needs of household games: tasks by split, fresh environments, logs of scripted policies, the text rules."""

    name = "alfworld"

    def __init__(self, config: AlfWorldConfig) -> None:
        self.config, self.data_paths = config, paths(config)
        self.rules = HouseRules(crowded=config.data is not None)
        self.max_steps = config.max_steps or (HORIZON["full"] if config.data else HORIZON[config.preset])
        self.scripted_policies: Mapping[str, float] = OFFLINE if config.mix == "paper" else MIX
        self.sizes: dict[str, int] = {"train": config.train, "dev": config.dev, "test": config.test}
        self.official = Official(config.data, self.sizes) if config.data else None

    @property
    def games(self) -> Mapping[str, Game]:
        """Games by the ids of their tasks."""
        if self.official is not None:
            return self.official
        from dreamgym.envs.alfworld.generator import Generated

        return Generated(self.config.preset, self.config.seed)

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        """`n` tasks of a split in an order that `seed` names, fewer when it holds fewer. Test houses stand in scenes of their own."""
        if split not in self.sizes:
            raise UsageError(f"No split '{split}'.{nearest(split, self.sizes)} Known: {', '.join(self.sizes)}.")
        order = list(range(len(self.official.of(split)) if self.official is not None else self.sizes[split]))
        random.Random(f"tasks/{split}/{seed}").shuffle(order)
        return [self._task(self._numbered(split, number)) for number in order[:n]]

    def knows_task(self, task: Task) -> bool:
        return task.id in self.games

    def env(self) -> TrackedHouse:
        """A fresh house that loads the games of its tasks."""
        from dreamgym.envs.alfworld.world import House

        return TrackedHouse(House(self.games, engine=self.config.engine))

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        """One logged episode by a scripted housekeeper; `planner` repeats the walkthrough that is stored with the game."""
        if policy not in SCRIPTED_POLICIES:
            raise UsageError(f"No scripted policy '{policy}'.{nearest(policy, SCRIPTED_POLICIES)} Known: {', '.join(SCRIPTED_POLICIES)}.")
        name = f"{policy}/{task.id}/{seed}"
        rng, memory = random.Random(f"behave/{name}"), ScriptMemory(self.games[task.id].walkthrough)

        def act(state: Observation) -> Action:
            return scripted_action(policy, task.instruction, state, rng, memory)

        return play(self.env(), self.rules, task, act, max_steps=self.max_steps, behaviour=policy, name=name)

    def demonstrations(self, split: str, n: int) -> list[Trajectory]:
        """Expert data as logged episodes: the walkthroughs stored with the games (official ones with `data`), each played out."""
        return [self.demonstrate(task, "planner", seed=0) for task in self.tasks(split, n)]

    def _numbered(self, split: str, number: int) -> Game:
        """A game by its place in a split; a generated one is made now."""
        if self.official is not None:
            return list(self.official.of(split).values())[number]
        from dreamgym.envs.alfworld import generator

        return generator.make(split, number, self.config.seed, preset=self.config.preset)

    def _task(self, game: Game) -> Task:
        record = {"game": game.id, "kind": game.kind, "scene": game.scene}
        goal = read_goal(game.goal)
        asked = 1 + bool(goal.quality) + (goal.count == 2) if goal else 0
        return Task(id=game.id, instruction=game.goal, env=self.name, difficulty=asked, goal=record)


class Official(Mapping[str, Game]):
    """The official games of a folder by their id; a split is read when somebody asks for it."""

    def __init__(self, folder: Path, limits: Mapping[str, int]) -> None:
        self.folder, self.limits = folder, limits
        self._splits: dict[str, dict[str, Game]] = {}

    def of(self, split: str) -> dict[str, Game]:
        """A fixed sample of the games of a split, as many as its limit allows, or all."""
        if split not in self._splits:
            self._splits[split] = {game.id: game for game in games.read(self.folder, split, limit=self.limits[split])}
        return self._splits[split]

    def __getitem__(self, name: str) -> Game:
        split = next((split for split in self.limits if name.startswith(f"{games.FOLDERS[split]}/")), None)
        if split is None:
            raise KeyError(name)
        return self.of(split)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for split in self.limits for name in self.of(split))

    def __len__(self) -> int:
        return sum(len(self.of(split)) for split in self.limits)


def make(**config: Any) -> AlfWorldSuite:
    """The ALFWorld suite, by configuration (see AlfWorldConfig)."""
    return AlfWorldSuite(build(AlfWorldConfig, config, where="env alfworld"))
