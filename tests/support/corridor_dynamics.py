"""The exact dynamics of the corridor, which a model of it is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dreamgym.envs.corridor import ACTIONS, CorridorSuite, Goal, Situation, follow, raw_state, read_goal
from dreamgym.types import Action, Task


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of the things that may follow an action, and how likely it is."""

    probability: float
    state: str
    reward: float
    terminated: bool


def transition_table(suite: CorridorSuite, tasks: Sequence[Task] | None = None) -> dict[tuple[str, str, Action], tuple[Outcome, ...]]:
    """(instruction, state, action) -> what may follow; of all tasks, or of the given ones.

    Holds every reachable state of an unfinished episode with each of the four actions. Any other action changes nothing.
    """
    if tasks is None:
        tasks = [task for split in ("train", "dev", "test") for task in suite.tasks(split, 1 << 20)]
    table = {}
    for goal in [goal for task in tasks if (goal := read_goal(task.instruction))]:
        for situation in (Situation(room, carrying) for room in range(1, suite.config.length + 1) for carrying in {False, goal.key > 0}):
            for action in ACTIONS:
                table[goal.instruction, _text(suite, goal, situation), action] = _outcomes(suite, goal, situation, action)
    return table


def _outcomes(suite: CorridorSuite, goal: Goal, situation: Situation, action: Action) -> tuple[Outcome, ...]:
    after, reward = follow(goal, situation, action, suite.config.length)
    moved = Outcome(1.0, _text(suite, goal, after), reward, after.opened)
    slip = suite.config.slip
    if after.room == situation.room or not slip:
        return (moved,)
    return (replace(moved, probability=1 - slip), Outcome(slip, _text(suite, goal, situation), 0.0, False))


def _text(suite: CorridorSuite, goal: Goal, situation: Situation) -> str:
    return suite.rules.abstract(raw_state(goal, situation, suite.config.length)).text
