"""Many real episodes side by side in this process: the `BatchEnv` of a real environment, with every step counted.

The shop answers thousands of steps a second. Environments that are slow or crash get worker processes (`envs.worker_pool`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dreamgym.envs.base import TextRules
from dreamgym.envs.batch import SyncBatchEnv, timed
from dreamgym.errors import EnvironmentFailure, UsageError
from dreamgym.protocols import Env
from dreamgym.types import Action, Observation, StepInfo, StepResult, Task, Transition


class EnvPool(SyncBatchEnv):
    """Real environments behind the interface that dreams have too (the `RealEnv` protocol). `steps` is what the real world was charged,
    `seconds` how long callers have waited for it."""

    source = "real"
    version = 0

    def __init__(self, make_env: Callable[[], Env], rules: TextRules) -> None:
        super().__init__()
        self.make_env, self.rules = make_env, rules
        self.envs: list[Env] = []
        self.steps, self.seconds = 0, 0.0
        self._failed: dict[int, str] = {}  # why an episode could not begin
        self._spare: Env | None = None  # for walks, which disturb no episode

    @timed
    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """One episode per task; `seed` is for stochastic environments."""
        self._answered.clear()
        return [self.begin(slot, task) for slot, task in enumerate(tasks)]

    def begin(self, slot: int, task: Task) -> Observation:
        """A new episode in one slot; those in the others go on."""
        while len(self.envs) <= slot:
            self.envs.append(self.make_env())
        if not self.envs[slot].accepts(task):
            raise UsageError(f"The environment cannot score task '{task.id}', which has no goal record. Use it in a dream.")
        self._failed.pop(slot, None)
        try:
            return self._shown(self.envs[slot].reset(task))
        except EnvironmentFailure as error:
            self._failed[slot] = str(error)
            return Observation("")

    @timed
    def step(self, slots: Sequence[int], actions: Sequence[Action]) -> list[StepResult]:
        """Act in the episodes named by `slots`. One that the environment fails in gets a result with an `error`: a failed rollout."""
        self.steps += len(slots)
        results = []
        for slot, action in zip(slots, map(self.rules.canonical, actions), strict=True):
            try:
                if slot in self._failed:
                    raise EnvironmentFailure(self._failed[slot])
                raw, reward, terminated = self.envs[slot].step(action)
            except EnvironmentFailure as error:
                results.append(StepResult(Observation(""), 0.0, False, info=StepInfo(error=str(error)), action=action))
                continue
            results.append(StepResult(self._shown(raw), reward, terminated, _cut(self.envs[slot]), action=action))
        return results

    @timed
    def repeat(self, walks: Sequence[tuple[Task, Sequence[Action]]]) -> list[tuple[Transition, ...] | None]:
        """What really follows each task's actions, until they or the episode end; None for a task that the environment does not accept, or
        fails in."""
        found = list[tuple[Transition, ...] | None]()
        for task, actions in walks:
            try:
                found.append(self._walk(task, actions))
            except EnvironmentFailure:
                found.append(None)
        return found

    def close(self) -> None:
        """End the environments that can be ended. A pool that is used again makes new ones."""
        for env in (*self.envs, self._spare):
            getattr(env, "close", lambda: None)()
        self.envs, self._spare = [], None

    def _walk(self, task: Task, actions: Sequence[Action]) -> tuple[Transition, ...] | None:
        env = self._spare = self._spare or self.make_env()
        if not env.accepts(task):
            return None
        state, walk = self._shown(env.reset(task)), list[Transition]()
        for action in actions:
            self.steps += 1  # of a walk that fails too
            raw, reward, terminated = env.step(action)
            walk.append(Transition(state, action, self._shown(raw), reward, terminated))
            state = walk[-1].next_state
            if terminated or _cut(env):
                break
        return tuple(walk)

    def _shown(self, raw: dict[str, Any]) -> Observation:
        """The state mapping of the rules. UsageError for a raw state that lacks what they read."""
        try:
            return self.rules.abstract(raw)
        except KeyError as error:
            if not error.args or error.args[0] in raw:
                raise
            raise UsageError(
                f"The environment answers with a table of {', '.join(map(repr, raw)) or 'nothing'}, and the rules of '{self.rules.name}' "
                f"read {error} of it. Let the environment give that, or take a suite whose `abstract` reads what it gives."
            ) from error


def _cut(env: Env) -> bool:
    """Whether the environment ended its episode early; only those that do have `truncated`."""
    return bool(getattr(env, "truncated", False))
