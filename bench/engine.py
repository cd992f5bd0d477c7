"""Speed and correctness of the local engine, beside transformers, llama.cpp and TRL: same weights, same prompts, one run.

    python bench/engine.py [--json] [--full | --smoke] [--model 1m 4m]
    python bench/engine.py --model smollm2      # a pretrained one, after `dreamgym fetch smollm2`: four turns, the faster precision alone
    python bench/engine.py --model smollm2 --server vllm http://127.0.0.1:8000/v1       # and a server of the same weights

The workload is that of a dream: episodes in lockstep; in each turn a short action of the agent and a longer answer of the experience
model; prompts that grow to about 1,000 tokens; uneven lengths. Lengths are drawn once and are the same for all; sampling is greedy.
Every contender runs in a process of its own, with a peak memory of its own. Ratios above 1: dreamgym is faster. `cpu_ratio_vs_generate`
is the ratio of processor seconds, which other work on the machine distorts less. `ratio_vs_vllm_cpu` is that to the fastest server of
the dialect vllm, which is to run on the processors of this machine; null without one. Of a pretrained model the floor is not measured, and
training is that of adapters. Seconds of a server are of the clock: its processor time is its own.

`fraction_of_floor` is the time of bare forward passes over the same token positions (packed prompts, answers token by token at the best
batch size over a cache of the mean length, without sampling or bookkeeping), divided by the engine's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from common import options as cli
from common.isolation import isolated
from common.llama_cpp_peer import LlamaCpp
from common.served_peer import Served, first_model
from common.sft_speed import sft_training, trl_training
from transformers import StoppingCriteria, StoppingCriteriaList

from dreamgym.engines.local import llama
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.engines.local.runners import FastRunner
from dreamgym.llm import backbones, packaged, tiny
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.train.batch import pad
from dreamgym.train.forward import token_logprobs
from dreamgym.types import Request, Sampling

VOCABULARY = 2048
Answer = Callable[[str, list[list[int]], list[int]], list[list[int]]]
"""(who asks, prompts, how many tokens each) -> sampled ids"""


@dataclass(frozen=True)
class Workload:
    """Episodes as the dream makes them; every number is in tokens."""

    episodes: int
    turns: int
    task: int = 24
    memory: int = 20  # tokens of memory and markers that a turn adds to the model's prompt beside the action
    seed: int = 0
    actions: np.ndarray = field(init=False)
    answers: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        object.__setattr__(self, "actions", rng.integers(6, 19, (self.turns, self.episodes)))  # 12 on average
        object.__setattr__(self, "answers", rng.integers(60, 121, (self.turns, self.episodes)))

    @property
    def tokens(self) -> int:
        """Sampled tokens in all."""
        return int(self.actions.sum() + self.answers.sum())

    def play(self, answer: Answer) -> None:
        """One rollout in lockstep: in groups of 8 episodes share their task, as in training."""
        rng = np.random.default_rng(self.seed + 1)
        tasks = [rng.integers(10, VOCABULARY, self.task).tolist() for _ in range(-(-self.episodes // 8))]
        agent, model = ([list(tasks[i // 8]) for i in range(self.episodes)] for _ in range(2))
        for turn in range(self.turns):
            acts = answer("agent", agent, self.actions[turn].tolist())
            for prompt, act in zip(model, acts, strict=True):
                prompt += act + rng.integers(10, VOCABULARY, self.memory).tolist()
            worlds = answer("model", model, self.answers[turn].tolist())
            for i, (act, world) in enumerate(zip(acts, worlds, strict=True)):
                agent[i] += act + world[-40:]
                model[i] += world


def parts_of(size: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The model of that size, or packaged model, and its tokenizer."""
    if size in packaged.PACKAGES:
        name: Any = str(dtype).removeprefix("torch.")
        return backbones.load(BackboneConfig(model=size, device="cpu", dtype=name))
    return model_of(size, dtype), tokenizer()


