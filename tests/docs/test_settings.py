"""Every setting is set by a preset or an example, or named on a page for users: what nobody needs to know of is a constant."""

from __future__ import annotations

import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from typing import Any

from documents import DOCS, ROOT

import dreamgym
from dreamgym.config import PRESETS, Config
from dreamgym.errors import MissingExtra

BY_CODE = {"path", "encoder", "dim", "page", "read_only", "capacity", "retests"}
"""Settings that the code or a command gives, and no configuration."""


def kinds(kind: type[Config] = Config) -> Iterator[type[Config]]:
    for one in kind.__subclasses__():
        yield one
        yield from kinds(one)


DJANGO = ("dreamgym.envs.web.shop.", "dreamgym.envs.web.forum.", "dreamgym.envs.web.sites.")
"""Packages with modules that cannot be imported before Django is configured."""


def keys(table: dict[str, Any]) -> Iterator[str]:
    """All keys of a TOML file, those of tables within it too."""
    for key, value in table.items():
        yield key
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                yield from keys(inner)


def named(code: str) -> set[str]:
    """The settings that a piece of code names: `key`, `block.key`, or one that gets a value."""
    alone = re.fullmatch(r"`[\w.]+`", code)
    given = re.findall(r"([\w.]+)\s*=(?!=)", code)
    dotted = re.findall(r"\w+(?:\.\w+)+", code)
    return {word for name in (*given, *dotted, *([code.strip("`")] if alone else [])) for word in name.split(".")}


def test_every_setting_is_set_by_a_preset_or_an_example_or_named_by_a_page():
    for module in pkgutil.walk_packages(dreamgym.__path__, "dreamgym."):
        if not module.name.endswith("__main__") and not module.name.startswith(DJANGO):
            try:
                importlib.import_module(module.name)
            except (MissingExtra, ModuleNotFoundError):
                continue
    pages = [page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in ("lab", "api")]
    examples = [*PRESETS.glob("*.toml"), *(ROOT / "examples").glob("*.toml")]
    known = {key for file in examples for key in keys(tomllib.loads(file.read_text("utf-8")))}
    scripts = "\n".join(file.read_text("utf-8") for file in (ROOT / "examples").glob("*.py"))
    known |= set(re.findall(r"(\w+)=", scripts))
    written = "\n".join(page.read_text("utf-8") for page in (ROOT / "README.md", *pages))
    for part in re.findall(r"```.*?```|`[^`\n]+`", written, re.DOTALL):
        known |= named(part)
    ours = [kind for kind in kinds() if kind.__module__.startswith("dreamgym.")]
    assert len(ours) > 40
    missing = {f"{kind.__qualname__}.{name}" for kind in ours for name in kind.__annotations__ if name in kind.model_fields} - {
        f"{kind.__qualname__}.{name}" for kind in ours for name in kind.model_fields if name in known | BY_CODE
    }
    assert not missing, f"No preset sets and no page names {sorted(missing)}. Name them in docs/configuration.md, or make them constants."
