"""What can be typed in a household game, taken apart and put together, and which commands a state offers.

go to R   open R   close R   take O from R   move O to R   heat, clean, cool O with R   slice O with K   use O
examine X   look   inventory   help
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dreamgym.envs.alfworld.object_facts import FIXED, HOLDS, LAMPS, QUALITIES, TREATMENTS, kind
from dreamgym.envs.alfworld.state import State
from dreamgym.types import Action

COMMAND = re.compile(
    r"(?P<verb>go to|open|close|use|examine) (?P<only>[a-z]+ \d+)"
    r"|(?P<act>take|move|heat|clean|cool|slice) (?P<thing>[a-z]+ \d+) (?P<link>from|to|with) (?P<place>[a-z]+ \d+)"
)
LINKS = {"take": "from", "move": "to", "heat": "with", "clean": "with", "cool": "with", "slice": "with"}
LOOKING = ("look", "inventory", "help")


@dataclass(frozen=True, slots=True)
class Command:
    """An action taken apart: `move mug 1 to shelf 2` is ("move", "mug 1", "shelf 2"), `open drawer 1` is ("open", "", "drawer 1")."""

    verb: str
    thing: str = ""
    place: str = ""

    @property
    def action(self) -> Action:
        """The command as it is typed."""
        if self.verb in LINKS:
            return f"{self.verb} {self.thing} {LINKS[self.verb]} {self.place}"
        return " ".join(filter(None, (self.verb, self.thing, self.place)))


def parse(action: Action) -> Command | None:
    """The command, or None when the action is not worded as one."""
    if action in LOOKING:
        return Command(action)
    match = COMMAND.fullmatch(action)
    if match is None or (match["act"] and match["link"] != LINKS[match["act"]]):
        return None
    if match["act"]:
        return Command(match["act"], match["thing"], match["place"])
    return Command(match["verb"], match["only"]) if match["verb"] == "use" else Command(match["verb"], place=match["only"])


def allowed(state: State, command: Command) -> bool:
    """Whether the state offers the command: what it names is here or in hand, and fits."""
    verb, thing, place = command.verb, command.thing, command.place
    if verb in LOOKING:
        return True
    if verb == "go to":
        return place in state.places and place != state.here
    if verb == "use":
        return thing in state.seen and kind(thing) in LAMPS
    if verb == "examine":
        return place != "" and place in (state.held, state.here)  # what only lies here is not examined, whatever alfred.pddl says
    if verb == "slice":
        tool = place == state.held and kind(place) in TREATMENTS["slice"][1]
        return tool and thing in state.seen and kind(thing) in QUALITIES["sliced"]
    return place == state.here and _allowed_here(state, verb, thing, kind(place))


def _allowed_here(state: State, verb: str, thing: str, place: str) -> bool:
    if verb == "open":
        return state.door == "closed"
    if verb == "close":
        return state.door == "open"
    if verb == "take":
        return thing in state.seen and not state.held and kind(thing) not in FIXED
    if not thing or thing != state.held:
        return False
    if verb == "move":
        return state.door != "closed" and kind(thing) in HOLDS.get(place, frozenset())
    quality, places = TREATMENTS[verb]
    return place in places and kind(thing) in QUALITIES[quality]


def offered(state: State) -> list[Action]:
    """Every command that the state offers, in the engine's order: sorted by text."""
    return sorted({command.action for command in _candidates(state) if allowed(state, command)})


def _candidates(state: State) -> Iterator[Command]:
    yield from map(Command, LOOKING)
    for place in state.places:
        yield Command("go to", place=place)
    for name in (*state.seen, state.held, state.here):
        yield Command("examine", place=name)
        yield Command("use", name)
        yield Command("take", name, state.here)
        yield Command("slice", name, state.held)
    for verb in ("open", "close"):
        yield Command(verb, place=state.here)
    for verb in ("move", "heat", "clean", "cool"):
        yield Command(verb, state.held, state.here)
