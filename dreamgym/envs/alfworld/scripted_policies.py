"""Scripted policies of mixed skill, so that logs cover what agents do: good, sloppy, aimless, impossible, and for another task.

They read the instruction and the abstract state only: none knows where things are before it has looked.
`planner` does: it repeats the game's stored walkthrough. It is there for tests and for readers of official data, and no part of the default
mix: in its logs what is wanted lies wherever one goes first, and a dream learnt from them would say so of every house.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from dreamgym.envs.alfworld.commands import Command, offered
from dreamgym.envs.alfworld.goals import Goal, read_goal
from dreamgym.envs.alfworld.object_facts import FIXED, HOLDS, QUALITIES, TREATMENTS, kind
from dreamgym.envs.alfworld.state import State, read
from dreamgym.types import Action, Observation

ScriptedPolicy = Callable[[Goal, State, random.Random, "ScriptMemory"], Action]
"""(goal, state, rng, memory) -> action"""

GARBAGE: tuple[Action, ...] = (
    "wait", "open the window", "take everything", "clean the room", "go to the moon", "go to", "take mug", "think: where is it", "sit down",
)  # fmt: skip
STRANGERS = ("mug 4", "desk 3", "fridge 2", "shelf 9", "apple 5", "book 7", "drawer 12", "sofa 2")


class ScriptMemory:
    """What a scripted policy has decided within an episode; what it has seen, the state says."""

    def __init__(self, walkthrough: Sequence[Action] = ()) -> None:
        self.target = ""  # the place chosen to put things
        self.own: Goal | None = None  # what the one who pursues something else is after
        self.left = list(walkthrough)


def expert(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    """Search likely places first, take what is wanted, treat it, put it where it belongs."""
    if state.held and kind(state.held) != goal.thing:
        return _put_down(state, rng)
    if goal.kind == "look_at_obj_in_light":
        return _examine_in_light(goal, state, rng, memory)
    if not state.held:
        return _fetch(goal, state, rng, memory)
    if goal.quality and goal.quality not in state.qualities(state.held):
        return _treat(goal, state, rng, memory)
    return _deliver(goal, state, rng, memory)


def noisy(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    """An expert with detours that sometimes does not treat what it holds."""
    if rng.random() < 0.3:
        return wander(goal, state, rng, memory)
    if goal.quality and state.held and goal.quality not in state.qualities(state.held) and rng.random() < 0.1:
        return _deliver(goal, state, rng, memory)
    return expert(goal, state, rng, memory)


def wander(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    """Anything the state offers; looking around and taking stock seldom, moving on no more often than acting."""
    choices = offered(state)
    looks = [action for action in choices if action in ("look", "inventory", "help") or action.startswith("examine")]
    moves = [action for action in choices if action.startswith("go to")]
    acts = [action for action in choices if action not in looks and action not in moves]
    groups = [group for group, weight in ((moves, 5), (acts, 6), (looks, 1)) if group for _ in range(weight)]
    return rng.choice(rng.choice(groups)) if groups else "look"


def invalid(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    """Half the time something that cannot be done: with things that are elsewhere, with the wrong tool, or no command at all."""
    if rng.random() < 0.5:
        return noisy(goal, state, rng, memory)
    names = [*state.homes, *filter(None, [state.held]), *STRANGERS]
    thing, place, here = rng.choice(names), rng.choice([*state.places, *STRANGERS]), state.here or rng.choice(state.places)
    tried = [
        Command("take", thing, here), Command("take", thing, place), Command("move", thing, here),
        Command("move", state.held or thing, place),
        Command("heat", thing, here), Command("clean", state.held or thing, here), Command("cool", thing, place),
        Command("open", place=place), Command("close", place=here), Command("go to", place=rng.choice(STRANGERS)), Command("use", thing),
    ]  # fmt: skip
    possible = set(offered(state))
    absent = [command.action for command in tried if command.action not in possible] + [rng.choice(GARBAGE)]
    return rng.choice(absent)


def wrong_goal(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    """A competent housekeeper with plans of its own: it takes a fancy to something it sees, and tidies that."""
    if memory.own is None:
        memory.own = _fancy(goal, state, rng)
    if memory.own is None:
        return _explore(goal, state, rng, memory)
    action = expert(memory.own, state, rng, memory)
    if action.startswith("move "):
        memory.own, memory.target = None, ""
    return action


def planner(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    """The stored walkthrough of the game, step by step."""
    return memory.left.pop(0) if memory.left else "look"


SCRIPTED_POLICIES: Mapping[str, ScriptedPolicy] = {
    "expert": expert, "noisy": noisy, "random": wander, "invalid": invalid, "wrong_goal": wrong_goal, "planner": planner,
}  # fmt: skip
MIX: Mapping[str, float] = {"expert": 0.15, "noisy": 0.5, "random": 0.15, "invalid": 0.05, "wrong_goal": 0.15}
OFFLINE: Mapping[str, float] = {"expert": 3200 / 5200, "planner": 1000 / 5200, "random": 1000 / 5200}
"""The paper's offline set (appendix A): 3,200 expert episodes, and 2,000 by an oracle or at random, in shares it does not give."""


