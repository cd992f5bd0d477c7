"""The layers of docs/architecture.md: imports point down only, units of a layer are independent, and the command line starts fast."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "dreamgym"

# Layers, lowest first. Groups of a layer do not import each other; units of one group may.
LAYERS: tuple[tuple[frozenset[str], ...], ...] = tuple(
    tuple(frozenset(group.split()) for group in layer.split("|"))
    for layer in (
        "types usage protocols | errors | plugins | config | tool_calls | bracket_actions",
        "runs",
        "envs",
        "llm engines | logs | replay | returns | statistics",
        "policy | rollout | experience | curriculum",
        "train",
        "loop | evals",
        "exec | adapters serve",
        "recipes",
        "report",
        "cli __main__",
    )
)
WITHIN_LOWEST = {
    ("protocols", "types"),
    ("protocols", "usage"),
    ("types", "errors"),
    ("types", "bracket_actions"),
    ("plugins", "errors"),
    ("config", "errors"),
    ("tool_calls", "errors"),
    ("tool_calls", "types"),
}  # allowed within layer 0: (importer, imported)
TOP = len(LAYERS)  # where `dreamgym/__init__.py` is: it may import every module


def layer(unit: str) -> int | None:
    return (
        TOP if unit == "__init__" else next((level for level, groups in enumerate(LAYERS) if any(unit in group for group in groups)), None)
    )


def allowed(importer: str, imported: str) -> bool:
    """Whether a module of one unit (`envs`, `agent`, ...) may import one of another."""
    if importer == imported or (importer, imported) in WITHIN_LOWEST:
        return True
    above, below = layer(importer), layer(imported)
    if above is None or below is None:
        return False
    return below < above or (above != 0 and any({importer, imported} <= group for groups in LAYERS for group in groups))


def imports(source: str, module: tuple[str, ...], *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, unit) of everything a module imports from dreamgym, inside functions and `if TYPE_CHECKING` as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = list(module[: len(module) - node.level + is_package]) if node.level else []
            start += node.module.split(".") if node.module else []
            names = [[*start, alias.name] for alias in node.names] if start == ["dreamgym"] else [start]
        else:
            continue
        for name in names:
            if name[0] == "dreamgym" and name != ["dreamgym", "__version__"]:
                yield node.lineno, name[1] if len(name) > 1 else "__init__"


def violations(source: str, module: tuple[str, ...], *, is_package: bool = False) -> list[str]:
    """What a module of the package imports though it may not. `module` is its dotted name in parts."""
    importer = module[1] if len(module) > 1 else "__init__"
    return [
        f"{'.'.join(module)}:{line} imports {imported}"
        for line, imported in imports(source, module, is_package=is_package)
        if not allowed(importer, imported)
    ]


def modules() -> list[tuple[Path, tuple[str, ...]]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        context = ("dreamgym", *path.relative_to(PACKAGE).with_suffix("").parts)
        found.append((path, context[:-1] if context[-1] == "__init__" else context))
    return found


def test_every_module_has_a_layer():
    without = sorted({module[1] for _, module in modules() if len(module) > 1 and layer(module[1]) is None})
    assert not without, f"Give {without} a layer in docs/architecture.md and in {Path(__file__).name}."


def test_imports_point_down_only_and_siblings_never_import_each_other():
    broken = [
        line for path, module in modules() for line in violations(path.read_text("utf-8"), module, is_package=path.name == "__init__.py")
    ]
    assert not broken, "\n".join(["Imports point down only (docs/architecture.md). Hand it in through recipes instead:", *broken])


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("envs.corridor", "from dreamgym.llm.tiny import TinyLLM"),
        ("llm.tiny", "import dreamgym.train.batch"),
        ("policy.agent", "def act():\n    from dreamgym.rollout import collect"),
        ("types", "from dreamgym.config import Config"),
        ("types", "from dreamgym import protocols"),
        ("replay.buffer", "from ..experience import model"),
        ("loop", "from dreamgym import recipes, types"),
        ("report.page", "if TYPE_CHECKING:\n    from dreamgym.cli import main"),
        ("exec.local", "from dreamgym.nowhere import thing"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_found(module: str, source: str):
    assert violations(source, ("dreamgym", *module.split(".")))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("envs.corridor", "from dreamgym.config import Config\nfrom dreamgym.types import Task"),
        ("envs.webshop.shop", "from . import goals\nfrom .._episode import play\nfrom ...types import Task"),
        ("protocols", "from dreamgym.types import Task"),
        ("config", "from dreamgym.errors import nearest"),
        ("recipes", "from dreamgym import loop, __version__\nimport torch"),
        ("cli", "def main():\n    from dreamgym.recipes import train"),
    ],
)
def test_an_import_that_points_down_or_stays_in_its_group_is_allowed(module: str, source: str):
    assert violations(source, ("dreamgym", *module.split("."))) == []


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=PACKAGE.parent)


@pytest.mark.parametrize(
    "name",
    [
        "dreamgym",
        "dreamgym.cli",
        "dreamgym.recipes",
        "dreamgym.recipes.settings",
        "dreamgym.recipes.comparison",
        "dreamgym.report",
        "dreamgym.runs.rundir",
    ],
)
def test_importing_what_starts_a_command_loads_no_torch_and_prints_nothing(name: str):
    script = f"""
        import sys, {name}
        heavy = sorted({{"torch", "transformers", "ray", "peft"}} & set(sys.modules))
        sys.exit(f"{name} loads {{heavy}}" if heavy else 0)
    """
    result = python("-c", textwrap.dedent(script))
    assert result.returncode == 0, result.stderr
    assert result.stdout == result.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train new seed=inf", "'seed' is inf"),
        ("train new env.name=webshp", "Did you mean 'webshop'?"),
        ("train new model.device=tpu", "'model.device' in the overrides"),
        ("train new replay.store=sqlit", "Did you mean 'sqlite'?"),
        ("train new replay.encoder.name=lexcal", "Did you mean 'lexical'?"),
        ("train new replay.index=exat", "Did you mean 'exact'?"),
        ("train new rl.algorithm.name=gppo", "Did you mean"),
        ("train new --config missing.toml", "No configuration file or preset 'missing.toml'"),
        ("quickstart --budget tiny", "No budget 'tiny'"),
        ("eval missing", "'missing' is not a run directory"),
        ("eval missing --split dve", "Did you mean 'dev'?"),
        ("compare missing other", "'missing' is not a run directory"),
        ("sweep model.size=100k,huge --config compare-small", "No model size 'huge'"),
        ("transfer train-grpo train-ppo", "two or more environments"),
        ("play missing", "'missing' is not a run directory"),
        ("fidelity missing", "'missing' is not a run directory"),
        ("report missing", "'missing' is not a run directory"),
    ],
)
def test_a_wrong_setting_or_directory_is_refused_before_torch_is_imported_and_nothing_is_written(
    arguments: str, words: str, tmp_path: Path
) -> None:
    script = f"""
        import atexit, os, sys
        os.chdir({str(tmp_path)!r})
        atexit.register(lambda: print("torch" in sys.modules))
        sys.argv = ["dreamgym", *{arguments.split()!r}]
        from dreamgym.cli import main
        main()
    """
    result = python("-c", textwrap.dedent(script))
    assert (result.returncode, result.stdout) == (2, "False\n"), result.stderr
    assert words in result.stderr
    assert not list(tmp_path.iterdir())


def spent() -> float:
    """Processor seconds of the processes that were started here: what else runs on the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_answers_well_under_a_second():
    def seconds() -> float:
        started = spent()
        result = python("-c", "import sys; from dreamgym.cli import main; sys.argv = ['dreamgym', '--help']; main()")
        assert result.returncode == 0, result.stderr
        return spent() - started

    assert min(seconds() for _ in range(3)) < 2.0  # of a shared processor; alone it is a third of that
