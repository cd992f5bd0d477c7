"""What is known of household games that is not their simulator: the state mapping, which commands a state admits, the scripted teacher,
and the check of a claimed success."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from dreamgym.envs.alfworld import deltas, reasoning
from dreamgym.envs.alfworld.belief import believe
from dreamgym.envs.alfworld.commands import allowed, parse
from dreamgym.envs.alfworld.goals import read_goal, sensible
from dreamgym.envs.alfworld.object_facts import in_order, kind
from dreamgym.envs.alfworld.state import read, state_of
from dreamgym.envs.base import TextRules
from dreamgym.types import Action, Memory, Observation, Task, Transition, Verdict

OLD_PUT = re.compile(r"put ([a-z]+ \d+) (?:in/on|in|on) ([a-z]+ \d+)")
"""How ALFWorld's games said `move` before version 0.4."""


class HouseRules(TextRules):
    """The `TextRules` of household games.

    `crowded` houses may have several places in one spot, as official games do: a command about another place than the one the state names
    is then neither admitted nor refused, because the text does not say what shares a spot.
    """

    name = "alfworld"
    partially_observed = encodes_deltas = True
    token_patterns = (r"\n? ?[a-z]{1,64} \d{1,12}:?",)
    """What a tokenizer keeps in one piece: `mug 1`, and a line's beginning, `drawer 1:`. Kind and number apart were worse: the small
    model then mixed up what it copied (`take plate 1` put a cup in its hand)."""
    about = (
        "This is a household. Do what the task asks with the things in the rooms: find them in or on the furniture, which may have to be "
        "opened, carry one thing at a time, and heat, cool, clean or look at it where that can be done. The task ends when it is done."
    )
    action_format = (
        "Think briefly if it helps, then end your reply with one line that holds one command, such as Action: take mug 1 from shelf 2. "
        "Commands are: go to PLACE, open PLACE, close PLACE, take THING from PLACE, move THING to PLACE, heat THING with PLACE, cool THING "
        "with PLACE, clean THING with PLACE, slice THING with KNIFE, use LAMP, examine THING, look. Name things and places as the state "
        "does, with their numbers."
    )

    def __init__(self, *, crowded: bool = False) -> None:
        self.crowded = crowded

    def abstract(self, raw: dict[str, Any]) -> Observation:
        """The state mapping: what was printed so far, as where we are, what we hold, and the house as far as it was seen."""
        return Observation(state_of(raw["story"]).text)

    def canonical(self, action: Action) -> Action:
        """One spelling: lower case, single spaces, `move` for the older `put ... in/on`."""
        text = " ".join(action.lower().split())
        return OLD_PUT.sub(r"move \1 to \2", text) if OLD_PUT.fullmatch(text) else text

    def admissible(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """Whether the state offers the command; None where it does not say (see `crowded`) or cannot be read.

        After the end nothing is offered. The history tells of it; the last state of a won episode is one like others.
        """
        if history and history[-1].terminated:
            return False
        state, command = read(observation.text), parse(self.canonical(action))
        if command is None:
            return False
        if state is None:
            return None
        offered = allowed(state, command)
        elsewhere = command.verb in ("use", "examine") or (command.place in state.places and command.place != state.here)
        return None if self.crowded and not offered and command.verb != "go to" and state.here and elsewhere else offered

    def explain(self, task: Task, history: Sequence[Transition], transition: Transition) -> str:
        """The scripted teacher's reasoning trace: what the command meant, what it rests on, and what follows."""
        offered = self.admissible(transition.state, history, transition.action) is not False
        return reasoning.trace(read_goal(task.instruction), transition, offered=offered)

    def check_success(self, instruction: str, history: Sequence[Transition], claim: Transition) -> Verdict:
        """Whether a claimed success stands on what the history has established."""
        goal, state, command = read_goal(instruction), read(claim.state.text), parse(self.canonical(claim.action))
        if goal is None or state is None or command is None:
            return Verdict("refused", ("the instruction, the state or the command cannot be read",))
        if not claim.terminated:
            return Verdict("refused", ("success without an end",))
        if self.admissible(claim.state, history, claim.action) is False:
            return Verdict("refused", ("the command cannot be done here",))
        belief = believe(history)
        belief.see(state)
        reasons = belief.missing(goal, command, state)
        return Verdict("refused" if reasons else "passed", tuple(reasons))

    def encode_delta(self, transition: Transition) -> str:
        """What the step changed, in the game's sentences (`deltas`)."""
        return deltas.encode_delta(transition)

    def apply_delta(self, observation: Observation, action: Action, text: str) -> Observation | None:
        """The state after a delta; None when it cannot be understood."""
        return deltas.apply_delta(observation, text)

    def reveals_new(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool:
        """Whether the command shows a place whose contents nobody has seen: the rest of a house follows from what was seen and done."""
        state, command = read(observation.text), parse(self.canonical(action))
        return state is not None and command is not None and command.verb in ("go to", "open") and not state.visited(command.place)

    def revisit_consistency(self, history: Sequence[Transition]) -> list[bool]:
        """For each return to a place that had been seen: whether it showed what had to be there."""
        return believe(history).revisits

    def well_formed(self, instruction: str) -> bool:
        """Whether an instruction is worded as a household task, about things that can be what it asks."""
        goal = read_goal(instruction)
        return goal is not None and sensible(goal)

    def feasible(self, instruction: str, memories: Iterable[Memory]) -> bool | None:
        """True when what real memory shows fits together into a house for the goal, None when not; False when the goal makes no sense.

        Needed are a house with all the kinds of places, the thing seen at one of them (twice, for two), and the lamp for a look.
        """
        goal = read_goal(instruction)
        if goal is None or not sensible(goal):
            return False
        seen = _seen(tuple(text for memory in memories for text in (memory.state, memory.next_state)))
        if seen.most.get(goal.thing, 0) < goal.count:
            return None
        thing_at, lamp_at = (seen.homes.get(name, frozenset()) for name in (goal.thing, goal.place))
        target = lamp_at if goal.count == 0 else {goal.place}
        fits = (bool(house & thing_at and house & target and house & (goal.appliances or house)) for house in seen.houses)
        return True if any(fits) else None


class _Seen(NamedTuple):
    """What states show of houses, by kinds."""

    houses: frozenset[frozenset[str]]
    """The kinds of places of every house."""
    homes: Mapping[str, frozenset[str]]
    """Where things of a kind lay."""
    most: Mapping[str, int]
    """How many things of a kind one house has at least: the highest number in a name."""


@lru_cache(maxsize=4)  # a curriculum asks of the same pages at every proposal
def _seen(texts: tuple[str, ...]) -> _Seen:
    houses, homes, most = set[frozenset[str]](), defaultdict[str, set[str]](set), defaultdict[str, int](int)
    for state in filter(None, map(read, dict.fromkeys(texts))):
        houses.add(frozenset(map(kind, state.places)))
        for name, home in state.homes.items():
            thing = kind(name)
            homes[thing].add(kind(home))
            most[thing] = max(most[thing], in_order(name)[1])
    return _Seen(frozenset(houses), {thing: frozenset(places) for thing, places in homes.items()}, dict(most))
