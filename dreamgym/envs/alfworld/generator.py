"""Household games from a seed: a floor plan of ALFWorld's is furnished, stocked and given a goal, and the planner must solve it.

`train` and `dev` are set in other floor plans than `test`. The same (preset, seed, split, index) is the same game everywhere, so a
game can be made again from its id alone, in any process.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from dreamgym.envs.alfworld import games
from dreamgym.envs.alfworld._problem import HouseholdObject, Layout, problem
from dreamgym.envs.alfworld._scenes import FIXED, AlfredData, Scene, alfred_data
from dreamgym.envs.alfworld.engine import fast, numbered
from dreamgym.envs.alfworld.games import FOLDERS, KINDS, Game
from dreamgym.errors import InvariantError, UsageError, nearest

TRIES = 20
"""Houses tried for one game before something must be wrong with the generator."""
NAME = re.compile(r"(?P<folder>\w+)/(?P<kind>\w+)-.*/(?P<preset>[a-z]+)_s(?P<seed>\d+)_(?P<index>\d+)")
TOOL: Mapping[str, str] = {
    "pick_clean_then_place_in_recep": "SinkBasin",
    "pick_heat_then_place_in_recep": "Microwave",
    "pick_cool_then_place_in_recep": "Fridge",
}
"""Where a kind of task has something done to its object."""
ABILITY: Mapping[str, str] = {"SinkBasin": "cleanable", "Microwave": "heatable", "Fridge": "coolable"}
LAMP = "DeskLamp"
STANDS = ("Desk", "SideTable", "Dresser", "CoffeeTable", "DiningTable", "Shelf")
"""Furniture that a lamp stands on."""


@dataclass(frozen=True, slots=True)
class Preset:
    """How large houses are: at most how many receptacles, of one kind, objects, of one kind; and whether fixtures are listed."""

    receptacles: tuple[int, int]
    alike: int
    objects: tuple[int, int]
    copies: int
    fixtures: bool


PRESETS: Mapping[str, Preset] = {
    "mini": Preset(receptacles=(5, 8), alike=2, objects=(4, 8), copies=2, fixtures=False),
    "full": Preset(receptacles=(99, 99), alike=99, objects=(25, 40), copies=3, fixtures=True),
}
"""`mini`: for models of a million parameters, winnable in about 10 commands. `full`: statistics like the official games'."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a game asks for."""

    kind: str
    target: str  # the kind of object to find
    receptacle: str  # where it goes; "" where it goes nowhere


def generate(split: str, n: int, seed: int = 0, *, preset: str = "mini") -> list[Game]:
    """`n` games of a split, the six kinds of task in turn, each with the planner's walkthrough. The first n are the same for any n."""
    return [make(split, index, seed, preset=preset) for index in range(n)]


@lru_cache(maxsize=1024)  # about 45 kB each
def make(split: str, index: int, seed: int = 0, *, preset: str = "mini") -> Game:
    """One game, by its number."""
    if preset not in PRESETS:
        raise UsageError(f"No preset '{preset}' of household games.{nearest(preset, PRESETS)} Known: {', '.join(PRESETS)}.")
    if split not in FOLDERS:
        raise UsageError(f"No split '{split}' of games.{nearest(split, FOLDERS)} Known: {', '.join(FOLDERS)}.")
    rng = random.Random(f"household/{preset}/{seed}/{split}/{index}")
    for _ in range(TRIES):
        game = _attempt(split, KINDS[index % len(KINDS)], f"{preset}_s{seed}_{index:05d}", PRESETS[preset], rng)
        if game is not None:
            return game
    raise InvariantError(f"No solvable house in {TRIES} tries for game {index} of split '{split}', preset '{preset}', seed {seed}.")


class Generated(Mapping[str, Game]):
    """Generated games by id, made when they are asked for: a worker process needs nothing but a task's id."""

    def __init__(self, preset: str, seed: int) -> None:
        self.preset, self.seed = preset, seed

    def __getitem__(self, name: str) -> Game:
        found = NAME.fullmatch(name)
        if found is None or found["preset"] != self.preset or int(found["seed"]) != self.seed or len(found["index"]) > 9:
            raise KeyError(name)
        split = next((split for split, folder in FOLDERS.items() if folder == found["folder"]), None)
        index = int(found["index"])
        game = make(split, index, self.seed, preset=self.preset) if split and KINDS[index % len(KINDS)] == found["kind"] else None
        if game is None or game.id != name:
            raise KeyError(name)
        return game

    def __iter__(self) -> Iterator[str]:
        raise TypeError("There is no end to generated games. Ask for one by its id.")

    def __len__(self) -> int:
        raise TypeError("There is no end to generated games. Ask for one by its id.")


