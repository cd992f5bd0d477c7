"""Shortening states: the lines of a long text that an agent needs, chosen by a state mapping (`experience.mappers`).

Lines are kept as they are or left out, so no mapping can change an element or make one up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from dreamgym.envs.actions import parts
from dreamgym.types import Action, Observation, Trajectory, Turn

BRACKETED = re.compile(r"\[([^\[\]]+)\]")


class StateMapper(Protocol):
    """Shortens states."""

    def keep(self, instruction: str, actions: Sequence[Action], lines: Sequence[str]) -> set[int]:
        """The places of the lines that are needed for the task after these actions."""
        ...


def shorten(mapper: StateMapper, instruction: str, actions: Sequence[Action], text: str) -> str:
    """The state without the lines that the mapper leaves out. The first line, which says where one is, always stays."""
    lines = text.split("\n")
    if len(lines) < 3:
        return text
    kept = mapper.keep(instruction, actions, lines) | {0}
    gone = len(lines) - len(kept)
    note = [f"({gone} line{'s' * (gone > 1)} left out)"] if gone else []
    return "\n".join([*(line for i, line in enumerate(lines) if i in kept), *note])


def needed(action: Action, lines: Sequence[str]) -> set[int]:
    """The places of the lines that name an argument of the action: what a mapping must not lose."""
    names = [f"[{one}]" for one in BRACKETED.findall(action)] or [
        value for _, arguments in parts(action) for value in arguments.values() if len(value) > 1 and value != action.strip()
    ]
    return {i for i, line in enumerate(lines) if any(name in line for name in names)}


def mapped(mapper: StateMapper, episode: Trajectory) -> Trajectory:
    """A recorded episode in the states of the mapping."""
    actions, turns = [step.action for step in episode.transitions], list[Turn]()
    after = [step.state.text for step in episode.transitions[:1]] + [step.next_state.text for step in episode.transitions]
    texts = [shorten(mapper, episode.task.instruction, actions[:i], text) for i, text in enumerate(after)]
    for i, turn in enumerate(episode.turns):
        step = replace(turn.transition, state=Observation(texts[i]), next_state=Observation(texts[i + 1]))
        turns.append(replace(turn, transition=step))
    return replace(episode, turns=tuple(turns))
