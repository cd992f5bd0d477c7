"""What a step of a household game has told, in the game's own sentences; and the state that follows from hearing it.

    You arrive at drawer 1. The drawer 1 is closed.
    You arrive at desk 1. On the desk 1, you see mug 1, pen 1.
    You pick up the mug 1 from the desk 1.

A state holds everything that is known of a house, and a step adds a sentence or two to it. So that is what an experience model writes, and
the fold that turns the game's printed text into states turns the dreamed text into states as well. `hear` undoes `news`: of a real step it
gives the real next state. A place that was seen before is not listed again: nothing about it is new. So a dreamed house stays one house: no
place changes by itself, and no thing is in two.
"""

from __future__ import annotations

from collections.abc import Iterator

from dreamgym.envs.alfworld.commands import parse
from dreamgym.envs.alfworld.state import ON, OPENED, RESULT, SENTENCES, Place, State, Tracked, read
from dreamgym.types import Action, Observation, Transition

NOTHING = "Nothing happens."
TREATED = {quality: verb for verb, quality in RESULT.items()}


def news(transition: Transition) -> str:
    """The sentences that lead from a state to the next; the next state's own text where none do."""
    before, after = read(transition.state.text), read(transition.next_state.text)
    if transition.next_state == transition.state:
        return NOTHING
    if before is None or after is None:
        return transition.next_state.text
    told = " ".join(_sentences(before, after, transition.action))
    return told if hear(transition.state, told) == transition.next_state else transition.next_state.text


def hear(state: Observation, told: str) -> Observation | None:
    """The state after what was told; None when it cannot be understood whole. A state's own text is taken as it is."""
    before = read(state.text)
    if read(told) is not None:
        return Observation(told)
    if told == NOTHING:
        return state
    if before is None or not _understood(told):
        return None
    tracked = Tracked.of(before)
    tracked.hear(_unlisted(before, told))
    after = tracked.state().text
    return Observation(after) if read(after) is not None else None


def _unlisted(before: State, told: str) -> str:
    """What was told, without lists of what lies where the state knows it: nothing moves by itself, so a second list that differs from the
    first is a dream's mistake, and one that does not is no news."""
    told = ON.sub(lambda found: "" if before.visited(found["place"]) else found[0], told)
    return OPENED.sub(lambda found: f"You open the {found['place']}." if before.visited(found["place"]) else found[0], told)


def _understood(told: str) -> bool:
    """Whether the text is made of the game's sentences and nothing else: half a sentence more, and it was cut or made up."""
    rest = told
    for sentence in SENTENCES:
        rest = sentence.sub("", rest)
    return bool(told.strip()) and not rest.strip()


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
        yield f"You turn on the {thing}." if quality == "lit" else f"You {TREATED[quality]} the {thing} using the {after.here}."


def _about(old: Place, new: Place, *, closed: bool) -> Iterator[str]:
    if new.door == "closed" and old.door != "closed":
        yield f"You close the {new.name}." if closed else f"The {new.name} is closed."
    if old.things is None and new.things is not None:
        listed = ", ".join(new.things) or "nothing"
        yield f"The {new.name} is open. In it, you see {listed}." if new.door else f"On the {new.name}, you see {listed}."
    elif new.door == "open" and old.door != "open":
        yield f"You open the {new.name}."
