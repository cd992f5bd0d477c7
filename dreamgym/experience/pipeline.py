"""The pipeline that every experience model runs a batch of queries through: rules, recall, conditions, retrieval, generation, verification.

An experience model is a plug-in of `experience/models`, or any module by its dotted path. The module has

    make(inputs, **settings) -> ExperienceModel       `inputs` are `ModelInputs`
    Config                      optional: a `config.Config` of the settings, checked when a configuration is read
    row_builder(inputs, **settings) -> TrainingRows   only for a model that is fitted to the logs before use: its training rows
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dreamgym.errors import ServerError, UsageError
from dreamgym.experience.guard import Guard, noop_rule
from dreamgym.experience.memory_answers import MemoryAnswers
from dreamgym.experience.parse import Answer
from dreamgym.experience.retriever import Retriever
from dreamgym.llm.vocabulary import Vocabulary
from dreamgym.protocols import LLM, ReplayBuffer
from dreamgym.types import DecidedBy, Memory, Neighbour, Observation, Prediction, Query, StepInfo, Task, Trajectory, Verdict
from dreamgym.usage import Usage


@dataclass(frozen=True)
class ModelInputs:
    """What a run gives its experience model."""

    guard: Guard
    replay: ReplayBuffer
    logs: Sequence[Trajectory] = ()
    seed: int = 0
    vocabulary: Vocabulary | None = None  # of the run's own tokenizer
    tokenizer: Any = None
    module: Any = None  # the fitted weights, a torch module; None for a model without any
    checkpoint: Path | None = None  # the directory of the fitted weights
    version: int = 1
    external_publisher: bool = (
        False  # whether another process publishes the weights to the server that samples, if one does; then no module is needed
    )

    @property
    def openings(self) -> dict[str, str]:
        """First states of the logs by instruction."""
        return {t.task.instruction: t.turns[0].transition.state.text for t in self.logs if t.turns}


@dataclass(frozen=True)
class Unreadable:
    """A generated text that is no answer."""

    text: str


class ExperienceModel(ABC):
    """M_exp and M_task of the paper. A subclass generates; the pipeline retrieves, applies the rules and verifies.

    `counts` has the numbers of readable, repaired and unreadable answers.
    """

    answers_by: DecidedBy = "generated"
    """What decides the answers of `generate`."""

    def __init__(self, guard: Guard, retriever: Retriever) -> None:
        self.guard, self.retriever = guard, retriever
        self.memory_answers: MemoryAnswers | None = None
        self.counts: Counter[str] = Counter()
        self._tickets = itertools.count()
        self._answered: list[tuple[int, Query, Prediction]] = []  # without generation
        self._pending: dict[int, tuple[Query, list[Neighbour]]] = {}  # by ticket, with its memories
        self._failed: list[tuple[Query, ServerError]] = []  # queries whose request failed, with the error that `poll` raises
        self._waiting: list[tuple[int, Query, Sequence[Neighbour]]] = []  # for the default `finish_generation`

    @property
    def version(self) -> int:
        """Version of the weights; 1 for a model that is not fitted."""
        return 1

    @property
    def concurrent(self) -> bool:
        """Whether answers are generated while nobody polls. Default: no."""
        return False

    @property
    def engine(self) -> LLM | None:
        """The engine that samples from fitted weights; None for a model without any."""
        return None

    @property
    def usage(self) -> Usage | None:
        """Tokens and cost of a model behind a server; None for one in this process."""
        return None

    @abstractmethod
    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        """The first observation of each task. An empty text: none could be read, and the episode is a failed rollout."""

    @abstractmethod
    def generate(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer | Unreadable]:
        """One answer per query, in order, from the retrieved memories of each. Only queries that no rule answers arrive here."""

    def vary(self, seeds: Sequence[Task], *, seed: int, level: int = 0) -> list[str]:
        """A new instruction per seed task (Eq. 6); it may be malformed. `level`: the wanted difficulty, 1 to 3; 0 leaves it open. Default:
        UsageError."""
        raise UsageError(f"{type(self).__name__} varies no tasks. Set curriculum.synthetic_share = 0.")

    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None:
        """Drop what is asked for in these episodes, named by `Query.episode`, and free what is kept of them."""
        gone = set(episodes)
        self._answered = [item for item in self._answered if item[1].episode not in gone]
        self._waiting = [item for item in self._waiting if item[1].episode not in gone]
        self._failed = [item for item in self._failed if item[0].episode not in gone]
        self._pending = {ticket: item for ticket, item in self._pending.items() if item[0].episode not in gone}

    def record(self, queries: Sequence[Query], predictions: Sequence[Prediction], memories: dict[int, list[Neighbour]]) -> None:
        """Keep what later queries of the same episodes need; `memories` are by place among the queries. Default: nothing is kept."""
        return None

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """One verified prediction per query, in order. An unreadable answer leaves the state as it was and fails the episode."""
        tickets = self.submit(queries)
        predictions = dict[int, Prediction]()
        while not predictions.keys() >= set(tickets):
            predictions |= dict(self.poll())
        return [predictions[ticket] for ticket in tickets]

    def submit(self, queries: Sequence[Query]) -> list[int]:
        """Ask for a prediction per query, and return a ticket for each. Where it raises, as for a state that does not fit into the model's
        context, none was asked for."""
        tickets = [next(self._tickets) for _ in queries]
        answers = [self.guard.before(query) or self._from_memory(query) for query in queries]
        answered, to_generate = list[tuple[int, Query, Prediction]](), list[tuple[int, Query]]()
        for ticket, query, answer in zip(tickets, queries, answers, strict=True):
            if answer is None:
                to_generate.append((ticket, query))
            else:
                answered.append((ticket, query, answer))
        nearest, to_generate = self._answer_from_nearest(to_generate)
        memories = self._retrieve([query for _, query in to_generate])
        if to_generate:
            self.start_generation([ticket for ticket, _ in to_generate], [query for _, query in to_generate], memories)
        self._answered += [*answered, *nearest]
        self._pending |= {ticket: (query, neighbours) for (ticket, query), neighbours in zip(to_generate, memories, strict=True)}
        return tickets

    def poll(self) -> list[tuple[int, Prediction]]:
        """Work until a prediction is there: those since the last call, each with its ticket, as `predict` gives them. Empty: nothing is
        asked for. ServerError for a query whose request failed for good, one at a call: it has the query's ticket, and the others stay
        valid. An error without a ticket is of all queries."""
        if self._answered or not (self._pending or self._failed):
            answered, self._answered = self._answered, []
            self.record([query for _, query, _ in answered], [prediction for *_, prediction in answered], {})
            return [(ticket, prediction) for ticket, _, prediction in answered]
        answers = [] if self._failed else self._finished()
        if self._failed and not answers:
            raise self._failed.pop(0)[1]
        queries, memories = zip(*(self._pending.pop(ticket) for ticket, _ in answers), strict=True) if answers else ((), ())
        predictions = [prediction(q, answer, m, self.answers_by) for q, (_, answer), m in zip(queries, answers, memories, strict=True)]
        corrected = [self._correct_first_line(q, predicted) for q, predicted in zip(queries, predictions, strict=True)]
        with _without_ticket():
            verified = self.guard.review(queries, corrected)
        self.record(queries, verified, dict(enumerate(memories)))
        return [(ticket, prediction) for (ticket, _), prediction in zip(answers, verified, strict=True)]

    def start_generation(self, tickets: Sequence[int], queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> None:
        """Begin to generate an answer for each ticket; none where it raises. Default: they wait for `finish_generation`, which calls
        `generate` on all."""
        self._waiting += zip(tickets, queries, memories, strict=True)

    def finish_generation(self) -> Sequence[tuple[int, Answer | Unreadable | ServerError]]:
        """Work until an answer is there: those since the last call, each with its ticket, or the error of a request that failed for good. A
        model whose engine takes requests as they come overrides both."""
        waiting, self._waiting = self._waiting, []
        return list(zip([t for t, *_ in waiting], self.generate([q for _, q, _ in waiting], [m for *_, m in waiting]), strict=True))

    def _answer_from_nearest(self, asked: list[tuple[int, Query]]) -> tuple[list[tuple[int, Query, Prediction]], list[tuple[int, Query]]]:
        """Answers to what the nearest memory predicts better than the model (`memory_answers`), verified as generated answers are, and the
        rest."""
        if self.memory_answers is None:
            return [], asked
        answers = self.memory_answers.answer([query for _, query in asked])
        answered = [(ticket, query, answer) for (ticket, query), answer in zip(asked, answers, strict=True) if answer is not None]
        queries = [query for _, query, _ in answered]
        predicted = [self._correct_first_line(query, prediction(query, answer, (), "composed")) for _, query, answer in answered]
        reviewed = self.guard.review(queries, predicted)
        self.counts["from_nearest"] += len(answered)
        verified = [(ticket, query, result) for (ticket, query, _), result in zip(answered, reviewed, strict=True)]
        return verified, [one for one, answer in zip(asked, answers, strict=True) if answer is None]

    def _finished(self) -> list[tuple[int, Answer | Unreadable]]:
        """The answers that have come to what is still asked for; errors go to `_failed`, each with its query's ticket."""
        with _without_ticket():
            results = self.finish_generation()
        answers = list[tuple[int, Answer | Unreadable]]()
        for ticket, result in results:
            if ticket not in self._pending:
                continue
            if isinstance(result, ServerError):
                result.ticket = ticket
                self._failed.append((self._pending.pop(ticket)[0], result))
            else:
                answers.append((ticket, result))
        return answers

    def _from_memory(self, query: Query) -> Prediction | None:
        """Answer a query from real memory without generation. What really happened, or always did, is not verified."""
        if (answered := self.retriever.answer(query)) is None:
            return None
        by, memory = answered
        self.counts[by] += 1
        return answer_from(memory, by)

    def _correct_first_line(self, query: Query, predicted: Prediction) -> Prediction:
        """A generated step that goes on, with the first line of its answer as conditions say."""
        if predicted.terminated or predicted.reward or predicted.info.error:
            return predicted
        after = self.retriever.correct_first_line(query, predicted.next_state)
        if after == predicted.next_state:
            return predicted
        self.counts["corrected"] += 1
        return replace(predicted, next_state=after)

    def _retrieve(self, queries: Sequence[Query]) -> list[list[Neighbour]]:
        """The memories of queries that no rule decides: where the guard is off, the others get none, as in the training rows."""
        places = [i for i, query in enumerate(queries) if self.guard.config.admissibility or not noop_rule(self.guard.rules, query)]
        neighbours_by_query: list[list[Neighbour]] = [[] for _ in queries]
        for i, neighbours in zip(places, self.retriever.retrieve([queries[i] for i in places]), strict=True):
            neighbours_by_query[i] = neighbours
        return neighbours_by_query


