"""An environment suite made from recorded episodes alone: no simulator, no rules, no code.

    dreamgym train runs/mine env.name=logs env.options='{files = ["episodes.jsonl"]}'

`files = ["corridor"]` names the sample of this package: 40 scripted episodes in the corridor.
The files are JSON Lines as `runs.episodes` reads them. Tasks are split by their id where the files name one beside the episode's, else by
their instruction; an episode without a task's id is of the named task that has its instruction. There is no real environment, so whatever
needs one (probes, audit, evaluation) is skipped, and success in the dream is never compared with the real environment.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field

from dreamgym.config import Config, build
from dreamgym.envs.base import EnvSuite, TextRules, check_split, in_split
from dreamgym.errors import UsageError
from dreamgym.runs.episodes import read_trajectories
from dreamgym.types import Observation, Task

FEW_TASKS = 20
"""Recorded tasks below which no task is held out: a split of so few would hold one or none of them."""
SAMPLES = Path(str(resources.files("dreamgym"))) / "samples"


class LogConfig(Config):
    """Which episodes the suite is made from."""

    files: tuple[Path, ...] = Field(min_length=1)
    """JSON Lines files of episodes in one environment."""
    max_steps: int | None = Field(None, ge=1)
    """Horizon of a dreamed episode; the longest recorded episode when not given."""
    about: str = ""
    """What the environment is, for instruct models."""
    action_format: str = ""
    """How an action is written, for instruct models."""


class LogRules(TextRules):
    """Rules that know nothing: states are the recorded texts, and every default of `TextRules` holds."""

    def __init__(self, name: str, config: LogConfig) -> None:
        self.name, self.about, self.action_format = name, config.about, config.action_format

    def abstract(self, raw: dict[str, Any]) -> Observation:
        """The recorded text itself."""
        return Observation(raw["text"])


class LogSuite(EnvSuite):
    """Tasks and horizon of recorded episodes."""

    def __init__(self, config: LogConfig) -> None:
        """UsageError for files that cannot be read or that hold episodes of several environments."""
        self.log_files = tuple(_sample(file) for file in config.files)
        self.input_files = {"files": config.files}
        episodes = [episode for file in self.log_files for episode in read_trajectories(file)]
        names = sorted({episode.task.env for episode in episodes})
        if len(names) > 1:
            raise UsageError(f"The log files hold episodes of several environments ({', '.join(names)}). Give one run the files of one.")
        self.name = names[0]
        self.rules = LogRules(self.name, config)
        self.max_steps = config.max_steps or max(len(episode.turns) for episode in episodes)
        self._named = {episode.task.id for episode in episodes if episode.task.id != episode.id}
        # named tasks last: of tasks with one key, the last one stays
        self._tasks = sorted((episode.task for episode in episodes), key=lambda task: task.id in self._named)
        self._worded: dict[str, set[str]] = defaultdict(set)  # instruction -> ids of the named tasks that have it
        for task in self._tasks:
            if task.id in self._named:
                self._worded[_wording(task)].add(task.id)

    def task_key(self, task: Task) -> str:
        """The task's id where the files name one beside the episode's. Else that of the named task with its instruction, of several a
        held-out one, and where there is none the instruction, without case and spacing."""
        if task.id in self._named:
            return task.id
        alike = self._worded.get(_wording(task), ())
        return min(alike, key=lambda name: (in_split(name, "train"), name), default=_wording(task))

    def knows_task(self, task: Task) -> bool:
        """As the base class, and of several named tasks with its instruction nobody knows which an unnamed one is."""
        return super().knows_task(task) and (task.id in self._named or len(self._worded.get(_wording(task), ())) <= 1)

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        """As the base class. Fewer tasks than `FEW_TASKS` are all training tasks, so that RL has some."""
        if len({self.task_key(task) for task in self._tasks}) >= FEW_TASKS:
            return super().tasks(split, n, seed=seed)
        check_split(split)
        known = {self.task_key(task): task for task in self._tasks}
        keys = sorted(known) if split == "train" else []
        random.Random(f"tasks/{split}/{seed}").shuffle(keys)
        return [known[key] for key in keys[:n]]

    def all_tasks(self) -> list[Task]:
        return self._tasks


def make(**config: Any) -> LogSuite:
    """The suite of recorded episodes, by configuration (see LogConfig)."""
    return LogSuite(build(LogConfig, config, where="env logs"))


def _wording(task: Task) -> str:
    """The instruction without case and spacing."""
    return " ".join(task.instruction.lower().split())


def _sample(file: Path) -> Path:
    """The sample of that name where there is no such file."""
    sample = SAMPLES / f"{file.name}.jsonl"
    return sample if not os.path.exists(file) and str(file) == file.name and os.path.exists(sample) else file
