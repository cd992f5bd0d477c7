"""A suite with a real environment from a connection. States still pass through the suite's own `abstract`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dreamgym import plugins
from dreamgym.config import build
from dreamgym.envs.base import EnvSuite
from dreamgym.envs.connect import ConnectionConfig, open_connection
from dreamgym.envs.connect.limits import ConnectedEnv
from dreamgym.envs.logs import FEW_TASKS
from dreamgym.envs.wrappers import WrappedSuite
from dreamgym.errors import ConfigError
from dreamgym.protocols import Env
from dreamgym.types import Task

log = logging.getLogger(__name__)


class ConnectedSuite(WrappedSuite):
    """The inner suite, which has no environment, and one from `target`."""

    def __init__(self, inner: EnvSuite, target: str, config: ConnectionConfig) -> None:
        """ConfigError for a suite that has an environment of its own or translates one, and for a connection that cannot be."""
        super().__init__(inner, inner.rules)
        if getattr(inner, "translates", False):
            raise ConfigError(
                "env.connect: the suite's wrapper translates what an environment reads and answers, and the connection would bypass it. "
                "Leave out the wrapper or env.connect."
            )
        if inner.has_env:
            raise ConfigError(f"env.connect: the suite '{inner.name}' has an environment of its own. Leave out env.connect.")
        self.connect, self.config = open_connection(target, config), config
        ConnectedEnv(self.name, self.connect, config)  # the score can be loaded

    @property
    def has_env(self) -> bool:
        return True

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        """The inner suite's; a warning where a split has none, because nothing is measured on it then."""
        found = super().tasks(split, n, seed=seed)
        if n and not found:
            log.warning(
                "No recorded task of '%s' is of the split '%s', so nothing is measured on it in the connected environment. Record more "
                "tasks: of fewer than %d none is held out.",
                self.name,
                split,
                FEW_TASKS,
            )
        return found

    def env(self) -> Env | None:
        return ConnectedEnv(self.name, self.connect, self.config)


def make(
    *, suite: str, connect: str, options: Mapping[str, Any] | None = None, connection: Mapping[str, Any] | None = None
) -> ConnectedSuite:
    """The suite plug-in `suite`, made from `options`, with the environment that `connect` names."""
    config = build(ConnectionConfig, dict(connection or {}), prefix="env.connection.")
    return ConnectedSuite(plugins.make("envs", suite, **(options or {})), connect, config)
