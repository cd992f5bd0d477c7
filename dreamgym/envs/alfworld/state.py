"""The abstract state of a household: where the agent stands, what it sees there, and what it holds.

    in the room
    holding nothing                       at open drawer 1: pen 1 watch 1
    around: bed 1 desk 1 drawer 1         holding clean mug 1

The first state lists where one can go, as the game does, and no later one repeats it: who reads a later state has the first before it.
What a place holds follows its name, with a colon, and only there: `drawer 1:` stands where the drawer's contents were last seen.
The engine prints only what is new: that the agent arrived, what it picked up, or that nothing happened. `Told` remembers what was printed,
and `state_of` folds that into the state. So an action that does nothing leaves the state as it was, and looking or taking stock adds
nothing to it. Lists are in one order, whatever order the engine prints them in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from dreamgym.envs.alfworld.things import NAME, in_order
from dreamgym.errors import UsageError
from dreamgym.protocols import Env
from dreamgym.types import Action, Task

DONE = "task done"
Door = Literal["", "open", "closed"]
Story = tuple[tuple[Action, str], ...]
"""Everything that was printed so far: ("", first text), then (command, text) of each step."""

FIRST = re.compile(r"Looking quickly around you, you see (?P<list>[^\n]*)\.")
ARRIVED = re.compile(r"You arrive at (?P<place>[a-z]+ \d+)\.")
CLOSED = re.compile(r"The (?P<place>[a-z]+ \d+) is closed\.")
OPENED = re.compile(r"The (?P<place>[a-z]+ \d+) is open\. In it, you see (?P<list>[^.]*)\.")
ON = re.compile(r"On the (?P<place>[a-z]+ \d+), you see (?P<list>[^.]*)\.")
SHUT = re.compile(r"You close the (?P<place>[a-z]+ \d+)\.")
TOOK = re.compile(r"You pick up the (?P<thing>[a-z]+ \d+) from the (?P<place>[a-z]+ \d+)\.")
MOVED = re.compile(r"You move the (?P<thing>[a-z]+ \d+) to the (?P<place>[a-z]+ \d+)\.")
TREATED = re.compile(r"You (?P<verb>heat|clean|cool) the (?P<thing>[a-z]+ \d+) using the [a-z]+ \d+\.")
LIT = re.compile(r"You turn on the (?P<thing>[a-z]+ \d+)\.")
RESULT = {"heat": "hot", "clean": "clean", "cool": "cool"}

STATE = re.compile(
    r"(?:in the room|at (?:(?P<door>open|closed) )?(?P<here>[a-z]+ \d+)(?::(?P<seen>(?:(?: lit)? [a-z]+ \d+)+| nothing))?)\n"
    r"holding (?:nothing|(?P<qualities>(?:(?:clean|hot|cool) )*)(?P<held>[a-z]+ \d+))"
    r"(?:\naround: (?P<places>[a-z]+ \d+(?: [a-z]+ \d+)*))?"
)


@dataclass(frozen=True, slots=True)
class State:
    """What a state's text says. `seen` is empty where a door is closed; `here` is "" in the middle of the room."""

    here: str
    door: Door
    seen: tuple[str, ...]
    lit: frozenset[str]  # lamps among `seen` that were switched on
    held: str
    qualities: tuple[str, ...]  # of what is held
    places: tuple[str, ...] = ()  # where one can go; in the first state's text only

    @property
    def text(self) -> str:
        """The words a model reads."""
        if not self.here:
            stand = "in the room"
        else:
            door = f"{self.door} " if self.door else ""
            things = " ".join(f"lit {name}" if name in self.lit else name for name in self.seen)
            stand = f"at {door}{self.here}" + ("" if self.door == "closed" else f": {things or 'nothing'}")
        held = " ".join([*self.qualities, self.held]) or "nothing"
        around = f"\naround: {' '.join(self.places)}" if self.places and not self.here else ""
        return f"{stand}\nholding {held}{around}"


@lru_cache(maxsize=65536)
def read(text: str) -> State | None:
    """The state that a text describes, or None when it describes none: the end, or something a dream garbled."""
    match = STATE.fullmatch(text)
    if match is None:
        return None
    seen = match["seen"] or ""
    lit = frozenset(name.removeprefix("lit ") for name in re.findall(r"lit [a-z]+ \d+", seen))
    names = tuple(name.removeprefix("lit ") for name in re.findall(r"(?:lit )?[a-z]+ \d+", seen))
    return State(
        here=match["here"] or "",
        door=match["door"] or "",  # type: ignore[arg-type]
        seen=names,
        lit=lit,
        held=match["held"] or "",
        qualities=tuple((match["qualities"] or "").split()),
        places=tuple(NAME.findall(match["places"] or "")),
    )


class Told:
    """An `Env` of household games that adds to each raw observation what was printed so far, under "story"."""

    name = "alfworld"

    def __init__(self, house: Env) -> None:
        self.house = house
        self._story: Story = ()

    def accepts(self, task: Task) -> bool:
        """Whether the house holds the game of this task; it scores no invented ones."""
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
class _Tracked:
    """The fold's memory: more than the state shows, because what was seen elsewhere comes back when the agent does."""

    places: tuple[str, ...]
    here: str = ""
    held: str = ""
    doors: dict[str, Door] = field(default_factory=dict)
    things: dict[str, frozenset[str]] = field(default_factory=dict)
    qualities: dict[str, frozenset[str]] = field(default_factory=dict)
    lit: frozenset[str] = frozenset()

    def hear(self, text: str) -> None:
        """Take in what the engine printed after a command. Whatever is not understood changes nothing."""
        if match := ARRIVED.search(text):
            self.here = match["place"]
        for match in CLOSED.finditer(text):
            self.doors[match["place"]] = "closed"
        for match in OPENED.finditer(text):
            self.doors[match["place"]] = "open"
            self.things[match["place"]] = frozenset(NAME.findall(match["list"]))
        for match in ON.finditer(text):
            self.things[match["place"]] = frozenset(NAME.findall(match["list"]))
        if match := SHUT.search(text):
            self.doors[match["place"]] = "closed"
        if match := TOOK.search(text):
            self.held = match["thing"]
            self.things[match["place"]] = self.things.get(match["place"], frozenset()) - {self.held}
        if match := MOVED.search(text):
            self.held = ""
            self.things[match["place"]] = self.things.get(match["place"], frozenset()) | {match["thing"]}
        if match := TREATED.search(text):
            self._treat(match["thing"], RESULT[match["verb"]])
        if match := LIT.search(text):
            self.lit |= {match["thing"]}

    def _treat(self, thing: str, quality: str) -> None:
        self.qualities[thing] = changed(self.qualities.get(thing, frozenset()), quality)

    def state(self) -> State:
        door = self.doors.get(self.here, "")
        seen = () if door == "closed" else tuple(sorted(self.things.get(self.here, ()), key=in_order))
        held = tuple(sorted(self.qualities.get(self.held, ())))
        return State(self.here, door, seen, self.lit & frozenset(seen), self.held, held, self.places)


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
            f"under raw['story'], got {story[:1]!r}. Wrap the environment in `state.Told`."
        )
    tracked = _Tracked(tuple(sorted(NAME.findall(first["list"]), key=in_order)))
    for _, text in story[1:]:
        tracked.hear(text)
    return tracked.state()
