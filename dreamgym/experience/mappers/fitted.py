"""A state mapping fitted to logs: a linear score of every line, from its words, what it shares with the instruction, and where it stands.

A line is needed where the action of a successful episode names something in it, or where a word stands in it that a later argument of the
episode uses and the instruction does not give. The threshold keeps `RECALL` of the needed lines of episodes that the weights were not
fitted to. Logs of an agent that reads little teach a mapping that shows little: `evals.mapping_loss` says what is lost for the recorded
actions, and nobody knows of others.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dreamgym.config import Config as BaseConfig
from dreamgym.config import build
from dreamgym.envs.mapping import BRACKETED, needed
from dreamgym.errors import UsageError, explain_errors
from dreamgym.runs.files import read_json, write_atomic
from dreamgym.types import Action, Trajectory, Transition

RECALL = 0.98
"""The share of the needed lines that is kept."""
SLOTS = 1 << 14
WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)?|\[")
FORMAT = "dreamgym line mapper 1"
STEPS, RATE, DECAY = 400, 0.5, 1e-4
COMMON = 3
"""Lines of a state beyond which a word says nothing of any of them."""
FEW = 20
"""Needed lines in episodes apart from the fit, below which no threshold is chosen."""


class FittedMappingConfig(BaseConfig):
    """Settings of the plug-in."""

    file: Path
    """What `dreamgym mapping LOGS --out FILE` has written."""


Config = FittedMappingConfig


@dataclass(frozen=True)
class LineMapper:
    """Implements `StateMapper`."""

    weights: NDArray[np.float64]  # [SLOTS]
    threshold: float

    def keep(self, instruction: str, actions: Sequence[Action], lines: Sequence[str]) -> set[int]:
        words = set(WORD.findall(instruction.lower()))
        scores = [float(self.weights[features(line, words, i, len(lines))].sum()) for i, line in enumerate(lines)]
        return {i for i, score in enumerate(scores) if score >= self.threshold}

    def save(self, file: Path) -> None:
        """Write the weights that are not 0, as JSON."""
        slots = np.flatnonzero(self.weights)
        weights = {str(slot): float(self.weights[slot]) for slot in slots}
        write_atomic(file, json.dumps({"format": FORMAT, "threshold": self.threshold, "weights": weights}) + "\n")


def make(**settings: Any) -> LineMapper:
    """The mapper in a file. UsageError for a file that holds none."""
    file = build(FittedMappingConfig, settings, prefix="mapper.").file
    with explain_errors(file):
        if not file.is_file():
            raise UsageError(f"No state mapping '{file}'. Fit one: dreamgym mapping LOGS --out {file}")
    stored = read_json(file) or {}
    try:
        if stored["format"] != FORMAT:
            raise ValueError(f"its format is {stored['format']!r:.60}")
        weights = np.zeros(SLOTS)
        for slot, weight in stored["weights"].items():
            weights[int(slot)] = float(weight)
        return LineMapper(weights, float(stored["threshold"]))
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(
            f"'{file}' is no state mapping of this version ({error}). Fit it again: dreamgym mapping LOGS --out FILE"
        ) from error


def split_by_instruction(episodes: Sequence[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
    """(four fifths of the episodes to fit to, the others to measure on), by their instructions: those of one task stay together."""
    held = [zlib.crc32(f"measured/{one.task.instruction}".encode("utf-8", "replace")) % 5 == 0 for one in episodes]
    if not any(held) or all(held):  # few tasks, recorded often
        held = [zlib.crc32(f"measured/{one.id}".encode("utf-8", "replace")) % 5 == 0 for one in episodes]
    return [t for t, out in zip(episodes, held, strict=True) if not out], [t for t, out in zip(episodes, held, strict=True) if out]


def fit(episodes: Sequence[Trajectory]) -> LineMapper:
    """A mapper from recorded episodes. UsageError for logs whose successes name too little in their states."""
    rows, labels, apart = list[NDArray[np.int64]](), list[bool](), list[bool]()
    for episode in (t for t in episodes if t.success):
        words = set(WORD.findall(episode.task.instruction.lower()))
        held = zlib.crc32(episode.id.encode("utf-8", "replace")) % 5 == 0
        steps = episode.transitions
        for i, step in enumerate(steps):
            lines = step.state.text.split("\n")
            wanted = needed(step.action, lines) | _used_later(steps[i + 1 :], lines, words)
            for line_index, line in enumerate(lines):
                rows.append(features(line, words, line_index, len(lines)))
                labels.append(line_index in wanted)
                apart.append(held)
    y, out = np.array(labels, float), np.array(apart, bool)
    fitted, apart_n = int(y[~out].sum()), int(y[out].sum())
    if min(fitted, apart_n) < FEW:
        raise UsageError(
            f"The actions of the successes among {len(episodes)} episodes name {fitted} lines of the states that it is fitted to, and "
            f"{apart_n} of those by which it chooses its threshold, a fifth of the episodes. It takes {FEW} or more of each to learn which "
            "lines matter. Give more episodes, or a state mapping by an instruct model."
        )
    weights = _logistic([rows[i] for i in np.flatnonzero(~out)], y[~out])
    scores = np.array([weights[rows[i]].sum() for i in np.flatnonzero(out)])
    return LineMapper(weights, float(np.quantile(scores[y[out] > 0], 1 - RECALL, method="lower")))


def features(line: str, instruction: set[str], place: int, of: int) -> NDArray[np.int64]:
    """Slots of what is seen of a line [n]."""
    words = WORD.findall(line.lower())
    content = {word for word in words if len(word) > 2}
    shared = len(content & instruction)
    seen = {
        *words, f"shared:{min(shared, 4)}", f"share:{4 * shared // max(1, len(content))}", f"place:{min(place, 3)}",
        f"part:{8 * place // of}", f"length:{min(len(words) // 4, 6)}", f"element:{bool(BRACKETED.search(line))}:{min(shared, 2)}", "bias",
    }  # fmt: skip
    return np.array(sorted(zlib.crc32(feature.encode("utf-8", "replace")) % SLOTS for feature in seen), np.int64)


def _used_later(steps: Sequence[Transition], lines: Sequence[str], instruction: set[str]) -> set[int]:
    """Lines with a word that a later argument has and the instruction does not: what was read here and used there."""
    given = {  # no references
        argument for step in steps for argument in BRACKETED.findall(step.action) if f"[{argument}]" not in step.state.text
    }
    words = {word for argument in given for word in WORD.findall(argument.lower()) if len(word) > 1} - instruction
    words_by_line = [{word for word in WORD.findall(line.lower()) if word in words} for line in lines]
    rare = {word for word in words if sum(word in line_words for line_words in words_by_line) <= COMMON}
    return {i for i, line_words in enumerate(words_by_line) if line_words & rare}


def _logistic(rows: Sequence[NDArray[np.int64]], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights [SLOTS] of a logistic regression with classes of equal weight, by gradient descent in steps scaled as AdaGrad's."""
    sizes = np.array([len(row) for row in rows])
    columns, row_of = np.concatenate(rows), np.repeat(np.arange(len(rows)), sizes)
    weight = np.where(y > 0, 0.5 / max(1.0, y.sum()), 0.5 / max(1.0, (1 - y).sum()))
    weights, squared = np.zeros(SLOTS), np.full(SLOTS, 1e-12)
    for _ in range(STEPS):
        scores = np.bincount(row_of, weights[columns], len(rows))
        error = weight * (1 / (1 + np.exp(-np.clip(scores, -30, 30))) - y)
        gradient = np.bincount(columns, error[row_of], SLOTS) + DECAY * weights
        squared += gradient**2
        weights -= RATE * gradient / np.sqrt(squared)
    return weights
