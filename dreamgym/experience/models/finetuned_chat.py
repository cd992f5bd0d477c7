"""A pretrained instruct model fitted to logs (Eq. 5) in its own chat template: a question and a reply for every step.

The questions are those of the prompted model (`experience.chat_questions`), so the checkpoint, with its adapters merged
(`dreamgym merge`), dreams behind any server as `experience.name = "prompted"`. The layout of markers (`finetuned`) trains an episode as
one sequence and costs far less; this one keeps the model's vocabulary and what it knows of chats.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dreamgym.config import build
from dreamgym.engines import EngineSettings, build_engine
from dreamgym.engines.token_chat import TokenChat
from dreamgym.errors import InvariantError
from dreamgym.experience.chat_questions import ChatQuestions
from dreamgym.experience.dataset import ExperienceRow, SegmentWeights, Variation, memories_of
from dreamgym.experience.json_replies import Format, Message
from dreamgym.experience.models.prompted import PromptedConfig, PromptedExperienceModel
from dreamgym.experience.pipeline import ModelInputs
from dreamgym.experience.retriever import Retriever
from dreamgym.experience.trace import trace_of_changes
from dreamgym.llm.backbone_settings import ChatBackbone
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.protocols import LLM
from dreamgym.types import Memory, Query, Task, Trajectory, Transition


class FinetunedChatConfig(PromptedConfig):
    """Settings of the prompted model, whose engine now samples from the fitted weights."""

    backbone: ChatBackbone
    """The instruct model that is fitted, whole or with adapters."""
    engine: EngineSettings = Field(default_factory=dict)
    """The engine that samples from the fitted weights, by `name` ("local" by default), with its settings."""
    segment_weights: SegmentWeights = SegmentWeights()
    format: Format = "none"
    task_levels: bool = False
    """Tell the model how difficult a new task shall be, in thirds by the length of the shortest logged success."""

    def fitting(self) -> FinetunedChatConfig:
        """The same settings, with a context that the backbone has room for."""
        from dreamgym.llm import backbones

        return self.model_copy(update={"max_context": min(self.max_context, backbones.positions(self.backbone))})


Config = FinetunedChatConfig


def make(inputs: ModelInputs, **settings: Any) -> FinetunedChatModel:
    """The experience model over the fitted weights of a run."""
    if inputs.module is None and not inputs.external_publisher:
        raise InvariantError("The experience model 'finetuned_chat' samples from fitted weights, and none were given.")
    config = build(Config, settings, prefix="experience.").fitting()
    llm = build_engine(config.engine, model=inputs.module, tokenizer=inputs.tokenizer, external_publisher=inputs.external_publisher)
    llm.publish(inputs.version, lambda: inputs.checkpoint)
    return FinetunedChatModel(
        TokenChat(llm, ChatFormat(inputs.tokenizer)),
        inputs.replay,
        inputs.guard,
        config,
        openings=inputs.openings,
        count_tokens=lambda text: len(llm.encode(text)),
        seed=inputs.seed,
    )


def row_builder(inputs: ModelInputs, **settings: Any) -> ChatRows:
    """Training rows with questions as the fitted model will be asked."""
    config = build(Config, settings, prefix="experience.").fitting()
    retriever = Retriever(inputs.replay, inputs.guard.rules, config, seed=inputs.seed)
    return ChatRows(ChatFormat(inputs.tokenizer), config, inputs.openings, retriever)


class FinetunedChatModel(PromptedExperienceModel):
    """The prompted model over weights of this process."""

    chat: TokenChat
    config: FinetunedChatConfig

    @property
    def version(self) -> int:
        return self.chat.llm.version

    @property
    def engine(self) -> LLM:
        return self.chat.llm

    def vary(self, seeds: Sequence[Task], *, seed: int, level: int = 0) -> list[str]:
        return super().vary(seeds, seed=seed, level=level if self.config.task_levels else 0)


class ChatRows:
    """`dataset.TrainingRows`: one for every step, first state and variation. What is asked has no loss; a reply has that of its
    segments."""

    def __init__(self, chat_format: ChatFormat, config: FinetunedChatConfig, openings: dict[str, str], retriever: Retriever) -> None:
        self.format, self.config, self.retriever = chat_format, config, retriever
        about = config.about or retriever.rules.about
        self.counts: Counter[str] = Counter()
        self.questions = ChatQuestions(config, about, openings, self.counts, lambda text: len(chat_format.encode(text)))

    def episodes(self, trajectories: Sequence[Trajectory]) -> list[ExperienceRow]:
        """Every step with the memories that are retrieved for it, and the first state of every trajectory."""
        rows = []
        for trajectory, memories in zip(trajectories, memories_of(trajectories, self.retriever), strict=True):
            first = trajectory.transitions[0].state.text
            rows.append(self._row(self.questions.opening(trajectory.task, itself=False), {"start": _object(state=first)}))
            for t, (step, step_memories) in enumerate(zip(trajectory.transitions, memories, strict=True)):
                query = Query(trajectory.task, trajectory.transitions[:t], step.state, step.action)
                outcome_known = trajectory.scored or not step.terminated
                rows.append(
                    self._row(
                        self.questions.step(query, step_memories), self._reply(query, step, step_memories), unscored=not outcome_known
                    )
                )
        return rows

    def tasks(self, variations: Sequence[Variation]) -> list[ExperienceRow]:
        """Task variations (Eq. 6), each from its first seed. The new task is itself a logged one, and no example of its own question."""
        rows = []
        for variation in variations:
            question = self.questions.variation(variation.seeds[0], variation.level, hidden=variation.new.instruction)
            rows.append(self._row(question, {"task": _object(task=variation.new.instruction)}))
        return rows

    def _reply(self, query: Query, step: Transition, memories: Sequence[Memory]) -> dict[str, str]:
        """The reply by segment: one JSON object, cut before the keys. A step that nothing explains is explained by what it changed."""
        segments = {}
        if self.config.reasoning:
            window = query.history[max(0, len(query.history) - self.config.history) :]
            visible = (*(past.state.text for past in window), query.state.text)
            texts = [self.retriever.rules.memory_text(memory) for memory in memories]
            segments["reasoning"] = _object(reasoning=step.info.reasoning or trace_of_changes(step, visible, texts))[:-1]
        state = _object(next_state=step.next_state.text)[1:-1]
        segments["state"] = f", {state}" if segments else f"{{{state}"
        segments["reward"] = f", {_object(reward=step.reward, done=step.terminated)[1:]}"
        return segments

    def _row(self, question: Sequence[Message], reply: dict[str, str], *, unscored: bool = False) -> ExperienceRow:
        system, user = question
        ids = self.format.opening(system["content"], user["content"])
        row = ExperienceRow(ids, [0.0] * len(ids), [""] * len(ids))
        last = list(reply)[-1]
        for name, text in reply.items():
            segment_ids = [*self.format.encode(text), *([self.format.end] if name == last else [])]
            segment = "" if unscored and name == "reward" else name
            row.ids.extend(segment_ids)
            row.weights.extend([getattr(self.config.segment_weights, segment) if segment else 0.0] * len(segment_ids))
            row.segments.extend([segment] * len(segment_ids))
        return row


def _object(**values: Any) -> str:
    return json.dumps(values, ensure_ascii=False)
