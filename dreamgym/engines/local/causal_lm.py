"""What every causal LM of transformers has, by the same names whatever its architecture and whether peft has wrapped it.

A causal LM is a body (ids to hidden states), a head (hidden states to raw logits), and sometimes a last step of its own (a scale, a soft
cap). The engine and the learner call the three apart, because most logits of a forward pass are never used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dreamgym.errors import ConfigError


def plain(model: Any) -> Any:
    """The transformers model inside a peft wrapper, its adapters in place; any other model as it is. Prompt tuning is refused."""
    if not hasattr(model, "get_base_model"):
        return model
    if any(config.is_prompt_learning for config in model.peft_config.values()):
        raise ConfigError("This adapter learns a prompt, which is no part of the layers. Use one that adapts layers, such as LoRA.")
    return model.get_base_model()


def body(model: Any) -> Any:
    """The decoder: ids to `last_hidden_state`."""
    return plain(model).base_model


def logits(model: Any, states: Tensor) -> Tensor:
    """Logits [..., V] of hidden `states` [..., W], as the model's own forward computes them."""
    causal = plain(model)
    config = causal.config.get_text_config()
    if config.model_type == "minicpm3":  # scales before its head; float rounding differs from a scale behind it
        return causal.get_output_embeddings()(states / config.logits_scaling)
    found = causal.get_output_embeddings()(states)
    scale = getattr(causal, "logit_scale", None) or getattr(config, "logit_scale", None)  # Cohere
    if scale is not None:
        found = found * scale
    divisor = getattr(config, "logits_scaling", None)  # Granite
    if divisor is not None:
        found = found / divisor
    factor = getattr(config, "lm_head_multiplier", None)  # Falcon-H1
    if factor is not None:
        found = found * factor
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    return found if cap is None else torch.tanh(found / cap) * cap


def verify(model: Any) -> None:
    """Compare `body` and `logits` with the model's own forward on four tokens. ConfigError for an architecture that does more."""
    device = next(model.parameters()).device
    ids = torch.arange(3, 7, device=device)[None]
    with torch.no_grad(), evaluating(model):
        expected = model(input_ids=ids, use_cache=False).logits
        found = logits(model, body(model)(input_ids=ids, use_cache=False).last_hidden_state)
    if not near(found, expected):
        raise ConfigError(
            f"{type(plain(model)).__name__} does more to its logits than a scale or a soft cap that dreamgym knows, so its probabilities "
            "would be wrong. Use another architecture, or teach dreamgym.engines.local.causal_lm.logits what it does."
        )


def near(found: Tensor, expected: Tensor, *, rough: bool = False) -> bool:
    """Whether two computations of the same logits differ by rounding only; `rough`: something in between was of half precision."""
    tolerance = (1e-3 if expected.dtype == torch.float32 and not rough else 0.05) * float(expected.abs().max()) + 1e-6
    return bool((found.float() - expected.float()).abs().max() <= tolerance)


def check_cacheable(model: Any) -> None:
    """ConfigError for an architecture whose attention the engine's cache cannot hold."""
    config = plain(model).config.get_text_config()
    name = type(plain(model)).__name__
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        raise ConfigError(
            f"{name} has layers of kind {', '.join(sorted(kinds))}; the engine keeps keys and values of attention layers only."
        )
    for option, what in (("attn_logit_softcapping", "caps its attention scores"), ("kv_lora_rank", "compresses its keys and values")):
        if getattr(config, option, None) is not None:
            raise ConfigError(f"{name} {what} ({option}), which the engine does not do. Use a dense model such as Llama, Qwen or Mistral.")


def window(model: Any) -> int | None:
    """How far back the model's sliding attention looks; None when every layer sees everything.

    Up to that length full attention is the same thing, and the engine goes no further.
    """
    config = plain(model).config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None)


def has_position_table(model: Any) -> bool:
    """Whether the model looks positions up, and has none beyond its last. Rotary ones go on, as well as they were trained to."""
    config = plain(model).config.get_text_config()
    return hasattr(config, "max_position_embeddings") and not getattr(config, "rope_parameters", None)


def rotary_limit(model: Any) -> int | None:
    """The positions up to which the model's rotary frequencies are the same for all; None where they always are.

    `longrope` and `dynamic` change them with the longest sequence of a batch, so that beyond this length the log-probs of one request would
    depend on its neighbours, and cached keys would be of other frequencies.
    """
    config = plain(model).config.get_text_config()
    found = getattr(config, "rope_parameters", None) or {}
    by_layer = [one for one in found.values() if isinstance(one, dict)] or [found]  # some architectures have several
    changing = [one for one in by_layer if one.get("rope_type") in ("longrope", "dynamic")]
    limits = [one.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None) for one in changing]
    return min((int(limit or config.max_position_embeddings) for limit in limits), default=None)


def recomputes(model: Any) -> bool:
    """Whether gradient checkpointing is on: activations of a layer are computed again in the backward pass instead of kept."""
    return any(getattr(module, "gradient_checkpointing", False) for module in body(model).modules())


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode for the length of a block, without touching a model that is in it already."""
    if not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
