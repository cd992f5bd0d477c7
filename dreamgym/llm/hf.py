"""In-process engine for any dense transformers causal LM: token ids in; sampled ids and their log-probabilities out.

Requests of any lengths decode in lockstep over one preallocated key-value slab (`_cache`), whose rows keep an episode's keys and values
between its turns. Plain Llamas run through a functional forward (`_fast`), every other model through its own (`_generic`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm import _llama
from dreamgym.llm._cache import Slab
from dreamgym.llm._runners import FastRunner, GenericRunner
from dreamgym.types import Completion

SHARED_PREFIX = 32  # tokens; fresh prompts that begin alike by at least this much are computed once and copied


class HFEngine:
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
        seed: int = 0,
    ) -> None:
        """`dtype` of the linear layers and `cache_dtype` of keys and values (None: the model's; a bfloat16 cache was slower than float32 on
        the CPUs we measured). `max_batch` requests decode together, a longer list in several goes. `cache_bytes` bounds the cache.
        `seed` names the stream of requests that bring no seeds of their own.
        """
        if max_batch < 1:
            raise ConfigError(f"max_batch={max_batch} must be at least 1.")
        self.model, self.tokenizer = model if device is None else model.to(device), tokenizer
        self.version, self.max_batch, self.seed, self.calls = 0, max_batch, seed, 0
        self.max_context = max_context or int(getattr(model.config, "max_position_embeddings", 4096))
        parameter = next(model.parameters())
        self.device = parameter.device
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        fast = _llama.supports(model)
        cache = _dtype(cache_dtype) or (parameter.dtype if not fast or self.device.type != "cpu" else torch.float32)
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

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, none of them special: a marker such as `<|end|>` inside the text stays text."""
        ids = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        forbidden = set(self.tokenizer.all_special_ids) - {self.tokenizer.unk_token_id}
        return [i for i in ids if i not in forbidden]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def special_id(self, name: str) -> int:
        """The id of a special token such as `<|end|>`."""
        from dreamgym.llm.tiny import special_id

        return special_id(self.tokenizer, name)

    def refresh(self) -> None:
        """Read the module's weights again, and forget every cache computed with the old ones."""
        self.runner.refresh()
        self.slab.clear()
        self._weights_seen = self._fingerprint()

    def release(self, sessions: Sequence[str]) -> None:
        """Forget the caches of these sessions."""
        self.slab.release(sessions)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        stop_id: int,
        temperature: float = 1.0,
        seeds: Sequence[Sequence[int]] | None = None,
        sessions: Sequence[str] | None = None,
    ) -> list[Completion]:
        """See `protocols.LLM`. At temperature 0 the log-probabilities are those of temperature 1.

        Raises UsageError for an empty prompt and for one that leaves no room for `max_tokens`.
        """
        if max_tokens < 1:
            raise UsageError(f"max_tokens={max_tokens} must be at least 1.")
        if temperature < 0:
            raise UsageError(f"temperature={temperature} must be 0 (greedy) or more.")
        for name, values in (("seeds", seeds), ("sessions", sessions)):
            if values is not None and len(values) != len(prompts):
                raise UsageError(f"{len(prompts)} prompts but {len(values)} {name}: give one for each prompt, or None.")
        room = self.max_context - max_tokens
        for prompt in prompts:
            if not len(prompt):
                raise UsageError("A prompt is empty: give at least one token.")
            if len(prompt) > room:
                raise UsageError(
                    f"A prompt of {len(prompt)} tokens does not fit: the context of {self.max_context} "
                    f"less max_tokens={max_tokens} leaves {room}. Shorten the history, or lower max_tokens."
                )
        if self._fingerprint() != self._weights_seen:
            self.refresh()
        self.calls += 1
        streams = seeds if seeds is not None else [(self.seed, self.calls, i) for i in range(len(prompts))]
        arrays = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
        names: list[str | None] = [None] * len(prompts) if sessions is None else list(sessions)
        longest = max((len(prompt) for prompt in prompts), default=0) + max_tokens
        size = min(self.max_batch, self.slab.most_rows(longest)) if prompts else 1
        completions: list[Completion] = []
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                for start in range(0, len(prompts), size):
                    part = slice(start, start + size)
                    batch = _Batch(self, arrays[part], names[part], max_tokens, stop_id, temperature, streams[part])
                    completions += batch.run()
        except BaseException:
            self.slab.clear()  # an interrupted batch leaves rows half-written
            raise
        finally:
            self.model.train(was_training)
        return completions

    def _fingerprint(self) -> tuple[int, ...]:
        """Changes when a parameter is replaced or written in place."""
        return tuple(itertools.chain.from_iterable((p.data_ptr(), 0 if p.is_inference() else p._version) for p in self.model.parameters()))


