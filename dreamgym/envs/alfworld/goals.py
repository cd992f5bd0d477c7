"""Reading what a household task asks for.

Two wordings per kind, as ALFRED's goal library has them (`alfworld.gen.goal_library`; alfworld 0.4.2). Every official and generated game
is worded in one of them, and instructions that a dream invents are read by the same rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from dreamgym.envs.alfworld.object_facts import HOLDS, LAMPS, QUALITIES, TREATMENTS

Kind = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]

WORDINGS: tuple[tuple[Kind, str], ...] = (
    ("look_at_obj_in_light", "look at {thing} under the {place}"),
    ("look_at_obj_in_light", "examine the {thing} with the {place}"),
    ("pick_two_obj_and_place", "put two {thing} in {place}"),
    ("pick_two_obj_and_place", "find two {thing} and put them in {place}"),
    ("pick_clean_then_place_in_recep", "put a clean {thing} in {place}"),
    ("pick_clean_then_place_in_recep", "clean some {thing} and put it in {place}"),
    ("pick_heat_then_place_in_recep", "put a hot {thing} in {place}"),
    ("pick_heat_then_place_in_recep", "heat some {thing} and put it in {place}"),
    ("pick_cool_then_place_in_recep", "put a cool {thing} in {place}"),
    ("pick_cool_then_place_in_recep", "cool some {thing} and put it in {place}"),
    ("pick_and_place_simple", "put a {thing} in {place}"),
    ("pick_and_place_simple", "put some {thing} on {place}"),
)
_PATTERNS = tuple(
    (kind, re.compile(wording.format(thing=r"(?P<thing>[a-z]+)", place=r"(?P<place>[a-z]+)") + r"\.?")) for kind, wording in WORDINGS
)
_QUALITY: dict[str, str] = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "hot",
    "pick_cool_then_place_in_recep": "cool",
}
THINGS = frozenset[str]().union(*HOLDS.values())


@dataclass(frozen=True, slots=True)
class Goal:
    """What has to be so for a task to be done."""

    kind: Kind
    thing: str  # the kind of thing
    place: str  # the kind of place to put it, or of lamp to look at it under

    @property
    def quality(self) -> str:
        """What the thing must have become: clean, hot, cool, or "" for nothing."""
        return _QUALITY.get(self.kind, "")

    @property
    def count(self) -> int:
        """How many of the thing must lie in the same place; 0 for looking under a lamp."""
        return {"pick_two_obj_and_place": 2, "look_at_obj_in_light": 0}.get(self.kind, 1)

    @property
    def appliances(self) -> frozenset[str]:
        """Kinds of places of which one is needed beside the target: to clean, heat or cool."""
        return next((places for _, (quality, places) in TREATMENTS.items() if quality == self.quality), frozenset())


@lru_cache(maxsize=65536)
def read_goal(instruction: str) -> Goal | None:
    """The goal that an instruction spells out, or None when it is worded otherwise."""
    for kind, pattern in _PATTERNS:
        if match := pattern.fullmatch(instruction):
            return Goal(kind, match["thing"], match["place"])
    return None


def sensible(goal: Goal) -> bool:
    """Whether such a goal can exist: a known thing that can become what is asked and be put where it is asked."""
    if goal.kind == "look_at_obj_in_light":
        return goal.thing in THINGS and goal.place in LAMPS
    can_become = not goal.quality or goal.thing in QUALITIES[goal.quality]
    return can_become and goal.thing in HOLDS.get(goal.place, frozenset())
