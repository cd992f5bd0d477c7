"""A suite without its hand-written rules: the state mapping remains, and every other rule has its neutral default.

No action is answered by rule, no success is checked in the text, no search result is composed, and logs carry no reasoning. What a run
reaches here, it reaches by what was learned. Rules that follow from the tools' schemas alone (`TextRules.from_schemas`) are nobody's
knowledge of the environment, and remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dreamgym import plugins
from dreamgym.envs.base import TextRules
from dreamgym.envs.wrappers import WrappedSuite
from dreamgym.types import Observation, Task, Trajectory


class StateMapping(TextRules):
    """The state mapping of other rules and their tools, and nothing else of them."""

    def __init__(self, inner: TextRules) -> None:
        self.inner, self.name, self.tools = inner, inner.name, inner.tools

    def abstract(self, raw: dict[str, Any]) -> Observation:
        return self.inner.abstract(raw)

    def without_actions(self, observation: Observation) -> str:
        return self.inner.without_actions(observation)

    def tool_results(self, observation: Observation) -> tuple[Sequence[str], str]:
        return self.inner.tool_results(observation)


class WithoutRules(WrappedSuite):
    """The inner suite with no rules but its state mapping and its tools' schemas. Its scripted policies act as before; their reasoning is
    removed from the logs."""

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        episode = super().demonstrate(task, policy, seed=seed)
        turns = [replace(turn, transition=turn.transition.with_reasoning("")) for turn in episode.turns]
        return replace(episode, turns=tuple(turns))


def make(*, suite: str, options: Mapping[str, Any] | None = None) -> WithoutRules:
    """The suite plug-in `suite`, made from `options`, without its rules."""
    inner = plugins.make("envs", suite, **(options or {}))
    return WithoutRules(inner, inner.rules if inner.rules.from_schemas else StateMapping(inner.rules))
