"""Recorded actions taken again in a dream: whether what succeeded there succeeds here, and what failed fails.

A dream is trained on these episodes and recalls them, so that agreement proves little. Disagreement proves much: a dream in which most
recorded successes fail teaches a policy to avoid what was right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dreamgym.envs.base import TextRules
from dreamgym.errors import counted
from dreamgym.protocols import BatchEnv
from dreamgym.statistics import Rate, wilson
from dreamgym.types import Trajectory, Transition


@dataclass(frozen=True)
class Repeated:
    """What became of recorded episodes in a dream of their tasks."""

    kept: Rate
    """Of recorded successes, those that succeed in the dream too."""
    accepted: Rate
    """Of recorded failures, those that succeed in the dream."""
    same_answers: Rate
    """Of the steps of both, those that show what the recording shows."""
    left_out: int
    """Episodes that the guard masked, or whose dream could not be read."""
    successes_left_out: int
    """Recorded successes among them."""


def sentence(found: Mapping[str, Any]) -> str:
    """A `Repeated` as plain values, for people."""
    kept, accepted = Rate(**found["kept"]), Rate(**found["accepted"])
    if not kept.n + accepted.n:
        none = f"none of {counted(found['left_out'], 'episode')} could be dreamed to its end"
        return f"Recorded actions taken again in the dream: {none}: the guard masked them, or their dreams could not be read."
    successes, failures = counted(kept.n, "recorded success", "recorded successes"), counted(accepted.n, "recorded failure")
    return (
        f"Recorded actions taken again in the dream: {round(kept.value * kept.n)} of {successes} succeed there too, and "
        f"{round(accepted.value * accepted.n)} of {failures}; {counted(found['left_out'], 'episode was', 'episodes were')} left out"
        + (f", {counted(n, 'success', 'successes')} among them." if (n := found.get("successes_left_out")) else ".")
    )


def repeat(episodes: Sequence[Trajectory], dream: BatchEnv, rules: TextRules, *, seed: int) -> Repeated:
    """Take the actions of recorded episodes with a known outcome in a dream of their tasks, all side by side.

    An episode that goes on when its actions are used up did not succeed.
    """
    known = [episode for episode in episodes if episode.scored and episode.turns]
    states = dream.start([episode.task for episode in known], seed=seed)
    running, won, failed, same = list(range(len(known))), set[int](), set[int](), list[bool]()
    for i in range(max((len(episode.turns) for episode in known), default=0)):
        running = [slot for slot in running if i < len(known[slot].turns)]
        results = dream.step(running, [known[slot].transitions[i].action for slot in running])
        over = set[int]()
        for slot, result in zip(running, results, strict=True):
            recorded = known[slot].transitions[i]
            dreamed = Transition(states[slot], recorded.action, result.observation, result.reward, result.terminated)
            states[slot] = result.observation
            if result.info.error is not None:
                failed.add(slot)
            else:
                same.append(rules.encode_delta(dreamed) == rules.encode_delta(recorded))
                won |= {slot} if dreamed.succeeded else set()
            over |= {slot} if result.terminated or result.truncated or result.info.error is not None else set()
        running = [slot for slot in running if slot not in over]
    counted = [slot for slot in range(len(known)) if slot not in failed]
    successes = [slot in won for slot in counted if known[slot].success]
    failures = [slot in won for slot in counted if not known[slot].success]
    kept, accepted = wilson(sum(successes), len(successes)), wilson(sum(failures), len(failures))
    return Repeated(kept, accepted, wilson(sum(same), len(same)), len(failed), sum(known[slot].success for slot in failed))