class _Batch:
    """One lockstep decode. Row r of the slab serves request `order[r]`; rows [0, n) are at work."""

    def __init__(
        self,
        engine: HFEngine,
        prompts: list[np.ndarray],
        names: list[str | None],
        max_tokens: int,
        stop_id: int,
        temperature: float,
        seeds: Sequence[Sequence[int]],
    ) -> None:
        self.engine, self.slab, self.runner = engine, engine.slab, engine.runner
        self.prompts, self.max_tokens, self.stop_id, self.temperature = prompts, max_tokens, stop_id, temperature
        self.order = self.slab.place(names, max(map(len, prompts)) + max_tokens)
        self.uniforms: np.ndarray | None = None
        if temperature > 0:
            draws = [np.random.default_rng(np.random.SeedSequence([int(s) for s in seed])).random(max_tokens) for seed in seeds]
            self.uniforms = np.minimum(np.stack(draws), 1 - 2**-24).astype(np.float32)  # [requests, max_tokens], below 1 in float32 too

    def run(self) -> list[Completion]:
        count = n = len(self.prompts)
        ids = np.zeros((count, self.max_tokens), dtype=np.int64)  # by request
        logprobs = np.zeros((count, self.max_tokens), dtype=np.float64)
        made = np.zeros(count, dtype=np.int64)  # tokens sampled, by request
        logits = self._prefill()
        done = np.zeros(n, dtype=bool)  # by row
        for step in range(self.max_tokens):
            order = self.order[:n]
            sampled, scores = self._sample(logits, order, step)
            ids[order, step], logprobs[order, step] = sampled, scores
            made[order[~done]] = step + 1
            done |= sampled == self.stop_id
            active = int(n - done.sum())
            if active == 0 or step + 1 == self.max_tokens:
                break
            if active <= 0.7 * n:
                n, done, sampled = self._compact(n, done, sampled, made)
            positions = np.array([len(self.prompts[i]) for i in self.order[:n]]) + step
            logits = self.runner.decode(torch.from_numpy(sampled).to(self.slab.device), torch.from_numpy(positions).to(self.slab.device))
        return self._finish(ids, logprobs, made)

    def _prefill(self) -> Tensor:
        """Logits [n, V] after each prompt, having computed only what no cache holds."""
        n = len(self.prompts)
        prompts = [self.prompts[i] for i in self.order]
        cached = np.array([_common(self.slab.tokens[row], prompts[row]) for row in range(n)])
        leaders: dict[bytes, int] = {}
        waves: tuple[list[int], list[int]] = ([], [])
        source = {}
        for row in range(n):
            head = prompts[row][:SHARED_PREFIX].tobytes()
            if cached[row] == 0 and len(prompts[row]) > SHARED_PREFIX and head in leaders:
                source[row] = leaders[head]
                waves[1].append(row)
            else:
                if cached[row] == 0:
                    leaders.setdefault(head, row)
                waves[0].append(row)
        out: list[Tensor] = [torch.empty(0)] * n
        for wave in waves:
            for row in wave:
                if row in source:
                    cached[row] = _common(prompts[source[row]], prompts[row])
                    self.slab.copy(source[row], row, int(cached[row]))
            for row, logits in self.runner.prefill(wave, [prompts[row][cached[row] :] for row in wave], [int(cached[row]) for row in wave]):
                out[row] = logits
        return torch.stack(out)

    def _sample(self, logits: Tensor, order: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, log-probabilities) of one token per row, from logits [n, V], by the inverse of the cumulative distribution."""
        scores = torch.log_softmax(logits.float() / (self.temperature or 1.0), -1)
        if self.uniforms is None:
            sampled = scores.argmax(-1)
        else:
            below = scores.exp().cumsum(-1)
            u = torch.from_numpy(self.uniforms[order, step]).to(logits.device)
            sampled = (below <= (u * below[:, -1])[:, None]).sum(-1).clamp_(max=logits.shape[-1] - 1)
        chosen = scores.gather(1, sampled[:, None])[:, 0]
        return sampled.cpu().numpy(), chosen.cpu().numpy()

    def _compact(self, n: int, done: np.ndarray, sampled: np.ndarray, made: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        """Move finished rows behind the running ones; returns (running, done, sampled) of what remains at work."""
        running = int(n - done.sum())
        holes = np.flatnonzero(done[:running])
        tails = running + np.flatnonzero(~done[running:n])
        length = max(len(self.prompts[i]) + int(made[i]) for i in self.order[:n])
        self.slab.swap(holes.tolist(), tails.tolist(), length)
        for values in (self.order, sampled, done):
            values[holes], values[tails] = values[tails], values[holes]
        return running, done[:running], sampled[:running]

    def _finish(self, ids: np.ndarray, logprobs: np.ndarray, made: np.ndarray) -> list[Completion]:
        completions = []
        for i, prompt in enumerate(self.prompts):
            sampled = ids[i, : made[i]].tolist()
            stopped = sampled[-1] == self.stop_id
            text = self.engine.decode(sampled[:-1] if stopped else sampled)
            scores = tuple(logprobs[i, : made[i]].tolist())
            completions.append(
                Completion(tuple(prompt.tolist()), tuple(sampled), scores, text, "stop" if stopped else "length", self.engine.version)
            )
        for row, i in enumerate(self.order):  # the last sampled token was never fed: its keys are not there
            self.slab.tokens[row] = np.concatenate([self.prompts[i], ids[i, : made[i] - 1]])
        self.slab.forget_unnamed(len(self.order))
        return completions


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
