"""`import dreamgym as dg`: every name is there, is loaded at its first use, and is known to type checkers."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest

import dreamgym as dg


def declared() -> dict[str, str]:
    """Name -> module, as `if TYPE_CHECKING` imports them."""
    block = next(node for node in ast.parse(inspect.getsource(dg)).body if isinstance(node, ast.If))
    return {
        alias.name: alias.name if node.module == "dreamgym" else str(node.module).removeprefix("dreamgym.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_type_checkers_see_the_names_of_the_table_and_dir_lists_them():
    assert declared() == dg.HOME
    assert dir(dg) == sorted(dg.HOME)


@pytest.mark.parametrize("name", dir(dg))
def test_a_public_name_is_what_its_module_defines(name: str):
    found = getattr(dg, name)
    assert inspect.ismodule(found) or found.__module__ == f"dreamgym.{dg.HOME[name]}", "a name comes from the module that defines it"


def test_a_name_that_is_not_public_is_refused_with_those_that_are():
    with pytest.raises(AttributeError, match=r"no attribute 'Tasks'\. It offers .*, Task, "):
        _ = dg.Tasks


def test_what_an_environment_needs_is_imported_without_torch():
    names = "dg.EnvSuite, dg.TextRules, dg.Task, dg.Config, dg.make, dg.write_trajectories"
    script = f"import sys, dreamgym as dg; {names}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
