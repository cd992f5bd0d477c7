"""`gymnasium:ENV_ID`: an environment that is registered with Gymnasium, `gymnasium:module:ENV_ID` imports the module first.

An episode is reset with a seed that the task's id names, and with {"task": id} as options. Actions are given as text; to a `Discrete` space
they are the first whole number written in the action. One that the space does not hold changes nothing, and the state says so.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import gymnasium

from dreamgym.envs.connect import ConnectionConfig, raw_state
from dreamgym.errors import ConfigError
from dreamgym.types import Action, Task

NUMBER = re.compile(r"(?<!\d)(?:(?<!\w)-)?\d{1,9}(?!\d)")
"""A whole number in an action; a hyphen after a letter is no sign."""


class GymnasiumConnection:
    """Implements `Connection`."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.raw: dict[str, Any] = {}  # the latest state

    def reset(self, task: Task) -> dict[str, Any]:
        seed = int.from_bytes(sha256(task.id.encode("utf-8", "replace")).digest()[:4], "big")
        observation, _ = self.env.reset(seed=seed, options={"task": task.id})
        self.raw = raw_state(observation)
        return self.raw

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool, bool]:
        taken: Any = action
        space = self.env.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            written = NUMBER.search(action)
            if not written or not space.contains(int(written[0])):
                note = f"No such action: write a number from {space.start} to {space.start + space.n - 1}."
                noted = {"text": f"{self.raw['text']}\n{note}"} if "text" in self.raw else {"note": note}
                return self.raw | noted, 0.0, False, False
            taken = int(written[0])
        observation, reward, terminated, truncated, _ = self.env.step(taken)
        self.raw = raw_state(observation)
        return self.raw, float(reward), bool(terminated), bool(truncated)

    def close(self) -> None:
        self.env.close()


def make(target: str, config: ConnectionConfig) -> Callable[[], GymnasiumConnection]:
    """Makes environments of that id. ConfigError for one that is not registered."""
    module, colon, name = target.rpartition(":")
    try:
        if colon:
            importlib.import_module(module)
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        raise ConfigError(f"env.connect = 'gymnasium:{target}': {error} Register it, or write gymnasium:module:ENV_ID.") from error
    return lambda: GymnasiumConnection(gymnasium.make(target, **config.options))