def tokenizer() -> Any:
    """A tokenizer with exactly VOCABULARY ids; the benchmark never looks at text."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 5)) for _ in range(4000)]
    return tiny.train_tokenizer([" ".join(words)] * 2, vocab_size=VOCABULARY)


def model_of(size: str, dtype: torch.dtype = torch.float32) -> Any:
    model: Any = tiny.build(tokenizer(), size, seed=0)
    return model.to(dtype).eval()


def adapted(size: str) -> Any:
    """The packaged model with fresh adapters, as a policy has them."""
    return backbones.load(BackboneConfig(model=size, device="cpu", dtype="float32", lora=LoraConfig(rank=16)))[0]


def faster_precision() -> dict[str, str]:
    """Of this processor, found by trying: in a process of its own, because threads of torch do not survive a fork."""
    return {"dtype": "bfloat16" if llama.computes_in_bfloat16(torch.device("cpu")) else "float32"}


def ours(size: str, work: Workload, dtype: str | None) -> dict[str, float]:
    """The engine, with a session for each episode and side."""
    model, words = parts_of(size)
    sides = {side: LocalEngine(model, words, dtype=dtype) for side in ("agent", "model")}

    def answer(side: str, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        asked = [Request(p, Sampling(n, temperature=0.0), session=str(i)) for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))]
        return [list(c.ids) for c in sides[side].generate(asked)]

    def rollout() -> None:
        for engine in sides.values():
            engine.refresh()
        work.play(answer)

    return timed(rollout, work.tokens, warm=size not in packaged.PACKAGES)


class _Lengths(StoppingCriteria):
    """Each row of a batch stops at its own length."""

    def __init__(self, start: int, lengths: Sequence[int]) -> None:
        self.ends = torch.tensor(lengths) + start

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self.ends


def generate_batch(model: Any, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
    """transformers.generate on one left-padded batch."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        ids, attention_mask=mask, max_new_tokens=max(lengths), do_sample=False, pad_token_id=0, eos_token_id=None,
        stopping_criteria=StoppingCriteriaList([_Lengths(width, lengths)]),
    )  # fmt: skip
    return [row[width : width + n].tolist() for row, n in zip(out, lengths, strict=True)]


def transformers_generate(size: str, work: Workload, dtype: str) -> dict[str, float]:
    """The simplest implementation: turn by turn, every prompt from its beginning."""
    model, _ = parts_of(size, getattr(torch, dtype))
    return timed(lambda: work.play(lambda _, prompts, lengths: generate_batch(model, prompts, lengths)), work.tokens, warm=False)


def llama_cpp(size: str, work: Workload) -> dict[str, float]:
    """llama.cpp through its Python binding: one sequence slot per episode and side, caches kept, batched decoding."""
    peer = LlamaCpp(parts_of(size)[0], sequences=work.episodes)
    return timed(lambda: work.play(peer.answer), work.tokens, warm=size not in packaged.PACKAGES, before=peer.clear)


def served(size: str, work: Workload, dialect: str, url: str) -> dict[str, Any]:
    """A server of the same weights, which was started by hand; and how far its log-probabilities are from the learner's."""
    model, words = parts_of(size)
    with Served(dialect, url, module=model, tokenizer=words, concurrency=work.episodes) as peer:
        rng = np.random.default_rng(4)
        prompts = [rng.integers(10, VOCABULARY, int(n)).tolist() for n in rng.integers(5, 100, 32)]
        return timed(lambda: work.play(peer.answer), work.tokens, warm=False) | {"logprob_gaps": peer.logprob_gaps(prompts, 24)}


