"""Any environment suite as a Gymnasium environment of texts.

    env = TextEnv(plugins.make("envs", "webshop"), split="train")
    observation, info = env.reset(seed=3, options={"task": "…"})
    observation, reward, terminated, truncated, info = env.step("search[wool scarf]")

Observations are abstract states, as rollouts have them, with the instruction before the first line; `info` has both apart.
"""

from __future__ import annotations

import string
from typing import Any, Literal

import gymnasium

from dreamgym.envs.base import EnvSuite
from dreamgym.errors import UsageError, nearest
from dreamgym.protocols import Env
from dreamgym.types import Action, Observation, Task

LONGEST = 1 << 16
ALPHABET = frozenset(string.printable)


class Words(gymnasium.spaces.Text):
    """Texts of any characters; samples are of printable ones. gymnasium's own space names every character that may occur."""

    def __init__(self, max_length: int = LONGEST) -> None:
        super().__init__(max_length, min_length=0, charset=ALPHABET)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class TextEnv(gymnasium.Env[str, str]):
    """One episode at a time. `reset` draws a task of the split by its seed, or takes the one whose id is `options["task"]`.

    `tasks` is how many tasks of the split there are to draw from. `truncated` is the suite's horizon, or the environment's own
    end of an episode, as in `envs.env_pool`. An action that the environment does not know changes nothing, as everywhere here.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # gymnasium warns without a rate

    def __init__(
        self,
        suite: EnvSuite,
        *,
        split: str = "train",
        tasks: int = 200,
        max_steps: int | None = None,
        render_mode: Literal["ansi"] | None = None,
    ) -> None:
        self.tasks = tasks
        self.suite, self.split, self.max_steps, self.render_mode = suite, split, max_steps or suite.max_steps, render_mode
        self.observation_space, self.action_space = Words(), Words(256)
        self.task: Task | None = None
        self._tasks: dict[str, Task] = {}
        self._env: Env | None = None
        self._state = Observation("")
        self._steps, self._over = 0, True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The first state of an episode, and its `task` id and `instruction`. UsageError for an unknown task or option, or no tasks."""
        super().reset(seed=seed)
        self.task = self._chosen(options or {})
        self._env = self._env or self.suite.require_env()
        self._state = self.suite.rules.abstract(self._env.reset(self.task))
        self._steps, self._over = 0, False
        return self._text(), self._info()

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """The next state, its reward, whether the task ended, whether the episode was cut, and what `reset` told."""
        if self._over or self._env is None:
            raise UsageError("The episode has not begun or is over. Call reset() before step(action).")
        raw, reward, terminated = self._env.step(self.suite.rules.canonical(action))
        self._state = self.suite.rules.abstract(raw)
        self._steps += 1
        cut = bool(getattr(self._env, "truncated", False))  # only environments that end episodes early have it
        truncated = not terminated and (cut or self._steps >= self.max_steps)
        self._over = terminated or truncated
        return self._text(), float(reward), terminated, truncated, self._info()

    def render(self) -> str | None:
        """What the agent sees, in render mode "ansi"."""
        return self._text() if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the episode and the suite's environment, which may hold a page, a process or files."""
        getattr(self._env, "close", lambda: None)()
        self._env, self._over = None, True

    def _chosen(self, options: dict[str, Any]) -> Task:
        unknown = next((key for key in options if key != "task"), None)
        if unknown is not None:
            raise UsageError(f"No option '{unknown}' of reset.{nearest(unknown, ['task'])} Known: task.")
        if not self._tasks:
            self._tasks = {task.id: task for task in self.suite.tasks(self.split, self.tasks, seed=0)}
        if not self._tasks:
            raise UsageError(f"Split '{self.split}' of '{self.suite.name}' has no tasks to draw from. Choose another split.")
        if "task" in options:
            wanted = options["task"]
            if wanted not in self._tasks:
                raise UsageError(f"No task '{wanted}' in split '{self.split}'.{nearest(str(wanted), self._tasks)} Give the id of one.")
            return self._tasks[wanted]
        ids = list(self._tasks)
        return self._tasks[ids[int(self.np_random.integers(len(ids)))]]

    def _text(self) -> str:
        assert self.task is not None
        return f"{self.task.instruction}\n{self._state.text}"

    def _info(self) -> dict[str, Any]:
        assert self.task is not None
        return {"task": self.task.id, "instruction": self.task.instruction, "state": self._state.text}
