"""Answers from the nearest memory, for the kinds of actions that it predicts better than the fitted model does.

The control without a model (`experience.models.no_model`) answers every step from the history or the nearest precedent. Where logs are few
it predicts some actions better than the model, and the model others. Both predict the steps of logged tasks that the model was not fitted
to; by kind of action the better of the two answers in the dream. Which one that is with few steps leans towards the mean over all kinds
(an estimate by shrinkage, James and Stein 1961).

An answer from memory only ever continues an episode: kinds of actions that some logged step was paid for or ended with stay with the
model, and so does a step whose nearest precedent pays or ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dreamgym.envs.base import TextRules
from dreamgym.experience.parse import Answer
from dreamgym.types import Query

PRIOR_STEPS = 3.0
"""Steps that the mean difference over all kinds counts for in the estimate of one kind."""


@dataclass(frozen=True)
class ValidationStep:
    """A step that both predicted: whether the next state was exactly right."""

    episode: int
    kind: str
    model: bool
    memory: bool


class Control(Protocol):
    """What answers from memory (`no_model.NoModel`)."""

    def from_memory(self, queries: Sequence[Query]) -> list[Answer]:
        """One answer per query, in order."""


@dataclass(frozen=True)
class MemoryAnswers:
    """The control, and the kinds of actions that it answers."""

    control: Control
    kinds: frozenset[str]
    rules: TextRules

    def answer(self, queries: Sequence[Query]) -> list[Answer | None]:
        """An answer per query; None where the model is to answer."""
        places = [i for i, query in enumerate(queries) if self.rules.action_kind(query.state, query.action) in self.kinds]
        answers: list[Answer | None] = [None] * len(queries)
        if places:
            for i, answer in zip(places, self.control.from_memory([queries[i] for i in places]), strict=True):
                answers[i] = None if answer.terminated or answer.reward else answer
        return answers


def choose(steps: Sequence[ValidationStep]) -> frozenset[str]:
    """The kinds of actions of which memory is expected to predict more next states than the model."""
    if not steps:
        return frozenset()
    mean = sum(step.memory - step.model for step in steps) / len(steps)
    differences: dict[str, list[int]] = defaultdict(list)
    for step in steps:
        differences[step.kind].append(step.memory - step.model)
    return frozenset(kind for kind, values in differences.items() if (sum(values) + PRIOR_STEPS * mean) / (len(values) + PRIOR_STEPS) > 0)


def account(steps: Sequence[ValidationStep], paying: Collection[str]) -> dict[str, Any]:
    """What was chosen and why, as plain values: the kinds that memory answers (`kinds`), the number of steps, and the shares of their next
    states that are exactly right by the `model`, by `memory`, and by the choice between them (`chosen`), made for each episode on the
    others. Steps of `paying` kinds are left to the model."""
    eligible = [step for step in steps if step.kind not in paying]
    by_episode: Mapping[int, frozenset[str]] = {
        episode: choose([step for step in eligible if step.episode != episode]) for episode in {step.episode for step in eligible}
    }
    right = [step.memory if step.kind in by_episode.get(step.episode, ()) else step.model for step in steps]
    return {
        "kinds": sorted(choose(eligible)),
        "steps": len(steps),
        "model": _share(step.model for step in steps),
        "memory": _share(step.memory for step in steps),
        "chosen": _share(right),
    }


def sentence(record: Mapping[str, Any]) -> str:
    """The account in words."""
    if not record["steps"]:
        return "No step of a validation task has to be generated, so that the model answers all kinds of actions."
    kinds = record["kinds"]
    which = f"memory answers {', '.join(kinds)}" if kinds else "the model answers all kinds of actions"
    shares = {name: f"{100 * record[name]:.1f} %" for name in ("model", "memory", "chosen")}
    return (
        f"On {record['steps']:,} steps of tasks that it was not fitted to, the model has {shares['model']} of next states exactly right, "
        f"memory {shares['memory']}, and the better of both by kind of action {shares['chosen']} (cross-validated): {which}."
    )


def _share(hits: Iterable[bool]) -> float | None:
    values = list(hits)
    return sum(values) / len(values) if values else None
