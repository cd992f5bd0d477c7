"""A plain functional forward for Llama weights, with low-rank adapters or without: packed tokens, no padding, differentiable.

transformers' forward spends its time on padding, elementwise passes and Python. Here sequences are stored end to end ("packed"), so that
the linear layers see real tokens only; attention runs per sequence. `forward` reads the module's own parameters and is for training;
`Weights` holds them fused and cast, for the engine, adapters merged. Both are verified against transformers and peft in the tests.

Letters in shapes: N packed tokens, W width, H query heads, K key-value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dreamgym.engines.local import causal_lm
from dreamgym.engines.local.attention import BLOCK, block_attention
from dreamgym.engines.local.padded_prefill import Padded
from dreamgym.errors import InvariantError

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, H, D], k [N, K, D], v [N, K, D]) -> [N, H, D]"""

COMPILE_FROM = 512  # wide on a GPU, elementwise passes are worth compiling; below it, they are not worth the wait for the compiler
FUSE_BELOW = 300_000_000  # parameters; a larger model is not worth a second copy of its projections, fused or with merged adapters


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Adapted(NamedTuple):
    """A linear layer with a low-rank adapter (LoRA, arXiv:2106.09685): x @ (weight + scale * up @ down).T"""

    weight: Tensor  # [out, in]
    down: Tensor  # [r, in]
    up: Tensor  # [out, r]
    scale: float

    def merged(self, dtype: torch.dtype | None = None) -> Tensor:
        """The one matrix [out, in] that does the same, in `dtype` (None: that of `weight`); the sum is taken in float32.

        Rounded to bfloat16 with a threshold of its own for every element: published weights lie on that grid, so that the nearest number
        would be the old one wherever an update is below half a step, and a policy would sample as if it had not learned.
        """
        dtype = dtype or self.weight.dtype
        found = torch.addmm(self.weight.float(), self.up.float(), self.down.float(), alpha=self.scale)
        return _dithered(found) if dtype == torch.bfloat16 else found.to(dtype)

    def to(self, dtype: torch.dtype) -> Adapted:
        return Adapted(self.weight.to(dtype), self.down.to(dtype), self.up.to(dtype), self.scale)


Linear = Tensor | Adapted


def _dithered(x: Tensor) -> Tensor:
    """float32 as bfloat16 by ordered dithering: up where the part that is cut off exceeds the element's threshold, else down, so that the
    mean of many elements is right. The thresholds are multiples of the golden ratio, spread evenly over any row, the same at every call."""
    thresholds = torch.arange(x.numel(), dtype=torch.int32, device=x.device).view(x.shape) * 40503 & 0xFFFF
    return ((x.view(torch.int32) + thresholds) & ~0xFFFF).view(torch.float32).to(torch.bfloat16)


def supports(module: Any) -> bool:
    """Whether `module` is a plain Llama: dense, without biases, SiLU, and with rotary positions that do not depend on length.

    Around it may be peft's wrapper with one LoRA adapter of linear layers, and tokens whose embeddings are trained.
    """
    from transformers import LlamaForCausalLM

    causal = module.get_base_model() if hasattr(module, "get_base_model") else module
    if type(causal) is not LlamaForCausalLM:
        return False
    adapted = {id(part) for part in causal.modules() if hasattr(part, "base_layer")}
    for block in causal.model.layers:
        for name in PROJECTIONS:
            layer = getattr(block.mlp if hasattr(block.mlp, name) else block.self_attn, name)
            if _linear_of(layer) is None:
                return False
            adapted.discard(id(layer))
    for part in causal.modules():
        if type(part).__name__ == "TrainableTokensLayer":
            adapted.discard(id(part))
    config = causal.config
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    plain = not config.attention_bias and not config.mlp_bias and config.hidden_act == "silu" and rope in ("default", "linear", "llama3")
    return plain and not adapted and not any(hasattr(part, "modules_to_save") for part in causal.modules())


