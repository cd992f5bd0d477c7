"""Reading what the experience model wrote: strictly first, then one repair, then a counted failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.experience.prompts import GO, NUMBER, STOP, PromptParts
from dreamgym.llm.vocabulary import END, NEXT, REWARD, SAME, Vocabulary

OUTCOME = re.compile(rf"(?P<reward>{NUMBER}) (?P<flag>{GO}|{STOP})")
"""A reward as trainings write it, and whether the episode ends."""


@dataclass(frozen=True)
class Answer:
    """A parsed prediction. `repaired` says that the strict reading failed and the tolerant one did not."""

    reasoning: str
    state: str
    reward: float
    terminated: bool
    repaired: bool = False
    is_delta: bool = False  # the state is a delta (`state_delta.decode`)


def parse(vocab: Vocabulary, ids: Sequence[int], prompt_parts: PromptParts) -> Answer | None:
    """The answer in sampled `ids`, or None when no state or no outcome can be read from them.

    Each marker has one place. An answer with another one in the middle of a text is none: without it the text would read on as if clean.
    """
    body = list(ids[:-1]) if ids and ids[-1] == vocab[END] else list(ids)
    marks = ([NEXT] if prompt_parts.reasoning else []) + [REWARD]
    parts = _split(body, [vocab[mark] for mark in marks])
    if parts is None:
        return None
    is_delta = prompt_parts.state_delta and parts[-2][:1] == [vocab[SAME]]
    parts[-2] = parts[-2][is_delta:]
    if any(vocab.marks & set(part) for part in parts):
        return None
    texts = [vocab.decode(part) for part in parts]
    reasoning, state, ending = texts if prompt_parts.reasoning else ["", *texts]
    strict = OUTCOME.fullmatch(ending)
    match = strict or OUTCOME.search(ending)
    if (
        not match or not (is_delta or state.strip()) or re.search(r"[\d.-]", ending[: match.start()])
    ):  # a second number: which one was meant?
        return None
    clean = strict is not None and len(body) < len(ids)
    return Answer(reasoning, state, float(match["reward"]), match["flag"] == STOP, repaired=not clean, is_delta=is_delta)


def _split(ids: list[int], marks: list[int]) -> list[list[int]] | None:
    """Cut at the first occurrence of each mark, in order; None when one is missing."""
    parts = []
    for mark in marks:
        if mark not in ids:
            return None
        cut = ids.index(mark)
        parts.append(ids[:cut])
        ids = ids[cut + 1 :]
    return [*parts, ids]
