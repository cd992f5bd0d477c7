"""In-process engine for any dense transformers causal LM: token ids in; sampled ids and their log-probabilities out.

Batching is continuous: requests of any lengths, of whatever episode or turn, decode side by side over one preallocated key-value slab
(`_cache`), and one that finishes gives its place to one that waits (`_slots`). Rows of the slab keep an episode's keys and values between
its turns. Plain Llamas run through a functional forward (`FastRunner`), every other model through its own (`GenericRunner`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamgym.errors import ConfigError, InvariantError, UsageError
from dreamgym.llm import _causal, _llama
from dreamgym.llm._cache import Slab
from dreamgym.llm._drafts import CONTEXTS, Drafts
from dreamgym.llm._grammar import Grammars
from dreamgym.llm._queue import Queue
from dreamgym.llm._runners import FastRunner, GenericRunner
from dreamgym.llm._slots import Slots, Work, sample
from dreamgym.llm._tokens import Tokenized
from dreamgym.types import Completion, Request

SHARED_PREFIX = 32  # tokens; prompts that begin alike by at least this much are computed once and copied
REFILL = 1 / 8  # of the rows must be free before waiting requests enter, so that their prompts are computed together
COMPACT = 0.3  # of the rows at work may be finished ones


class HFEngine(Tokenized, Queue):
    """Samples from `model` (the module itself: the learner trains the same weights). Implements `protocols.LLM`.

    After the weights change, call `refresh()`; in-place changes that autograd can see (an optimiser step, `load_state_dict`) are noticed
    without it. Either drops every kept cache, because keys of old weights are wrong. `version` is the caller's to set.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch: int = 256,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        cache_dtype: str | torch.dtype | None = None,
        cache_bytes: int = 2_000_000_000,
        max_context: int | None = None,
        speculate: int = 0,
        seed: int = 0,
    ) -> None:
        """`dtype` of the linear layers ("auto": bfloat16 where the processor computes in it, else the model's) and `cache_dtype` of keys
        and values (None: that too; a learner that computes in bfloat16 attends in it). At most `max_batch` requests decode together; the
        others wait. `cache_bytes` bounds the cache. `seed` names the stream of requests that bring none of their own.

        `speculate`: how many tokens a pass may guess ahead, from text that the engine has seen; 0 guesses none. Every token is still
        drawn from the model's own distribution at its own random number: answers stay the same but for the rounding of other shapes.
        """
        if max_batch < 1:
            raise ConfigError(f"max_batch={max_batch} must be at least 1.")
        if speculate < 0:
            raise ConfigError(f"speculate={speculate} must be 0 (no guesses) or more.")
        super().__init__()
        self.model, self.tokenizer = model if device is None else model.to(device), tokenizer
        self.version, self.max_batch, self.seed = 0, max_batch, seed
        self.waiting: deque[Work] = deque()
        self.slots = Slots()
        self.grammars: Grammars | None = None  # loaded when a request has one
        self.drafts = Drafts(speculate)
        config = _causal.plain(model).config.get_text_config()
        positions, window = int(getattr(config, "max_position_embeddings", 4096)), _causal.window(model)
        self.max_context = max_context or min(positions, window or positions)
        if window is not None and self.max_context > window:
            raise ConfigError(
                f"max_context={max_context} is beyond the sliding window of {window} tokens, up to which attention is in full."
            )
        parameter = next(model.parameters())
        if hasattr(parameter, "device_mesh"):
            raise ConfigError("The model is cut over several processes; sampling wants all its weights in one. Use a model that is whole.")
        self.device = parameter.device
        heads = config.num_attention_heads
        fast = _llama.supports(model)
        if dtype == "auto":
            dtype = torch.bfloat16 if fast and _llama.computes_in_bfloat16(self.device) else None
        kind = (_dtype(dtype) if fast else None) or parameter.dtype
        if fast and self.device.type == "cpu" and kind == torch.float16:
            kind = torch.float32  # in which CPUs multiply
        cache = _dtype(cache_dtype) or kind
        self.slab = Slab(
            layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=cache,
            device=self.device,
            cache_bytes=cache_bytes,
            max_length=self.max_context,
        )
        if not fast and _dtype(dtype) not in (None, parameter.dtype):
            raise ConfigError(f"dtype={dtype} differs from the model's {parameter.dtype}. Load the model in that dtype.")
        self.runner = FastRunner(model, self.slab, _dtype(dtype)) if fast else GenericRunner(model, self.slab)
        self._weights_seen = self._fingerprint()

    def refresh(self) -> None:
        """Read the module's weights again, and forget every cache computed with the old ones."""
        self.runner.refresh()
        self.slab.clear()
        self.drafts = Drafts(self.drafts.longest)
        self._weights_seen = self._fingerprint()

    def release(self, sessions: Sequence[str]) -> None:
        """Forget the caches of these sessions; one whose request still runs is forgotten when it finishes.

        With the last session goes the text that guesses are made from, so that a rollout computes the same whatever came before it.
        """
        running = {work.owner: work for work in self.slots.work}
        for name in sessions:
            if name in running:
                running[name].keep = False
        self.slab.release([name for name in sessions if name not in running])
        if not self.slab.row_of:
            self.drafts = Drafts(self.drafts.longest)

    def _check(self, request: Request) -> None:
        room = self.max_context - request.sampling.max_tokens
        if not len(request.prompt):
            raise UsageError("A prompt is empty: give at least one token.")
        if len(request.prompt) > room:
            raise UsageError(
                f"A prompt of {len(request.prompt)} tokens does not fit: the context of {self.max_context} "
                f"less max_tokens={request.sampling.max_tokens} leaves {room}. Shorten the history, or lower max_tokens."
            )

        if request.sampling.grammar:
            grammars = self._grammars()
            grammars.matcher(request.sampling.grammar)
            if (grammars.end,) not in request.sampling.stops:
                raise UsageError(f"A grammar ends with the tokenizer's end token: add its id, {grammars.end}, to the stops.")

    def _grammars(self) -> Grammars:
        if self.grammars is None:
            self.grammars = Grammars(self.tokenizer)
        return self.grammars

    def _enter(self, tickets: Sequence[int], requests: Sequence[Request]) -> None:
        self.waiting += [
            Work(ticket, request, request.seed if request.seed is not None else (self.seed, ticket))
            for ticket, request in zip(tickets, requests, strict=True)
        ]

    def _drop(self, tickets: Sequence[int]) -> None:
        dropped = set(tickets)
        self.waiting = deque(work for work in self.waiting if work.ticket not in dropped)
        for row, work in enumerate(self.slots.work):
            if work.ticket in dropped and not self.slots.done[row]:
                self.slots.done[row] = True
                self.slab.tokens[row] = self.slots.valid(row)

    @torch.inference_mode()
    def _advance(self) -> bool:
        """One step of everything at work, after letting in what waits and fits."""
        try:
            with torch.autocast(self.device.type, enabled=False):  # the caller's would change what is computed
                entered = self._admit()
                if not entered and self.slots.running:
                    self._step()
            return bool(self.slots.running or self.waiting or self._finished)
        except BaseException:
            self._restart()  # rows may be half-written
            raise

    def _admit(self) -> bool:
        """Let waiting requests in, if enough fit to be worth a pass over their prompts."""
        chosen = self._fitting()
        if not chosen:
            return False
        self._compact()
        if self._fingerprint() != self._weights_seen:
            if self.slots.n:
                raise InvariantError(
                    f"The model's weights changed while {self.slots.n} requests were running: finish or cancel them before an update."
                )
            self.refresh()
        for _ in chosen:
            self.waiting.popleft()
        owned = {work.owner for work in self.slots.work}
        for work in chosen:
            session = work.request.session
            work.keep = session is not None and session not in owned
            work.owner = session if work.keep else ("request", work.ticket)
            owned.add(work.owner)
            work.matcher = self._grammars().matcher(work.request.sampling.grammar) if work.request.sampling.grammar else None
        for row in range(self.slots.n):
            self.slab.tokens[row] = self.slots.valid(row)  # what must survive if the slab grows
        longest = max(work.length for work in (*chosen, *self.slots.work))
        order = self.slab.enter(self.slots.n, [work.owner for work in chosen], longest)
        rows = self.slots.enter([chosen[i] for i in order])
        self._take(self._prefill(rows), rows)
        return True

    def _fitting(self) -> list[Work]:
        """The first waiting requests that the batch size and the memory budget have room for; one alone always has."""
        if not self.waiting:
            return []
        running = self.slots.running
        chosen: list[Work] = []
        longest = max((work.length for work in self.slots.work), default=0)
        for work in self.waiting:
            longest = max(longest, work.length)
            used = running + len(chosen)
            if used and used + 1 > min(self.max_batch, self.slab.most_rows(longest)):
                break
            chosen.append(work)
        enough = min(len(self.waiting), max(1, int(self.max_batch * REFILL)))
        return chosen if len(chosen) >= enough or not running else []

    def _prefill(self, rows: np.ndarray) -> Tensor:
        """Logits [n, V] after the prompts of `rows`, having computed only what no cache holds."""
        slab = self.slab
        prompts = {int(row): self.slots.work[row].prompt for row in rows}
        held = {tokens[:SHARED_PREFIX].tobytes(): row for row, tokens in enumerate(slab.tokens) if len(tokens) >= SHARED_PREFIX}
        leaders: dict[bytes, int] = {}
        waves: tuple[list[int], list[int]] = ([], [])
        source: dict[int, int] = {}
        past: dict[int, int] = {}
        for row, prompt in prompts.items():
            head = prompt[:SHARED_PREFIX].tobytes()
            past[row] = _common(slab.tokens[row], prompt)
            if past[row] < SHARED_PREFIX < len(prompt) and head in held:
                past[row] = self._copy(held[head], row)
            if past[row] < SHARED_PREFIX < len(prompt) and head in leaders:
                source[row] = leaders[head]
            elif past[row] < SHARED_PREFIX:
                leaders.setdefault(head, row)
            waves[row in source].append(row)
        if self.drafts.longest:
            for row, prompt in prompts.items():
                self.drafts.learn(prompt[max(0, past[row] - CONTEXTS[0]) :].tolist())
        out: dict[int, Tensor] = {}
        for wave in waves:
            for row in wave:
                if row in source:
                    past[row] = self._copy(source[row], row)
            for row, logits in self.runner.prefill(wave, [prompts[row][past[row] :] for row in wave], [past[row] for row in wave]):
                out[row] = logits
                slab.tokens[row] = prompts[row]
        return torch.stack([out[int(row)] for row in rows])

    def _copy(self, source: int, row: int) -> int:
        """Let `row` begin with what its prompt shares with row `source`; returns how much that is."""
        prompt = self.slots.work[row].prompt
        shared = _common(self.slab.tokens[source], prompt)
        if source != row:
            self.slab.copy(source, row, shared)
            self.slab.tokens[row] = prompt[:shared]
        return shared

    def _step(self) -> None:
        """The next token of every row at work, and those after it that were guessed."""
        slots, n = self.slots, self.slots.n
        guesses = self._guesses() if self.drafts.longest else []
        width = max((len(ids) for ids, _ in guesses), default=0)
        guessed = np.full((n, width), -1)
        for row, (ids, _) in enumerate(guesses):
            guessed[row, : len(ids)] = ids
        real = np.concatenate([np.ones((n, 1), dtype=bool), guessed >= 0], 1)
        fed = np.concatenate([slots.last[:n, None], np.maximum(guessed, 0)], 1)
        logits = self.runner.decode(fed, slots.position[:n, None] + np.arange(1 + width), real if width else None)
        if not width:
            self._take(logits, np.arange(n))
            return
        rows, ahead = np.nonzero(real)
        sampled, scores = np.full((n, 1 + width), -2), np.zeros((n, 1 + width))
        sampled[rows, ahead], scores[rows, ahead] = self._sample(logits, rows, ahead)
        accepted = np.cumprod(sampled[:, :-1] == guessed, 1).sum(1)  # up to the first guess that was not sampled
        self.drafts.score(guesses, accepted)
        for k in range(int(accepted.max()) + 1):
            rows = np.flatnonzero(accepted >= k)
            self._commit(rows, sampled[rows, k], scores[rows, k])
        self._settle()

    def _guesses(self) -> list[tuple[list[int], int]]:
        """What `Drafts.guess` says of each row at work; nothing when it is not worth a wider pass. Grammars are followed token by token."""
        slots = self.slots
        left = np.where(slots.done, 0, slots.limit - slots.made - 1)
        found = [
            self.drafts.guess(slots.tail(row, CONTEXTS[0]), int(left[row])) if slots.work[row].matcher is None else ([], 0)
            for row in range(slots.n)
        ]
        return found if self.drafts.worth(found) else []

    def _take(self, logits: Tensor, rows: np.ndarray) -> None:
        """Sample a token for each of `rows`, and finish those it ends."""
        self._commit(rows, *self._sample(logits, rows, 0))
        self._settle()

    def _sample(self, logits: Tensor, rows: np.ndarray, ahead: np.ndarray | int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, log-probabilities) of the tokens that are `ahead` of the next one of each of `rows`."""
        matchers = [] if self.grammars is None else [self.slots.work[row].matcher for row in rows]
        bias = self._grammars().bias(matchers, logits) if any(matchers) else None
        return sample(self.slots, logits, rows, bias, ahead, self.runner.draw)

    def _commit(self, rows: np.ndarray, sampled: np.ndarray, scores: np.ndarray) -> None:
        """Add a sampled token to each of `rows` that still runs, and finish those it ends."""
        if self.grammars is not None:
            for row, token in zip(rows, sampled.tolist(), strict=True):
                matcher = self.slots.work[row].matcher
                if matcher is not None and not matcher.is_stopped():
                    matcher.consume_token(token)
        for row in self.slots.take(rows, sampled, scores):
            self._finish(int(row))

    def _settle(self) -> None:
        """Compact, when enough rows have finished."""
        if self.slots.n - self.slots.running >= COMPACT * self.slots.n:
            self._compact()

    def _finish(self, row: int) -> None:
        slots, work = self.slots, self.slots.work[row]
        made, stop = int(slots.made[row]), slots.stopped(row)
        ids = slots.ids[row, :made].tolist()
        scores = tuple(slots.logprobs[row, :made].tolist())
        text = self.decode(ids[: made - stop])
        if self.drafts.longest:
            self.drafts.learn(work.prompt[-CONTEXTS[0] :].tolist() + ids)
        self.slab.tokens[row] = slots.valid(row)
        self._finished[work.ticket] = Completion(
            tuple(work.prompt.tolist()), tuple(ids), scores, text, "stop" if stop else "length", self.version
        )

    def _compact(self) -> None:
        """Move finished rows behind the running ones, and free those that no session keeps."""
        if self.slots.running == self.slots.n:
            return
        length = max(len(work.prompt) + int(made) for work, made in zip(self.slots.work, self.slots.made, strict=True))
        holes, tails, gone = self.slots.compact()
        self.slab.swap(holes.tolist(), tails.tolist(), length)
        self.slab.release([work.owner for work in gone if not work.keep])

    def _restart(self) -> None:
        """After a failure: forget every cache, and let what was running wait again from its beginning."""
        again = [work for row, work in enumerate(self.slots.work) if not self.slots.done[row]]
        self.waiting.extendleft(reversed(again))
        self.slots = Slots()
        self.slab.clear()

    def _fingerprint(self) -> tuple[int, ...]:
        """Changes when a parameter is replaced or written in place."""
        return tuple(itertools.chain.from_iterable((p.data_ptr(), 0 if p.is_inference() else p._version) for p in self.model.parameters()))


def _common(cached: np.ndarray, prompt: np.ndarray) -> int:
    """How many leading tokens of `prompt` are cached; the last one is always computed, because its logits are wanted."""
    n = min(len(cached), len(prompt) - 1)
    differ = np.flatnonzero(cached[:n] != prompt[:n])
    return int(differ[0]) if len(differ) else n


def _dtype(name: str | torch.dtype | None) -> torch.dtype | None:
    if name is None or isinstance(name, torch.dtype):
        return name
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ConfigError(f"No dtype '{name}'. Expected float32, bfloat16 or float16.")
    return found


def make(*, checkpoint: Path | str, dtype: str | None = None, **config: Any) -> HFEngine:
    """The engine over a local checkpoint directory: `make(checkpoint="runs/a/checkpoints/policy", max_batch=64)`."""
    from dreamgym.llm.tiny import load

    model, tokenizer = load(checkpoint)
    if dtype is not None and not _llama.supports(model):
        model = model.to(_dtype(dtype))
    return HFEngine(model, tokenizer, dtype=dtype, **config)
