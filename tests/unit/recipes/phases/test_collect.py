"""The rollouts of an RL phase: how many are open at once, and which steps are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dreamgym.config import build
from dreamgym.envs import corridor
from dreamgym.recipes.blocks import RLConfig
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.collect import Collector, Environments, RolloutFunction
from dreamgym.recipes.plan import Loop
from dreamgym.types import Completion, Observation, StepInfo, Trajectory


class Opener:
    """Opens the door at which it stands, and notes in how many episodes at once, with which random streams."""

    concurrent = False

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.batches: list[list[Any]] = []

    def begin(self, tasks: Any, *, name: str) -> list[int]:
        return list(range(len(tasks)))

    def submit(self, conversations: list[int], observations: list[Observation], *, temperature: float, seeds: list[Any]) -> list[int]:
        self.batches.append([(temperature, *seed) for seed in seeds])
        self.asked = list(range(len(seeds)))
        return self.asked

    def poll(self) -> list[tuple[int, Completion]]:
        asked, self.asked = self.asked, []
        return [(ticket, Completion((1,), (2,), (0.0,), "open", "stop")) for ticket in asked]

    def end(self, conversations: list[int]) -> None: ...


def collector(folder: Path, agent: Any, *, make_rollout_fn: Any = None, **changes: Any) -> Collector:
    """Of a phase in the real corridor, which keeps two episodes open."""
    suite = corridor.make(length=4)
    suite.max_parallel = 2
    context = RunContext(build(RunConfig, {}), folder, suite, [], None, None)  # type: ignore[arg-type]
    block = build(RLConfig, {"learner": {"temperature": 0.7}}).model_copy(update=changes)
    loop = Loop("real_only", "warm_start", block, "real", context.config)
    return Collector(Environments(context, None, "real_only", "real"), agent, None, loop, make_rollout_fn)  # type: ignore[arg-type]


def test_real_rollouts_open_no_more_episodes_than_the_environment_keeps_and_draw_what_they_would_draw_together(tmp_path: Path):
    agent = Opener()
    tasks = corridor.make(length=4).tasks("train", 5)
    found = collector(tmp_path, agent).roll(tasks, 3)
    assert [[one[2] for one in batch] for batch in agent.batches] == [[0, 1], [2, 3], [4]]
    assert {(one[0], one[1]) for batch in agent.batches for one in batch} == {(0.7, 3)}
    assert [(t.id, t.task) for t in found] == [(f"real_only/3/{i}", task) for i, task in enumerate(tasks)]


@pytest.mark.parametrize("source", ["real", "dream"])
def test_steps_of_rollouts_that_nobody_uses_are_counted_like_all_others(source: Any, tmp_path: Path):
    played = collector(tmp_path, Opener()).roll(corridor.make(length=4).tasks("train", 4), 0)
    info = StepInfo() if source == "real" else StepInfo(decided_by="rule")
    turns = [tuple(replace(turn, transition=replace(turn.transition, info=info)) for turn in t.turns) for t in played]
    made: list[Trajectory] = [replace(t, source=source, turns=some) for t, some in zip(played, turns, strict=True)]

    def no_worker() -> RolloutFunction:
        raise AssertionError("nothing is played")

    prefetching = collector(tmp_path, Opener(), make_rollout_fn=no_worker, async_rollouts=True)
    prefetching.restore_prefetched(1, made)
    prefetching.discard_prefetched()
    taken = sum(len(t.turns) for t in made)
    assert (prefetching.steps, prefetching.real_steps) == (taken, taken if source == "real" else 0) and taken > 0
    assert prefetching.decided.states["rule"] == prefetching.steps - prefetching.real_steps
