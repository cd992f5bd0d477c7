"""How many tokens a second this machine trains, reads and samples with a model, measured in seconds.

A deep model is not loaded. Models of the same shape with random weights and few layers are measured at two depths, and the time of the
whole is extrapolated: what another layer adds, times the layers that are left. Speed does not depend on what the weights say.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.train.settings import SFTConfig

CPU_TOKENS = 512
"""Tokens of a training step or of prompts that a CPU is measured with; it is not faster with more."""
DECODED = 4
"""Tokens that every row samples."""
STEPS, ENOUGH_S = 3, 1.0
"""Training steps that are timed at most, after one that is not, and the seconds after which they are enough."""


@dataclass(frozen=True)
class Rates:
    """What a model does in a second on this machine."""

    fitted_per_s: float
    """Tokens trained on, in a step of a supervised fit."""
    prompt_per_s: float
    """Tokens of prompts that the engine reads. Infinite where they are counted with those that it samples."""
    sampled_per_s: float
    """Tokens that the engine samples, all rows of its batch together."""


@dataclass(frozen=True)
class Workload:
    """What a model is measured with, as its run has it."""

    row: tuple[Sequence[int], Sequence[float]]
    """An average row of training: ids, and their weights."""
    training: SFTConfig
    engine: Mapping[str, Any]
    """Settings of the engine `local`."""
    at_once: int
    """Episodes that are played at once."""
    full_precision: bool
    """Whether the engine computes at the model's own precision."""


def of_backbone(config: BackboneConfig, load: Workload) -> tuple[Rates, str]:
    """(the rates of a pretrained model, how they were extrapolated). Raises what `backbones.excerpt` and the engine raise."""
    from dreamgym.engines.local import causal_lm
    from dreamgym.llm import backbones

    outline = backbones.outline(config)
    shape = causal_lm.plain(outline).config.get_text_config()
    layers = int(shape.num_hidden_layers)
    head = sum(p.numel() for p in outline.get_input_embeddings().parameters())
    whole = sum(p.numel() for p in outline.parameters())
    # as many layers as weigh what embeddings and head do: fewer would be lost in the time of the head
    deep = min(layers, 1 + max(1, math.ceil(head * layers / max(1, whole - head))))
    depths = (1, deep) if 1 < deep < layers else (layers,)
    rows = _rows_at_once(outline, load)
    measured = measure_rates([partial(backbones.excerpt, config, n) for n in depths], load, rows)
    if len(depths) == 1:
        return measured[0], f"'{config.model}' measured with random weights"
    return extrapolate(measured[0], measured[1], deep - 1, layers - 1), (
        f"'{config.model}' extrapolated to {layers} layers from 1 and {deep} with random weights"
    )


def measure_small_model(build: Callable[[], tuple[Any, Any]], load: Workload) -> Rates:
    """The rates of a model that is small enough to be measured whole."""
    return measure_rates([build], load, load.at_once)[0]


def extrapolate(shallow: Rates, deep: Rates, added: int, wanted: int) -> Rates:
    """The rates of a model with `wanted` layers more than the shallow one, of which the deep one has `added`."""

    def rate(first: float, second: float) -> float:
        least = 0.1 / second  # a layer takes time, whatever the clock of a busy machine says
        return 1.0 / (1.0 / first + wanted * max(least, 1.0 / second - 1.0 / first) / added)

    names = ("fitted_per_s", "prompt_per_s", "sampled_per_s")
    return Rates(*(rate(getattr(shallow, name), getattr(deep, name)) for name in names))


def measure_rates(builds: Sequence[Callable[[], tuple[Any, Any]]], load: Workload, rows: int) -> list[Rates]:
    """The rates of every (model, tokenizer) that is built, one after the other, with `rows` rows in the engine's batch."""
    from dreamgym.engines import build_engine

    rates = []
    for build in builds:
        model, tokenizer = build()
        on_cpu = next(model.parameters()).device.type == "cpu"
        fitted = _fitted_per_s(model, load, CPU_TOKENS if on_cpu else load.training.batch_tokens)
        engine = build_engine(load.engine, model=model, tokenizer=tokenizer, full_precision=load.full_precision)
        fits = load.row[0][: max(1, engine.max_context - DECODED - 2)]  # where rollouts are cut too
        read, sampled = _engine_per_s(engine, fits, rows, CPU_TOKENS if on_cpu else 16 * CPU_TOKENS)
        rates.append(Rates(fitted, read, sampled))
        del model, engine
    return rates


def _fitted_per_s(model: Any, load: Workload, most: int) -> float:
    """Tokens a second of a training step of equal rows, which holds at most about `most` tokens and no more than the run's."""
    from dreamgym.train import sft

    ids, weights = load.row
    n = max(1, min(most, load.training.batch_tokens) // len(ids))
    begun: list[float] = []

    def watch(step: int, done: float, losses: dict[str, float]) -> bool:
        begun.append(time.monotonic())
        return len(begun) > STEPS or begun[-1] - begun[0] > ENOUGH_S

    settings = load.training.model_copy(update={"epochs": 1e3, "max_seconds": None, "batch_tokens": n * len(ids)})
    sft.train(model, [ids] * n, [weights] * n, settings, on_step=watch)
    return (len(begun) - 1) * n * len(ids) / max(1e-9, begun[-1] - begun[0])


def _engine_per_s(engine: Any, row: Sequence[int], rows: int, most: int) -> tuple[float, float]:
    """(prompt tokens a second, sampled tokens a second) of an engine, the latter in the middle of an average row."""
    from dreamgym.types import Request, Sampling

    def seconds(prompts: Sequence[Sequence[int]], sampled: int) -> float:
        start = time.monotonic()
        engine.generate([Request(prompt, Sampling(sampled), (i,)) for i, prompt in enumerate(prompts)])
        return max(1e-9, time.monotonic() - start)

    half = list(row[: max(1, len(row) // 2)])
    whole = list(row[: max(1, len(row) - DECODED)])
    # beginnings differ, so that nothing is copied from one prompt to another
    several = [[*whole[i:], *whole[:i]] for i in range(max(1, min(rows, len(whole), most // len(whole))))]
    seconds([half], 1)  # matrices are merged with their adapters once for a version
    read = sum(map(len, several)) / seconds(several, 1)
    alike = [half] * rows  # computed once and copied
    before = seconds(alike, 1)
    after = seconds(alike, 1 + DECODED)
    return read, rows * DECODED / max(0.1 * after, after - before)


def bytes_of_token(outline: Any, engine: Mapping[str, Any]) -> tuple[int, int]:
    """(bytes that the keys and values of a token take in the engine `local`, its budget of them)."""
    from dreamgym.engines.local import causal_lm
    from dreamgym.engines.local.config import LocalConfig
    from dreamgym.engines.local.engine import plan

    settings = LocalConfig.model_validate({key: value for key, value in engine.items() if key != "name"})
    shape = causal_lm.plain(outline).config.get_text_config()
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    size = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    return 2 * shape.num_hidden_layers * heads * size * plan(outline, settings).cache_dtype.itemsize, settings.cache_bytes


def _rows_at_once(outline: Any, load: Workload) -> int:
    """Rows that the engine of the whole model decodes together."""
    a_token, budget = bytes_of_token(outline, load.engine)
    most = int(load.engine.get("max_batch", load.at_once))
    return max(1, min(load.at_once, most, budget // (a_token * len(load.row[0]))))
