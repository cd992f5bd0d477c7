"""Rows of tokens, and micro-batches of rows.

A trajectory is a list of turns; turn k joins the row before it when its prompt starts with that row's tokens, else it opens a new
row. So a whole conversation is one row and a windowed one is several, by the same code. Masks come from positions, never from
token values, and the sampled end token is trained like any other.

    turn 0: prompt P0, sampled A0        turn 1: prompt P0 A0 O1, sampled A1
    row:    P0 A0 O1 A1
    mask:   0  1  0  1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from dreamgym.types import Trajectory


@dataclass
class Row:
    """One training sequence. All lists run along `ids`; log-probs and advantages are 0.0 where the mask is 0."""

    ids: list[int]
    mask: list[float]
    logprobs: list[float]
    trajectory: int  # which trajectory of the batch it came from
    advantages: list[float] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)  # which turn of the trajectory sampled the token; -1 where the mask is 0
    sampled: list[float] = field(default_factory=list)  # the sampler's log-probs, once `logprobs` are the learner's own
    valued: list[float] = field(default_factory=list)  # 1.0 on tokens before which a critic reads a value, else 0.0
    values: list[float] = field(default_factory=list)  # what it read there
    returns: list[float] = field(default_factory=list)  # what it should read there


@dataclass(frozen=True)
class Batch:
    """Right-padded rows as tensors [B, T]; `rows` are their positions in the list they were cut from."""

    ids: torch.Tensor
    weights: torch.Tensor  # mask or loss weight of each token, 0.0 on prompts and padding
    lengths: torch.Tensor  # [B]
    rows: tuple[int, ...]

    def to(self, device: torch.device) -> Batch:
        """The batch on another device; itself when it is there."""
        if self.ids.device == device:
            return self
        return Batch(self.ids.to(device), self.weights.to(device), self.lengths.to(device), self.rows)


def rows_of(trajectory: Trajectory, index: int) -> list[Row]:
    """The rows of one trajectory whose turns carry completions. A failed rollout has none."""
    rows: list[Row] = []
    if trajectory.error:
        return rows
    for number, turn in enumerate(trajectory.turns):
        said = turn.completion
        if said is None:
            continue
        row = rows[-1] if rows else None
        prompt = list(said.prompt_ids)
        if row is None or prompt[: len(row.ids)] != row.ids:
            row = Row([], [], [], index)
            rows.append(row)
        given = prompt[len(row.ids) :]
        row.ids += given + list(said.ids)
        row.mask += [0.0] * len(given) + [1.0] * len(said.ids)
        row.logprobs += [0.0] * len(given) + list(said.logprobs)
        row.turns += [-1] * len(given) + [number] * len(said.ids)
    return rows


def credited(rows: list[Row], advantages: Sequence[float]) -> list[Row]:
    """The rows of one trajectory with each turn's advantage on the tokens that the turn sampled, wherever they are."""
    for row in rows:
        row.advantages = [0.0 if turn < 0 else advantages[turn] for turn in row.turns]
    return rows


def micro_batches(
    ids: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], order: Sequence[int], *, tokens: int
) -> Iterator[Batch]:
    """The rows named by `order` in padded batches of at most `tokens` positions."""
    for chosen in cut(ids, order, tokens=tokens):
        yield pad(ids, weights, chosen)


def cut(ids: Sequence[Sequence[int]], order: Sequence[int], *, tokens: int) -> list[list[int]]:
    """The rows named by `order` in lots of at most `tokens` padded positions, alike in length within a lot.

    Which rows share a lot changes speed only: losses are sums, and their normaliser is computed once for all of them.
    """
    lots: list[list[int]] = []
    for i in sorted(order, key=lambda i: (len(ids[i]), i)):
        if lots and len(ids[i]) * (len(lots[-1]) + 1) <= tokens:
            lots[-1].append(i)
        else:
            lots.append([i])
    return lots


def pad(ids: Sequence[Sequence[int]], weights: Sequence[Sequence[float]], chosen: Sequence[int]) -> Batch:
    """The chosen rows, right-padded with token 0 and weight 0.0."""
    width = max(len(ids[i]) for i in chosen)
    return Batch(
        ids=torch.tensor([list(ids[i]) + [0] * (width - len(ids[i])) for i in chosen]),
        weights=torch.tensor([list(weights[i]) + [0.0] * (width - len(weights[i])) for i in chosen]),
        lengths=torch.tensor([len(ids[i]) for i in chosen]),
        rows=tuple(chosen),
    )


def padded(values: Sequence[Sequence[float]], batch: Batch) -> torch.Tensor:
    """Per-token values of a batch's rows as a tensor [B, T] beside the batch's own."""
    width = batch.ids.shape[1]
    return torch.tensor([list(values[i]) + [0.0] * (width - len(values[i])) for i in batch.rows], device=batch.ids.device)
