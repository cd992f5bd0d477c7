"""What the alfworld package knows of houses: floor plans, what fits where, what can be heated, goals. Read from its files, none copied.

The files are read without importing alfworld, whose import makes a folder in the user's cache and sets `$ALFWORLD_DATA`.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from dreamgym.envs.alfworld.games import KINDS
from dreamgym.errors import MissingExtra

OPENABLE = ("Cabinet", "Drawer", "Fridge", "Microwave", "Safe")
UNLISTED: Mapping[str, int] = {
    "GarbageCan": 1, "CoffeeMachine": 1, "Toaster": 1, "StoveBurner": 4, "LaundryHamper": 1, "TowelHolder": 1, "HandTowelHolder": 2,
    "ToiletPaperHanger": 1, "Cart": 1, "Safe": 1, "Ottoman": 1,
}  # fmt: skip
"""Receptacles that a floor plan names without counting; how many the official games have where they have any."""
FIXED = (
    "Bathtub", "Blinds", "Chair", "Curtains", "DeskLamp", "FloorLamp", "HousePlant", "LaundryHamperLid", "LightSwitch", "Mirror",
    "Painting", "Poster", "ShowerDoor", "ShowerGlass", "Sink", "StoveKnob", "Television", "Window",
)  # fmt: skip
"""Objects that cannot be picked up (in the official games)."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A floor plan: its furniture, by kind and number, and the kinds of objects in it."""

    number: int
    room: str  # Kitchen, LivingRoom, Bedroom or Bathroom
    receptacles: Mapping[str, int]
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlfredData:
    """What ALFRED's files say of all houses: the game's rules and grammar, kinds of objects, goals and floor plans."""

    domain: str
    grammar: str  # with UNKNOWN GOAL in it
    fits: Mapping[str, frozenset[str]]  # receptacle -> objects that can be put there
    does: Mapping[str, frozenset[str]]  # cleanable, heatable, ... -> objects that are
    movable: frozenset[str]  # objects that hold others, such as bowls
    goals: Mapping[str, tuple[str, tuple[str, ...]]]  # kind of task -> (goal in PDDL, wordings)
    scenes: Mapping[str, tuple[Scene, ...]]
    rooms: Mapping[str, frozenset[str]]  # kind of task -> rooms where it is set


@lru_cache(maxsize=1)
def alfred_data() -> AlfredData:
    """Everything, read once; MissingExtra without the package."""
    root = _root()
    constants, library = _module(root / "gen" / "constants.py"), _module(root / "gen" / "goal_library.py")
    does = {
        name: frozenset(constants.VAL_ACTION_OBJECTS[action])
        for name, action in (("cleanable", "Cleanable"), ("heatable", "Heatable"), ("coolable", "Coolable"), ("sliceable", "Sliceable"))
    }
    rooms = {number: room for room, numbers in constants.SCENE_TYPE.items() for number in numbers}
    fits = {receptacle: frozenset(held) for receptacle, held in constants.VAL_RECEPTACLE_OBJECTS.items()}
    train = tuple(_scene(root, number, rooms[number], constants, fits) for number in constants.TRAIN_SCENE_NUMBERS)
    return AlfredData(
        domain=(root / "data" / "alfred.pddl").read_text(encoding="utf-8"),
        grammar=(root / "data" / "alfred.twl2").read_text(encoding="utf-8"),
        fits=fits,
        does={**does, "toggleable": frozenset({"DeskLamp", "FloorLamp"})},
        movable=frozenset(constants.MOVABLE_RECEPTACLES),
        goals={kind: (library.gdict[kind]["pddl"], tuple(library.gdict[kind]["templates"])) for kind in KINDS},
        scenes={
            "train": train,
            "dev": train,
            "test": tuple(_scene(root, number, rooms[number], constants, fits) for number in constants.TEST_SCENE_NUMBERS),
        },
        rooms={kind: frozenset(constants.GOALS_VALID[kind]) for kind in KINDS},
    )


def _scene(root: Path, number: int, room: str, constants: ModuleType, fits: Mapping[str, frozenset[str]]) -> Scene:
    layouts = root / "gen" / "layouts"
    counted = Counter(_type(name) for name in json.loads((layouts / f"FloorPlan{number}-openable.json").read_text(encoding="utf-8")))
    present = set(json.loads((layouts / f"FloorPlan{number}-objects.json").read_text(encoding="utf-8")))
    furniture = {kind: count for kind, count in counted.items() if kind in constants.RECEPTACLES}
    for kind in sorted(present & constants.RECEPTACLES - set(constants.MOVABLE_RECEPTACLES) - set(furniture)):
        furniture[kind] = UNLISTED.get(kind, 1)
    placeable = {held for receptacle in furniture for held in fits.get(receptacle, ())} | set(FIXED)
    objects = tuple(sorted(kind for kind in present - set(furniture) if kind in placeable))
    return Scene(number, room, dict(sorted(furniture.items())), objects)


def _type(name: str) -> str:
    """`Cabinet|+00.68|...` -> Cabinet; `Sink|...|SinkBasin` -> SinkBasin."""
    words = name.split("|")
    return words[-1] if words[-1].endswith("Basin") else words[0]


def _root() -> Path:
    found = importlib.util.find_spec("alfworld")
    if found is None or not found.submodule_search_locations:
        raise MissingExtra(
            "Generating household games needs alfworld. Install it with: pip install 'dreamgym[alfworld]' "
            "(compiles for some minutes; needs g++, make and cmake)."
        )
    return Path(found.submodule_search_locations[0])


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_alfworld_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
