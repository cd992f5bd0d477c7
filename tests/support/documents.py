"""What the tests of documents share: the code blocks of a page, its prose, and names looked up in syntax trees, without an import."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from dreamgym.report.metrics import METRICS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def bash_lines(text: str) -> list[str]:
    """Commands of the ```bash blocks, without comments, continued lines in one."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line.split(" #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def python_of(page: str) -> list[str]:
    """The ```python blocks of a page of docs/."""
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def members(node: ast.AST) -> dict[str, ast.AST]:
    """Functions, classes and assigned names in the body of a module or class."""
    found: dict[str, ast.AST] = {}
    for item in getattr(node, "body", []):
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[item.name] = item
        elif isinstance(item, ast.AnnAssign | ast.Assign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            found |= {target.id: item for target in targets if isinstance(target, ast.Name)}
    return found


def exists(dotted: str) -> bool:
    """Whether `dreamgym.module.Class.method` names something, by the files and their syntax trees alone."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        stem = ROOT.joinpath(*parts[:cut])
        path = next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()), None)
        if path is not None:
            node: ast.AST | None = tree(path)
            for name in parts[cut:]:
                node = members(node).get(name) if node is not None else None
            return node is not None
    return False


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of the lines of a page, or of the docstrings and comments of a Python file."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.lstrip("rR").startswith('"""')):
            yield from enumerate(token.string.splitlines(), token.start[0])


def pages() -> list[Path]:
    """The README and the documentation but for the lab, whose pages are records of their day."""
    return [ROOT / "README.md", *(path for path in sorted(DOCS.rglob("*.md")) if path.relative_to(DOCS).parts[0] != "lab")]


FIDELITY = "Keys of `dreamgym fidelity --json`"
"""The heading of docs/metrics.md under which each of them has a row."""
NAMES_BELOW = {
    "by_action": 1,
    "by_miss": 1,
    "by_policy": 1,
    "confusion": 2,
    "reasons": 1,
    "states": 1,
    "rewards": 1,
    "exact": 1,
    "rewards_exact": 1,
    "uncertified": 1,
    "kinds": 1,
    "verifiers": 1,
}
"""Keys with names of actions, ends, policies and the like below them, and how many levels of these."""


OTHERS = "Other keys of `summary.json` and `phases.json`"
"""The heading under which each key has a row that is in no other table of the page."""


def rows_under(heading: str) -> set[str]:
    """The keys with a row of docs/metrics.md under a heading."""
    lines = (DOCS / "metrics.md").read_text("utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0].splitlines()
    return {name for line in lines if line.startswith("| `") for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}


def fidelity_rows() -> set[str]:
    """The keys with a row under `FIDELITY`."""
    return rows_under(FIDELITY)


def fidelity_keys(found: dict[str, Any]) -> set[str]:
    """Every key of what `dreamgym fidelity --json` prints, at any depth."""
    keys = set(found)
    for key, value in found.items():
        inner = [value]
        for _ in range(NAMES_BELOW.get(key, 0)):
            inner = [below for one in inner if isinstance(one, dict) for below in one.values()]
        keys = keys.union(*(fidelity_keys(one) for one in inner if isinstance(one, dict)))
    return keys


def unexplained_keys(run: Path) -> set[str]:
    """Keys of what a run wrote that docs/metrics.md does not name: of its metrics, of its summary, and of its phases below their names."""
    metrics = set().union(*map(set, map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())))
    summary, phases = (json.loads((run / name).read_text("utf-8")) for name in ("summary.json", "phases.json"))
    written = metrics - {"phase", "iteration"} | fidelity_keys(summary | {"skipped": {}}) | fidelity_keys({"": phases}) - {"", *phases}
    return written - rows_under(OTHERS) - fidelity_rows() - {name for group in METRICS.values() for name in group}
