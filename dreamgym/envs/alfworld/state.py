"""The abstract state of a household: where the agent stands, what it holds, and the house as far as it was seen.

    unseen: bed 1 desk 1 drawer 1         unseen: desk 1
    holding nothing                       bed 1: book 1 pillow 1
    in the room                           holding clean mug 1
                                          at drawer 1: open pen 1 watch 1

The engine prints only what is new: that the agent arrived, what it picked up, or that nothing happened. `TrackedHouse` remembers what
was printed,
and `state_of` folds that into the state. So an action that does nothing leaves the state as it was, and looking or taking stock adds
nothing to it. Things are listed as they were put, those found there first and in one order, whatever order the engine prints them in.

Every state says everything that is known, because whoever acts in a state, or dreams what follows, then finds all that matters in it. When
states said only what is here, small models had to look for what a drawer held twelve steps ago, and did not find it. What a
step adds to a state is in `deltas`. What most actions are about, the hand and what lies here, is last, next to what is written after it:
in the middle of the house small models did not find it, and took what was not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from dreamgym.envs.alfworld.object_facts import NAME, in_order
from dreamgym.errors import UsageError
from dreamgym.protocols import Env
from dreamgym.types import Action, Task

Door = Literal["", "open", "closed"]
Story = tuple[tuple[Action, str], ...]
"""Everything that was printed so far: ("", first text), then (command, text) of each step."""

FIRST = re.compile(r"Looking quickly around you, you see (?P<list>[^\n]*)\.")
ARRIVED = re.compile(r"You arrive at (?P<place>[a-z]+ \d+)\.")
CLOSED = re.compile(r"The (?P<place>[a-z]+ \d+) is closed\.")
OPENED = re.compile(r"The (?P<place>[a-z]+ \d+) is open\. In it, you see (?P<list>[^.]*)\.")
ON = re.compile(r"On the (?P<place>[a-z]+ \d+), you see (?P<list>[^.]*)\.")
UNSHUT = re.compile(r"You open the (?P<place>[a-z]+ \d+)\.")
SHUT = re.compile(r"You close the (?P<place>[a-z]+ \d+)\.")
TOOK = re.compile(r"You pick up the (?P<thing>[a-z]+ \d+) from the (?P<place>[a-z]+ \d+)\.")
MOVED = re.compile(r"You move the (?P<thing>[a-z]+ \d+) to the (?P<place>[a-z]+ \d+)\.")
TREATED = re.compile(r"You (?P<verb>heat|clean|cool) the (?P<thing>[a-z]+ \d+) using the [a-z]+ \d+\.")
LIT = re.compile(r"You turn on the (?P<thing>[a-z]+ \d+)\.")
SENTENCES = (ARRIVED, CLOSED, OPENED, ON, UNSHUT, SHUT, TOOK, MOVED, TREATED, LIT)
RESULT = {"heat": "hot", "clean": "clean", "cool": "cool"}

ADJECTIVES = ("clean", "cool", "hot", "lit")
ROOM, AT = "in the room", "at "
NAMED = r"(?:(?:clean|cool|hot|lit) )*[a-z]+ \d+"
HOLDING = re.compile(rf"holding (?:nothing|(?P<held>{NAMED}))")
UNSEEN = re.compile(r"unseen:(?P<list>(?: [a-z]+ \d+)+)")
LINE = re.compile(rf"(?P<name>[a-z]+ \d+):(?: (?P<door>open|closed))?(?: (?P<list>nothing|{NAMED}(?: {NAMED})*))?")


@dataclass(frozen=True, slots=True)
class Place:
    """What is known of one place. `things` is None until somebody has looked; a closed door hides them, but they are remembered."""

    name: str
    door: Door = ""
    things: tuple[str, ...] | None = None

    @property
    def unknown(self) -> bool:
        """Whether nobody has been there."""
        return self.things is None and not self.door


@dataclass(frozen=True, slots=True)
class State:
    """What a state's text says. `here` is "" in the middle of the room, `held` is "" with empty hands."""

    here: str
    held: str
    house: tuple[Place, ...]
    became: frozenset[tuple[str, str]] = frozenset()  # (thing, clean, cool, hot or lit)

    @property
    def text(self) -> str:
        """The words a model reads."""
        unknown = [place.name for place in self.house if place.unknown]
        here = self.place(self.here)
        return "\n".join(
            [
                *([f"unseen: {' '.join(unknown)}"] if unknown else []),
                *(self._line(place) for place in self.house if not place.unknown and place != here),
                f"holding {self._called(self.held) if self.held else 'nothing'}",
                AT + (self._line(here) if here else self.here) if self.here else ROOM,
            ]
        )

    def _line(self, place: Place) -> str:
        listed = "" if place.things is None else " ".join(map(self._called, place.things)) or "nothing"
        return f"{place.name}: {' '.join(filter(None, (place.door, listed)))}"

    def _called(self, thing: str) -> str:
        return " ".join([*self.qualities(thing), thing])

    def qualities(self, thing: str) -> tuple[str, ...]:
        """What a thing has become, in the order of the alphabet."""
        return tuple(word for word in ADJECTIVES if (thing, word) in self.became) if self.became else ()

    def place(self, name: str) -> Place | None:
        """The place of that name; None when the house has none."""
        return next((place for place in self.house if place.name == name), None)

    def visited(self, name: str) -> bool:
        """Whether what lies there has been seen."""
        place = self.place(name)
        return place is not None and place.things is not None

    @property
    def places(self) -> tuple[str, ...]:
        """Where one can go."""
        return tuple(place.name for place in self.house)

    @property
    def door(self) -> Door:
        """Of the place where the agent stands."""
        place = self.place(self.here)
        return place.door if place else ""

    @property
    def seen(self) -> tuple[str, ...]:
        """What can be reached from where the agent stands: nothing behind a closed door."""
        place = self.place(self.here)
        return () if place is None or place.door == "closed" else place.things or ()

    @property
    def homes(self) -> dict[str, str]:
        """Where every thing lies that was seen and is not in hand, in the order of the text."""
        return {thing: place.name for place in self.house for thing in place.things or ()}