def _attempt(split: str, kind: str, trial: str, preset: Preset, rng: random.Random) -> Game | None:
    """A game, or None when the floor plan does not allow the kind of task or the planner finds no way."""
    known = alfred_data()
    scene = rng.choice([scene for scene in known.scenes[split] if scene.room in known.rooms[kind]])
    objective = _objective(kind, scene, known, rng)
    if objective is None:
        return None
    layout = _place_objects(objective, scene, _furniture(objective, scene, preset, rng), known, preset, rng)
    if layout is None:
        return None
    pddl, wordings = known.goals[kind]
    words = {"obj": objective.target, "recep": objective.receptacle, "toggle": LAMP, "mrecep": ""}
    goal = rng.choice(wordings).format(**{key: word.lower() for key, word in words.items()})
    text = problem(trial, layout, known, fixed=FIXED, goal=pddl.format(**words))
    whole = {"pddl_domain": known.domain, "grammar": games.with_goal(known.grammar, goal), "pddl_problem": text}
    part = problem(trial, _relevant_layout(layout, objective), known, fixed=FIXED, goal=pddl.format(**words))
    walkthrough = fast().plan(whole["pddl_domain"], whole["grammar"], part, numbered(layout.ids()))
    if not walkthrough:
        return None
    name = f"{FOLDERS[split]}/{kind}-{objective.target}-None-{objective.receptacle or LAMP}-{scene.number}/{trial}"
    data = json.dumps(whole | {"solvable": True, "walkthrough": walkthrough})
    return Game(name, kind, goal, scene.number, data, tuple(walkthrough))


def _objective(kind: str, scene: Scene, known: AlfredData, rng: random.Random) -> Objective | None:
    """Something that this kind of task can ask for in this scene."""
    movables = [thing for thing in scene.objects if thing not in FIXED]
    if kind == "look_at_obj_in_light":
        usable = LAMP in scene.objects and any(stand in scene.receptacles for stand in STANDS)
        return Objective(kind, rng.choice(movables), "") if usable and movables else None
    tool = TOOL.get(kind, "")
    if tool and tool not in scene.receptacles:
        return None
    choices = [
        Objective(kind, thing, receptacle)
        for thing in movables
        if not tool or thing in known.does[ABILITY[tool]]
        for receptacle in scene.receptacles
        if receptacle != tool and thing in known.fits.get(receptacle, ())
        # somewhere else to be found in the first place
        if any(thing in known.fits.get(other, ()) for other in scene.receptacles if other != receptacle)
    ]
    return rng.choice(choices) if choices else None


def _furniture(objective: Objective, scene: Scene, preset: Preset, rng: random.Random) -> list[HouseholdObject]:
    """Receptacles of the house: those that the task needs, and others of the scene, up to the preset's size."""
    needed = {objective.receptacle, TOOL.get(objective.kind, "")} - {""}
    if objective.kind == "look_at_obj_in_light":
        needed.add(rng.choice([stand for stand in STANDS if stand in scene.receptacles]))
    pool = [kind for kind, count in scene.receptacles.items() for _ in range(min(count, preset.alike))]
    for kind in sorted(needed):
        pool.remove(kind)
    size = rng.randint(*preset.receptacles)
    chosen = sorted([*needed, *rng.sample(pool, min(len(pool), max(0, size - len(needed))))])
    return [HouseholdObject(kind, chosen[:place].count(kind)) for place, kind in enumerate(chosen)]


def _place_objects(
    objective: Objective, scene: Scene, furniture: list[HouseholdObject], known: AlfredData, preset: Preset, rng: random.Random
) -> Layout | None:
    """Objects put where they fit. The task's own lie anywhere but where they must go; None when there is no such place."""
    wanted = 2 if objective.kind == "pick_two_obj_and_place" else 1
    kinds = [objective.target] * wanted + ([LAMP] if objective.kind == "look_at_obj_in_light" else [])
    movables = [thing for thing in scene.objects if thing not in FIXED and any(_belongs(thing, one.kind, known) for one in furniture)]
    others = [thing for thing in movables for _ in range(preset.copies if thing != objective.target else max(0, preset.copies - wanted))]
    kinds += rng.sample(others, min(len(others), max(0, rng.randint(*preset.objects) - len(kinds))))
    inside: dict[HouseholdObject, HouseholdObject] = {}
    for place, kind in enumerate(kinds):
        homes = [
            one
            for one in furniture
            if _belongs(kind, one.kind, known) and not (kind == objective.target and one.kind == objective.receptacle)
        ]
        if homes:
            inside[HouseholdObject(kind, kinds[:place].count(kind))] = rng.choice(homes)
        elif place < wanted:
            return None
    floor = [HouseholdObject(kind, 0) for kind in scene.objects if kind in FIXED and kind != LAMP] if preset.fixtures else []
    return Layout(tuple(furniture), inside, tuple(floor))


def _relevant_layout(layout: Layout, objective: Objective) -> Layout:
    """The house without what a plan never touches. A plan for it is one for the whole house: nothing there is ever in the way."""
    inside = {thing: home for thing, home in layout.inside.items() if thing.kind in (objective.target, LAMP)}
    kinds = {objective.receptacle, TOOL.get(objective.kind, "")}
    return Layout(tuple(one for one in layout.receptacles if one.kind in kinds or one in inside.values()), inside, ())


def _belongs(thing: str, receptacle: str, known: AlfredData) -> bool:
    return receptacle in STANDS if thing == LAMP else thing in known.fits.get(receptacle, ())
