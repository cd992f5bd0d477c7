"""Scripted episodes of the shop as claims of success: logs, and episodes of other tasks and another mix of policies."""

from __future__ import annotations

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite
from dreamgym.logs.demonstrations import collect
from dreamgym.types import Trajectory

SHOP: EnvSuite = plugins.make("envs", "webshop")
LOGS: list[Trajectory] = collect(SHOP, 500, seed=0, mix={"expert": 0.1, "noisy": 0.5, "invalid": 0.25, "wrong_goal": 0.15})
OTHERS = [SHOP.demonstrate(task, policy, seed=5) for task in SHOP.tasks("dev", 60) for policy in ("noisy", "invalid", "wrong_goal")]
