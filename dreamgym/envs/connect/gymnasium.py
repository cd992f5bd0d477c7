"""`gymnasium:ENV_ID`: an environment that is registered with Gymnasium, `module:ENV_ID` imports the module first.

An episode is reset with a seed that the task's id names, and with {"task": id} as options. Actions are given as text; to spaces of numbers
they are the number written in the action.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import gymnasium

from dreamgym.envs.connect import ConnectionConfig, raw_state
from dreamgym.errors import ConfigError
from dreamgym.types import Action, Task


class GymnasiumConnection:
    """Implements `Connection`."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, task: Task) -> dict[str, Any]:
        seed = int.from_bytes(sha256(task.id.encode("utf-8", "replace")).digest()[:4], "big")
        observation, _ = self.env.reset(seed=seed, options={"task": task.id})
        return raw_state(observation)

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool, bool]:
        taken = int(action) if isinstance(self.env.action_space, gymnasium.spaces.Discrete) else action
        observation, reward, terminated, truncated, _ = self.env.step(taken)
        return raw_state(observation), float(reward), bool(terminated), bool(truncated)

    def close(self) -> None:
        self.env.close()


def make(target: str, config: ConnectionConfig) -> Callable[[], GymnasiumConnection]:
    """Makes environments of that id. ConfigError for one that is not registered."""
    try:
        gymnasium.spec(target)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"env.connect = 'gymnasium:{target}': {error} Register it, or write gymnasium:module:ENV_ID.") from error
    return lambda: GymnasiumConnection(gymnasium.make(target, **config.options))