@lru_cache(maxsize=65536)
def read(text: str) -> State | None:
    """The state that a text describes, or None when it describes none: the end, or something a dream garbled."""
    *rows, holding, stand = ["", *text.split("\n")]
    hand, became, house = HOLDING.fullmatch(holding), set[tuple[str, str]](), list[Place]()
    rows = rows[1:]
    if rows and (unseen := UNSEEN.fullmatch(rows[0])):
        house += [Place(name) for name in NAME.findall(unseen["list"])]
        rows = rows[1:]
    known = [_place(row, became) for row in (*rows, *([] if stand == ROOM else [stand.removeprefix(AT)]))]
    if hand is None or not (stand == ROOM or stand.startswith(AT)) or None in known:
        return None
    house += [place for place in known if place]
    here = "" if stand == ROOM else house[-1].name
    held = "".join(_things(hand["held"] or "", became))
    house.sort(key=lambda place: in_order(place.name))
    state = State(here, held, tuple(house), frozenset(became))
    return state if house and len(set(state.places)) == len(house) else None


def _place(row: str, became: set[tuple[str, str]]) -> Place | None:
    """The place that a line describes; what its adjectives say is added to `became`."""
    line = LINE.fullmatch(row)
    if line is None or not (line["list"] or line["door"] == "closed"):
        return None
    return Place(line["name"], line["door"] or "", _things(line["list"], became) if line["list"] else None)  # type: ignore[arg-type]


def _things(listed: str, became: set[tuple[str, str]]) -> tuple[str, ...]:
    """The names in a list; what their adjectives say is added to `became`."""
    names, words = [], list[str]()
    for word in listed.split():
        if word.isdecimal():
            names.append(f"{words[-1]} {word}")
            became |= {(names[-1], quality) for quality in words[:-1]}
            words = []
        else:
            words.append(word)
    return tuple(names)