@contextmanager
def _without_ticket() -> Iterator[None]:
    """An error of the block has no ticket: it would be that of an engine, which is none of ours."""
    try:
        yield
    except ServerError as error:
        error.ticket = None
        raise


def answer_from(memory: Memory, by: DecidedBy) -> Prediction:
    """Make a prediction of a memory, as it stands."""
    rows = (memory.row,) if memory.row else ()  # a composed memory has none
    info = StepInfo(memory.reasoning, rows, Verdict("passed"), memory.reward, memory.terminated, by, by)
    return Prediction(Observation(memory.next_state), memory.reward, memory.terminated, info)


def prediction(query: Query, answer: Answer | Unreadable, memories: Sequence[Neighbour], by: DecidedBy = "generated") -> Prediction:
    """Make a prediction of an answer, before verification."""
    rows = tuple(neighbour.memory.row for neighbour in memories)
    if isinstance(answer, Unreadable):
        error = f"the experience model's answer could not be read: {answer.text[:200]!r}"
        info = StepInfo("", rows, Verdict("unreadable"), 0.0, False, by, by, error=error)
        return Prediction(query.state, 0.0, False, info)
    info = StepInfo(answer.reasoning, rows, Verdict("passed"), answer.reward, answer.terminated, by, by)
    return Prediction(Observation(answer.state), answer.reward, answer.terminated, info)
