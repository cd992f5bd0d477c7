"""Does the model know what follows from what was seen? Real episodes, one step at a time, with their real history.

In a world that shows a part of itself, a first look is a draw: its next state cannot be right or wrong. Everything else is determined, and
there the model can be held to the letter. Paired replay cannot ask this, because dream and reality part at the first drawer.
"""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.envs.base import TextRules
from dreamgym.experience.pipeline import ExperienceModel
from dreamgym.statistics import Rate, wilson
from dreamgym.types import Query, Trajectory

OFF_THE_RECORD = 1_000_000_000  # keys of two numbers, so that the model keeps nothing of what it answers here


def determined_accuracy(model: ExperienceModel, episodes: Sequence[Trajectory], rules: TextRules) -> Rate:
    """Of determined steps that went on, the share whose next state is right to the letter. Every step of every real episode is asked for;
    steps that a rule answers are left out. What the guard thinks of the answers does not matter, and unreadable ones are wrong."""
    exact: list[bool] = []
    for t in range(max((len(each.turns) for each in episodes), default=0)):
        asked = [i for i, each in enumerate(episodes) if len(each.turns) > t]
        steps = {i: episodes[i].transitions for i in asked}
        keys = [(OFF_THE_RECORD + i, t) for i in asked]
        queries = [
            Query(episodes[i].task, steps[i][:t], steps[i][t].state, steps[i][t].action, key) for i, key in zip(asked, keys, strict=True)
        ]
        for i, query, prediction in zip(asked, queries, model.predict(queries), strict=True):
            real = steps[i][t]
            if prediction.info.decided_by == "rule" or real.terminated:
                continue
            if not rules.reveals_new(query.state, query.history, query.action):
                exact.append(prediction.next_state == real.next_state and not prediction.info.has_verdict("unreadable"))
        model.forget(keys)
    return wilson(sum(exact), len(exact))
