"""Episodes as other trainers take them: one row of tokens, and plain values for all that must be known beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.types import Trajectory


@dataclass(frozen=True)
class TokenRow:
    """One episode: a prompt, and what came after it. `mask` and `logprobs` run along `response`; 0 where the policy did not sample."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]


def token_row(episode: Trajectory, *, filler: int) -> TokenRow:
    """The tokens exactly as they were sampled and shown. A failed rollout, masked or broken, has a mask of zeros.

    An episode that failed before its first step is two `filler` tokens. UsageError for a turn whose prompt does not go on from the turn
    before it, as with a window of past turns: a trainer of whole conversations cannot take it.
    """
    ids, mask, logprobs = list[int](), list[int](), list[float]()
    for turn in episode.turns:
        if (reply := turn.completion) is None:
            raise UsageError(f"A turn of '{episode.id}' has no tokens. Give an episode that was sampled.")
        if list(reply.prompt_ids[: len(ids)]) != ids:
            raise UsageError(f"'{episode.id}' is no single conversation: a turn's prompt does not go on from the turn before it.")
        given = reply.prompt_ids[len(ids) :]
        ids += [*given, *reply.ids]
        mask += [0] * len(given) + [1] * len(reply.ids)
        logprobs += [0.0] * len(given) + list(reply.logprobs)
    if 1 not in mask:
        return TokenRow([filler], [filler], [0], [0.0])
    first = mask.index(1)
    return TokenRow(ids[:first], ids[first:], [0 if episode.error else one for one in mask[first:]], logprobs[first:])


def record(episode: Trajectory) -> dict[str, Any]:
    """Task, reward, verdict, and who decided, as plain values. A `failed` episode, `masked` or not, is no failure of the policy: it has
    the reward None, and is to be left out of training."""
    steps = episode.transitions
    verdict = steps[-1].info.verdict if steps else None
    return {
        "task": episode.task.id,
        "reward": None if episode.error else episode.total_reward,
        "success": episode.success,
        "truncated": episode.truncated,
        "failed": episode.error is not None,
        "masked": episode.masked,
        "error": episode.error,
        "verdict": verdict.kind if verdict else None,
        "reasons": list(verdict.reasons) if verdict else [],
        "decided_by": [step.info.decided_by for step in steps],
        "reward_by": [step.info.reward_by for step in steps],
    }
