"""Many real episodes side by side: the `BatchEnv` of a real environment, with every step counted.

One process for now: the shop answers thousands of steps a second. Environments that are slow get worker processes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dreamgym.protocols import Domain, Env
from dreamgym.types import Action, Observation, StepResult, Task


class EnvPool:
    """Real environments behind the interface that dreams have too. `steps` is what the real world was charged."""

    source = "real"
    version = 0

    def __init__(self, make_env: Callable[[], Env], domain: Domain) -> None:
        self.make_env, self.domain = make_env, domain
        self.envs: list[Env] = []
        self.steps = 0

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """One episode per task; `seed` is for stochastic environments."""
        while len(self.envs) < len(tasks):
            self.envs.append(self.make_env())
        return [self.domain.abstract(env.reset(task)) for env, task in zip(self.envs, tasks, strict=False)]

    def step(self, slots: Sequence[int], actions: Sequence[Action]) -> list[StepResult]:
        """Act in the episodes named by `slots`."""
        self.steps += len(slots)
        results = []
        for slot, action in zip(slots, map(self.domain.canonical, actions), strict=True):
            raw, reward, terminated = self.envs[slot].step(action)
            results.append(StepResult(self.domain.abstract(raw), reward, terminated, info={"action": action}))
        return results
