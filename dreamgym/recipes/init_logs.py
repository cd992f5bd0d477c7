"""A configuration of `dreamgym train` made from recorded episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.recipes.blocks import RLConfig
from dreamgym.recipes.log_survey import LogAccount, suite_options

ITERATIONS = 12
ITERATION = 200_000  # tokens of an iteration's rollouts, of which a CPU dreams some thousands a second
MOST_TASKS = 24  # of an iteration
IMITATION = 7_500_000  # tokens that the warm start is shown, in more epochs where successes are few; with a third it is not converged
EPOCHS = (3, 36)  # of the warm start, at least and at most
CALL = 24  # tokens that the tool format of a chat template puts around a call, at most
LARGE = 1_000_000_000  # parameters of a backbone from which it is loaded in bfloat16 and steps of RL are a tenth as large
NEAR = 'algorithm = {name = "grpo", kl_coef = 0.1}  # near the policy of the logs, for which the verifier is calibrated'
FIT = 6_400_000  # tokens that the experience model is shown, in more epochs where there are few episodes
EXPERIENCE_EPOCHS = (4, 16)  # at least and at most
LEAST_FIT = (
    1_200_000  # tokens that the experience model is shown, whatever the epochs: with half as many it had 49 % of states right, not 59
)
HIDDEN = (
    "k = 0  # a memory of another task shows what is not so in this one",
    "temperature = 1.0  # what a call shows for the first time is drawn",
    'draw = "hidden"',
    "top_p = 0.95",
    "redraws = 3  # of drawn answers that cannot be read",
)
LEAST = 600_000  # tokens that the warm start is shown, whatever the epochs: some forty optimiser steps, below which it learns nothing
VALIDATED = "validation_share = 0.15  # of the tasks; they say which kinds of actions the nearest memory answers instead of the model"
VALIDATING = 20  # tasks from which on some are held out for that
RULES_OF_TOOLS = 'rules = "induced"  # the schemas of the tools, and what logs show; the run lists it in rules.toml for you to correct'


def settings(files: Sequence[Path], account: LogAccount, *, size: str = "1m", backbone: BackboneConfig | None = None) -> str:
    """The TOML of `dreamgym train`: for a model of `size` from scratch, or for `backbone`, which acts and dreams with adapters."""
    options = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in suite_options(account.env, files).items()]
    fits = account.episode_tokens <= account.context
    history = account.longest if fits else max(1, account.context * account.longest // account.episode_tokens)
    models = _pretrained(account, backbone) if backbone else _from_scratch(account, size)
    lines = [
        f"# Made by `dreamgym init` from: {account}.",
        *(f"# Warning: {text}" for text in account.warnings()),
        "# There is no environment: the run measures fidelity on episodes that it holds out, and dream success is uncertified.",
        'mode = "dream"',
        RULES_OF_TOOLS if account.env == "tools" else 'rules = "suite"  # of recorded texts: none; no rule is written by hand',
        "",
        "[env]",
        f"name = {json.dumps(account.env)}",
        f"options = {{{', '.join(options)}}}",
        "",
        "[logs]",
        "task_pairs = 0  # no task is made up: nobody could say whether it can be done",
        "",
        *models.policy,
        "",
        "[experience]",
        f"history = {history}  # earlier steps that are shown; the longest episode has {account.longest}",
        f"max_answer_tokens = {account.answer_limit}",
        f"reasoning = {str(account.reasoning).lower()}  # whether the logs explain their steps",
        *(HIDDEN if account.hidden else []),
        "replayed_starts = true  # a dream of a recorded task begins as its recording does",
        *([VALIDATED] if account.tasks >= VALIDATING else []),
        *([_verifier(account)] if account.verifiable else []),
        *models.experience,
        "",
        *models.warm_start,
        "",
        "[eval]",
        "tasks = 0  # nothing can be evaluated without an environment",
        "uncertified_dreams = 64  # of every policy; nothing real confirms their success",
        "",
        "[rl]",
        f"iterations = {ITERATIONS}",
        *models.rl,
        "probe_every = 0  # a probe needs an environment",
        "curriculum = {synthetic_share = 0.0}",
        *([NEAR] if account.verifiable else []),
        *models.learner,
    ]
    return "\n".join(lines) + "\n"


def _verifier(account: LogAccount) -> str:
    """The learned verifier; its probes, which a connected environment makes possible, do not repeat actions in what a dream invented."""
    probes = ', probes = {by = "rollouts"}' if account.hidden else ""
    about = "which claims of success to believe, as the logs show it; for another policy it is not certified"
    return f'verifier = {{name = "learned"{probes}}}  # {about}'


class _Models(NamedTuple):
    """The lines of a configuration that depend on the models: whole blocks, or lines of a block."""

    policy: list[str]
    experience: list[str]
    warm_start: list[str]
    rl: list[str]
    learner: list[str]


def _epochs(tokens: int, epoch: int, limits: tuple[int, int], at_least: int) -> int:
    """As many epochs of that many tokens as show the model `tokens`, within the limits, and in any case `at_least`."""
    least, most = limits
    return max(math.ceil(at_least / epoch), min(most, max(least, math.ceil(tokens / epoch))))


def _from_scratch(account: LogAccount, size: str) -> _Models:
    tasks = min(MOST_TASKS, max(4, ITERATION // (RLConfig().group_size * max(1, account.episode_tokens))))
    tokens = max(1, account.episode_tokens)
    epochs = _epochs(IMITATION, account.successes * tokens, EPOCHS, LEAST)
    fitted = _epochs(FIT, account.episodes * tokens, EXPERIENCE_EPOCHS, LEAST_FIT)
    reply = 8 * math.ceil((account.action_tokens + 2) / 8)
    return _Models(
        [
            "[model]",
            f"size = {json.dumps(size)}",
            f"vocab_size = {account.vocab_size}",
            "",
            "[policy]",
            f"max_reply_tokens = {reply}  # 99 in 100 logged actions are that long at most",
        ],
        ["", "[experience.training]", f"epochs = {fitted}.0  # over {account.episodes:,} episodes"],
        ["[warm_start]", f"epochs = {epochs}  # over {account.successes:,} successes"],
        [f"tasks_per_iter = {tasks}  # an iteration of about {ITERATION:,} tokens"],
        ["", "[rl.learner]", "lr = 1.5e-4  # few tasks are left that are solved sometimes: larger steps unlearn others"],
    )


def _pretrained(account: LogAccount, backbone: BackboneConfig) -> _Models:
    """Policy and experience model are adapters of one backbone, whose weights they share in memory."""
    large = _parameters(backbone) >= LARGE
    longest = max(2048, 1024 * math.ceil(min(account.episode_tokens, account.context) / 1024))
    reply = 32 * math.ceil((account.action_tokens + CALL) / 32)
    cache = ["engine = {cache_bytes = 16_000_000_000}  # of keys and values: less where memory is short"] if large else []
    model = [
        f"model = {json.dumps(backbone.model)}",
        "lora = {rank = 16}",
        *(["download = true"] if backbone.download else []),
        *(['dtype = "bfloat16"'] if large else []),
        *(["gradient_checkpointing = true  # a third more time, a tenth of the memory"] if large or longest > 2048 else []),
    ]
    return _Models(
        [
            "[policy]",
            f"max_reply_tokens = {reply}  # 99 in 100 logged actions are that long at most; more for a model that thinks",
            *cache,
            "",
            "[policy.backbone]",
            *model,
        ],
        [
            *cache,
            "",
            "[experience.backbone]  # the same weights in memory, with adapters of its own",
            *model,
            "",
            "[experience.training]",
            'optimiser = "adamw"',
            "epochs = 2.0",
            "lr = 2e-4",
            f"batch_tokens = {longest}  # at least an episode; less takes less memory",
        ],
        [
            "[warm_start]",
            'optimiser = "adamw"',
            f"epochs = 2.0  # over {account.successes:,} successes",
            "lr = 1e-4",
            f"batch_tokens = {longest}",
        ],
        ["tasks_per_iter = 16"],
        [
            "",
            "[rl.learner]",
            f"lr = {'1e-5' if large else '1e-4'}  # of adapters; measured with SmolLM2, not tuned for others",
            "grad_clip = 1.0",
            f"micro_tokens = {longest}  # of a backward pass: less takes less memory",
        ],
    )


def _parameters(backbone: BackboneConfig) -> int:
    from dreamgym.llm import backbones

    return sum(p.numel() for p in backbones.outline(backbone).parameters())