def floor(size: str, work: Workload, dtype: str | None) -> dict[str, float]:
    """Bare forward passes over the positions of the workload: packed prompts, then tokens one by one over a cache of the mean length.

    Each is timed in its fastest form: compiled or torch's, at the best batch size.
    """
    model, words = model_of(size), tokenizer()
    seen = prefilled = 0
    covered: dict[tuple[str, int], int] = {}  # tokens of each prompt that a kept cache holds

    def count(side: str, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        nonlocal seen, prefilled
        for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True)):
            prefilled += len(prompt) - covered.get((side, i), 0)
            seen += (len(prompt) + n // 2) * n
            covered[side, i] = len(prompt) + n - 1
        return [[10] * n for n in lengths]

    def prefill_batch(runner: Any) -> list[Any]:
        return list(runner.prefill(range(32), [np.full(128, 10)] * 32, [0] * 32))

    work.play(count)
    mean_length, packed = seen // work.tokens, torch.randint(10, VOCABULARY, (4096,))
    kind = None if dtype is None else getattr(torch, dtype)
    with torch.inference_mode():
        ways = [(best(lambda: llama.forward(model, packed, [128] * 32, dtype=kind)), float("inf"), 0)]
        for compiled in (True, False):
            engine = LocalEngine(model, words, dtype=dtype)
            if not compiled and isinstance(engine.runner, FastRunner):
                engine.runner.decoder = None
            engine.kv_cache.assign_rows(0, range(256), max(mean_length + 1, 128))
            prefill = best(partial(prefill_batch, engine.runner))
            per_position = {}
            for batch in (32, 64, 128, 256):
                ids, at = np.full((batch, 1), 10), np.full((batch, 1), mean_length)
                per_position[batch] = best(partial(engine.runner.decode, ids, at)) / batch
            ways.append((prefill, *min((seconds, batch) for batch, seconds in per_position.items())))
    prefill, (per_token, fastest) = min(way[0] for way in ways), min(way[1:] for way in ways)
    seconds = prefilled * prefill / 4096 + work.tokens * per_token
    return {"seconds": seconds, "tokens_per_s": work.tokens / seconds, "best_batch": fastest, "mean_length": mean_length}


def correctness(size: str) -> dict[str, Any]:
    """Greedy tokens against transformers.generate in float32, and log-probabilities against the learner's forward."""
    model, words = parts_of(size)
    rng = np.random.default_rng(3)
    longest, answer = (100, 30) if size in packaged.PACKAGES else (400, 80)
    prompts = [rng.integers(10, VOCABULARY, int(n)).tolist() for n in rng.integers(5, longest, 32)]
    lengths = rng.integers(20, answer, 32).tolist()
    asked = [Request(p, Sampling(n, temperature=0.0)) for p, n in zip(prompts, lengths, strict=True)]
    found = LocalEngine(model, words).generate(asked)
    reference = generate_batch(model, prompts, lengths)
    near_ties = differing = 0
    for ours_, theirs in zip(found, reference, strict=True):
        if list(ours_.ids) != theirs:
            at = next(k for k, (a, b) in enumerate(zip(ours_.ids, theirs, strict=True)) if a != b)
            with torch.inference_mode():
                top = model(torch.tensor([[*ours_.prompt_ids, *ours_.ids[:at]]])).logits[0, -1].topk(2).values
            near_ties, differing = (near_ties + 1, differing) if float(top[0] - top[1]) < 1e-3 else (near_ties, differing + 1)
    error = 0.0
    sampled = LocalEngine(model, words).generate(
        [Request(p, Sampling(n), (i,)) for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))]
    )
    for one in sampled:
        ids = [*one.prompt_ids, *one.ids]
        with torch.inference_mode():
            scores, _ = token_logprobs(model, pad([ids], [[0.0] * len(one.prompt_ids) + [1.0] * len(one.ids)], [0]))
        error = max(error, float((scores - torch.tensor(one.logprobs)).abs().max()))
    return {"greedy_identical": differing == 0, "near_ties": near_ties, "sequences": 32, "max_logprob_error": error}


def timed(run: Callable[[], None], tokens: int, *, warm: bool = True, before: Callable[[], None] = lambda: None) -> dict[str, float]:
    """Seconds of the faster of two runs; of one run without `warm`, for slow contenders."""
    seconds, processor = [], []
    for _ in range(2 if warm else 1):
        before()
        start, used = time.perf_counter(), time.process_time()
        run()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - used)
    return {"seconds": min(seconds), "tokens_per_s": tokens / min(seconds), "cpu_seconds": min(processor)}