class TrackedHouse:
    """An `Env` of household games that adds to each raw observation what was printed so far, under "story"."""

    name = "alfworld"

    def __init__(self, house: Env) -> None:
        self.house = house
        self._story: Story = ()

    def accepts(self, task: Task) -> bool:
        """Whether the house holds the game of this task; it scores no synthetic ones."""
        return self.house.accepts(task)

    def reset(self, task: Task) -> dict[str, Any]:
        """Enter the house of a task; UsageError for a task without a game."""
        raw = self.house.reset(task)
        self._story = (("", raw["text"]),)
        return {**raw, "story": self._story}

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        """Raw observation, reward, and whether the task is done."""
        raw, reward, terminated = self.house.step(action)
        self._story = (*self._story, (action, raw["text"]))
        return {**raw, "story": self._story}, reward, terminated


@dataclass(slots=True)
class Tracked:
    """The fold's memory: everything that a state says."""

    places: tuple[str, ...]
    here: str = ""
    held: str = ""
    doors: dict[str, Door] = field(default_factory=dict)
    things: dict[str, tuple[str, ...]] = field(default_factory=dict)
    qualities: dict[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State) -> Tracked:
        """The memory of one who knows what a state says."""
        qualities = {thing: frozenset(state.qualities(thing)) for thing, _ in state.became}
        things = {place.name: place.things for place in state.house if place.things is not None}
        return cls(state.places, state.here, state.held, {place.name: place.door for place in state.house}, things, qualities)

    def take_in(self, text: str) -> None:
        """Take in what the engine printed after a command. Whatever is not understood changes nothing."""
        if match := ARRIVED.search(text):
            self.here = match["place"]
        for match in CLOSED.finditer(text):
            self.doors[match["place"]] = "closed"
        if match := UNSHUT.search(text):
            self.doors[match["place"]] = "open"
        for match in OPENED.finditer(text):
            self.doors[match["place"]] = "open"
            self._see(match["place"], NAME.findall(match["list"]))
        for match in ON.finditer(text):
            self._see(match["place"], NAME.findall(match["list"]))
        if match := SHUT.search(text):
            self.doors[match["place"]] = "closed"
        if match := TOOK.search(text):
            self.held = match["thing"]
            self.things[match["place"]] = tuple(name for name in self.things.get(match["place"], ()) if name != self.held)
        if match := MOVED.search(text):
            self.held = ""
            self.things[match["place"]] = (*self.things.get(match["place"], ()), match["thing"])
        if match := TREATED.search(text):
            self._became(match["thing"], RESULT[match["verb"]])
        if match := LIT.search(text):
            self._became(match["thing"], "lit")

    def _see(self, place: str, listed: list[str]) -> None:
        """What lies there; the order stays when it is what was known."""
        if sorted(self.things.get(place, ())) != sorted(listed) or place not in self.things:
            self.things[place] = tuple(sorted(listed, key=in_order))

    def _became(self, thing: str, quality: str) -> None:
        self.qualities[thing] = changed(self.qualities.get(thing, frozenset()), quality)

    def state(self) -> State:
        house = tuple(Place(name, self.doors.get(name, ""), self.things.get(name)) for name in self.places)
        shown = {self.held}.union(*(place.things or () for place in house))
        became = frozenset((thing, quality) for thing, each in self.qualities.items() if thing in shown for quality in each)
        return State(self.here, self.held, house, became)


def changed(qualities: Iterable[str], quality: str) -> frozenset[str]:
    """Qualities after a treatment: what is heated is no longer cool, and the other way round."""
    opposite = {"hot": "cool", "cool": "hot"}.get(quality, "")
    return (frozenset(qualities) | {quality}) - {opposite}


def state_of(story: Story) -> State:
    """The state after a story; UsageError for a story that does not begin like a household game."""
    first = FIRST.search(story[0][1]) if story else None
    if first is None:
        raise UsageError(
            "The first text names no places. Expected '... Looking quickly around you, you see a bed 1, ...' "
            f"under raw['story'], got {story[:1]!r}. Wrap the environment in `state.TrackedHouse`."
        )
    tracked = Tracked(tuple(sorted(NAME.findall(first["list"]), key=in_order)))
    for _, text in story[1:]:
        tracked.take_in(text)
    return tracked.state()
