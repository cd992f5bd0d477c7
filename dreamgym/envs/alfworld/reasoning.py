"""The scripted teacher of household games: one short line per step, which says what the next state has to carry.

Of a place seen for the first time it says what decides whether the thing that the task asks for is there, before the place is described:
what of it was seen already, how many places nobody has looked into are left, and then what is found.

    desk 1 for the first time, none yet, 2 left: mug 1.

Of a place seen before it says that it is as it was. Where a task could be done, it counts what the task asks for.
"""

from __future__ import annotations

from collections.abc import Iterable

from dreamgym.envs.alfworld.commands import LOOKING, Command, parse
from dreamgym.envs.alfworld.goals import Goal
from dreamgym.envs.alfworld.object_facts import LAMPS, TREATMENTS, kind
from dreamgym.envs.alfworld.state import State, read
from dreamgym.types import Transition

COUNTED = 4  # places left to look into, more of which are many
NOTHING = "no such element, so nothing changes."


def trace(goal: Goal | None, transition: Transition, *, offered: bool) -> str:
    """The reasoning R* of one transition. `offered`: whether the state admits the command."""
    before, after, command = read(transition.state.text), read(transition.next_state.text), parse(transition.action)
    if not offered or command is None or before is None:
        return NOTHING
    if transition.next_state == transition.state:
        return "only looking, so nothing changes." if command.verb in (*LOOKING, "examine") else "nothing happens."
    return _happened(goal, before, command, after) + _counted(goal, before, command, transition) + "."


def _happened(goal: Goal | None, before: State, command: Command, after: State | None) -> str:
    verb, thing, place = command.verb, command.thing, command.place
    if verb in ("go to", "open"):
        return _seen(goal, before, place, after)
    if verb == "take":
        return f"{thing} is in hand now"
    if verb == "move":
        return f"{thing} is at {place} now"
    if verb == "close":
        return f"{place} is closed now"
    if verb == "use":
        return f"{thing} is lit now"
    return f"{thing} is {TREATMENTS[verb][0]} now"


def _seen(goal: Goal | None, before: State, place: str, after: State | None) -> str:
    if after is None:
        return f"at {place}"
    there = after.place(place)
    if there is None or there.things is None or there.door == "closed":
        return f"{place} is closed"
    if before.visited(place):
        return f"{place} again, as it was"
    known = _wanted(goal, [*before.homes, before.held]) or "none yet"
    hidden = sum(each.things is None for each in before.house) - 1  # but for this place
    left = "none left" if not hidden else f"{hidden} left" if hidden <= COUNTED else "many left"
    return f"{place} for the first time, {known}, {left}: {_wanted(goal, there.things) or 'not what we want'}"


def _wanted(goal: Goal | None, names: Iterable[str]) -> str:
    """Those that the task is about, in their order."""
    return " ".join(name for name in names if goal is not None and name and kind(name) in _of_interest(goal))


def _of_interest(goal: Goal) -> frozenset[str]:
    return frozenset({goal.thing} | ({goal.place} & LAMPS))


def _counted(goal: Goal | None, before: State, command: Command, transition: Transition) -> str:
    """`: thing yes, clean no, place yes, not yet` where the command may have met the goal; "" elsewhere."""
    done = transition.terminated and transition.reward > 0
    if goal is None:
        return ": success" if done else ""
    if goal.kind == "look_at_obj_in_light":
        return f": {goal.thing} in hand, {goal.place} lit, success" if done else ""
    if command.verb != "move":
        return ""
    facts = [f"thing {_yes_or_no(kind(command.thing) == goal.thing)}"]
    if goal.quality:
        facts.append(f"{goal.quality} {_yes_or_no(goal.quality in before.qualities(command.thing))}")
    facts.append(f"place {_yes_or_no(kind(command.place) == goal.place)}")
    if goal.count == 2:
        others = [name for name in before.seen if kind(name) == goal.thing and name != command.thing]
        facts.append(f"two {_yes_or_no(bool(others))}")
    return f": {', '.join(facts)}, {'success' if done else 'not yet'}"


def _yes_or_no(fact: bool) -> str:
    return "yes" if fact else "no"
