"""Asking the experience model (Eq. 4): M_exp(task, history, state, action, top-k memories) -> reasoning, next state, reward, end.

Batch-first: one retrieval and one generation for all queries of a step. The same weights start synthetic tasks and vary them (Eq. 6).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal
from zlib import crc32

from pydantic import Field

from dreamgym.config import Config
from dreamgym.errors import UsageError
from dreamgym.experience.changes import Written
from dreamgym.experience.dreaming import guarded, heard, rows_of, told, unreadable
from dreamgym.experience.guard import Guard
from dreamgym.experience.parse import parse
from dreamgym.experience.prompts import Pieces, Step, grammar, prompt, variation
from dreamgym.experience.recall import Recall
from dreamgym.layout import END, STATE, TASK, Vocabulary
from dreamgym.protocols import LLM, Glimpsed, ReplayBuffer
from dreamgym.types import Completion, Neighbour, Observation, Prediction, Query, Request, Sampling, Task, Transition, Verdict


class ExperienceConfig(Config):
    """How the experience model is asked."""

    k: int = Field(default=1, ge=0)
    """Retrieved memories per step; 0 is the ablation without replay."""
    retrieval: Literal["similar", "shuffled"] = "similar"
    """Shuffled is the control: as many memories as would be found, of the same buffer, that have nothing to do with the step."""
    things: bool = True
    """Where an action shows a list of what the world holds (`protocols.Lists`), let its first memory be that list: the page itself if
    anybody has asked for it, else one of the remembered things that fit (`replay.things`)."""
    reasoning: bool = True
    history: int = Field(default=16, ge=0)
    """Steps that stay in context; past them the window slides, in training as at inference."""
    changes: bool = True
    """Write a next state that is much like one in view as what changed (`experience.changes`), in training as at inference. A Domain with
    news of its own (`protocols.Narrated`) writes those."""
    named: bool = False
    """Tell the model the environment's name before the instruction: for one model of several environments (`recipes.universal`)."""
    max_context: int | None = Field(default=None, ge=64)
    """Tokens of prompt and answer together; None: as many as the engine takes. What does not fit is left out, oldest steps first, then
    memories, and counted; a state is never cut."""
    max_answer_tokens: int = 160
    temperature: float = 0.0
    """Of dreamed states; the shop is deterministic, so the most likely answer is the best dream. What lies behind a door that nobody has
    opened is not: where much is hidden, draw it (1.0), or every dream hides the likeliest thing, which is often nothing."""
    draw: Literal["all", "hidden"] = "all"
    """Draw every answer, or only where the Domain says that something is seen for the first time (`protocols.Glimpsed`). What follows from
    what was seen is then the likeliest answer, so that a dream of a house stays one house; and rollouts of a task that look in the same
    place draw with the same numbers, so that they find much the same, and differ by what they do more than by luck."""
    redraws: int = Field(default=0, ge=0)
    """How often a drawn answer that cannot be read is drawn again before it counts as unreadable."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Of dreamed states: draw only from the fewest tokens whose probability reaches this, so that what is certain stays certain."""
    start_temperature: float = Field(default=0.0, ge=0.0)
    """Of the first state of a dream. Above 0 a task begins elsewhere every time; within a call all its rollouts begin in the same state."""
    remembered_starts: bool = False
    """Begin the dream of an instruction that real memory holds where such an episode really began; others begin where the model says."""
    vary_temperature: float = 1.0
    structured: bool = False
    """Answers by grammar: none can be unreadable, unless it is cut off. Needs the extra `structured` and an engine that takes grammars."""

    @property
    def recalls(self) -> bool:
        """Whether lists are recalled; not in the control of retrieval."""
        return self.things and self.retrieval == "similar"

    @property
    def pieces(self) -> Pieces:
        return Pieces(self.reasoning, self.history, self.named, self.changes)


