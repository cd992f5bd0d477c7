"""What docstrings, comments and pages name in backticks as code of the package exists: `dreamgym.types.Task`, `envs.base.EnvSuite`."""

from __future__ import annotations

import importlib
import re
from functools import cache
from types import ModuleType
from typing import Any

import pytest
from documents import ROOT, pages, prose

from dreamgym.config import Config
from dreamgym.errors import MissingExtra
from dreamgym.recipes.config import SharedConfig

PACKAGE = ROOT / "dreamgym"
UNITS = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
NAME = re.compile(r"`([A-Za-z_]\w*(?:\.\w+)+)(?:\([^`]*\))?`")
FILES = (".py", ".md", ".toml", ".html", ".json", ".jsonl")


def missing(name: str) -> bool:
    """Whether a dotted name leads to no module or attribute of the package. What an absent extra hides is not missing."""
    parts = name.removeprefix("dreamgym.").split(".")
    place, depth = PACKAGE, 0
    while depth < len(parts) and ((place / parts[depth]).is_dir() or (place / f"{parts[depth]}.py").is_file()):
        place, depth = place / parts[depth], depth + 1
    if depth == len(parts):
        return False
    try:
        found = importlib.import_module(".".join(["dreamgym", *parts[:depth]]))
    except (MissingExtra, ModuleNotFoundError):
        return False
    return not has(found, parts[depth:])


def has(found: ModuleType | Any, names: list[str]) -> bool:
    """Whether attributes lead from here to the last name; fields of records and settings count, without their own attributes."""
    for name in names:
        if any(name in getattr(kind, "__annotations__", {}) for kind in getattr(found, "__mro__", [found])):
            return True
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


@cache
def settings() -> tuple[frozenset[str], frozenset[str]]:
    """Names of the blocks of a configuration, and of the settings in any block."""

    def kinds(kind: type[Config]) -> set[type[Config]]:
        return {kind}.union(*map(kinds, kind.__subclasses__()))

    for folder in ("experience/models", "replay/indexes", "replay/stores", "replay/encoders"):  # plug-ins, whose settings are their own
        for path in (PACKAGE / folder).glob("*.py"):
            try:
                importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            except (MissingExtra, ModuleNotFoundError):
                continue
    blocks = {name for kind in kinds(SharedConfig) for name in kind.model_fields}
    return frozenset(blocks), frozenset(name for kind in kinds(Config) for name in kind.model_fields)


def is_setting(name: str) -> bool:
    block, *_, last = name.split(".")
    blocks, names = settings()
    return block in blocks and last in names


@pytest.mark.parametrize("folder", ["dreamgym", "docs"])
def test_code_that_prose_names_exists(folder: str):
    found = [
        f"{path.relative_to(ROOT)}:{line} `{name}`"
        for path in (pages() if folder == "docs" else sorted(PACKAGE.rglob("*.py")))
        for line, text in prose(path)
        for name in NAME.findall(text)
        if name.split(".")[0] in UNITS | {"dreamgym"} and not name.endswith(FILES) and not is_setting(name) and missing(name)
    ]
    assert not found, "\n".join(["No such module or attribute:", *found])


@pytest.mark.parametrize(
    ("name", "is_missing"),
    [
        ("dreamgym.types.Task", False),
        ("types.Task.id", False),
        ("envs.base.EnvSuite", False),
        ("envs.base.EnvFamily", True),
        ("experience.released", True),
        ("dreamgym.nowhere", True),
    ],
)
def test_what_counts_as_missing(name: str, is_missing: bool):
    assert missing(name) is is_missing


def test_settings_are_told_from_code():
    assert is_setting("experience.horizon") and is_setting("logs.near_miss_goals")
    assert not is_setting("experience.nothing") and not is_setting("envs.horizon")
