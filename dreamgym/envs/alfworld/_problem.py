"""A house as a PDDL problem of ALFWorld's domain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dreamgym.envs.alfworld._scenes import OPENABLE, AlfredData

NEEDED = ("Fridge", "Microwave", "SinkBasin")
"""Kinds of receptacle that the domain's actions name, so that they must be declared in every house."""
BLADES = ("Knife", "ButterKnife")


@dataclass(frozen=True, slots=True)
class HouseholdObject:
    """A receptacle or an object, by its kind and its number among those of its kind, from 0."""

    kind: str
    number: int

    @property
    def id(self) -> str:
        """Such as `Cabinet_bar__plus_00_dot_02`, which ALFWorld turns into "cabinet 3"; a basin's is part of its sink's."""
        place = f"_bar__plus_00_dot_{self.number:02d}"
        return f"{self.kind.removesuffix('Basin')}{place}_bar_{self.kind}" if self.kind.endswith("Basin") else f"{self.kind}{place}"


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands in a house, and what is in or on what. Objects on the floor are in nothing."""

    receptacles: tuple[HouseholdObject, ...]
    inside: Mapping[HouseholdObject, HouseholdObject]  # object -> receptacle
    floor: tuple[HouseholdObject, ...]  # what cannot be picked up and stands nowhere in particular

    def ids(self) -> list[str]:
        """The ids of all things, in lower case as the engine has them."""
        return [thing.id.lower() for thing in (*self.receptacles, *self.inside, *self.floor)]


def problem(name: str, layout: Layout, known: AlfredData, *, fixed: Sequence[str], goal: str) -> str:
    """The problem's text. Every receptacle has a place of its own; the agent starts in the middle of the room."""
    objects = [*layout.inside, *layout.floor]
    otypes = sorted({thing.kind for thing in objects} | set(BLADES))
    rtypes = sorted({thing.kind for thing in layout.receptacles} | set(NEEDED))
    places = {receptacle: f"loc_bar_{number}" for number, receptacle in enumerate(layout.receptacles)}
    declared = ["agent1 - agent", "loc_bar_start - location"]
    declared += [f"{kind}Type - otype" for kind in otypes] + [f"{kind}Type - rtype" for kind in rtypes]
    declared += [f"{thing.id} - object" for thing in objects] + [f"{thing.id} - receptacle" for thing in layout.receptacles]
    declared += [f"{place} - location" for place in places.values()]
    declared += [f"loc_bar_floor_{number} - location" for number in range(len(layout.floor))]
    facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_bar_start)"]
    for receptacle, place in places.items():
        facts += [f"(receptacleType {receptacle.id} {receptacle.kind}Type)", f"(receptacleAtLocation {receptacle.id} {place})"]
        facts += [f"(openable {receptacle.id})"] if receptacle.kind in OPENABLE else []
    facts += [f"(canContain {r}Type {o}Type)" for r in rtypes for o in otypes if o in known.fits.get(r, ())]
    for thing in objects:
        facts += [f"(objectType {thing.id} {thing.kind}Type)", *_abilities(thing, known, fixed)]
    for thing, receptacle in layout.inside.items():
        facts += [f"(inReceptacle {thing.id} {receptacle.id})", f"(objectAtLocation {thing.id} {places[receptacle]})"]
    facts += [f"(objectAtLocation {thing.id} loc_bar_floor_{number})" for number, thing in enumerate(layout.floor)]
    name = re.sub(r"\W", "_", name)
    return (
        f"(define (problem {name})\n(:domain alfred)\n(:objects\n{_lines(declared)})\n(:init\n{_lines(facts)})\n{goal.replace('#', '-')}\n"
    )


def _abilities(thing: HouseholdObject, known: AlfredData, fixed: Sequence[str]) -> list[str]:
    found = [] if thing.kind in fixed else [f"(pickupable {thing.id})"]
    found += [f"(isReceptacleObject {thing.id})"] if thing.kind in known.movable else []
    return found + [f"({ability} {thing.id})" for ability, kinds in known.does.items() if thing.kind in kinds]


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"    {text}\n" for text in texts)
