"""Suites around other suites: real environments for logs (`connected`), other views of states (`mapped`, `placeholders`), rules mined from
logs (`induced_rules`), and two ablations: no hand-written rules (`without_rules`), other words (`renamed`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.protocols import Env
from dreamgym.types import Observation, Task, Trajectory


class WrappedEnv:
    """What an environment around another one passes on."""

    def __init__(self, inner: Env) -> None:
        self.inner, self.name = inner, inner.name

    @property
    def truncated(self) -> bool:
        """Whether the inner environment cut the episode off."""
        return bool(getattr(self.inner, "truncated", False))

    def close(self) -> None:
        """End the inner environment, if it can be ended."""
        getattr(self.inner, "close", lambda: None)()


class WrappedSuite(EnvSuite):
    """Another suite with rules of its own. Tasks, environment, scripted policies and horizon are the inner suite's."""

    translates = False
    """Whether the environment reads and answers other texts than the inner one, so that none can be put in its place."""

    def __init__(self, inner: EnvSuite, rules: TextRules) -> None:
        self.inner, self.rules = inner, rules
        self.name, self.max_steps, self.scripted_policies = inner.name, inner.max_steps, inner.scripted_policies
        self.fractional_reward_option, self.log_files = inner.fractional_reward_option, inner.log_files
        self.input_files, self.data_paths = inner.input_files, inner.data_paths
        self.max_parallel, self.repeats = inner.max_parallel, inner.repeats

    def tasks(self, split: str, n: int, *, seed: int = 0) -> list[Task]:
        return self.inner.tasks(split, n, seed=seed)

    def task_key(self, task: Task) -> str:
        return self.inner.task_key(task)

    def knows_task(self, task: Task) -> bool:
        return self.inner.knows_task(task)

    @property
    def has_env(self) -> bool:
        return self.inner.has_env

    def env(self) -> Env | None:
        return self.inner.env()

    def check_env(self) -> None:
        self.inner.check_env()

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        return self.inner.demonstrate(task, policy, seed=seed)

    def recorded(self, episode: Trajectory) -> Trajectory:
        return self.inner.recorded(episode)

    def doubts(self, episodes: Sequence[Trajectory]) -> str:
        return self.inner.doubts(episodes)

    def inventory(self) -> Iterable[Observation]:
        return self.inner.inventory()
