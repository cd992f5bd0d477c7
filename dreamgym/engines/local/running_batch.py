"""The active requests, as arrays with one entry per row of the key-value cache: what a decode step reads and writes.

Row r is active when r < n. A finished row stays in the batch, computing nothing of use, until `compact` moves it to the end: a move
copies keys and values, so several are moved at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamgym.types import Request


@dataclass(eq=False)
class ActiveRequest:
    """A request that waits or runs: its prompt as an array, its random stream, and the owner of its row."""

    ticket: int
    request: Request
    stream: tuple[int, ...]
    owner: Hashable = None
    keep: bool = False  # whether the row is kept for the session afterwards
    matcher: Any = None  # of the grammar that the answer must follow
    prompt: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = np.asarray(self.request.prompt, dtype=np.int64)

    @property
    def length(self) -> int:
        """The most tokens of its prompt and answer."""
        return len(self.prompt) + self.request.sampling.max_tokens

    def uniforms(self) -> np.ndarray:
        """float32 [max_tokens] in [0, 1): below 1 in float32 too."""
        # numpy fills short names of streams up with zeros. With the length in the name, a dream's first state, (run, rollout, episode), is
        # not drawn by the numbers of its first step, (run, rollout, episode, 0).
        named = [*map(int, self.stream), len(self.stream)]
        draws = np.random.default_rng(np.random.SeedSequence(named)).random(self.request.sampling.max_tokens)
        return np.minimum(draws, 1 - 2**-24).astype(np.float32)


class RunningBatch:
    """State of the active rows. Arrays are by row; `ids` and `logprobs` hold what each row has sampled so far, `made` tokens of it."""

    ARRAYS = ("last", "position", "made", "limit", "temperature", "top_p", "top_k", "uniforms", "ids", "logprobs", "stop", "done")

    def __init__(self) -> None:
        self.n = 0
        self.active: list[ActiveRequest] = []
        self.last = self.position = self.made = self.limit = self.top_k = np.zeros(0, dtype=np.int64)
        self.temperature = self.top_p = np.zeros(0, dtype=np.float32)
        self.uniforms = np.zeros((0, 0), dtype=np.float32)
        self.ids = self.stop = np.zeros((0, 0), dtype=np.int64)
        self.logprobs = np.zeros((0, 0), dtype=np.float64)
        self.done = np.zeros(0, dtype=bool)

    @property
    def running(self) -> int:
        return self.n - int(self.done.sum())

    def append(self, requests: Sequence[ActiveRequest]) -> np.ndarray:
        """Append these; returns their rows."""
        asked = [active.request.sampling for active in requests]
        width = max(sampling.max_tokens for sampling in asked)
        first = [[stop[-1] for stop in sampling.stops] for sampling in asked]  # the last id of each: a candidate end
        count = len(requests)
        fresh: dict[str, np.ndarray] = {
            "last": np.zeros(count, dtype=np.int64),
            "position": np.array([len(active.prompt) - 1 for active in requests]),
            "made": np.zeros(count, dtype=np.int64),
            "limit": np.array([sampling.max_tokens for sampling in asked]),
            "temperature": np.array([sampling.temperature for sampling in asked], dtype=np.float32),
            "top_p": np.array([sampling.top_p for sampling in asked], dtype=np.float32),
            "top_k": np.array([sampling.top_k for sampling in asked]),
            "uniforms": np.zeros((count, width), dtype=np.float32),
            "ids": np.zeros((count, width), dtype=np.int64),
            "logprobs": np.zeros((count, width)),
            "stop": np.full((count, max(1, *map(len, first), 1)), -1),
            "done": np.zeros(count, dtype=bool),
        }
        for i, active in enumerate(requests):
            if asked[i].temperature > 0:
                fresh["uniforms"][i, : asked[i].max_tokens] = active.uniforms()
            fresh["stop"][i, : len(first[i])] = first[i]
        for name in self.ARRAYS:
            setattr(self, name, _stack(getattr(self, name), fresh[name], fill=-1 if name == "stop" else 0))
        rows = np.arange(self.n, self.n + count)
        self.active += requests
        self.n += count
        return rows

    def record(self, rows: np.ndarray, sampled: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Add one sampled token to each of `rows`, as far as it still runs; returns the rows that finish with it, marked done."""
        alive = ~self.done[rows]
        rows, sampled, scores = rows[alive], sampled[alive], scores[alive]
        at = self.made[rows]
        self.ids[rows, at], self.logprobs[rows, at] = sampled, scores
        self.last[rows] = sampled
        self.made[rows] += 1
        self.position[rows] += 1
        full = self.made[rows] >= self.limit[rows]
        maybe = (sampled[:, None] == self.stop[rows]).any(1)
        ended = [full[k] or self.stopped(int(rows[k])) > 0 for k in np.flatnonzero(full | maybe)]
        finished = rows[np.flatnonzero(full | maybe)[np.array(ended, dtype=bool)]]
        self.done[finished] = True
        return finished

    def stopped(self, row: int) -> int:
        """The length of the stop that ends what this row has sampled, or 0."""
        sampling = self.active[row].request.sampling
        longest = max(map(len, sampling.stops), default=0)
        made = int(self.made[row])
        return sampling.ends(self.ids[row, max(0, made - longest) : made].tolist())

    def compact(self) -> tuple[np.ndarray, np.ndarray, list[ActiveRequest]]:
        """Fill the places of finished rows with running ones from the end. Returns (holes, the rows moved there, finished requests)."""
        running = self.running
        gone = [self.active[row] for row in np.flatnonzero(self.done)]
        holes = np.flatnonzero(self.done[:running])
        tails = running + np.flatnonzero(~self.done[running:])
        for name in self.ARRAYS:
            values = getattr(self, name)
            values[holes] = values[tails]
            setattr(self, name, values[:running])
        for hole, tail in zip(holes.tolist(), tails.tolist(), strict=True):
            self.active[hole] = self.active[tail]
        self.active = self.active[:running]
        self.n = running
        return holes, tails, gone

    def tail(self, row: int, length: int) -> list[int]:
        """The last `length` tokens of a row's prompt and answer."""
        made = int(self.made[row])
        tail_ids = self.ids[row, max(0, made - length) : made].tolist()
        return self.active[row].prompt[-(length - len(tail_ids)) :].tolist() + tail_ids if len(tail_ids) < length else tail_ids

    def valid(self, row: int) -> np.ndarray:
        """The ids whose keys and values a row holds: the last sampled one was never fed."""
        return np.concatenate([self.active[row].prompt, self.ids[row, : max(0, self.made[row] - 1)]])


