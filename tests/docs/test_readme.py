"""What the documents say is so: commands exist, the quoted loop is the loop, named functions and tests are there. Nothing is imported
that loads torch: names are looked up in syntax trees."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from dreamgym import cli
from dreamgym.report.metrics import METRICS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAPER_MAP = (ROOT / "docs/paper_map.md").read_text("utf-8")
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
CODE_SPAN = re.compile(r"`([^`\n]+)`")


def bash_lines(text: str) -> list[str]:
    """Commands of the ```bash blocks, without comments."""
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line.split(" #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


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


def paper_names(pattern: str) -> list[str]:
    return sorted({name for name in CODE_SPAN.findall(PAPER_MAP) if re.fullmatch(pattern, name)})


def test_every_make_command_of_the_readme_is_a_target():
    targets = set(re.findall(r"^([a-z.-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = [line[line.index("make ") :] for line in bash_lines(README) if re.match(r"(?:\w+=\S+ )*make ", line)]
    assert {"make test", "make test-all", "make quickstart", "make quickstart BUDGET=small"} <= set(commands)
    for command in commands:
        assert {word for word in command.split()[1:] if "=" not in word} <= targets, command


def test_every_dreamgym_command_of_the_readme_exists():
    groups: Any = typer.main.get_command(cli.app)
    named = [re.search(r"\bdreamgym ([a-z]+)", line) for line in bash_lines(README)]
    commands = {match[1] for match in named if match}
    assert commands, "the README shows no dreamgym command"
    assert commands <= set(groups.commands)


def test_the_readme_quotes_the_loop_as_it_is():
    path = ROOT / "dreamgym/loop.py"
    source = ast.get_source_segment(path.read_text("utf-8"), members(tree(path))["train"])
    assert f"```python\n{source}\n```" in README, "Copy `train` of dreamgym/loop.py into README.md, 'How it works', letter for letter."


@pytest.mark.parametrize("name", paper_names(r"dreamgym(\.\w+)+"))
def test_a_function_named_in_the_paper_map_exists(name: str):
    assert exists(name), f"docs/paper_map.md names {name}, which is not there"


@pytest.mark.parametrize("name", paper_names(r"tests/[\w/]+\.py::\w+"))
def test_a_test_named_in_the_paper_map_exists(name: str):
    file, _, test = name.partition("::")
    assert (ROOT / file).is_file(), f"docs/paper_map.md names {file}, which is not there"
    assert test in members(tree(ROOT / file)), f"docs/paper_map.md names {name}, which is not there"


def test_what_does_not_exist_is_noticed():
    assert exists("dreamgym.loop.train") and exists("dreamgym.types.Task.goal") and exists("dreamgym.envs.webshop")
    assert not exists("dreamgym.loop.trainn") and not exists("dreamgym.types.Task.gaol") and not exists("dreamgym.nowhere.thing")


def test_every_metric_is_in_the_glossary_page_as_the_code_explains_it():
    page = (ROOT / "docs/metrics.md").read_text("utf-8").splitlines()
    rows = [line for line in page if line.startswith("| `")]
    expected = [f"| `{name}` | {m.unit} | {m.meaning} | {m.worry} |" for group in METRICS.values() for name, m in group.items()]
    assert [line[3:] for line in page if line.startswith("## ")] == list(METRICS)
    assert rows == expected, "\n".join(["The rows of docs/metrics.md should be:", *expected])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_the_repositorys_files_lead_somewhere(document: Path):
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", document.read_text("utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (document.parent / target).exists(), f"{document.name} links to {target}, which is not there"