def _linear_of(layer: Any) -> Linear | None:
    """What a linear layer multiplies with; None for a layer that does more than a matrix and one LoRA adapter."""
    if type(layer) in (nn.Linear,):  # and no subclass
        plain: Tensor = layer.weight
        return plain
    of_peft = type(layer).__name__ == "Linear" and type(layer).__module__.startswith("peft.tuners.lora")
    return _adapted(layer) if of_peft else None


def _adapted(layer: Any) -> Adapted | None:
    names, base = layer.active_adapters, layer.base_layer
    if len(names) != 1 or type(base) is not nn.Linear or getattr(base, "bias", None) is not None:
        return None
    name = names[0]
    if layer.merged or layer.disable_adapters or layer.fan_in_fan_out or name not in layer.lora_A:
        return None
    dropout: float = getattr(layer.lora_dropout[name], "p", 0.0)
    if layer.lora_variant.get(name) is not None or layer.lora_B[name].bias is not None or dropout:
        return None
    return Adapted(base.weight, layer.lora_A[name].weight, layer.lora_B[name].weight, layer.scaling[name])


class Weights:
    """Parameters of a Llama in the order of use, with q/k/v and gate/up fused, cast to `dtype` (None: as they are).

    `merge` puts adapters into the matrices that they adapt, for sampling; without it they are applied beside them, and gradients reach
    the adapters alone. Layers with adapters that are not merged are not fused.
    """

    def __init__(self, module: Any, *, dtype: torch.dtype | None = None, fuse: bool = True, merge: bool = False) -> None:
        module = causal_lm.plain(module)
        config = module.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = module.model.layers[0].self_attn.head_dim
        self.eps = config.rms_norm_eps
        table = module.model.embed_tokens
        self.padding = getattr(table, "original_module", table).padding_idx  # that row gets no gradient, as in transformers

        def cast(*layers: Any) -> tuple[Linear, ...]:
            ready = list[Linear]()
            for layer in layers:
                found = _linear_of(layer)
                if found is None:
                    raise InvariantError(f"{type(layer).__name__} is no linear layer that the functional forward knows.")
                if merge and isinstance(found, Adapted):
                    ready.append(found.merged(dtype))
                else:
                    ready.append(found if dtype is None else found.to(dtype))
            whole = [one for one in ready if isinstance(one, Tensor)]
            return (torch.cat(whole),) if fuse and 1 < len(whole) == len(ready) else tuple(ready)

        self.embedding, self.norm, self.head = table.weight, module.model.norm.weight, head(module)
        self.blocks = list[tuple[Any, ...]]()
        for block in module.model.layers:
            attention, mlp = block.self_attn, block.mlp
            self.blocks.append((
                block.input_layernorm.weight,
                cast(attention.q_proj, attention.k_proj, attention.v_proj),
                cast(attention.o_proj),
                block.post_attention_layernorm.weight,
                cast(mlp.gate_proj, mlp.up_proj),
                cast(mlp.down_proj),
            ))  # fmt: skip


def head(module: Any) -> Tensor:
    """The matrix [V, W] that turns hidden states into logits; where embeddings of tokens are trained apart, with them in it."""
    found: Tensor = causal_lm.plain(module).lm_head.weight
    return found


def rotary(module: Any, positions: Tensor) -> tuple[Tensor, Tensor]:
    """(cos, sin), each float32 [N, 1, D], at `positions` [N]."""
    like = torch.empty(0, dtype=torch.float32, device=positions.device)
    cos, sin = causal_lm.plain(module).model.rotary_emb(like, position_ids=positions[None])
    return cos[0, :, None], sin[0, :, None]