def _stack(old: np.ndarray, new: np.ndarray, *, fill: int) -> np.ndarray:
    """Rows of `old` above rows of `new`, both widened to the wider one."""
    if old.ndim == 2 and len(old):
        width = max(old.shape[1], new.shape[1])
        old, new = (np.pad(x, ((0, 0), (0, width - x.shape[1])), constant_values=fill) for x in (old, new))
    return np.concatenate([old, new]) if len(old) else new


Draw = Callable[[Tensor, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(logits float32 [n, V], temperatures [n], uniform numbers [n]) -> (ids [n], log-probabilities [n])"""


def sample(
    batch: RunningBatch, logits: Tensor, rows: np.ndarray, bias: Tensor | None = None, ahead: np.ndarray | int = 0, draw: Draw | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, log-probabilities) of one token for each of `rows`, from logits [len(rows), V]; `bias` is minus infinity where none may follow.

    `ahead` tokens after the next one; a row may be named several times. `draw` does the same faster where nothing is left out.

    Sampling inverts the cumulative distribution in the order of the vocabulary, at the row's next uniform number: what a row draws does
    not depend on its neighbours. Log-probabilities are of the whole vocabulary at the row's temperature (1 where greedy).
    """
    temperature = batch.temperature[rows]
    at = np.minimum(batch.made[rows] + ahead, batch.limit[rows] - 1)
    if draw is not None and bias is None and not _cut(batch, rows).any():
        return draw(logits, temperature, batch.uniforms[rows, at])
    greedy = temperature == 0
    scaled = logits.float()
    if not np.all(greedy | (temperature == 1)):
        scaled = scaled / torch.from_numpy(np.where(greedy, 1, temperature)).to(logits.device)[:, None]
    scores = torch.log_softmax(scaled, -1)
    allowed = scores if bias is None else torch.log_softmax(scaled + bias, -1)  # of what may follow: also where that is unlikely
    if greedy.all():
        sampled = allowed.argmax(-1)
    else:
        u = torch.from_numpy(batch.uniforms[rows, at]).to(logits.device)
        below = _kept(batch, allowed, rows).cumsum(-1)
        sampled = (below <= (u * below[:, -1])[:, None]).sum(-1).clamp_(max=logits.shape[-1] - 1)
        if greedy.any():
            sampled = torch.where(torch.from_numpy(greedy).to(logits.device), allowed.argmax(-1), sampled)
    chosen = scores.gather(1, sampled[:, None])[:, 0]
    return sampled.cpu().numpy(), chosen.cpu().numpy()


def _cut(batch: RunningBatch, rows: np.ndarray) -> np.ndarray:
    """Whether top-k or top-p leave tokens out in each of `rows`."""
    return (batch.top_p[rows] < 1) | (batch.top_k[rows] > 0)


def _kept(batch: RunningBatch, scores: Tensor, rows: np.ndarray) -> Tensor:
    """Probabilities [n, V], of log-probabilities `scores`, with what top-k and top-p leave out at 0 (not normalised)."""
    weights = scores.exp()
    cut = _cut(batch, rows)
    if not cut.any():
        return weights
    which = torch.from_numpy(np.flatnonzero(cut)).to(scores.device)
    p, k = (torch.from_numpy(x[rows][cut]).to(scores.device) for x in (batch.top_p, batch.top_k))
    ordered, order = weights[which].sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered  # what likelier tokens have already
    rank = torch.arange(ordered.shape[-1], device=scores.device)[None]
    ordered[(before >= p[:, None]) | ((k > 0)[:, None] & (rank >= k[:, None]))] = 0
    weights[which] = torch.zeros_like(ordered).scatter_(1, order, ordered)
    return weights