def best(run: Callable[[], Any], repeats: int = 7) -> float:
    """Seconds: the minimum of `repeats` runs after a warm-up run."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def measure(size: str, work: Workload, training: dict[str, int], servers: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Everything about one model."""
    pretrained = size in packaged.PACKAGES
    fast = isolated(faster_precision)["dtype"]
    kinds = (fast,) if pretrained else ("float32", "bfloat16")
    engine = {dtype: isolated(ours, size, work, dtype) for dtype in kinds}
    peer = {dtype: isolated(transformers_generate, size, work, dtype) for dtype in kinds}
    native, right = isolated(llama_cpp, size, work), isolated(correctness, size)
    asked = {f"{dialect} {url}": isolated(served, size, work, dialect, url) for dialect, url in servers}
    bare = {} if pretrained else {dtype: isolated(floor, size, work, dtype) for dtype in kinds}
    fitted, words = (adapted, backbones.load_tokenizer(BackboneConfig(model=size))) if pretrained else (model_of, tokenizer())
    bf16 = fast == "bfloat16" or not pretrained
    fit = isolated(sft_training, fitted, size, training, bf16)
    trl = isolated(trl_training, fitted, words, size, training, bf16)
    fastest = max(engine, key=lambda dtype: engine[dtype]["tokens_per_s"])
    mine, theirs = engine[fastest]["seconds"], min(one["seconds"] for one in peer.values())
    return {
        "model": size,
        "dtype": fastest,
        "episodes": work.episodes,
        "turns": work.turns,
        "tokens_per_s": engine[fastest]["tokens_per_s"],
        "ratio_vs_generate": theirs / mine,
        "cpu_ratio_vs_generate": min(one["cpu_seconds"] for one in peer.values()) / engine[fastest]["cpu_seconds"],
        "ratio_vs_llama_cpp": native["seconds"] / mine if "seconds" in native else None,
        "ratio_vs_vllm_cpu": seconds / mine if (seconds := seconds_of(asked, "vllm")) else None,
        "fraction_of_floor": min(one["seconds"] for one in bare.values()) / mine if bare else None,
        **{key: right[key] for key in ("greedy_identical", "near_ties", "sequences", "max_logprob_error")},
        "train_ratio_vs_trl": fit["tokens_per_s"] / trl["tokens_per_s"] if "tokens_per_s" in trl else None,
        "engine": engine,
        "generate": peer,
        "floor": bare,
        "llama_cpp": native,
        "servers": asked,
        "training": {"ours": fit, "trl": trl},
    }


def seconds_of(servers: dict[str, dict[str, Any]], dialect: str) -> float | None:
    """Of the fastest server of that dialect; None where none was measured."""
    return min((row["seconds"] for name, row in servers.items() if name.split()[0] == dialect and "seconds" in row), default=None)


def main() -> None:
    parser = cli.parser(__doc__, full="64 episodes of 8 turns, the 1m and the 4m model", smoke="2 episodes of 2 turns, the 100k model")
    parser.add_argument("--model", "--models", dest="models", nargs="*", help="sizes or packaged models (default: 1m; with --full: 1m 4m)")
    parser.add_argument("--server", nargs=2, action="append", default=[], metavar=("DIALECT", "URL"), help="a running server of the model")
    options = parser.parse_args()
    work = Workload(64, 8) if options.full else Workload(2, 2) if options.smoke else Workload(32, 3)
    rows, length = (512, 700) if options.full else (24, 400) if options.smoke else (96, 400)
    sizes = options.models or (["1m", "4m"] if options.full else ["100k"] if options.smoke else ["1m"])
    for size in sizes:
        if size in packaged.PACKAGES:
            packaged.find(size)  # before anything is measured
    for _, url in options.server:
        first_model(url)
    training = {"rows": rows, "length": length}
    found = [measure(size, Workload(32, 4) if size in packaged.PACKAGES else work, training, options.server) for size in sizes]
    for one in found:
        show(one)
    cli.finish(options, found[0] | {"threads": torch.get_num_threads(), "models": found})


def show(one: dict[str, Any]) -> None:
    """The table for a person."""
    print(f"{one['model']}: {one['episodes']} episodes of {one['turns']} turns, {torch.get_num_threads()} threads")
    for name in ("engine", "generate", "floor"):
        for dtype, row in one[name].items():
            print(f"  {name:<10} {dtype:<9} {row['tokens_per_s']:>9,.0f} tokens/s  {row['seconds']:7.2f} s  {row['peak_mb']:7.0f} MB")
    for name, row in (
        ("llama.cpp", one["llama_cpp"]),
        *one["servers"].items(),
        ("train", one["training"]["ours"]),
        ("TRL", one["training"]["trl"]),
    ):
        text = row.get("missing") or f"{row['tokens_per_s']:>9,.0f} tokens/s  {row['seconds']:7.2f} s  {row['peak_mb']:7.0f} MB"
        gaps = "".join(f"  {quantile} {value:.2g}" for quantile, value in row.get("logprob_gaps", {}).items())
        print(f"  {name:<20} {text}{gaps and '  log-probabilities differ by' + gaps}")
    keys = ("ratio_vs_generate", "cpu_ratio_vs_generate", "ratio_vs_llama_cpp", "ratio_vs_vllm_cpu", "fraction_of_floor",
            "greedy_identical", "near_ties", "max_logprob_error", "train_ratio_vs_trl")  # fmt: skip
    print("  " + "  ".join(f"{key}={one[key]:.3g}" if isinstance(one[key], float) else f"{key}={one[key]}" for key in keys))


if __name__ == "__main__":
    main()
