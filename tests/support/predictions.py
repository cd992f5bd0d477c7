"""Predictions as an experience model makes them, before the guard."""

from __future__ import annotations

from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import prediction
from dreamgym.types import Observation, Prediction, Query, Task


def predicted(state: str | Observation, reward: float = 0.0, terminated: bool = False, reasoning: str = "") -> Prediction:
    """A readable answer that rests on no memories."""
    text = state if isinstance(state, str) else state.text
    query = Query(Task("t", "", ""), (), Observation(""), "")
    return prediction(query, Answer(reasoning, text, reward, terminated), ())
