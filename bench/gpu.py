"""Generation and training on a GPU: tokens per second and model FLOP utilisation, beside transformers.

    python bench/gpu.py [--json] [--full | --smoke] [--shapes 60m 3b 8b] [--device cuda]

Weights are random, in bfloat16. Generation: 64 prompts of 512 tokens, 128 new tokens each, greedy, beside `transformers.generate`.
Training: full weights, AdamW, eight rows of 1,024 tokens per step, beside the same step through the forward and loss of transformers; the
8B shape recomputes activations in both. FLOPs are 2 (generation) or 6 (training) per parameter and token, plus 4 (or 12) * layers * width
* context for attention; utilisation divides by the card's dense bfloat16 peak. A decoding pass is bound by memory: `pass_of_floor` is the
time that its bytes (weights once, keys and values once) take at the card's bandwidth, over the measured time. Both are null for a card
that is not in the table. `--smoke` runs a tiny shape on the CPU.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import options as cli
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.llm.backbones import recompute
from dreamgym.train.batch import pad
from dreamgym.train.forward import token_logprobs
from dreamgym.types import Request, Sampling

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "vocab_size": 512},
    "60m": {"hidden_size": 640, "intermediate_size": 1792, "num_hidden_layers": 12, "num_attention_heads": 10, "num_key_value_heads": 2,
            "vocab_size": 2048},
    "3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8,
           "vocab_size": 128256},  # Llama-3.2-3B
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "vocab_size": 128256},  # Llama-3.1-8B
}  # fmt: skip
PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "RTX 4090": 165.0, "B200": 2250.0}
"""Dense bfloat16 peak by a part of the card's name, from the makers' data sheets."""
PEAK_GBYTES = {"H200": 4800.0, "H100": 3350.0, "A100": 2039.0, "L40S": 864.0, "RTX 4090": 1008.0, "B200": 8000.0}
"""Memory bandwidth a second, likewise (the 80 GB models)."""
PROMPTS, PROMPT, NEW = 64, 512, 128
ROW, ROWS = 1024, 8


def build(shape: str, device: str) -> Any:
    """A random Llama of that shape, in bfloat16, made on the device."""
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=4096, tie_word_embeddings=shape != "8b", pad_token_id=0)
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            return LlamaForCausalLM(config).eval()
        finally:
            torch.set_default_dtype(before)


def generation(model: Any, device: str) -> dict[str, float]:
    """Tokens sampled per second by the engine and by transformers.generate."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(10, model.config.vocab_size, PROMPT).tolist() for _ in range(PROMPTS)]
    engine = LocalEngine(model, None, cache_bytes=40_000_000_000)
    engine.decode = lambda ids: ""  # type: ignore[method-assign]  # no tokenizer: text is not measured

    def theirs() -> None:
        ids = torch.tensor(prompts, device=device)
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)

    def ours(tokens: int = NEW) -> None:
        engine.generate([Request(prompt, Sampling(tokens, temperature=0.0)) for prompt in prompts])

    mine, first, peer = seconds(ours, device), seconds(lambda: ours(1), device), seconds(theirs, device)
    tokens = PROMPTS * NEW
    work = flops(model, PROMPTS * (PROMPT + NEW), (PROMPT + NEW) // 2, per=2)
    found = {"generate_tokens_per_s": tokens / mine, "ratio_vs_generate": peer / mine, "generate_flops_per_s": work / mine}
    found |= {"pass_ms": 1000 * (mine - first) / (NEW - 1), "prompts_tokens_per_s": PROMPTS * PROMPT / first}
    kv_cache = engine.kv_cache
    kept = 2 * kv_cache.layers * kv_cache.kv_heads * kv_cache.head_dim * kv_cache.dtype.itemsize * PROMPTS * (PROMPT + NEW / 2)
    return found | {"pass_bytes": kept + sum(p.numel() * p.element_size() for p in model.parameters())}


def training(model: Any, device: str) -> dict[str, float]:
    """Tokens trained per second: forward, backward and AdamW on all weights: by the learner's forward, and by transformers'."""
    model.train()
    if model.config.hidden_size > 4000:
        recompute(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device != "cpu")
    rng = np.random.default_rng(1)
    rows = [rng.integers(10, model.config.vocab_size, ROW).tolist() for _ in range(ROWS)]
    batch = pad(rows, [[1.0] * ROW for _ in rows], range(ROWS)).to(torch.device(device))

    def step(loss: Callable[[], torch.Tensor]) -> None:
        loss().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    took = seconds(lambda: step(lambda: -token_logprobs(model, batch, bf16=True)[0].mean()), device)
    peer = seconds(lambda: step(lambda: model(input_ids=batch.ids, labels=batch.ids, use_cache=False).loss), device)
    work = flops(model, ROWS * ROW, ROW // 2, per=6)
    return {"train_tokens_per_s": ROWS * ROW / took, "train_ratio_vs_transformers": peer / took, "train_flops_per_s": work / took}


def flops(model: Any, tokens: int, context: int, *, per: int) -> float:
    """Floating-point operations for `tokens` that see `context` tokens on average; `per` is 2 forward, 6 with the backward pass."""
    config = model.config
    embedding = config.vocab_size * config.hidden_size
    parameters = sum(p.numel() for p in model.parameters()) - (0 if config.tie_word_embeddings else embedding)
    return float(tokens) * (per * parameters + 2 * per * config.num_hidden_layers * config.hidden_size * context)


def seconds(run: Callable[[], None], device: str, repeats: int = 3) -> float:
    """The minimum of three runs after a warm-up run."""
    found = []
    for _ in range(repeats + 1):
        synchronise(device)
        start = time.perf_counter()
        run()
        synchronise(device)
        found.append(time.perf_counter() - start)
    return min(found[1:])


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure(shape: str, device: str) -> dict[str, Any]:
    """Both halves for one shape, with peak memory."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    model = build(shape, device)
    found: dict[str, Any] = generation(model, device) | training(model, device)
    card = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    peak = next((tflops for name, tflops in PEAK_TFLOPS.items() if name in card), None)
    for half in ("generate", "train"):
        rate = found.pop(f"{half}_flops_per_s")
        found[f"{half}_tflops"] = rate / 1e12
        found[f"{half}_mfu"] = rate / 1e12 / peak if peak else None
    bandwidth = next((rate for name, rate in PEAK_GBYTES.items() if name in card), None)
    floor = found.pop("pass_bytes")
    found["pass_of_floor"] = floor / (bandwidth * 1e9) / (found["pass_ms"] / 1000) if bandwidth else None
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.startswith("cuda") else None
    del model
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    return {"shape": shape, "device": card, "mfu": found["train_mfu"], "peak_gib": memory, **found}


def main() -> None:
    parser = cli.parser(__doc__, full="every shape: 60m, 3b and 8b", smoke="a tiny shape on the CPU, few and short rows")
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), help="shapes to measure (default: 60m; with --full: 60m 3b 8b)")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    shapes = options.shapes or (["60m", "3b", "8b"] if options.full else ["60m"])
    if options.smoke:
        global PROMPTS, PROMPT, NEW, ROW, ROWS
        PROMPTS, PROMPT, NEW, ROW, ROWS = 2, 16, 4, 32, 1
        shapes, options.device = ["tiny"], "cpu"
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("No CUDA device: nothing to measure. --smoke tests the program on the CPU.")
        return cli.finish(options, {"skipped": "no CUDA device", "shapes": []})
    found = [measure(shape, options.device) for shape in shapes]
    for one in found:
        print("  ".join(f"{name} {value:,.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in one.items()))
    cli.finish(options, {"torch": torch.__version__, "shapes": found})


if __name__ == "__main__":
    main()
