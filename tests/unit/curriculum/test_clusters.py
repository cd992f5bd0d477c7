"""Clusters of tasks: what stands in for a group where every task is tried once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dreamgym import plugins
from dreamgym.config import build
from dreamgym.curriculum.clusters import ClusteredCurriculum, Clusters
from dreamgym.curriculum.task_curriculum import CurriculumConfig, Entry, TaskCurriculum
from dreamgym.envs import corridor
from dreamgym.errors import ConfigError, UsageError
from dreamgym.recipes.blocks import RLConfig
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

WORDS = ["a red wool scarf", "a blue wool scarf", "a green wool scarf", "one steel desk lamp", "one brass desk lamp", "one black desk lamp"]
TASKS = [Task(str(i), text, "shop") for i, text in enumerate(WORDS)]


def clusters(k: int, seed: int = 0) -> Clusters:
    return Clusters(TASKS, k, plugins.make("replay.encoders", "lexical"), seed=seed)


def episode(task: Task, reward: float, error: str | None = None) -> Trajectory:
    turn = Turn(Transition(Observation("s"), "a", Observation("n"), reward, True))
    return Trajectory("t", task, "dream", (turn,), reward >= 1, error=error)


def test_alike_instructions_share_a_cluster_and_so_do_invented_ones():
    found = clusters(2).assign(TASKS)
    assert len(set(found[:3])) == len(set(found[3:])) == 1 and found[0] != found[3]
    new = [Task("x", "a yellow wool scarf", "shop", source="synthetic"), Task("y", "one white desk lamp", "shop", source="synthetic")]
    assert clusters(2).assign(new) == [found[0], found[3]]


def test_clusters_are_the_same_for_the_same_tasks_and_seed():
    assert np.array_equal(clusters(3).centres, clusters(3).centres)
    assert sorted(clusters(6).assign(TASKS)) == list(range(6)), "as many clusters as tasks are the tasks themselves"
    with pytest.raises(UsageError, match="6 tasks cannot make 7 clusters"):
        clusters(7)


@pytest.mark.parametrize("seed", range(5))
def test_more_clusters_than_distinct_instructions_can_be_made_though_rounding_leaves_a_vector_short_of_length_one(seed: int):
    class Rounded:
        id, dim = "rounded", 2

        def encode(self, states: Sequence[str], actions: Sequence[str]) -> np.ndarray:
            return np.array([[1.0, 0.0] if "scarf" in state else [0.0, 0.9999] for state in states], dtype=np.float32)

    tasks = [TASKS[0], TASKS[0], TASKS[0], TASKS[3]]
    found = Clusters(tasks, 3, Rounded(), seed=seed).assign(tasks)
    assert len(set(found[:3])) == 1 and found[3] != found[0]


def test_a_task_tried_once_has_the_variance_of_its_cluster():
    suite = corridor.make(length=4, keys=False)
    inner = TaskCurriculum(TASKS, CurriculumConfig(), rules=suite.rules)
    both = ClusteredCurriculum(inner, clusters(2))
    returns = [1.0, 0.0, 1.0, 0.0, 0.0]
    both.observe([[episode(task, r)] for task, r in zip(TASKS, returns, strict=False)])
    values = [inner.pool[task.id].value for task in TASKS]
    assert values[:3] == pytest.approx([2 / 9] * 3) and values[3:] == [0.0, 0.0, None]
    assert {t.id for t in both.sample(6)} == {task.id for task in TASKS}


def test_a_lonely_or_broken_rollout_says_nothing_of_its_task_which_counts_as_tried_all_the_same():
    inner = TaskCurriculum(TASKS, CurriculumConfig(), rules=corridor.make(length=4, keys=False).rules)
    both = ClusteredCurriculum(inner, clusters(2))
    both.observe([[episode(TASKS[0], 1.0)], [episode(TASKS[1], 0.0, error="unreadable")], [episode(TASKS[3], 0.0)]])
    entries = [inner.pool[TASKS[i].id] for i in (0, 1, 3)]
    assert [(entry.tried, entry.value, entry.unmeasured) for entry in entries] == [(1, None, 0), (1, None, 1), (1, None, 0)]


def test_an_invented_task_is_retired_by_its_own_solve_rate_and_not_by_that_of_its_cluster():
    inner = TaskCurriculum(TASKS, CurriculumConfig(), rules=corridor.make(length=4, keys=False).rules)
    invented = replace(TASKS[0], id="synthetic/1/0", source="synthetic")
    inner.pool[invented.id] = Entry(invented)
    ClusteredCurriculum(inner, clusters(1)).observe([[episode(TASKS[1], 1.0)] * 4, [episode(invented, 0.0)] * 4])
    assert invented.id not in inner.pool and inner.pool[TASKS[1].id].value


def test_groups_of_one_may_choose_tasks_by_variance_when_tasks_have_clusters():
    ppo = {"algorithm": {"name": "ppo"}, "group_size": 1}
    with pytest.raises(ConfigError, match="groups of one have no variance .* clusters"):
        build(RLConfig, ppo)
    assert build(RLConfig, {**ppo, "clusters": 16}).curriculum.strategy == "variance"