def hidden(
    weights: Weights,
    ids: Tensor,
    cos: Tensor,
    sin: Tensor,
    attend: Attend,
    *,
    stream: torch.dtype | None = None,
    recompute: bool = False,
) -> Tensor:
    """Final normed hidden states [N, W] of packed `ids` [N]. `attend` mixes tokens; everything else is per token.

    `stream` is the dtype of the residual stream (None: of the embedding); the linear layers run in the dtype of their weights.
    `recompute` keeps no activations inside layers for the backward pass, but computes them again there.
    """
    h, k = weights.heads, weights.kv_heads
    x = F.embedding(ids, weights.embedding, weights.padding)
    x = x if stream is None else x.to(stream)
    fused = compiles(x.device, x.shape[-1])
    before: Callable[..., tuple[Tensor, Tensor]] = compiled(_before_attention) if fused else _before_attention
    after: Callable[..., Tensor] = compiled(_after_attention) if fused else _after_attention

    def block(layer: int, x: Tensor) -> Tensor:
        norm1, qkv, out, norm2, gate_up, down = weights.blocks[layer]
        if fused:
            any_length(x, cos, sin)
        qk, v = before(x, norm1, qkv, cos, sin, h + k, weights.eps, _dtype(qkv[0]) if fused else None)
        mixed = attend(layer, qk[:, :h], qk[:, h:], v).reshape(len(x), -1)
        if fused:
            any_length(x, mixed)
        return after(x, mixed, out, norm2, gate_up, down, weights.eps)

    for layer in range(len(weights.blocks)):
        x = checkpoint(block, layer, x, use_reentrant=False) if recompute else block(layer, x)
    return F.rms_norm(x, (x.shape[-1],), weights.norm.to(x.dtype), weights.eps)


