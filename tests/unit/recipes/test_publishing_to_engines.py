"""After each update of an RL loop the learner's weights go to the engine, which may sample in another process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dreamgym.recipes.phases.rl import RLPhase


def test_each_version_of_a_loop_is_published_with_its_model() -> None:
    published: list[Any] = []
    policies = SimpleNamespace(publish=lambda *given: published.append(given))
    phase = SimpleNamespace(context=SimpleNamespace(policies=policies), agent=SimpleNamespace(llm="engine"), model="weights")
    RLPhase._publish(phase, 3)  # type: ignore[arg-type]
    assert published == [("engine", "weights", 3)]
