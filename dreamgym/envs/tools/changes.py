"""Which tools only read, estimated from recorded episodes.

The same call made twice in an episode is a comparison: where the two answers differ, the tool itself or one that was called in between has
changed something. The fewest tools that explain all differences are sought greedily, the one first that most often stands in a pair that
differs. A tool counts as reading where it is none of them and stood in at least `ENOUGH` pairs with the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dreamgym.envs.tools.conversation import latest_turn
from dreamgym.errors import UsageError
from dreamgym.tool_calls import RESPOND, calls_of
from dreamgym.types import Trajectory

ENOUGH = 3
"""Pairs with the same answer that a reading tool must have stood in."""
MOST = 12
"""Calls between the two of a pair; longer stretches show little."""


class Changes(NamedTuple):
    """What recorded episodes show of tools."""

    changes: frozenset[str]
    reads: frozenset[str]


def tools_that_change(episodes: Iterable[Trajectory]) -> Changes:
    """Which tools change something, and which only read; a tool of which too little is known is neither."""
    same, different = Counter[str](), list[frozenset[str]]()
    for episode in episodes:
        for tools, equal in _pairs(episode):
            if equal:
                same.update(tools)
            else:
                different.append(tools)
    changes = set[str]()
    while different:
        often = Counter(tool for tools in different for tool in tools)
        worst = max(often, key=lambda tool: (often[tool] / (often[tool] + same[tool]), often[tool], tool))
        changes.add(worst)
        different = [tools for tools in different if worst not in tools]
    return Changes(frozenset(changes), frozenset(tool for tool, n in same.items() if n >= ENOUGH and tool not in changes))


def _pairs(episode: Trajectory) -> Iterator[tuple[frozenset[str], bool]]:
    """For each call that is made again: its tool and those in between, and whether the answers are the same."""
    last: dict[str, tuple[int, str]] = {}
    names = list[str]()
    for step in episode.transitions:
        try:
            calls = calls_of(step.action)
        except UsageError:
            continue
        if len(calls) == 1 and calls[0].name != RESPOND:  # of several calls nobody knows which came first
            call, answer = str(calls[0]), latest_turn(step.next_state)
            if call in last and len(names) - last[call][0] <= MOST:
                yield frozenset({calls[0].name, *names[last[call][0] :]}), answer == last[call][1]
            last[call] = (len(names), answer)
        names += [call.name for call in calls if call.name != RESPOND]