def _before_attention(
    x: Tensor, norm: Tensor, qkv: tuple[Linear, ...], cos: Tensor, sin: Tensor, turned: int, eps: float, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """(queries and keys with their positions in them [N, turned, D], values [N, K, D]) of the stream x [N, W].

    Queries and keys are of `dtype`, or where it is None as they come: float32 when cos is.
    """
    half = cos.shape[-1] // 2
    y = F.rms_norm(x, (x.shape[-1],), norm.to(x.dtype), eps)
    y = _linear(y, qkv).unflatten(-1, (-1, 2 * half))
    a, b = y[:, :turned, :half], y[:, :turned, half:]
    cos, sin = cos[..., :half], sin[..., :half]  # the other half is the same
    qk = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return qk if dtype is None else qk.to(dtype), y[:, turned:]


def _after_attention(
    x: Tensor, mixed: Tensor, out: tuple[Linear, ...], norm: Tensor, gate_up: tuple[Linear, ...], down: tuple[Linear, ...], eps: float
) -> Tensor:
    """The stream [N, W] after what attention mixed [N, H*D] and the perceptron are added."""
    x = x + _linear(mixed, out).to(x.dtype)
    y = F.rms_norm(x, (x.shape[-1],), norm.to(x.dtype), eps)
    gate, up = _linear(y, gate_up).chunk(2, -1)
    return x + _linear(F.silu(gate) * up, down).to(x.dtype)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its elementwise passes fused into few kernels. The first call of a kind takes some seconds."""
    return torch.compile(function)


def compiles(device: torch.device, width: int) -> bool:
    """Whether layers of that width are compiled there."""
    return device.type == "cuda" and width >= COMPILE_FROM


def any_length(*packed: Tensor) -> None:
    """Say that N varies from call to call, so that a compiled function is not compiled again for it."""
    for x in packed:
        torch._dynamo.maybe_mark_dynamic(x, 0)


def _dtype(part: Linear) -> torch.dtype:
    return part.dtype if isinstance(part, Tensor) else part.weight.dtype


def _linear(x: Tensor, parts: tuple[Linear, ...]) -> Tensor:
    x = x.to(_dtype(parts[0]))
    return _times(x, parts[0]) if len(parts) == 1 else torch.cat([_times(x, part) for part in parts], -1)


def _times(x: Tensor, part: Linear) -> Tensor:
    if isinstance(part, Tensor):
        return F.linear(x, part)
    y, low = F.linear(x, part.weight), F.linear(x.to(part.down.dtype), part.down)
    if y.dtype == low.dtype:
        return torch.addmm(y, low, part.up.t(), alpha=part.scale)  # no pass over [N, out] for the scale, and none for the sum
    return y + (F.linear(low, part.up) * part.scale).to(y.dtype)


def causal(lengths: Sequence[int], dtype: torch.dtype | None = None) -> Attend:
    """Attention of packed sequences, each over itself; in `dtype` (None: that of the queries).

    Short sequences that are alike in length are attended to side by side, padded to the longest of them: one by one, calling costs more
    than computing. Of long ones no padding is computed.
    """
    sizes = list(lengths)
    together: Padded | None = None

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        nonlocal together
        kind = dtype or q.dtype
        q, k, v = q.to(kind), k.to(kind), v.to(kind)
        in_blocks = blocks(kind, q.device)
        if (in_blocks or q.is_cuda) and _alike(sizes, q.device):
            together = together or Padded(sizes, q.device)
            return together.causal_in_blocks(q, k, v) if in_blocks else together.causal(q, k, v)
        one = _block if in_blocks else _flash
        parts = [one(*part) for part in zip(q.split(sizes), k.split(sizes), v.split(sizes), strict=True)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    return attend


def _alike(lengths: Sequence[int], device: torch.device) -> bool:
    """Whether padding costs less than calls: on a GPU while half of it is real, on a CPU for short sequences of nearly one length."""
    longest, total = max(lengths, default=0), sum(lengths)
    if device.type == "cuda":
        return len(lengths) > 1 and longest * len(lengths) <= 2 * total
    return len(lengths) > 1 and longest <= BLOCK and longest * len(lengths) <= 1.25 * total


def blocks(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether attention in blocks beats torch's own: bfloat16 on a CPU, as measured."""
    return dtype == torch.bfloat16 and device.type == "cpu"


def computes_in_bfloat16(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 are faster than in float32: on GPUs, and on CPUs where they are found to be."""
    return device.type == "cuda" or (device.type == "cpu" and _faster_in_bfloat16())


@cache
def _faster_in_bfloat16() -> bool:
    """Whether this CPU multiplies faster in bfloat16, by a measurement of some milliseconds.

    Instructions for bfloat16 do not tell: an Intel Xeon with AVX512-BF16 and without AMX computes 84 GFLOP/s a core in bfloat16 and 155 in
    float32. Seconds of the thread, not of the clock, so that other processes do not decide; the ratios in use are far from 1.
    """
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    products = [(torch.ones(512, 256, dtype=dtype), torch.ones(256, 512, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        single, half = (min(_seconds(a, b) for _ in range(9)) for a, b in products)
    finally:
        torch.set_num_threads(threads)
    return half < single


def _seconds(a: Tensor, b: Tensor) -> float:
    start = time.thread_time()
    torch.mm(a, b)
    return time.thread_time() - start


def _block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return block_attention(q, k.transpose(0, 1), v.transpose(0, 1))


def _flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


def forward(module: Any, ids: Tensor, lengths: Sequence[int], *, dtype: torch.dtype | None = None) -> Tensor:
    """Hidden states [N, W] after the final norm, differentiable in the module's parameters; logits are `hidden @ module.lm_head.weight.T`.

    `ids` [N] holds sequences end to end, of `lengths` (they sum to N): [a0 a1 a2 b0 b1] with (3, 2). `dtype` is the dtype of linear
    layers and attention (see `computes_in_bfloat16`); the residual stream and the result keep the
    parameters' dtype. Adapters are applied beside the matrices that they adapt. A module in training whose gradient checkpointing is on
    keeps no activations inside layers.
    """
    positions = torch.cat([torch.arange(n, device=ids.device) for n in lengths])
    cos, sin = rotary(module, positions)
    recompute = module.training and torch.is_grad_enabled() and causal_lm.recomputes(module)
    return hidden(Weights(module, dtype=dtype), ids, cos, sin, causal(lengths, dtype), recompute=recompute)