def scripted_action(behaviour: str, instruction: str, state: Observation, rng: random.Random, memory: ScriptMemory) -> Action:
    """What a housekeeper of that name does next. It looks for anything when the instruction cannot be read."""
    seen = read(state.text)
    goal = read_goal(instruction) or Goal("pick_and_place_simple", "", "")
    return SCRIPTED_POLICIES[behaviour](goal, seen, rng, memory) if seen else "look"


def _fetch(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    """Go to what is wanted, where that is known, and take it; search where it is not."""
    if goal.count == 2 and not memory.target:
        memory.target = _target(goal, state, rng, memory)
    placed = memory.target if goal.count == 2 else ""
    homes = state.homes
    known = [name for name, place in homes.items() if kind(name) == goal.thing and place != placed]
    if not known:
        return _explore(goal, state, rng, memory)
    nearest = min(known, key=lambda name: homes[name] != state.here)
    return _at(homes[nearest], state) or Command("take", nearest, state.here).action


def _treat(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    verb = next(verb for verb, (quality, _) in TREATMENTS.items() if quality == goal.quality)
    place = next((place for place in state.places if kind(place) in goal.appliances), "")
    if not place:
        return wander(goal, state, rng, memory)
    if place != state.here:
        return Command("go to", place=place).action
    return Command(verb, state.held, place).action


def _deliver(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    memory.target = memory.target or _target(goal, state, rng, memory)
    if not memory.target:
        return wander(goal, state, rng, memory)
    return _at(memory.target, state) or Command("move", state.held, memory.target).action


def _examine_in_light(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    """Fetch the thing, find the lamp, switch it on."""
    lamp = next((name for name in state.homes if kind(name) == goal.place), "")
    if not state.held:
        return _fetch(goal, state, rng, memory)
    if not lamp:
        return _explore(goal, state, rng, memory)
    return _at(state.homes[lamp], state) or Command("use", lamp).action


def _target(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> str:
    """Where to put things: for two of a kind where one already lies, else any place of the kind."""
    places = [place for place in state.places if kind(place) == goal.place]
    begun = [place for place in places if any(kind(name) == goal.thing for name, home in state.homes.items() if home == place)]
    return rng.choice(begun if begun and goal.count == 2 else places) if places else ""


def _explore(goal: Goal, state: State, rng: random.Random, memory: ScriptMemory) -> Action:
    """Open what is closed here, else go somewhere that was not seen, likely places first."""
    if state.door == "closed" and not state.visited(state.here):
        return Command("open", place=state.here).action
    fresh = [place for place in state.places if not state.visited(place) and place != state.here]
    likely = [place for place in fresh if goal.thing in HOLDS.get(kind(place), frozenset())]
    if not fresh:
        return wander(goal, state, rng, memory)
    return Command("go to", place=rng.choice(likely or fresh)).action


def _at(place: str, state: State) -> Action | None:
    """What brings the agent to the place with its door open; None when it is there."""
    if place != state.here:
        return Command("go to", place=place).action
    return Command("open", place=place).action if state.door == "closed" else None


def _put_down(state: State, rng: random.Random) -> Action:
    """Put what is held here if it may lie here, else go where it may."""
    if Command("move", state.held, state.here).action in offered(state):
        return Command("move", state.held, state.here).action
    if state.door == "closed" and kind(state.held) in HOLDS.get(kind(state.here), frozenset()):
        return Command("open", place=state.here).action
    fitting = [place for place in state.places if kind(state.held) in HOLDS.get(kind(place), frozenset()) and place != state.here]
    return Command("go to", place=rng.choice(fitting or [place for place in state.places if place != state.here])).action


def _fancy(goal: Goal, state: State, rng: random.Random) -> Goal | None:
    """A goal made of what is in sight: a thing, a place that holds it, and sometimes a treatment that the house has an appliance for."""
    names = [name for name in state.seen if kind(name) not in FIXED] or [name for name in (state.held,) if name]
    things = [kind(name) for name in names if any(kind(name) in HOLDS.get(kind(place), frozenset()) for place in state.places)]
    if not things:
        return None
    thing = rng.choice(things)
    place = rng.choice([kind(place) for place in state.places if thing in HOLDS.get(kind(place), frozenset())])
    kinds = {kind(place) for place in state.places}
    treated = [
        f"pick_{verb}_then_place_in_recep"
        for verb, (quality, places) in TREATMENTS.items()
        if verb != "slice" and thing in QUALITIES[quality] and places & kinds
    ]
    chosen = rng.choice(treated) if treated and rng.random() < 0.5 else "pick_and_place_simple"
    return Goal(chosen, thing, place)  # type: ignore[arg-type]
