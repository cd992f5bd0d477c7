"""A suite whose states are shortened by a learned state mapping (`experience.mappers`), in the environment, in logs, and so in dreams.

    [env]
    name = "dreamgym.envs.wrappers.mapped"
    options = {suite = "web", options = {benchmark = "shop"}, mapper = {name = "fitted", file = "mapper.json"}}

The inner state mapping comes first; the learned one leaves lines of its text out. Rules read the shortened states, so an element that was
left out cannot be acted on. Recorded episodes in `logs.files` are mapped by `dreamgym mapping`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.mapping import StateMapper, mapped, shorten
from dreamgym.envs.wrappers import WrappedEnv, WrappedSuite
from dreamgym.protocols import Env
from dreamgym.types import Action, Observation, Task, Trajectory


class MappedEnv(WrappedEnv):
    """The inner environment; raw observations also say what the mapping asks for: the instruction, and the actions so far."""

    def __init__(self, inner: Env) -> None:
        super().__init__(inner)
        self._instruction, self._actions = "", list[Action]()

    def accepts(self, task: Task) -> bool:
        return self.inner.accepts(task)

    def reset(self, task: Task) -> dict[str, Any]:
        self._instruction, self._actions = task.instruction, []
        return self._raw(self.inner.reset(task))

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        raw, reward, terminated = self.inner.step(action)
        self._actions.append(action)
        return self._raw(raw), reward, terminated

    def _raw(self, raw: dict[str, Any]) -> dict[str, Any]:
        return {"unmapped": raw, "instruction": self._instruction, "actions": tuple(self._actions)}


class MappedSuite(WrappedSuite):
    """The inner suite in shortened states."""

    translates = True

    def __init__(self, inner: EnvSuite, mapper: StateMapper) -> None:
        self.mapper = mapper
        super().__init__(inner, mapped_rules(inner.rules, mapper))

    def env(self) -> Env | None:
        env = super().env()
        return None if env is None else MappedEnv(env)

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        """Scripted policies read the whole states; the episode shows the shortened ones."""
        return mapped(self.mapper, super().demonstrate(task, policy, seed=seed))


def mapped_rules(inner: TextRules, mapper: StateMapper) -> TextRules:
    """The inner rules with a state mapping that shortens what it returns; every other rule is the inner one."""
    kind: Any = type(inner)

    class MappedRules(kind):
        def abstract(self, raw: dict[str, Any]) -> Observation:
            if "unmapped" not in raw:
                return Observation(super().abstract(raw).text)
            text = super().abstract(raw["unmapped"]).text
            return Observation(shorten(mapper, raw["instruction"], raw["actions"], text))

    rules = copy.copy(inner)
    rules.__class__ = MappedRules
    return rules


def make(*, suite: str, mapper: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> MappedSuite:
    """The suite plug-in `suite`, made from `options`, with the state mapping plug-in that `mapper` names."""
    made = MappedSuite(plugins.make("envs", suite, **(options or {})), plugins.make_named("experience.mappers", mapper))
    if file := mapper.get("file"):
        made.input_files = {**made.input_files, "file": (Path(file),)}
    return made
