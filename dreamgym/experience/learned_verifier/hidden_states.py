"""A claim of success as a pretrained model reads it: the mean hidden state over a text of the instruction, the steps and the question.

    Task: a red mug / the first state / > click[b7] / what it showed / ... / The agent ends here ... Is that true? Verdict:

The model is the experience model's backbone as it came, or another: its weights are frozen, and are in memory once with those that have
adapters over the same ones (`llm.backbones`). A claim takes one forward pass, and nothing is generated. Claims are read one by one, so that
the hidden state of one is the same whatever others it is read with, and those of one text are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from dreamgym.errors import ConfigError, UsageError
from dreamgym.experience.learned_verifier.features import ALWAYS, DIM, HASHED, Claim, Reader, SparseRows, new_lines, rows_of
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.runs.files import without_lone_surrogates
from dreamgym.types import Transition

Features = Literal["hashed", "backbone", "both"]
"""The features of claims: hashed words, the hidden states of the backbone, or both."""
STEPS = 12  # the last ones are shown
LETTERS = 400  # of what a step showed, from its beginning and its end
TOKENS = 2048  # of a text
KEPT = 20_000  # hidden states in memory, of some kilobytes each
QUESTION = "The agent ends here and claims that the task is done. Is that true? Verdict:"


def require_backbone(features: Features, backbone: BackboneConfig | None) -> None:
    """UsageError for features of a backbone in a run without one."""
    if features != "hashed" and backbone is None:
        raise UsageError(
            f"experience.verifier.features = '{features}' reads claims with a pretrained model, and neither experience.backbone nor "
            "experience.verifier.backbone names one. Set one of them, such as {model = 'smollm2'}, or leave out `features`: hashed words "
            "need no model."
        )


def reader(features: Features, backbone: BackboneConfig | None, kept: dict[Any, Any]) -> Reader:
    """The features of that kind, made once for all who share `kept`. UsageError without the backbone that it needs, and what
    `backbones.load` raises."""
    require_backbone(features, backbone)
    if features == "hashed" or backbone is None:
        return rows_of
    key = ("reader of claims", features, backbone.model_dump_json())
    if key not in kept:
        states = _hidden_states(backbone)
        others = rows_of if features == "both" else _always
        kept[key] = lambda claims: others(claims).beside(states(claims))
    shared_reader: Reader = kept[key]
    return shared_reader


def text_of(instruction: str, steps: Sequence[Transition]) -> str:
    """The text of a claim. `steps` is not empty; its last one is the claimed end."""
    steps = steps[max(0, len(steps) - STEPS) :]
    step_texts = [part for step in steps for part in (f"> {step.action}", _cut("\n".join(new_lines(step))))]
    return "\n".join([f"Task: {instruction}", _cut(steps[0].state.text), *step_texts, QUESTION])


def _cut(text: str) -> str:
    half = LETTERS // 2
    return text if len(text) <= LETTERS else f"{text[:half]} ... {text[-half:]}"


def _always(claims: Sequence[Claim]) -> SparseRows:
    """The one feature that all claims have."""
    n = len(claims)
    return SparseRows(n, np.arange(n), np.full(n, ALWAYS), np.ones(n))


def _hidden_states(backbone: BackboneConfig) -> Reader:
    """Rows of hidden states, in columns from `HASHED` on. ConfigError for a model with more of them than there are columns."""
    import torch  # which settings do without

    from dreamgym.engines.local import causal_lm
    from dreamgym.llm import backbones

    model, tokenizer = backbones.load(backbone.model_copy(update={"lora": None, "markers": False}), frozen=True)
    width, limit = model.config.get_text_config().hidden_size, min(TOKENS, backbones.positions(backbone))
    if width > DIM - HASHED:
        raise ConfigError(f"'{backbone.model}' has hidden states of {width:,} numbers: a verifier reads at most {DIM - HASHED:,}.")

    @lru_cache(maxsize=KEPT)
    def state(text: str) -> np.ndarray:
        """The mean hidden state of a text, float32 [width]."""
        ids = tokenizer.encode(without_lone_surrogates(text), split_special_tokens=True)  # a marker that a policy writes stays text
        if len(ids) > limit:
            ids = [*ids[: limit // 4], *ids[len(ids) - (limit - limit // 4) :]]  # the instruction, and the end
        with torch.inference_mode():
            output = causal_lm.body(model)(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
            # the mean judges better than the last token's in the shop (docs/lab/log.md, 2026-11-28)
            return np.asarray(output.last_hidden_state[0].float().mean(0).cpu())

    def read(claims: Sequence[Claim]) -> SparseRows:
        n, columns = len(claims), np.arange(HASHED, HASHED + width)
        values = np.array([state(text_of(claim.instruction, claim.steps)) for claim in claims], np.float64)
        return SparseRows(n, np.repeat(np.arange(n), width), np.tile(columns, n), values.reshape(-1))

    return read
