"""The experience model of the paper: a language model fitted to logs (Eq. 5), in a layout of markers (`experience.prompts`).

One generation answers all queries of a step. The same weights write the first states of synthetic tasks and vary tasks (Eq. 6).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple
from zlib import crc32

from pydantic import Field, field_validator

from dreamgym.config import build
from dreamgym.engines import EngineSettings, build_engine
from dreamgym.errors import InvariantError, ServerError, UsageError
from dreamgym.experience.dataset import RowBuilder, SegmentWeights, most_similar
from dreamgym.experience.guard import Guard
from dreamgym.experience.parse import Answer, parse
from dreamgym.experience.pipeline import ExperienceModel, ModelInputs, Unreadable
from dreamgym.experience.prompts import PromptParts, Step, decode_state, encode_delta, grammar, prompt, start_prompt, variation
from dreamgym.experience.retriever import RetrievalConfig, Retriever
from dreamgym.experience.state_delta import EncodedState
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.llm.vocabulary import END, Vocabulary
from dreamgym.protocols import LLM, ReplayBuffer
from dreamgym.types import Completion, Neighbour, Observation, Prediction, Query, Request, Sampling, Task, Transition

REASONS_AS_LOGGED = True  # `reasoning = true` is what the logs explain, so nothing where they explain nothing


class FinetunedConfig(RetrievalConfig):
    """Settings of the fitted experience model. `reasoning`, `history`, `state_delta` and `name_env` hold in training as at inference."""

    reasoning: Literal[True, False, "changes"] = True
    """The reasoning trace that precedes a next state. true: what the logs explain, by the agent's recorded thoughts, a teacher or the
    suite's rules. "changes": what a step changed and which precedent says so (`experience.trace`), for logs that explain nothing. false:
    none."""
    history: int = Field(default=16, ge=0)
    """Steps in context; beyond them the window slides."""
    state_delta: bool = True
    """Write a next state that resembles a visible one as its difference (`experience.state_delta`). Rules that encode their own deltas
    (`TextRules.encode_delta`) take precedence."""
    name_env: bool = False
    """Put the environment's name before the instruction: for one model of several environments (`recipes.universal`)."""
    max_context: int | None = Field(default=None, ge=64)
    """Tokens of prompt and answer together; not set: as many as the engine takes. Longer prompts lose their oldest steps first, then
    memories; both are counted. A state is never cut."""
    max_answer_tokens: int = Field(default=160, ge=1)
    """Tokens of an answer; a longer one counts as unreadable."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of next states. 0 (the likeliest answer) suits deterministic environments. 1 suits partially observed ones,
    where the likeliest content of an unseen place would be the same in every dream."""
    draw: Literal["all", "hidden"] = "all"
    """`hidden`: sample only answers that show something for the first time (`TextRules.reveals_new`), and take the likeliest answer
    elsewhere. Rollouts of one task then share the random stream of each place: returns differ by actions more than by luck."""
    redraws: int = Field(default=0, ge=0)
    """How often an unreadable sampled answer is sampled again."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling of dreamed states."""
    start_temperature: float = Field(default=0.0, ge=0.0)
    """Sampling temperature of first states. Above 0 a task starts differently in every iteration; its rollouts within one share the first
    state."""
    replayed_starts: bool = False
    """Start the dream of a task from the logs, or of its instruction, in a logged first state; the model writes the others."""
    validation_share: float = Field(default=0.0, ge=0, le=0.5)
    """Share of the logged tasks that the model is not fitted to, at most 60. On their steps it is compared with the control without
    a model, and what the control predicts better, by kind of action, the nearest memory answers (`experience.memory_answers`). 0: the model
    answers all."""
    vary_temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of new tasks."""
    seeds_per_prompt: int = Field(default=1, ge=1, le=8)
    """Seed tasks in the prompt of a new task: those of highest value that are most like the first."""
    task_levels: bool = False
    """Tell the model how difficult a new task shall be, in thirds by the length of the shortest logged success. The curriculum asks for
    more as the policy improves."""
    structured: bool = False
    """Constrain answers by a grammar. Needs the extra `structured` and an engine that takes grammars."""

    backbone: BackboneConfig | None = None
    """A pretrained causal LM to fit, whole or with adapters, instead of the small transformer. The markers of the layout join its
    vocabulary, and their embeddings are trained."""
    segment_weights: SegmentWeights = SegmentWeights()
    engine: EngineSettings = Field(default_factory=dict)
    """The engine that samples from the fitted weights, by `name` ("local" by default), with its settings."""

    @field_validator("backbone")
    @classmethod
    def _with_markers(cls, backbone: BackboneConfig | None) -> BackboneConfig | None:
        return backbone and backbone.model_copy(update={"markers": True})

    @property
    def prompt_parts(self) -> PromptParts:
        return PromptParts(bool(self.reasoning), self.reasoning == "changes", self.history, self.name_env, self.state_delta)


Config = FinetunedConfig


def make(inputs: ModelInputs, **settings: Any) -> FinetunedExperienceModel:
    """The experience model over the fitted weights of a run."""
    if (inputs.module is None and not inputs.external_publisher) or inputs.vocabulary is None:
        raise InvariantError("The experience model 'finetuned' samples from fitted weights, and none were given.")
    config = build(Config, settings, prefix="experience.")
    llm = build_engine(config.engine, model=inputs.module, tokenizer=inputs.tokenizer, external_publisher=inputs.external_publisher)
    llm.publish(inputs.version, lambda: inputs.checkpoint)
    return FinetunedExperienceModel(llm, inputs.vocabulary, inputs.replay, inputs.guard, config, seed=inputs.seed)


def row_builder(inputs: ModelInputs, **settings: Any) -> RowBuilder:
    """Training rows with memories as the fitted model will read them."""
    if inputs.vocabulary is None:
        raise InvariantError("Training rows of the experience model 'finetuned' need a vocabulary, and none was given.")
    config, rules = build(Config, settings, prefix="experience."), inputs.guard.rules
    retriever = Retriever(inputs.replay, rules, config, seed=inputs.seed)
    return RowBuilder(inputs.vocabulary, config.prompt_parts, config.segment_weights, rules, retriever)


class _Sampled(NamedTuple):
    """An answer that the engine is sampling."""

    ticket: int
    query: Query
    request: Request


class FinetunedExperienceModel(ExperienceModel):
    """A language model that writes reasoning, next state, reward and end. `counts` also has the parts of prompts that did not fit."""

    def __init__(
        self, llm: LLM, vocabulary: Vocabulary, replay: ReplayBuffer, guard: Guard, config: FinetunedConfig, *, seed: int = 0
    ) -> None:
        super().__init__(guard, Retriever(replay, guard.rules, config, seed=seed))
        self.llm, self.vocab, self.replay, self.config, self.seed = llm, vocabulary, replay, config, seed
        self._starts: dict[tuple[str, str], list[str]] | None = None  # by task and instruction of the logs; "": any task
        self._steps: dict[tuple[int, ...], list[Step]] = {}
        self._sampled: dict[int, _Sampled] = {}  # by the engine's ticket

    @property
    def version(self) -> int:
        return self.llm.version

    @property
    def engine(self) -> LLM:
        return self.llm

    @property
    def concurrent(self) -> bool:
        return self.llm.concurrent

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        distinct = {(task.id, task.instruction): task for task in tasks}
        texts = self._logged_starts(distinct.values(), seed) if self.config.replayed_starts else {}
        to_sample = [task_key for task_key in distinct if task_key not in texts]
        sampling, about = self._sampling(self.config.start_temperature), self.config.prompt_parts.about
        openings = {task_key: start_prompt(self.vocab, about(distinct[task_key])) for task_key in to_sample}
        # the stream is the task's, whatever other tasks begin beside it
        streams = {task_key: (self.seed, seed, crc32("/".join(task_key).encode("utf-8", "surrogatepass"))) for task_key in to_sample}
        requests = [Request(openings[task_key], sampling, streams[task_key]) for task_key in to_sample]
        texts |= {task_key: self._first(completion) for task_key, completion in zip(to_sample, self.llm.generate(requests), strict=True)}
        return [Observation(texts[task.id, task.instruction]) for task in tasks]

    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None:
        super().forget(episodes)
        for episode in episodes:
            self._steps.pop(episode, None)
        gone = set(episodes)
        dropped = [llm_ticket for llm_ticket, pending in self._sampled.items() if pending.query.episode in gone]
        for llm_ticket in dropped:
            del self._sampled[llm_ticket]
        self.llm.cancel(dropped)
        self.llm.release([f"dream/{episode}" for episode in episodes])

    def vary(self, seeds: Sequence[Task], *, seed: int, level: int = 0) -> list[str]:
        sampling, about = replace(self._sampling(self.config.vary_temperature), top_p=1.0), self.config.prompt_parts.about
        wanted = level if self.config.task_levels else 0
        groups = [[task, *most_similar(task, seeds, self.config.seeds_per_prompt - 1)] for task in seeds]
        prompts = [variation(self.vocab, list(map(about, group)), wanted) for group in groups]
        completions = self.llm.generate([Request(prompt, sampling, (self.seed, seed, i)) for i, prompt in enumerate(prompts)])
        return [
            completion.text if completion.finish_reason == "stop" and not self.vocab.marks & set(completion.ids[:-1]) else ""
            for completion in completions
        ]

    def _sampling(self, temperature: float, rules: str = "") -> Sampling:
        top_p = self.config.top_p if temperature else 1.0
        return Sampling(self.config.max_answer_tokens, stop=(self.vocab[END],), temperature=temperature, top_p=top_p, grammar=rules)

    def _logged_starts(self, tasks: Iterable[Task], seed: int) -> dict[tuple[str, str], str]:
        """A logged first state for each task of the logs: its own, else one of its instruction; `seed` chooses among several."""
        if self._starts is None:
            self._starts = defaultdict(list)
            for memory in self.replay.memories(source="demo"):
                if memory.step == 0:  # what else is real may have come after an interruption
                    for task_key in dict.fromkeys([(memory.task, memory.instruction), ("", memory.instruction)]):
                        self._starts[task_key].append(memory.state)
        initial_states = dict[tuple[str, str], str]()
        for task in tasks:
            name = (task.id, task.instruction)
            if states := self._starts.get(name) or self._starts.get(("", task.instruction)):
                initial_states[name] = random.Random(f"start/{self.seed}/{seed}/{task.id}/{task.instruction}").choice(states)
        return initial_states

    def _request(self, query: Query, prompt: list[int]) -> Request:
        """How an answer is decoded. What reveals something new draws from the stream of its task and action, the rest from its step's."""
        rules = grammar(self.config.prompt_parts) if self.config.structured else ""
        new = None if self.config.draw == "all" else self.guard.rules.reveals_new(query.state, query.history, query.action)
        temperature = 0.0 if new is False else self.config.temperature
        stream = (
            (*query.stream[:1], crc32(f"{query.task.id}/{query.task.instruction}/{query.action}".encode("utf-8", "replace")))
            if new
            else query.stream
        )
        return Request(prompt, self._sampling(temperature, rules), (self.seed, *stream), f"dream/{query.episode}")

    def generate(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer | Unreadable]:
        places = list(range(len(queries)))
        self.start_generation(places, queries, memories)
        answers = dict[int, Answer | Unreadable]()
        while len(answers) < len(queries):
            for place, answer in self.finish_generation():
                if isinstance(answer, ServerError):
                    raise answer
                answers[place] = answer
        return [answers[i] for i in places]

    def start_generation(self, tickets: Sequence[int], queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> None:
        requests = [self._request(query, self._prompt(query, neighbours)) for query, neighbours in zip(queries, memories, strict=True)]
        for llm_ticket, ticket, query, request in zip(self.llm.submit(requests), tickets, queries, requests, strict=True):
            self._sampled[llm_ticket] = _Sampled(ticket, query, request)

    def finish_generation(self) -> list[tuple[int, Answer | Unreadable | ServerError]]:
        try:
            finished = self.llm.poll(self._sampled)
        except ServerError as error:
            if error.ticket not in self._sampled:
                raise
            return [(self._sampled.pop(error.ticket).ticket, error)]
        results = list[tuple[int, Answer | Unreadable | ServerError]]()
        for llm_ticket, completion in finished:
            pending = self._sampled.pop(llm_ticket)
            try:
                results.append((pending.ticket, self._answer(pending, completion.ids)))
            except ServerError as error:  # of a further attempt
                results.append((pending.ticket, error))
        return results

    def _answer(self, pending: _Sampled, ids: Sequence[int]) -> Answer | Unreadable:
        """What was sampled, read. An unreadable sampled answer gets all its further attempts at once; the first readable one counts."""
        answer = self._read(pending.query, ids)
        if isinstance(answer, Unreadable) and pending.request.sampling.temperature and self.config.redraws:
            attempts = [_redraw(pending.request, attempt) for attempt in range(1, 1 + self.config.redraws)]
            for again in self.llm.generate(attempts):
                if isinstance(answer, Unreadable):
                    self.counts["redrawn"] += 1
                    answer = self._read(pending.query, again.ids)
        self.counts["unreadable" if isinstance(answer, Unreadable) else "repaired" if answer.repaired else "clean"] += 1
        return answer

    def _prompt(self, query: Query, neighbours: Sequence[Neighbour]) -> list[int]:
        """The prompt of a query, shortened to fit. UsageError when the state alone does not fit."""
        past, memory_texts = self._past(query), self._memory_texts(neighbours)
        limit = self.config.max_context or getattr(self.llm, "max_context", None)
        while True:
            step = Step(_open(query), memory_texts)
            ids = prompt(self.vocab, self.config.prompt_parts.about(query.task), past, query.state.text, step, self.config.prompt_parts)
            if limit is None or len(ids) + self.config.max_answer_tokens <= limit:
                return ids
            past = past[max(0, len(past) - self.config.history) :]
            if past and self.config.history:
                past = past[1:]
                self.counts["history_left_out"] += 1
            elif memory_texts:
                memory_texts = memory_texts[:-1]  # the least similar
                self.counts["memories_left_out"] += 1
            else:
                raise UsageError(
                    f"The state and action of task '{query.task.id}' take {len(ids)} tokens: with max_answer_tokens="
                    f"{self.config.max_answer_tokens} that is more than the context of {limit}. A state is never cut: use a model with "
                    "a longer context, or a state mapping that says less."
                )

    def _past(self, query: Query) -> list[Step]:
        """The history with its memories: dreamed steps as they were written, before the guard, and real steps as they are."""
        kept, rules = self._steps.get(query.episode, [])[: len(query.history)], self.guard.rules
        if len(kept) < len(query.history):
            return [Step(transition, (), encode_delta(rules, transition)) for transition in query.history]
        return [
            kept_step if given.info.verdict else Step(given, kept_step.memories, encode_delta(rules, given))
            for kept_step, given in zip(kept, query.history, strict=True)
        ]

    def _first(self, completion: Completion) -> str:
        """A dreamed first state; "" for one that is cut off or holds a marker."""
        ids = completion.ids[:-1]
        sound = completion.finish_reason == "stop" and completion.text.strip() and not self.vocab.marks & set(ids)
        self.counts["start_clean" if sound else "start_unreadable"] += 1
        return completion.text if sound else ""

    def _memory_texts(self, neighbours: Sequence[Neighbour]) -> tuple[str, ...]:
        return tuple(self.guard.rules.memory_text(neighbour.memory) for neighbour in neighbours)

    def _read(self, query: Query, ids: Sequence[int]) -> Answer | Unreadable:
        answer = parse(self.vocab, ids, self.config.prompt_parts)
        if answer is not None:
            encoded = EncodedState(answer.state, answer.is_delta)
            state = decode_state(self.guard.rules, query, encoded, self.config.prompt_parts)
            if state is not None:
                return replace(answer, state=state, is_delta=False)
        return Unreadable(self.vocab.decode(ids))

    def record(self, queries: Sequence[Query], predictions: Sequence[Prediction], memories: dict[int, list[Neighbour]]) -> None:
        """Keep each episode's steps with their memories, so that the next prompt extends this one token for token."""
        for i, (query, prediction) in enumerate(zip(queries, predictions, strict=True)):
            if len(query.stream) < 3:
                continue
            past = self._steps.setdefault(query.episode, [])
            if len(past) >= len(query.history):  # a step that is queried again replaces the prediction
                step = query.transition(prediction).as_predicted  # as the model wrote it
                past[len(query.history) :] = [Step(step, self._memory_texts(memories.get(i, ())), encode_delta(self.guard.rules, step))]


def _redraw(request: Request, attempt: int) -> Request:
    """The same prompt with another random stream, outside the episode's session, whose cache holds the first answer."""
    return replace(request, seed=(*(request.seed or ()), attempt), session=None)


def _open(query: Query) -> Transition:
    return Transition(query.state, query.action, query.state, 0.0, False)
