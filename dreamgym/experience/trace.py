"""Reasoning traces that need no rules and no teacher: what a step changed, and which precedent says so.

A trace names the source of the next state before the model writes it (nothing changes, as a memory has it, as an earlier state, like a
memory but for some lines), then the outcome. All of it is computed from the step, the states in the prompt and the memories beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.types import Transition


def trace_of_changes(step: Transition, visible: Sequence[str], memories: Sequence[str]) -> str:
    """The trace of one real step, in one line. `visible` are the states in the prompt, `memories` the texts of the step's memories, the
    most similar first. A memory agrees where its text ends with the lines of the next state."""
    return f"{_source(step.state.text, step.next_state.text, visible, memories)}; {_outcome(step)}"


def _source(before: str, after: str, visible: Sequence[str], memories: Sequence[str]) -> str:
    if after == before:
        return "nothing changes"
    for i, memory in enumerate(memories, start=1):
        if memory == after or memory.endswith(f"\n{after}"):
            return f"as memory {i} shows"
    if after in visible:
        return "back to an earlier state"
    lines = after.split("\n")
    new = [line for line in lines if line not in set(before.split("\n"))]
    if 2 * len(new) <= len(lines):
        return f"the same state but for {len(new)} lines"
    if memories:
        unknown = [line for line in lines if line not in set(memories[0].split("\n"))]
        if 2 * len(unknown) <= len(lines):
            return f"like memory 1 but for {len(unknown)} lines"
    return "a new state"


def _outcome(step: Transition) -> str:
    if not step.terminated:
        return "it goes on" if not step.reward else "it pays and goes on"
    return "the task is done" if step.reward > 0 else "it ends without success"