class ExperienceModel:
    """An LLM, a replay buffer to ground it, and a guard to doubt it. `counts` says how often it could not be read."""

    def __init__(
        self, llm: LLM, vocabulary: Vocabulary, replay: ReplayBuffer, guard: Guard, config: ExperienceConfig, *, seed: int = 0
    ) -> None:
        self.llm, self.words, self.replay, self.guard, self.config, self.seed = llm, vocabulary, replay, guard, config, seed
        self.recall = Recall(replay, guard.domain, k=config.k, things=config.recalls)
        self.counts: Counter[str] = Counter()
        self._starts: dict[str, list[str]] | None = None  # of instructions in real memory
        self._steps: dict[tuple[int, ...], list[Step]] = {}

    @property
    def version(self) -> int:
        return self.llm.version

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """The first observation of each task, dreamed. An empty text means that none could be read."""
        about = {self.config.pieces.about(task): task.instruction for task in tasks}
        texts = self._remembered(list(about.values()), seed) if self.config.remembered_starts else {}
        prompts = {i: self._opening(text) for i, (text, name) in enumerate(about.items()) if name not in texts}
        drawn, wanted = self._sampling(self.config.start_temperature), list(about.values())
        completions = self.llm.generate([Request(prompt, drawn, (self.seed, seed, i)) for i, prompt in prompts.items()])
        texts |= {wanted[i]: self._first(completion) for i, completion in zip(prompts, completions, strict=True)}
        return [Observation(texts[task.instruction]) for task in tasks]

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """One guarded prediction per query, in order. An unreadable answer is a failed verdict and leaves the state as it was."""
        predictions, memories = guarded(self.guard, self.recall, queries, self._ask)
        self._remember(queries, predictions, memories)
        return predictions

    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None:
        """Drop what is kept of finished episodes, named by the first two numbers of their query keys."""
        for episode in episodes:
            self._steps.pop(episode, None)
        self.llm.release([f"dream/{episode}" for episode in episodes])

    def vary(self, seeds: Sequence[Task], *, seed: int) -> list[str]:
        """A new instruction per seed task, in the manner of the tasks the model was trained on (Eq. 6). May be malformed."""
        sampling = replace(self._sampling(self.config.vary_temperature), top_p=1.0)
        completions = self.llm.generate(
            [
                Request(variation(self.words, [self.config.pieces.about(task)]), sampling, (self.seed, seed, i))
                for i, task in enumerate(seeds)
            ]
        )
        return [one.text if one.finish == "stop" and not self.words.marks & set(one.ids[:-1]) else "" for one in completions]

    def _sampling(self, temperature: float, rules: str = "") -> Sampling:
        top_p = self.config.top_p if temperature else 1.0
        return Sampling(self.config.max_answer_tokens, stop=(self.words[END],), temperature=temperature, top_p=top_p, grammar=rules)

    def _opening(self, instruction: str) -> list[int]:
        return [self.words[TASK], *self.words.encode(instruction), self.words[STATE]]

    def _remembered(self, instructions: Sequence[str], seed: int) -> dict[str, str]:
        """A real first state for each instruction that memory holds one of; which one of several, `seed` says."""
        if self._starts is None:
            self._starts = defaultdict(list)
            for memory in self.replay.memories():
                if memory.step == 0 and memory.source == "demo":  # what else is real may have come after an interruption
                    self._starts[memory.instruction].append(memory.state)
        known = {name: self._starts[name] for name in instructions if name in self._starts}
        return {name: random.Random(f"start/{self.seed}/{seed}/{name}").choice(states) for name, states in known.items()}

    def _hides(self, query: Query) -> bool | None:
        """Whether the answer shows what nobody has seen; None where that makes no difference."""
        domain = self.guard.domain
        if self.config.draw == "all" or not isinstance(domain, Glimpsed):
            return None
        return domain.hidden(query.state, query.history, query.action)

    def _request(self, query: Query, prompt: list[int]) -> Request:
        """How this answer is decoded: drawn, or the likeliest where nothing in it is hidden; by the numbers of its house or of its step."""
        rules = grammar(self.config.pieces) if self.config.structured else ""
        hides = self._hides(query)
        temperature = 0.0 if hides is False else self.config.temperature
        stream = (*query.key[:1], crc32(f"{query.task.instruction}/{query.action}".encode())) if hides else query.key
        return Request(prompt, self._sampling(temperature, rules), (self.seed, *stream), f"dream/{query.key[:2]}")

    def _ask(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Prediction]:
        """One generation for all; what is written is read, and not yet judged. What was drawn and cannot be read is drawn again: all its
        further chances at once, of which the first that can be read counts."""
        requests = [self._request(query, self._prompt(query, found)) for query, found in zip(queries, memories, strict=True)]
        completions = self.llm.generate(requests)
        read = [self._read(query, one.ids, rows_of(found)) for query, one, found in zip(queries, completions, memories, strict=True)]
        again = [i for i, (kind, _) in enumerate(read) if kind == "unreadable" and requests[i].sampling.temperature]
        chances = [(i, attempt) for i in again for attempt in range(1, 1 + self.config.redraws)]
        drawn = self.llm.generate([_redraw(requests[i], attempt) for i, attempt in chances]) if chances else []
        for (i, _), completion in zip(chances, drawn, strict=True):
            if read[i][0] == "unreadable":
                self.counts["redrawn"] += 1
                read[i] = self._read(queries[i], completion.ids, rows_of(memories[i]))
        self.counts.update(kind for kind, _ in read)
        return [prediction for _, prediction in read]

    def _prompt(self, query: Query, found: Sequence[Neighbour]) -> list[int]:
        """What the model reads, without what does not fit. UsageError when the state alone does not."""
        past, shown = self._past(query), self._briefs(query, found)
        limit = self.config.max_context or getattr(self.llm, "max_context", None)
        while True:
            asked = Step(_open(query), shown)
            ids = prompt(self.words, self.config.pieces.about(query.task), past, query.state.text, asked, self.config.pieces)
            if limit is None or len(ids) + self.config.max_answer_tokens <= limit:
                return ids
            past = past[max(0, len(past) - self.config.history) :]
            if past and self.config.history:
                past = past[1:]
                self.counts["history_left_out"] += 1
            elif shown:
                shown = shown[:-1]  # the least similar
                self.counts["memories_left_out"] += 1
            else:
                raise UsageError(
                    f"The state and action of task '{query.task.id}' take {len(ids)} tokens: with max_answer_tokens="
                    f"{self.config.max_answer_tokens} that is more than the context of {limit}. A state is never cut: use a model with "
                    "a longer context, or a state mapping that says less."
                )

    def _past(self, query: Query) -> list[Step]:
        """The history with the memories that were shown. What was dreamed stands as it was written; what is real stands as it was."""
        kept, domain = self._steps.get(query.key[:2], [])[: len(query.history)], self.guard.domain
        if len(kept) < len(query.history):
            return [Step(transition, (), told(domain, transition)) for transition in query.history]
        return [
            own if given.verdict else Step(given, own.memories, told(domain, given)) for own, given in zip(kept, query.history, strict=True)
        ]

    def _first(self, completion: Completion) -> str:
        """A dreamed first state: whole and of text alone, else "", counted."""
        ids = completion.ids[:-1]
        sound = completion.finish == "stop" and completion.text.strip() and not self.words.marks & set(ids)
        self.counts["start_clean" if sound else "start_unreadable"] += 1
        return completion.text if sound else ""

    def _briefs(self, query: Query, found: Sequence[Neighbour]) -> tuple[str, ...]:
        return tuple(self.guard.domain.brief(neighbour.memory) for neighbour in found)

    def _read(self, query: Query, ids: Sequence[int], rows: tuple[int, ...]) -> tuple[str, Prediction]:
        """(clean, repaired or unreadable; what the answer says)."""
        answer = parse(self.words, ids, self.config.pieces)
        state = heard(self.guard.domain, query, Written(answer.state, answer.same), self.config.pieces) if answer else None
        if answer is None or state is None:
            return "unreadable", unreadable(query, rows, self.words.decode(ids))
        said = (answer.reasoning, state, answer.reward, answer.terminated, Verdict(True), rows)
        prediction = Prediction(*said, raw_reward=answer.reward, raw_terminated=answer.terminated)
        return "repaired" if answer.repaired else "clean", prediction

    def _remember(self, queries: Sequence[Query], predictions: Sequence[Prediction], found: dict[int, list[Neighbour]]) -> None:
        """Keep each episode's steps with their memories, so that the next prompt extends this one token for token."""
        for i, (query, prediction) in enumerate(zip(queries, predictions, strict=True)):
            if len(query.key) < 3:
                continue
            past = self._steps.setdefault(query.key[:2], [])
            if len(past) >= len(query.history):  # a step that is asked about again takes the place of what was dreamed there
                step, domain = _closed(query, prediction), self.guard.domain
                past[len(query.history) :] = [Step(step, self._briefs(query, found[i]) if i in found else (), told(domain, step))]


def _redraw(request: Request, attempt: int) -> Request:
    """The same question by other numbers, beside the session: what is read next continues the first answer or none."""
    return replace(request, seed=(*(request.seed or ()), attempt), session=None)


def _open(query: Query) -> Transition:
    return Transition(query.state, query.action, query.state, 0.0, False)


def _closed(query: Query, prediction: Prediction) -> Transition:
    return Transition(
        query.state, query.action, prediction.next_state, prediction.raw_reward, prediction.raw_terminated, prediction.reasoning
    )
