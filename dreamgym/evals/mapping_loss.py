"""What a learned state mapping saves, and what it loses: on recorded episodes, without an environment."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from dreamgym.envs.mapping import StateMapper, mapped, needed
from dreamgym.statistics import Rate, wilson
from dreamgym.types import Trajectory

PIECE = re.compile(r"[A-Za-z]{1,5}|\d|[^\sA-Za-z\d]")


@dataclass(frozen=True)
class MappingLoss:
    """What a mapping saves and loses on recorded episodes."""

    episodes: int
    states: int
    tokens_before: float
    """Of a state, roughly: pieces of up to five letters, single digits and signs."""
    tokens_after: float
    actions_kept: Rate
    """Of the steps of successes whose action names something in the state, those of which all lines with it stay."""
    ambiguous_before: Rate
    """Of the (state, action) pairs that occur more than once, those with different outcomes."""
    ambiguous_after: Rate
    """The same of mapped states: what rises here is a difference that the mapping hides."""


def measure(mapper: StateMapper, episodes: Iterable[Trajectory]) -> MappingLoss:
    """The loss of a mapping."""
    n = states = before = after = kept = named = 0
    outcomes: tuple[dict[tuple[str, str], list[tuple[str, float, bool]]], ...] = (defaultdict(list), defaultdict(list))
    for episode in episodes:
        n += 1
        short = mapped(mapper, episode)
        for step, other in zip(episode.transitions, short.transitions, strict=True):
            states += 1
            before, after = before + len(PIECE.findall(step.state.text)), after + len(PIECE.findall(other.state.text))
            lines = step.state.text.split("\n")
            if episode.success and (wanted := needed(step.action, lines)):
                named += 1
                shown = set(other.state.text.split("\n"))
                kept += all(lines[place] in shown for place in wanted)
            for found, one in zip(outcomes, (step, other), strict=True):
                found[one.state.text, f"{episode.task.instruction}\n{one.action}"].append(
                    (step.next_state.text, step.reward, step.terminated)
                )
    return MappingLoss(
        n, states, before / max(1, states), after / max(1, states), wilson(kept, named), *(_ambiguous(one) for one in outcomes)
    )


def _ambiguous(outcomes: dict[tuple[str, str], list[tuple[str, float, bool]]]) -> Rate:
    several = [found for found in outcomes.values() if len(found) > 1]
    return wilson(sum(len(set(found)) > 1 for found in several), len(several))
