"""Every setting is set by a preset or an example, or named on a page for users: what nobody needs to know of is a constant."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

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


def test_every_setting_is_set_by_a_preset_or_an_example_or_named_by_a_page():
    for module in pkgutil.walk_packages(dreamgym.__path__, "dreamgym."):
        if not module.name.endswith("__main__") and not module.name.startswith(
            "dreamgym.envs.web.shop."
        ):  # Django must be configured first
            try:
                importlib.import_module(module.name)
            except (MissingExtra, ModuleNotFoundError):
                continue
    pages = [page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in ("lab", "api")]
    examples = [*PRESETS.glob("*.toml"), *(file for file in (ROOT / "examples").glob("*") if file.suffix in (".toml", ".py"))]
    known = set(re.findall(r"\w+", "\n".join(file.read_text("utf-8") for file in examples)))
    written = "\n".join(page.read_text("utf-8") for page in (ROOT / "README.md", *pages))
    code = re.findall(r"```.*?```|`[^`\n]+`", written, re.DOTALL)
    known |= {word for part in code for word in re.findall(r"\w+", part)}
    ours = [kind for kind in kinds() if kind.__module__.startswith("dreamgym.")]
    assert len(ours) > 40
    missing = {f"{kind.__qualname__}.{name}" for kind in ours for name in kind.__annotations__ if name in kind.model_fields} - {
        f"{kind.__qualname__}.{name}" for kind in ours for name in kind.model_fields if name in known | BY_CODE
    }
    assert not missing, f"No preset sets and no page names {sorted(missing)}. Name them in docs/configuration.md, or make them constants."
