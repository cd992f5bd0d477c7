"""After each update of an RL loop the learner's weights go to the engine, which may sample in another process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dreamgym.recipes.phases.rl import RLPhase


@pytest.mark.parametrize("served", [False, True])
def test_each_version_of_a_loop_is_published_with_its_model_and_to_a_server_when_no_rollout_is_in_play(served: bool) -> None:
    done: list[Any] = []
    policies = SimpleNamespace(publish=lambda *given: done.append(given))
    phase = SimpleNamespace(
        context=SimpleNamespace(policies=policies, config=SimpleNamespace(policy_served=served)),
        agent=SimpleNamespace(llm="engine"),
        model="weights",
        collector=SimpleNamespace(wait_for_prefetched=lambda: done.append("played")),
    )
    RLPhase._publish(phase, 3)  # type: ignore[arg-type]
    assert done == (["played"] if served else []) + [("engine", "weights", 3)]
