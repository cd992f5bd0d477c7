"""What every experience model does with a batch of queries, whoever writes the answers: retrieve, ask, read, doubt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dreamgym.experience.changes import Written, hear
from dreamgym.experience.guard import Guard
from dreamgym.experience.prompts import Pieces, in_view
from dreamgym.experience.recall import Recall
from dreamgym.protocols import Domain, Narrated
from dreamgym.types import Neighbour, Observation, Prediction, Query, Transition, Verdict

UNREADABLE = ("unreadable answer",)
Ask = Callable[[Sequence[Query], Sequence[Sequence[Neighbour]]], list[Prediction]]
"""(queries, their memories) -> what the model says, not yet judged."""


def guarded(guard: Guard, recall: Recall, queries: Sequence[Query], ask: Ask) -> tuple[list[Prediction], dict[int, list[Neighbour]]]:
    """One guarded prediction per query, in order, and the memories shown with those that the model was asked about.

    What can do nothing is answered by rule; the rest is asked with its memories, and reviewed.
    """
    answers = [guard.before(query) for query in queries]
    asked = [i for i, answer in enumerate(answers) if answer is None]
    open_queries = [queries[i] for i in asked]
    memories = recall.find(open_queries)
    for i, prediction in zip(asked, guard.review(open_queries, ask(open_queries, memories)), strict=True):
        answers[i] = prediction
    return [answer for answer in answers if answer is not None], dict(zip(asked, memories, strict=True))


def told(domain: Domain, transition: Transition) -> str:
    """What the model writes in place of the next state; "" where it writes the state itself."""
    return domain.news(transition) if isinstance(domain, Narrated) else ""


def heard(domain: Domain, query: Query, said: Written, pieces: Pieces) -> Observation | None:
    """The next state that the model's words mean; None when they mean none."""
    if isinstance(domain, Narrated):
        return None if said.same else domain.hear(query.state, said.text)  # news are no changes of a text
    text = hear(in_view(query.history, query.state.text, pieces), said)
    return None if text is None else Observation(text)


def unreadable(query: Query, rows: tuple[int, ...], raw: str) -> Prediction:
    """The prediction of an answer that could not be read: nothing happens, and the verdict says why."""
    return Prediction("", query.state, 0.0, False, Verdict(False, UNREADABLE), rows, raw=raw)


def rows_of(memories: Sequence[Neighbour]) -> tuple[int, ...]:
    """The replay rows that were shown. What was put together from several of them is none."""
    return tuple(neighbour.memory.row for neighbour in memories if neighbour.memory.row)
