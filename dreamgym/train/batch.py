"""Sequences of tokens, and micro-batches of sequences.

A trajectory is a list of turns; turn k joins the sequence before it when its prompt starts with that sequence's tokens, else it opens a new
sequence. So a whole conversation is one sequence and a windowed one is several, by the same code. Masks come from positions, never from
token values, and the sampled end token is trained like any other.

    turn 0: prompt P0, sampled A0        turn 1: prompt P0 A0 O1, sampled A1
    sequence:    P0 A0 O1 A1
    mask:   0  1  0  1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from dreamgym.types import Trajectory


@dataclass
class TokenSequence:
    """One training sequence. All lists run along `ids`; log-probs and advantages are 0.0 where the mask is 0."""

    ids: list[int]
    mask: list[float]
    rollout_logprobs: list[float]  # that the sampler reported
    trajectory: int  # which trajectory of the batch it came from
    advantages: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)  # which turn of the trajectory sampled the token; -1 where the mask is 0
    old_logprobs: list[float] = field(default_factory=list)  # the ratio's denominator: the sampler's, or the learner's own at those weights
    value_mask: list[float] = field(default_factory=list)  # 1.0 on tokens before which a critic reads a value, else 0.0
    values: list[float] = field(default_factory=list)  # the value that the critic read there
    returns: list[float] = field(default_factory=list)  # the target of that value


@dataclass(frozen=True)
class Batch:
    """Right-padded sequences as tensors [B, T]; `sequences` are their positions in the list they were cut from."""

    ids: torch.Tensor
    weights: torch.Tensor  # mask or loss weight of each token, 0.0 on prompts and padding
    lengths: torch.Tensor  # [B]
    sequences: tuple[int, ...]

    def to(self, device: torch.device) -> Batch:
        """The batch on another device; itself when it is there."""
        if self.ids.device == device:
            return self
        return Batch(self.ids.to(device), self.weights.to(device), self.lengths.to(device), self.sequences)


def sequences_of(trajectory: Trajectory, index: int) -> list[TokenSequence]:
    """The sequences of one trajectory whose turns carry completions, with `old_logprobs` as the sampler reported them. A failed rollout
    has none."""
    sequences: list[TokenSequence] = []
    if trajectory.error:
        return sequences
    for number, turn in enumerate(trajectory.turns):
        completion = turn.completion
        if completion is None:
            continue
        sequence = sequences[-1] if sequences else None
        prompt = list(completion.prompt_ids)
        if sequence is None or prompt[: len(sequence.ids)] != sequence.ids:
            sequence = TokenSequence([], [], [], index)
            sequences.append(sequence)
        given = prompt[len(sequence.ids) :]
        sequence.ids += given + list(completion.ids)
        sequence.mask += [0.0] * len(given) + [1.0] * len(completion.ids)
        sequence.rollout_logprobs += [0.0] * len(given) + list(completion.logprobs)
        sequence.turns += [-1] * len(given) + [number] * len(completion.ids)
    for sequence in sequences:
        sequence.old_logprobs = list(sequence.rollout_logprobs)
    return sequences


def assign_advantages(sequences: list[TokenSequence], advantages: Sequence[float]) -> list[TokenSequence]:
    """The sequences of one trajectory with each turn's advantage on the tokens that the turn sampled."""
    for sequence in sequences:
        sequence.advantages = [0.0 if turn < 0 else advantages[turn] for turn in sequence.turns]
    return sequences


def micro_batches(
    ids: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], order: Sequence[int], *, tokens: int
) -> Iterator[Batch]:
    """The sequences named by `order` in padded batches of at most `tokens` positions."""
    for chosen in cut(list(map(len, ids)), order, tokens=tokens):
        yield pad(ids, weights, chosen)


def cut(lengths: Sequence[int], order: Sequence[int], *, tokens: int) -> list[list[int]]:
    """The sequences named by `order`, of `lengths` in tokens, in lots of at most `tokens` padded positions, of similar lengths in a lot.

    The partition changes speed only: losses are sums, and their normaliser is computed once for all of them.
    """
    lots: list[list[int]] = []
    for i in sorted(order, key=lambda i: (lengths[i], i)):
        if lots and lengths[i] * (len(lots[-1]) + 1) <= tokens:
            lots[-1].append(i)
        else:
            lots.append([i])
    return lots


def pad(ids: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], chosen: Sequence[int]) -> Batch:
    """The chosen sequences, right-padded with token 0 and weight 0.0."""
    width = max(len(ids[i]) for i in chosen)
    return Batch(
        ids=torch.tensor([list(ids[i]) + [0] * (width - len(ids[i])) for i in chosen]),
        weights=torch.tensor([list(weights[i]) + [0.0] * (width - len(weights[i])) for i in chosen]),
        lengths=torch.tensor([len(ids[i]) for i in chosen]),
        sequences=tuple(chosen),
    )


def padded(values: Sequence[Sequence[float]], batch: Batch) -> torch.Tensor:
    """Per-token values of a batch's sequences as a tensor [B, T] beside the batch's own."""
    width = batch.ids.shape[1]
    return torch.tensor([list(values[i]) + [0.0] * (width - len(values[i])) for i in batch.sequences], device=batch.ids.device)
