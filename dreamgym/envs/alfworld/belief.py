"""What an episode's text has established about a house: where things are, what became of them, and what contradicts itself.

A state says what is known of the house, but in a dream the model wrote it, and may have forgotten or made up half of it. Only the
history says what was ever shown and done. A `Belief` is folded over transitions and holds, for every place that was visited, what must
still be there.
A thing that shows up where it was not, though nobody moved it, is *conjured*: no real house does that, and no success may rest on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dreamgym.envs.alfworld.commands import Command, parse
from dreamgym.envs.alfworld.goals import Goal
from dreamgym.envs.alfworld.object_facts import LAMPS, TREATMENTS, kind
from dreamgym.envs.alfworld.state import State, changed, read
from dreamgym.types import Transition


@dataclass(slots=True)
class Belief:
    """What is established so far.

    `revisits` has an entry for each return to a place that had been seen: whether it showed what had to be there.
    """

    things: dict[str, frozenset[str]] = field(default_factory=dict)  # place -> what must be there
    home: dict[str, str] = field(default_factory=dict)  # thing -> where it was last known to be; "" while held
    qualities: dict[str, frozenset[str]] = field(default_factory=dict)
    lit: dict[str, frozenset[str]] = field(default_factory=dict)  # lamp -> where the agent stood when it saw or used it
    conjured: set[str] = field(default_factory=set)
    revisits: list[bool] = field(default_factory=list)

    def see(self, state: State | None) -> None:
        """Take in what a state shows of where the agent stands; the first sight of a place establishes it."""
        if state is None or not state.here or state.door == "closed":
            return
        shown = frozenset(state.seen)
        if state.here in self.things:
            self.conjured |= shown - self.things[state.here]
        else:
            self.conjured |= {name for name in shown if self.home.get(name, state.here) != state.here}
            self.things[state.here] = shown
            self.home |= {name: state.here for name in shown}

    def follow(self, transition: Transition) -> None:
        """Take in one step: what was shown before it, what it did, and what was shown after it."""
        before, after = read(transition.state.text), read(transition.next_state.text)
        self.see(before)
        command = parse(transition.action)
        if command is None or before is None or after is None or after == before:
            return
        returned = command.verb in ("go to", "open") and after.here in self.things and after.door != "closed"
        if returned:
            self.revisits.append(frozenset(after.seen) == self.things[after.here])
        self.act(command, before)
        self.see(after)

    def act(self, command: Command, at: State) -> None:
        """What a command that took effect has changed."""
        verb, thing, place = command.verb, command.thing, command.place
        if verb == "take":
            if place in self.things and thing not in self.things[place]:
                self.conjured.add(thing)
            self.things[place] = self.things.get(place, frozenset()) - {thing}
            self.home[thing] = ""
        elif verb == "move":
            if self.home.get(thing, "") != "":
                self.conjured.add(thing)
            self.things[place] = self.things.get(place, frozenset()) | {thing}
            self.home[thing] = place
        elif verb in TREATMENTS:
            self.qualities[thing] = changed(self.qualities.get(thing, frozenset()), TREATMENTS[verb][0])
        elif verb == "use" and kind(thing) in LAMPS:
            self.lit[thing] = self.lit.get(thing, frozenset()) | {at.here, self.home.get(thing, at.here)}

    def missing(self, goal: Goal, command: Command, at: State) -> list[str]:
        """What keeps a command, taken from the state `at`, from being the one that meets the goal. Empty: it is met.

        Call it before `act`: it looks at what the command would change itself.
        """
        if goal.kind == "look_at_obj_in_light":
            return self._unlit(goal, command, at)
        if command.verb != "move":
            return ["nothing was put anywhere"]
        reasons = []
        if kind(command.thing) != goal.thing:
            reasons.append(f"{command.thing} is no {goal.thing}")
        if kind(command.place) != goal.place:
            reasons.append(f"{command.place} is no {goal.place}")
        if goal.quality and goal.quality not in self.qualities.get(command.thing, ()):
            reasons.append(f"{command.thing} was never made {goal.quality}")
        if goal.count == 2 and not self._others(goal, command):
            reasons.append(f"no other {goal.thing} is at {command.place}")
        if command.thing in self.conjured:
            reasons.append(f"{command.thing} came from nowhere")
        return reasons

    def _others(self, goal: Goal, command: Command) -> list[str]:
        there = self.things.get(command.place, frozenset()) - self.conjured - {command.thing}
        return [name for name in there if kind(name) == goal.thing]

    def _unlit(self, goal: Goal, command: Command, at: State) -> list[str]:
        held = command.thing if command.verb == "take" else at.held
        here = command.place if command.verb == "go to" else at.here
        lit = {lamp: places for lamp, places in self.lit.items() if kind(lamp) == goal.place}
        if command.verb == "use" and kind(command.thing) == goal.place:
            lit[command.thing] = frozenset({here})
        reasons = [] if any(here in places for places in lit.values()) else [f"no lit {goal.place} is here"]
        if kind(held) != goal.thing:
            reasons.append(f"no {goal.thing} is held")
        if held in self.conjured:
            reasons.append(f"{held} came from nowhere")
        if command.verb not in ("go to", "take", "use"):
            reasons.append("nothing changed")
        return reasons


def believe(history: Iterable[Transition]) -> Belief:
    """What a history has established."""
    belief = Belief()
    for transition in history:
        belief.follow(transition)
    return belief
