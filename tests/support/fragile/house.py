"""A corridor that breaks on demand, for worker processes. `fragile.house` is its name as a plug-in."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dreamgym.config import Config
from dreamgym.envs import corridor
from dreamgym.errors import EnvironmentFailure
from dreamgym.types import Action, Task


class Faults(Config):
    """What goes wrong, beside the actions `die`, which ends its process, and `hang`, which takes a minute."""

    trap: Path | None = None
    """The first process that acts when this file is there removes it and is killed."""
    cursed: str = ""
    """The id of a task that ends the process."""
    failing: dict[str, int] = {}
    """The step at which the environment fails, by the id of a task; 0: its reset."""
    stillborn: bool = False
    """The suite ends the process that makes it."""
    moody: bool = False
    """Every process shows other states."""
    mute: bool = False
    """Rewards cannot leave their process."""
    diary: Path | None = None
    """Where every process that plays writes its number, and that of a child that it starts."""


class Fragile(corridor.Corridor):
    diaries: list[Path] = []  # of this process

    def __init__(self, config: corridor.CorridorConfig, faults: Faults) -> None:
        super().__init__(config)
        self.faults = faults
        self.left = -1  # steps until the environment fails, below 0 for never
        if faults.diary and not self.diaries:
            self.diaries.append(faults.diary)
            child = subprocess.Popen(["sleep", "100"])
            with faults.diary.open("a") as file:
                file.write(f"{os.getpid()}\n{child.pid}\n")

    def reset(self, task: Task) -> dict[str, Any]:
        if task.id == self.faults.cursed:
            os._exit(7)
        self.left = self.faults.failing.get(task.id, -1)
        self._fail_at_last()
        return self._seen(super().reset(task))

    def step(self, action: Action) -> Any:
        if action == "die":
            os._exit(7)
        if action == "hang":
            time.sleep(60)
        if self.faults.trap:
            with suppress(FileNotFoundError):
                self.faults.trap.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        self._fail_at_last()
        raw, reward, terminated = super().step(action)
        return self._seen(raw), (lambda: reward) if self.faults.mute else reward, terminated

    def _fail_at_last(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise EnvironmentFailure("The house is locked.")

    def _seen(self, raw: dict[str, Any]) -> dict[str, Any]:
        return raw | {"rooms": os.getpid()} if self.faults.moody else raw


class FragileSuite(corridor.CorridorSuite):
    def __init__(self, config: corridor.CorridorConfig, faults: Faults) -> None:
        super().__init__(config)
        self.faults = faults

    def env(self) -> Fragile:
        return Fragile(self.config, self.faults)


def make(**config: Any) -> FragileSuite:
    faults = Faults(**{name: config.pop(name) for name in Faults.model_fields if name in config})
    if faults.stillborn:
        os._exit(7)
    return FragileSuite(corridor.CorridorConfig(**config), faults)
