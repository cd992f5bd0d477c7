"""tests/unit mirrors the package: a test lies in the folder of what it tests, and has the name of its module or of a subject beside it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE, UNIT = ROOT / "dreamgym", ROOT / "tests/unit"


def test_every_folder_of_unit_tests_is_a_folder_of_the_package():
    folders = {file.parent.relative_to(UNIT) for file in UNIT.rglob("test_*.py")}
    assert folders
    assert not [folder.as_posix() for folder in folders if not (PACKAGE / folder).is_dir()]


def test_no_folder_of_tests_hides_a_package_that_is_imported():
    """pytest puts folders of tests on the import path, so that their subfolders would be found in place of packages of that name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *(one for needs in project["optional-dependencies"].values() for one in needs)]
    packages = {re.split(r"[^\w.-]", one)[0].replace("-", "_") for one in wanted}
    assert not {folder.name for folder in UNIT.rglob("*") if folder.is_dir()} & packages


def test_a_test_that_is_named_like_one_module_of_a_subpackage_lies_in_its_folder():
    for file in UNIT.rglob("test_*.py"):
        folder, stem = file.parent.relative_to(UNIT), file.stem.removeprefix("test_")
        if not (PACKAGE / folder / f"{stem}.py").exists():
            below = [module.parent for module in (PACKAGE / folder).rglob(f"{stem}.py")]
            assert not below, f"{file.relative_to(ROOT)} tests a module of {below[0].relative_to(ROOT)}: move it there"
