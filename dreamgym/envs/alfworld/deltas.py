"""State deltas of household games: the sentences that a step adds to a state, in the game's own words.

    You arrive at drawer 1. The drawer 1 is closed.
    You arrive at desk 1. On the desk 1, you see mug 1, pen 1.
    You pick up the mug 1 from the desk 1.

A state holds everything that is known of a house, and a step adds a sentence or two. An experience model writes these sentences, and the
fold that turns the game's printed text into states turns them into states as well. `apply_delta` inverts `encode_delta` on every real step.
The content of a place that was seen before is not listed again.

A delta must be consistent with the state: only an object with a known place can be picked up, no object is found in a second place, and no
place gains or loses a door. Any other delta is rejected, so that a dreamed house stays consistent. (Official games list an object twice
where two places share a spot; the delta of such a step is the whole next state.)
"""

from __future__ import annotations

from collections.abc import Iterator

from dreamgym.envs.alfworld.commands import parse
from dreamgym.envs.alfworld.object_facts import NAME
from dreamgym.envs.alfworld.state import (
    CLOSED,
    MOVED,
    ON,
    OPENED,
    RESULT,
    SENTENCES,
    SHUT,
    TOOK,
    TREATED,
    UNSHUT,
    Place,
    State,
    Tracked,
    read,
)
from dreamgym.types import Action, Observation, Transition

NOTHING = "Nothing happens."
VERBS = {quality: verb for verb, quality in RESULT.items()}
DOORS = {ON: ("",), OPENED: ("closed", "open"), CLOSED: ("closed", "open"), UNSHUT: ("closed",), SHUT: ("open",)}
"""How the doors of known places are before each sentence: a place that is spoken of without a door has none."""


def encode_delta(transition: Transition) -> str:
    """The sentences that lead from a state to the next; the next state's own text where none do."""
    before, after = read(transition.state.text), read(transition.next_state.text)
    if transition.next_state == transition.state:
        return NOTHING
    if before is None or after is None:
        return transition.next_state.text
    delta = " ".join(_sentences(before, after, transition.action))
    return delta if apply_delta(transition.state, delta) == transition.next_state else transition.next_state.text


def apply_delta(state: Observation, delta: str) -> Observation | None:
    """The state after a delta; None when it cannot be understood whole, or does not fit what is known.

    A state's own text is taken as it is when it is of the same house.
    """
    before, whole = read(state.text), read(delta)
    if whole is not None:
        return Observation(delta) if before is None or whole.places == before.places else None
    if delta == NOTHING:
        return state
    if before is None or not _understood(delta) or not _fits(before, delta):
        return None
    tracked = Tracked.of(before)
    tracked.take_in(_unlisted(before, delta))
    after = tracked.state().text
    return Observation(after) if read(after) is not None else None


def _unlisted(before: State, delta: str) -> str:
    """A delta without lists of what lies where the state knows it: nothing moves by itself, so a second list that differs from the first is
    a dream's mistake, and one that does not changes nothing."""
    shortened = ON.sub(lambda found: "" if before.visited(found["place"]) else found[0], delta)
    return OPENED.sub(lambda found: f"You open the {found['place']}." if before.visited(found["place"]) else found[0], shortened)


def _understood(delta: str) -> bool:
    """Whether the text is made of the game's sentences and nothing else: half a sentence more, and it was cut or made up."""
    rest = delta
    for sentence in SENTENCES:
        rest = sentence.sub("", rest)
    return bool(delta.strip()) and not rest.strip()


def _fits(before: State, delta: str) -> bool:
    """Whether a house that is as far known as this one can answer so."""
    taken, moved, treated = TOOK.search(delta), MOVED.search(delta), TREATED.search(delta)
    return (
        _doors_fit(before, delta)
        and _finds_fit(before, delta)
        and (taken is None or (not before.held and before.homes.get(taken["thing"]) == taken["place"]))
        and (moved is None or (before.held == moved["thing"] and moved["place"] in before.places))
        and (treated is None or before.held == treated["thing"])
    )


def _doors_fit(before: State, delta: str) -> bool:
    """Whether every place that is spoken of stands in this house, with a door, or none, as it is known."""
    for sentence, doors in DOORS.items():
        for found in sentence.finditer(delta):
            place = before.place(found["place"])
            if place is None or not (place.unknown or place.door in doors):
                return False
    return True


def _finds_fit(before: State, delta: str) -> bool:
    """Whether what is seen for the first time is new: no thing is in two places, and none is a place."""
    lists = [found["list"] for sentence in (ON, OPENED) for found in sentence.finditer(delta) if not before.visited(found["place"])]
    names = [name for listed in lists for name in NAME.findall(listed)]
    return len(set(names)) == len(names) and not set(names) & {*before.homes, before.held, *before.places}


def _sentences(before: State, after: State, action: Action) -> Iterator[str]:
    """In the game's order: where one arrives, what is seen there, and what was done."""
    if after.here != before.here:
        yield f"You arrive at {after.here}."
    command = parse(action)
    for old, new in zip(before.house, after.house, strict=False):
        yield from _about(old, new, closed=command is not None and command.verb == "close")
    if before.held and after.held != before.held:
        yield f"You move the {before.held} to the {after.homes.get(before.held, after.here)}."
    if after.held and after.held != before.held:
        yield f"You pick up the {after.held} from the {before.homes.get(after.held, after.here)}."
    for thing, quality in sorted(after.became - before.became):
        yield f"You turn on the {thing}." if quality == "lit" else f"You {VERBS[quality]} the {thing} using the {after.here}."


def _about(old: Place, new: Place, *, closed: bool) -> Iterator[str]:
    if new.door == "closed" and old.door != "closed":
        yield f"You close the {new.name}." if closed else f"The {new.name} is closed."
    if old.things is None and new.things is not None:
        listed = ", ".join(new.things) or "nothing"
        yield f"The {new.name} is open. In it, you see {listed}." if new.door else f"On the {new.name}, you see {listed}."
    elif new.door == "open" and old.door != "open":
        yield f"You open the {new.name}."
