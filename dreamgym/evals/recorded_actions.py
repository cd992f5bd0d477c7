"""Recorded actions taken again in a dream: whether what succeeded there succeeds here, and what failed fails.

A dream is trained on these episodes and recalls them, so that agreement proves little. Disagreement proves much: a dream in which most
recorded successes fail teaches a policy to avoid what was right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dreamgym.envs.base import TextRules
from dreamgym.errors import counted
from dreamgym.protocols import BatchEnv
from dreamgym.statistics import Rate, wilson
from dreamgym.types import StepInfo, Trajectory, Transition

REASONS = 3  # that a sentence names


@dataclass(frozen=True)
class RecordedReplay:
    """What became of recorded episodes in a dream of their tasks."""

    successes_reproduced: Rate
    """Of recorded successes, those that succeed in the dream too."""
    failures_accepted: Rate
    """Of recorded failures, those that succeed in the dream."""
    same_answers: Rate
    """Of the steps of both, those that show what the recording shows."""
    left_out: int
    """Episodes that the guard masked, or whose dream could not be read."""
    successes_left_out: int
    """Recorded successes among them."""
    reasons: Mapping[str, int]
    """Why they were left out, with the number of episodes; each number in a reason is written N, so that alike ones are one."""


def sentence(found: Mapping[str, Any]) -> str:
    """A `RecordedReplay` as plain values, for people."""
    reproduced, accepted = Rate(**found["successes_reproduced"]), Rate(**found["failures_accepted"])
    left_out, lost = found["left_out"], found.get("successes_left_out", 0)
    why = "; ".join(f"{reason} ({n})" for reason, n in list(found.get("reasons", {}).items())[:REASONS])
    why = why or "the guard masked them, or their dreams could not be read"
    if not reproduced.n + accepted.n:
        none = f"none of {counted(left_out, 'episode')} could be dreamed to its end"
        return f"Recorded actions taken again in the dream: {none}: {why}."
    successes = counted(reproduced.n + lost, "recorded success", "recorded successes")
    failures = counted(accepted.n + left_out - lost, "recorded failure")
    text = (
        f"Recorded actions taken again in the dream: {round(reproduced.value * reproduced.n)} of {successes} succeed there too, and "
        f"{round(accepted.value * accepted.n)} of {failures}"
    )
    if not left_out:
        return f"{text}; 0 episodes were left out."
    among = f"{counted(left_out, 'episode was', 'episodes were')} left out, {counted(lost, 'success', 'successes')} among them"
    return f"{text}; {among}, and RL would not see them: {why}."


def _why(info: StepInfo) -> str:
    """Why a step ended its episode as a failed rollout, with all reasons of a verdict, such as those of a second opinion; numbers are N."""
    more = info.verdict.reasons[1:] if info.verdict and info.has_verdict("masked") else ()  # the error has the first
    return re.sub(r"-?\d+(?:\.\d+)?", "N", ", ".join((info.error or "", *more)))


def repeat(episodes: Sequence[Trajectory], dream: BatchEnv, rules: TextRules, *, seed: int) -> RecordedReplay:
    """Take the actions of recorded episodes with a known outcome in a dream of their tasks, all side by side.

    An episode that goes on when its actions are used up did not succeed.
    """
    known = [episode for episode in episodes if episode.scored and episode.turns]
    states = dream.start([episode.task for episode in known], seed=seed)
    running, won, failed, same = list(range(len(known))), set[int](), dict[int, str](), list[bool]()
    for i in range(max((len(episode.turns) for episode in known), default=0)):
        running = [slot for slot in running if i < len(known[slot].turns)]
        results = dream.step(running, [known[slot].transitions[i].action for slot in running])
        over = set[int]()
        for slot, result in zip(running, results, strict=True):
            recorded = known[slot].transitions[i]
            dreamed = Transition(states[slot], recorded.action, result.observation, result.reward, result.terminated)
            states[slot] = result.observation
            if result.info.error is not None:
                failed[slot] = _why(result.info)
            else:
                same.append(rules.encode_delta(dreamed) == rules.encode_delta(recorded))
                won |= {slot} if dreamed.succeeded else set()
            over |= {slot} if result.terminated or result.truncated or result.info.error is not None else set()
        running = [slot for slot in running if slot not in over]
    counted = [slot for slot in range(len(known)) if slot not in failed]
    successes = [slot in won for slot in counted if known[slot].success]
    failures = [slot in won for slot in counted if not known[slot].success]
    reproduced, accepted = wilson(sum(successes), len(successes)), wilson(sum(failures), len(failures))
    lost = sum(known[slot].success for slot in failed)
    reasons = dict(Counter(failed.values()).most_common())
    return RecordedReplay(reproduced, accepted, wilson(sum(same), len(same)), len(failed), lost, reasons)
