"""The policies of a run: the small transformer that is fitted from scratch, or a pretrained instruct model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from dreamgym.engines import build_engine, check_engine
from dreamgym.envs.base import TextRules
from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm import backbones, tiny
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.llm.vocabulary import Vocabulary
from dreamgym.policy.agent import Agent, demonstrations
from dreamgym.policy.settings import PolicyConfig
from dreamgym.policy.templates import Template
from dreamgym.policy.templates.chat import Chat
from dreamgym.policy.templates.markers import Markers
from dreamgym.policy.templates.tools import Tools
from dreamgym.protocols import LLM
from dreamgym.types import Action, Trajectory


class Policies:
    """How the policies of a run begin, are saved and loaded, act, and learn from episodes. A model is a torch module.

    Without a backbone a policy is the small transformer in the layout of markers. A backbone speaks its own chat template, and its own
    tool format in an environment with tools; with adapters,
    checkpoints hold the adapters alone.
    """

    def __init__(
        self,
        block: PolicyConfig,
        rules: TextRules,
        tokenizer: Any,
        vocabulary: Vocabulary,
        *,
        served: Path,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        """`served` is the folder from which a server reads weights; `tokenizer`, `vocabulary` and `device` are those of the small
        transformer. ConfigError when nothing says how actions are written; UsageError for a backbone that is not here, or has
        no chat template."""
        self.block, self.rules, self.tokenizer = block, rules, tokenizer
        self.served, self.device, self.seed = served, device, seed
        self.template: Template = Markers(vocabulary)
        if block.backbone is not None:
            self.tokenizer = backbones.load_tokenizer(block.backbone)
            self.template = _chat(block, rules, self.tokenizer)

    def initial_model(self, checkpoint: Path) -> Any:
        """Return what the warm start begins as: the small model at `checkpoint`, or the backbone itself."""
        return self.load(checkpoint) if self.block.backbone is None else backbones.load(self.block.backbone, seed=self.seed)[0]

    def load(self, path: Path) -> Any:
        if self.block.backbone is None:
            return tiny.load(path)[0].to(backbones.device(self.device))
        return backbones.load(self.block.backbone.model_copy(update={"model": str(path), "revision": None, "lora": None}))[0]

    def save(self, model: Any, path: Path) -> Path:
        return backbones.save(model, self.tokenizer, path)

    def agent(self, model: Any, *, full_precision: bool, external_publisher: bool = False) -> Agent:
        """A policy that samples from `model`, which may be in training. `full_precision`: at the model's own precision, as a learner
        without bf16 computes; else in bfloat16 where that is faster. `external_publisher`: another process publishes the weights to the
        server that samples."""
        llm = build_engine(
            self.block.engine, model=model, tokenizer=self.tokenizer, full_precision=full_precision, external_publisher=external_publisher
        )
        self.publish(llm, model, 0)
        limit = self.block.max_reply_tokens
        return Agent(llm, self.template, self.rules, max_reply_tokens=limit, window=self.block.window)

    def publish(self, llm: LLM, model: Any, version: int) -> None:
        """Sample from the weights as they are now. An engine in another process reads them from `served`."""
        llm.publish(version, lambda: self.save(model, self.served))

    def demonstrations(self, episode: Trajectory) -> list[tuple[list[int], list[float]]]:
        """A logged episode as rows of token ids and their weights in training: one, unless a window cuts it."""
        return demonstrations(episode, self.template, self.rules, window=self.block.window)

    def unwritable(self, episode: Trajectory) -> Action | None:
        """The first action of an episode that the template cannot write, so that `demonstrations` refuses the episode; None for none."""
        for step in episode.transitions:
            action = self.rules.view(step.state).refer(step.action)
            try:
                self.template.reply(action)
            except UsageError:
                return step.action
        return None


def check_policy(block: PolicyConfig, rules: TextRules, *, device: str = "cpu", temperature: float = 1.0) -> int:
    """Try cheaply, without weights, whether the policy of a run can work: its device, its template, its adapters, its engine.

    `device` is that of the small transformer, `temperature` that of rollouts. Raises what the run would fail with later. Returns how many
    parameters of the backbone are trained; 0 without one.
    """
    module = tokenizer = None
    if block.backbone is not None:
        tokenizer = backbones.load_tokenizer(block.backbone)
        _chat(block, rules, tokenizer)
        module = backbones.outline(block.backbone)
    else:
        backbones.device(device)
        if block.engine.get("name") == "server":
            raise ConfigError("policy.engine: a server samples for a pretrained policy, and the small one has none. Set policy.backbone.")
    check_engine(block.engine, module=module, tokenizer=tokenizer, temperature=temperature, trains=True, where="policy.engine")
    return sum(p.numel() for p in module.parameters() if p.requires_grad) if module is not None else 0


def check_publication(block: PolicyConfig, served: Path) -> None:
    """Try whether the servers that sample for the policy take its weights, which are saved to the folder `served`. Loads the backbone.
    ServerError for a server that keeps the weights that it has; other engines are left alone."""
    if block.engine.get("name") != "server" or block.backbone is None:
        return
    from dreamgym.engines.server.publication_check import check_publication as check
    from dreamgym.engines.server.weight_sync import LOADERS

    if block.engine.get("dialect") not in LOADERS:
        return

    model, tokenizer = backbones.load(block.backbone)
    with closing(build_engine(block.engine, model=model, tokenizer=tokenizer)) as llm:
        check(llm, lambda: backbones.save(model, tokenizer, served))


def instruct_template(
    rules: TextRules, tokenizer: Any, *, instructions: str = "", tool_calls: str = "auto", variables: Mapping[str, Any] | None = None
) -> Template:
    """The template of an instruct model that acts in this environment; the settings are `tool_calls`, `instructions` and `template` of
    `PolicyConfig`. ConfigError where they do not fit the environment, UsageError for a tokenizer without a usable chat template."""
    form = ChatFormat(tokenizer, **(variables or {}))
    if rules.tools and tool_calls != "off":
        native = {"auto": None, "native": True, "text": False}[tool_calls]
        return Tools(form, rules.name, instructions or rules.about, rules.tools, rules.tool_results, native=native)
    if tool_calls in ("native", "text"):
        raise ConfigError(
            f"policy.tool_calls = '{tool_calls}': the environment '{rules.name}' has no tools. Leave it out, or use an environment "
            "suite with tool schemas."
        )
    instructions = instructions or (f"{rules.about}\n{rules.action_format}" if rules.action_format else "")
    if not instructions:
        raise ConfigError(
            f"Nothing says how actions are written in '{rules.name}': only rules = 'suite' and schemas of tools do. Set "
            "policy.instructions, for example 'Write one line such as Action: search[red mug].'"
        )
    return Chat(form, rules.name, instructions)


def _chat(block: PolicyConfig, rules: TextRules, tokenizer: Any) -> Template:
    return instruct_template(rules, tokenizer, instructions=block.instructions, tool_calls=block.tool_calls, variables=block.template)
