"""A house of a few lines that prints what ALFWorld's games print, for tests of everything about them that reads text.

The rules are those of `alfred.pddl`, written down a second time and apart from the package. Where textworld and alfworld are installed,
`test_alfworld_domain.py` asks the real engine instead.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from dreamgym.envs.alfworld.goals import WORDINGS, Goal, read_goal
from dreamgym.envs.alfworld.object_facts import FIXED, HOLDS, QUALITIES
from dreamgym.types import Task

OPENABLE = ("cabinet", "drawer", "fridge", "microwave", "safe")
ROOMS = {
    "kitchen": "cabinet 1,cabinet 2,countertop 1,diningtable 1,drawer 1,fridge 1,microwave 1,shelf 1,sinkbasin 1,garbagecan 1",
    "bedroom": "bed 1,desk 1,drawer 1,drawer 2,dresser 1,shelf 1,sidetable 1,safe 1",
}
THINGS = {
    "kitchen": "apple bread mug plate pan potato knife saltshaker tomato bowl cup",
    "bedroom": "book pen pencil cd watch keychain laptop pillow creditcard",
}


@dataclass
class ToyHouse:
    """One game (the `Env` protocol, but for any task whose goal record is this house's own)."""

    goal: Goal
    places: dict[str, list[str]]
    closed: set[str] = field(default_factory=set)
    here: str = ""
    held: str = ""
    qualities: dict[str, set[str]] = field(default_factory=dict)
    lit: set[str] = field(default_factory=set)
    name = "alfworld"

    def accepts(self, task: Task) -> bool:
        return task.source == "real"

    def reset(self, task: Task) -> dict[str, Any]:
        listed = [f"a {place}" for place in reversed(self.places)]
        text = f"You are in the middle of a room. Looking quickly around you, you see {', '.join(listed[:-1])}, and {listed[-1]}."
        return self._raw(f"-= Welcome to TextWorld, ALFRED! =-\n\n{text}\n\nYour task is to: {task.instruction}.")

    def step(self, action: str) -> tuple[dict[str, Any], float, bool]:
        text = self._do(action)
        return self._raw(text), float(self.won), self.won

    @property
    def won(self) -> bool:
        goal = self.goal
        if goal.kind == "look_at_obj_in_light":
            lamps = [thing for thing in self.places.get(self.here, []) if thing in self.lit and thing.startswith(goal.place)]
            return bool(lamps) and self.held.startswith(f"{goal.thing} ")
        fitting = [
            [t for t in there if t.startswith(f"{goal.thing} ") and (not goal.quality or goal.quality in self.qualities.get(t, ()))]
            for place, there in self.places.items()
            if place.startswith(f"{goal.place} ")
        ]
        return any(len(found) >= goal.count for found in fitting)

    def admissible(self) -> list[str]:
        """What the engine would list, without the looks at single things."""
        here, held = self.here, self.held
        found = ["look", "inventory", "help"] + [f"go to {place}" for place in self.places if place != here]
        if not here:
            return sorted(found)
        kind, shut = here.split()[0], here in self.closed
        if kind in OPENABLE:
            found.append(f"open {here}" if shut else f"close {here}")
        seen = [] if shut else self.places[here]
        found += [f"take {thing} from {here}" for thing in seen if not held and thing.split()[0] not in FIXED]
        found += [f"use {thing}" for thing in seen if thing.startswith("desklamp")]
        if held:
            what = held.split()[0]
            found += [f"move {held} to {here}"] * (not shut and what in HOLDS[kind])
            found += [f"clean {held} with {here}"] * (kind == "sinkbasin" and what in QUALITIES["clean"])
            found += [f"heat {held} with {here}"] * (kind == "microwave" and what in QUALITIES["hot"])
            found += [f"cool {held} with {here}"] * (kind == "fridge" and what in QUALITIES["cool"])
            found += [f"slice {thing} with {held}" for thing in seen if what == "knife" and thing.split()[0] in QUALITIES["sliced"]]
        return sorted(found)

    def _do(self, action: str) -> str:
        if action not in self.admissible():
            return "Nothing happens."
        words = action.split()
        thing, place = " ".join(words[1:3]), self.here
        if words[0] == "go":
            self.here = " ".join(words[2:])
            return f"You arrive at {self.here}. {self._look()}"
        if words[0] == "open":
            self.closed.discard(place)
            return f"You open the {place}. {self._look()}"
        if words[0] == "close":
            self.closed.add(place)
            return f"You close the {place}."
        if words[0] == "take":
            self.places[place].remove(thing)
            self.held = thing
            return f"You pick up the {thing} from the {place}."
        if words[0] == "move":
            self.places[place].append(thing)
            self.held = ""
            return f"You move the {thing} to the {place}."
        if words[0] in ("clean", "heat", "cool"):
            became = {"clean": "clean", "heat": "hot", "cool": "cool"}[words[0]]
            self.qualities.setdefault(thing, set()).difference_update({"hot": {"cool"}, "cool": {"hot"}}.get(became, set()))
            self.qualities[thing].add(became)
            return f"You {words[0]} the {thing} using the {place}."
        if words[0] == "use":
            self.lit.add(thing)
            return f"You turn on the {thing}."
        return {"inventory": f"You are carrying: a {self.held}." if self.held else "You are not carrying anything."}.get(words[0], "...")

    def _look(self) -> str:
        listed = [f"a {thing}" for thing in reversed(self.places[self.here])]
        seen = ", ".join(listed[:-1]) + (", and " if len(listed) > 1 else "") + listed[-1] if listed else "nothing"
        if self.here in self.closed:
            return f"The {self.here} is closed."
        if self.here.split()[0] in OPENABLE:
            return f"The {self.here} is open. In it, you see {seen}."
        return f"On the {self.here}, you see {seen}."

    def _raw(self, text: str) -> dict[str, Any]:
        return {"text": text, "admissible": self.admissible(), "goal": "", "won": self.won}


def random_house(seed: int) -> tuple[ToyHouse, Task]:
    """A solvable game of any of the six kinds, not solved at the start."""
    rng = random.Random(f"toy/{seed}")
    while True:
        kind, wording = WORDINGS[seed % len(WORDINGS)]
        room = "bedroom" if kind == "look_at_obj_in_light" else "kitchen" if "then" in kind else rng.choice(list(ROOMS))
        names = [place for place in ROOMS[room].split(",") if rng.random() < 0.8 or place[:5] in ("sinkb", "fridg", "micro")]
        places: dict[str, list[str]] = {place: [] for place in names}
        for what in rng.sample(THINGS[room].split(), 6):
            for number in range(1, rng.choice((2, 2, 3))):
                fitting = [place for place in names if what in HOLDS[place.split()[0]]]
                if fitting:
                    places[rng.choice(fitting)].append(f"{what} {number}")
        if kind == "look_at_obj_in_light":
            places[names[-1]].append("desklamp 1")
        there = sorted({thing.split()[0] for things in places.values() for thing in things} - FIXED)
        target = "desklamp" if kind == "look_at_obj_in_light" else rng.choice(names).split()[0]
        instruction = wording.format(thing=rng.choice(there), place=target)
        goal = read_goal(instruction)
        assert goal is not None
        house = ToyHouse(goal, places, {place for place in names if place.split()[0] in OPENABLE})
        if house.won or not _possible(goal, places):
            continue
        return house, Task(f"toy/{seed}", instruction, "alfworld", goal={"game": seed})


def _possible(goal: Goal, places: dict[str, list[str]]) -> bool:
    count = sum(thing.startswith(f"{goal.thing} ") for things in places.values() for thing in things)
    fits = goal.count == 0 or goal.thing in HOLDS[goal.place]
    return count >= max(1, goal.count) and fits and (not goal.quality or goal.thing in QUALITIES[goal.quality])
