"""How the engine runs a model over the key-value cache: `FastRunner` for plain Llamas, `GenericRunner` for any dense transformers model.

Both offer `prefill` (ragged suffixes of given rows), which gives logits in the last position only, and `decode` (as many tokens for each
of the first n rows), which gives them everywhere. On a GPU a decoding pass is recorded and replayed (`cuda_graphs`), at rounded shapes:
padding is written to the cache's spare row. Letters in shapes as in `llama`; n rows, L the cache length in use, rounded up to 64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from dreamgym.engines.local import causal_lm, cpu_attention, llama
from dreamgym.engines.local.cpu_decode import Decoder, decoder
from dreamgym.engines.local.cuda_graphs import Graphs, rounded
from dreamgym.engines.local.kv_cache import KVCache
from dreamgym.engines.local.padded_prefill import Padded, over_cache, unseen
from dreamgym.engines.local.running_batch import Draw
from dreamgym.errors import ConfigError

CHUNK = 8192  # tokens in one prefill pass
LONG = 1500  # positions; prompts up to there are compiled in float32 too, beyond it torch's blocks of queries read the cache less often
ATTENTION = "dreamgym_grouped"


def _groups(suffixes: Sequence[np.ndarray], padded: bool) -> Iterator[range]:
    """Consecutive ranges of suffixes, each of at most CHUNK tokens (with padding counted when `padded`), at least one suffix."""
    start = total = longest = 0
    for i, suffix in enumerate(suffixes):
        longest = max(longest, len(suffix))
        size = longest * (i + 1 - start) if padded else total + len(suffix)
        if i > start and size > CHUNK:
            yield range(start, i)
            start, total, longest = i, 0, len(suffix)
        total += len(suffix)
    if start < len(suffixes):
        yield range(start, len(suffixes))


class _Runner(ABC):
    """What both share: decoding passes, compiled, as they are, or at rounded shapes through `graphs`, where a runner has them.

    Whoever refreshes a runner clears the kv_cache, too, so that passes are recorded again over its new weights.
    """

    kv_cache: KVCache
    graphs: Graphs | None = None
    decoder: Decoder | None = None
    draw: Draw | None = None
    moves = -1

    def decode(self, ids: np.ndarray, positions: np.ndarray, real: np.ndarray | None = None) -> Tensor:
        """Feed `ids` [n, T] at `positions` [n, T] of the first n rows; logits [R, V] of what follows each real token, row by row.

        What is not `real` [n, T] (None: all is) only fills up the shape: where a shape is wanted, it is fed to the spare row.
        """
        n, t = ids.shape
        rows = np.repeat(np.arange(n)[:, None], t, 1)
        if self.decoder is not None:
            fed = (x.ravel() if real is None else x[real] for x in (ids, rows, positions))
            return self.head_of(self.decoder.states(*fed))
        if real is None:
            return self._in_shape(ids, positions, rows).flatten(0, 1)
        logits = self._in_shape(ids, np.where(real, positions, 0), np.where(real, rows, self.kv_cache.rows))
        return logits.flatten(0, 1)[torch.from_numpy(np.flatnonzero(real)).to(logits.device)]

    def _in_shape(self, ids: np.ndarray, positions: np.ndarray, rows: np.ndarray) -> Tensor:
        """Logits [n, T, V]."""
        kv_cache, (n, t), last = self.kv_cache, ids.shape, int(positions.max()) + 1
        if self.graphs is None:
            given = torch.from_numpy(np.stack([ids, positions, rows])).to(kv_cache.device)
            return self.head_of(self.states(given, kv_cache.rounded(last)))
        if self.moves != kv_cache.moves:
            self.graphs.forget()
            self.moves = kv_cache.moves
        wide, length = min(rounded(n, 4), kv_cache.rows), min(rounded(last, 64), kv_cache.capacity)
        fed = np.zeros((3, wide, t), dtype=np.int64)
        fed[2] = kv_cache.rows  # the spare one
        fed[:, :n] = np.stack([ids, positions, rows])
        given = torch.from_numpy(fed).to(kv_cache.device)
        return self.head_of(self.graphs.run((wide, t, length), lambda held: self.states(held, length), given)[:n])

    @abstractmethod
    def states(self, fed: Tensor, length: int) -> Tensor:
        """Final hidden states [n, T, W]; `fed` [3, n, T] holds ids, positions and the rows to write, and the first n rows are read."""

    @abstractmethod
    def head_of(self, states: Tensor) -> Tensor:
        """Logits [n, T, V]."""


class FastRunner(_Runner):
    """Functional forward over fused weights, into which the adapters of small models are merged; large models apply theirs as they go.

    On a CPU the residual stream, attention and logits are float32 whatever `dtype` is.
    """

    def __init__(self, model: Any, kv_cache: KVCache, dtype: torch.dtype | None) -> None:
        self.model, self.kv_cache, self.dtype = model, kv_cache, dtype
        self.stream = torch.float32 if kv_cache.device.type == "cpu" else None
        self.on_gpu = kv_cache.device.type == "cuda"
        self.graphs = Graphs() if self.on_gpu else None
        self.weights: Any = None
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        self.weights = self.decoder = None  # before their successors are made
        small = sum(p.numel() for p in self.model.parameters()) < llama.FUSE_BELOW
        self.weights = llama.Weights(self.model, dtype=self.dtype, fuse=small, merge=small)
        self.groups = self.weights.heads // self.weights.kv_heads
        head = self.weights.head.detach()
        self.head = head.float() if self.stream is torch.float32 else head
        limit = self.kv_cache.max_length
        self.cos, self.sin = llama.rotary(self.model, torch.arange(limit, device=self.kv_cache.device))
        if self.stream is None and not llama.compiles(self.kv_cache.device, head.shape[-1]):
            self.cos, self.sin = self.cos.to(head.dtype), self.sin.to(head.dtype)
        self.decoder = decoder(self.weights, self.cos, self.sin, self.kv_cache)
        self.draw = None if self.decoder is None else self.decoder.draw

    def prefill(self, rows: Sequence[int], suffixes: Sequence[np.ndarray], past: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        """Write the keys and values of `suffixes[i]` behind the first `past[i]` of row `rows[i]`; yield (row, logits [V])."""
        compiled = [self._compiles(p + len(suffix)) for p, suffix in zip(past, suffixes, strict=True)]
        for kind in sorted(set(compiled)):  # each by itself, so that a row's result does not depend on its neighbours' lengths
            which = [i for i, one in enumerate(compiled) if one is kind]
            yield from self._prefill([rows[i] for i in which], [suffixes[i] for i in which], [past[i] for i in which], kind)

    def _compiles(self, length: int) -> bool:
        """Whether compiled passes are the faster ones over a prompt that ends at `length`."""
        return self.decoder is not None and (self.decoder.kind != torch.float32 or length <= LONG)

    def _prefill(
        self, rows: Sequence[int], suffixes: Sequence[np.ndarray], past: Sequence[int], compiled: bool
    ) -> Iterator[tuple[int, Tensor]]:
        for group in _groups(suffixes, padded=self.on_gpu):
            lengths = [len(suffixes[i]) for i in group]
            ids = np.concatenate([suffixes[i] for i in group])
            positions = np.concatenate([np.arange(past[i], past[i] + len(suffixes[i])) for i in group])
            these, before = [rows[i] for i in group], [past[i] for i in group]
            if self.decoder is not None and compiled:
                x = self.decoder.states(ids, np.repeat(these, lengths), positions)
            else:
                x = self._packed(ids, positions, these, lengths, before)
            last = torch.tensor(np.cumsum(lengths) - 1, device=self.kv_cache.device)
            yield from zip(these, F.linear(x[last], self.head), strict=True)

    def _packed(self, ids: np.ndarray, positions: np.ndarray, rows: list[int], lengths: list[int], past: list[int]) -> Tensor:
        """Hidden states of sequences one behind the other."""
        attend = (
            self._side_by_side(rows, lengths, past)
            if self.on_gpu
            else cpu_attention.prompts(self.kv_cache, rows, lengths, past, self.groups, self.dtype)
        )
        fed, at = torch.from_numpy(ids).to(self.kv_cache.device), torch.from_numpy(positions).to(self.kv_cache.device)
        return llama.hidden(self.weights, fed, self.cos[at], self.sin[at], attend, stream=self.stream)

    def _side_by_side(self, rows: list[int], lengths: list[int], past: list[int]) -> llama.Attend:
        kv_cache, device = self.kv_cache, self.kv_cache.device
        padded = Padded(lengths, device)
        at = torch.from_numpy(np.concatenate([np.arange(p, p + m) for p, m in zip(past, lengths, strict=True)])).to(device)
        read = torch.tensor(rows, device=device)
        write = read.repeat_interleave(torch.tensor(lengths, device=device))
        length = kv_cache.rounded(max(p + m for p, m in zip(past, lengths, strict=True)))
        bias = unseen(padded.pad(at), length, kv_cache.dtype) if any(past) else None

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = kv_cache.keys[layer], kv_cache.values[layer]
            q, k, v = q.to(kv_cache.dtype), k.to(kv_cache.dtype), v.to(kv_cache.dtype)
            keys[write, :, at], values[write, :, at] = k, v
            if bias is None:
                return padded.causal(q, k, v)
            return padded.unpad(over_cache(padded.pad(q), keys[read, :, :length], values[read, :, :length], bias))

        return attend

    def states(self, fed: Tensor, length: int) -> Tensor:
        ids, positions, rows = fed
        at = positions.flatten()
        if self.on_gpu:
            attend = self._over_rows(positions, rows, length)
        else:
            attend = cpu_attention.decoding(self.kv_cache, positions, rows, length, self.groups)
        x = llama.hidden(self.weights, ids.flatten(), self.cos[at], self.sin[at], attend, stream=self.stream)
        return x.view(*ids.shape, -1)

    def head_of(self, states: Tensor) -> Tensor:
        return F.linear(states, self.head)

    def _over_rows(self, positions: Tensor, rows: Tensor, length: int) -> llama.Attend:
        kv_cache, (n, t) = self.kv_cache, positions.shape
        bias = unseen(positions, length, kv_cache.dtype)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = kv_cache.keys[layer], kv_cache.values[layer]
            q, k, v = (x.to(kv_cache.dtype).view(n, t, -1, kv_cache.head_dim) for x in (q, k, v))
            keys[rows, :, positions], values[rows, :, positions] = k, v
            return over_cache(q, keys[:n, :, :length], values[:n, :, :length], bias).flatten(0, 1)

        return attend


class GenericRunner(_Runner):
    """The model's own forward, with the cache as its cache, a mask per row, and grouped attention that does not repeat keys.

    Works through a peft wrapper, so that the weights in training act as they are. ConfigError for a model whose attention does more.
    """

    def __init__(self, model: Any, kv_cache: KVCache) -> None:
        causal_lm.check_cacheable(model)
        self.model, self.kv_cache = model, kv_cache
        self.graphs = Graphs() if kv_cache.device.type == "cuda" else None
        self._verify()

    def refresh(self) -> None:
        """The model's own weights are read at every call."""

    @torch.no_grad()
    def _verify(self) -> None:
        """Compare a short prompt and a token decoded behind it with the model's own forward: attention may have sinks, biases, caps."""
        n = min(6, self.kv_cache.max_length, causal_lm.window(self.model) or 6)
        ids = np.arange(n)
        self.kv_cache.assign_rows(0, ["verify"], n)
        found = [logits for _, logits in self.prefill([0], [ids[:-1]], [0])]
        for _ in range(3 if self.graphs is not None else 1):  # as it is, recorded, and replayed
            last = self.decode(ids[None, -1:], np.array([[n - 1]]))[0]
        found += [last]
        self.kv_cache.clear()
        with causal_lm.evaluating(self.model):
            expected = self.model(input_ids=torch.from_numpy(ids)[None].to(self.kv_cache.device), use_cache=False).logits[0, -2:]
        if not causal_lm.near(torch.stack(found), expected, rough=self.kv_cache.dtype != torch.float32):
            name = type(causal_lm.plain(self.model)).__name__
            raise ConfigError(f"{name} attends in a way that the engine does not. Use a dense model such as Llama, Qwen or Mistral.")

    def prefill(self, rows: Sequence[int], suffixes: Sequence[np.ndarray], past: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        for group in _groups(suffixes, padded=True):
            width = max(len(suffixes[i]) for i in group)
            ids = np.zeros((len(group), width), dtype=np.int64)
            for r, i in enumerate(group):
                ids[r, : len(suffixes[i])] = suffixes[i]
            starts = np.array([past[i] for i in group])
            positions = np.minimum(starts[:, None] + np.arange(width), self.kv_cache.capacity - 1)  # padding stays inside
            chosen = [rows[i] for i in group]
            fed = np.stack([ids, positions, np.repeat(np.array(chosen)[:, None], width, 1)])
            length = self.kv_cache.rounded(int(positions.max()) + 1)
            x = self.states(torch.from_numpy(fed).to(self.kv_cache.device), length, chosen)
            last = torch.tensor([len(suffixes[i]) - 1 for i in group], device=x.device)
            yield from zip(chosen, self.head_of(x[torch.arange(len(chosen), device=x.device), last]), strict=True)

    def states(self, fed: Tensor, length: int, read: Sequence[int] | None = None) -> Tensor:
        """As `_Runner.states`, reading the rows `read` where they are not the first n."""
        ids, positions, rows = fed
        seen = slice(len(ids)) if read is None or list(read) == list(range(len(ids))) else torch.tensor(read, device=fed.device)
        mask = (torch.arange(length, device=fed.device) <= positions[..., None])[:, None]  # [n, 1, T, L]
        cache = Cache(layers=[_Rows(self.kv_cache, layer, rows, positions, seen, length) for layer in range(self.kv_cache.layers)])
        config = causal_lm.plain(self.model).config
        before = config._attn_implementation
        config._attn_implementation = ATTENTION
        try:
            with causal_lm.evaluating(self.model):
                x: Tensor = causal_lm.body(self.model)(
                    input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
                ).last_hidden_state
        finally:
            config._attn_implementation = before
        return x

    def head_of(self, states: Tensor) -> Tensor:
        return causal_lm.logits(self.model, states)


class _Rows(CacheLayerMixin):
    """One layer of the cache as transformers' cache: writes at explicit positions, returns the rows' first `length` tokens."""

    def __init__(self, kv_cache: KVCache, layer: int, rows: Tensor, positions: Tensor, seen: slice | Tensor, length: int) -> None:
        super().__init__()
        self.kv_cache, self.layer, self.rows, self.positions, self.seen, self.length = kv_cache, layer, rows, positions, seen, length
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """The kv_cache is there already."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Keys and values [n, K, T, D] in; [n, K, L, D] out."""
        out = []
        for kv_cache, new in ((self.kv_cache.keys[self.layer], key_states), (self.kv_cache.values[self.layer], value_states)):
            kv_cache[self.rows, :, self.positions] = new.transpose(1, 2).to(kv_cache.dtype)
            seen = kv_cache[self.seen, :, : self.length]
            out.append(seen if seen.dtype == new.dtype else seen.to(new.dtype))
        return out[0], out[1]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.kv_cache.capacity


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """transformers attention function: query [n, H, T, D] over key and value [n, K, L, D], without repeating them. Mask [n, 1, T, L]."""
    n, h, t, d = query.shape
    k = key.shape[1]
    if h != k and (t == 1 or query.is_cuda):  # the queries of a key head one below the other; torch's fused kernels repeat keys otherwise
        query = query.reshape(n, k, h // k * t, d)
        mask = attention_mask if t == 1 or attention_mask is None else attention_mask.repeat(1, 1, h // k, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
        return mixed.reshape(n, h, t, d).transpose(1, 2), None
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=h != k)
    return mixed.transpose(1, 2), None


AttentionInterface.register(ATTENTION, grouped_attention)
