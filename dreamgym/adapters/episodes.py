"""Episodes as other trainers take them: rows of tokens, and plain values for all that must be known beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.types import Completion, Trajectory


@dataclass(frozen=True)
class TokenRow:
    """One conversation: a prompt, and what came after it. `mask` and `logprobs` run along `response`; 0 where the policy did not sample."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    logprobs: list[float]


def token_rows(episode: Trajectory, *, filler: int) -> list[TokenRow]:
    """The tokens exactly as they were sampled and shown: a row for each conversation, of which there are several where the policy sees a
    window of past turns. A failed rollout, masked or broken, has masks of zeros.

    An episode that failed before its first step is two `filler` tokens.
    """
    conversations: list[list[Completion]] = []
    ids = list[int]()
    for turn in episode.turns:
        if (reply := turn.completion) is None:
            raise UsageError(f"A turn of '{episode.id}' has no tokens. Give an episode that was sampled.")
        if not conversations or list(reply.prompt_ids[: len(ids)]) != ids:
            conversations.append([])
        conversations[-1].append(reply)
        ids = [*reply.prompt_ids, *reply.ids]
    rows = [row for replies in conversations if (row := _row(replies, is_trained=not episode.error))]
    return rows or [TokenRow([filler], [filler], [0], [0.0])]


def token_row(episode: Trajectory, *, filler: int) -> TokenRow:
    """The only one of `token_rows`. UsageError where there are several: a trainer of whole conversations cannot take them."""
    row, *others = token_rows(episode, filler=filler)
    if others:
        raise UsageError(f"'{episode.id}' is no single conversation: a turn's prompt does not go on from the turn before it.")
    return row


def _row(replies: Sequence[Completion], *, is_trained: bool) -> TokenRow | None:
    """One conversation; None where nothing was sampled in it."""
    ids, mask, logprobs = list[int](), list[int](), list[float]()
    for reply in replies:
        given = reply.prompt_ids[len(ids) :]
        ids += [*given, *reply.ids]
        mask += [0] * len(given) + [1] * len(reply.ids)
        logprobs += [0.0] * len(given) + list(reply.logprobs)
    if 1 not in mask:
        return None
    first = mask.index(1)
    return TokenRow(ids[:first], ids[first:], [int(one and is_trained) for one in mask[first:]], logprobs[first:])


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
