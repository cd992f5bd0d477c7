"""The pages of docs/: an index lists each, what they name exists, their links lead somewhere, and the site builds without a warning."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from documents import DOCS, FIDELITY, OTHERS, ROOT, bash_lines, exists, fidelity_keys, fidelity_rows, members, rows_under, tree
from pydantic import BaseModel

import dreamgym
from dreamgym import cli
from dreamgym.evals.attribution import decided_json
from dreamgym.evals.bound import measure as measure_bound
from dreamgym.evals.gap import compare_success
from dreamgym.evals.next_actions import NextActions
from dreamgym.evals.one_step import ahead, measure
from dreamgym.evals.paired_replay import summarise
from dreamgym.evals.recorded_actions import RecordedReplay
from dreamgym.recipes.config import CompareConfig, RunConfig, TrainConfig
from dreamgym.recipes.phases.audit import fidelity_json
from dreamgym.recipes.replayed_dreams import audit_measures
from dreamgym.recipes.settings import budget_config
from dreamgym.report.metrics import METRICS
from dreamgym.statistics import wilson

PAGES = sorted(path for path in DOCS.rglob("*.md") if not path.is_relative_to(DOCS / "lab/decisions"))
PRESENT = [ROOT / "README.md", *(page for page in PAGES if not page.is_relative_to(DOCS / "lab"))]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
PAPER_MAP = (DOCS / "paper_map.md").read_text("utf-8")
CONFIGS = (TrainConfig, RunConfig, CompareConfig)
BLOCKS = {name for model in CONFIGS for name in model.model_fields}


def paper_names(pattern: str) -> list[str]:
    return sorted({name for name in re.findall(r"`([^`\n]+)`", PAPER_MAP) if re.fullmatch(pattern, name)})


def links(page: Path) -> set[Path]:
    """The files that a page links to."""
    targets = re.findall(r"\]\(([^)\s#:]+)[^)]*\)", page.read_text("utf-8"))
    return {(page.parent / target).resolve() for target in targets}


def test_every_page_is_listed_by_an_index():
    listed = set().union(*(links(DOCS / index) for index in ("index.md", "api/index.md", "lab/index.md")))
    missing = [page for page in PAGES if page.name != "index.md" and page not in listed]
    assert not missing, f"No index lists {[str(page.relative_to(DOCS)) for page in missing]}"
    decisions = set((DOCS / "lab/decisions").glob("*.md"))
    assert decisions <= listed


def test_the_site_has_every_page_once():
    tables = runpy.run_path(str(DOCS / "conf.py"))["NAVIGATION"]
    named = Counter(str((DOCS / index).parent / page) for index, found in tables.items() for pages in found.values() for page in pages)
    assert set(named) == {str(page.with_suffix("")) for page in DOCS.rglob("*.md")} - {str(DOCS / "index")}
    assert set(named.values()) == {1}


@pytest.mark.parametrize("page", sorted((DOCS / "api").glob("*.md")), ids=lambda page: page.stem)
def test_a_module_of_an_api_page_exists(page: Path):
    for module in re.findall(r"automodule:: (\S+)", page.read_text("utf-8")):
        stem = ROOT.joinpath(*module.split("."))
        assert stem.with_suffix(".py").is_file() or (stem / "__init__.py").is_file(), f"{page.name} names {module}, which is not there"


def test_the_api_page_names_what_the_package_offers():
    page = (DOCS / "api/index.md").read_text("utf-8")
    assert re.findall(r"`dg\.(\w+)`", page) == dir(dreamgym)


def test_the_architecture_page_quotes_the_loop_as_it_is():
    path = ROOT / "dreamgym/loop.py"
    source = ast.get_source_segment(path.read_text("utf-8"), members(tree(path))["train"])
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    assert f"```python\n{source}\n```" in page, "Copy `train` of dreamgym/loop.py into docs/architecture.md letter for letter."


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
    page = (ROOT / "docs/metrics.md").read_text("utf-8").partition(f"## {FIDELITY}")[0].splitlines()
    rows = [line for line in page if line.startswith("| `")]
    expected = [f"| `{name}` | {m.unit} | {m.meaning} | {m.worry} |" for group in METRICS.values() for name, m in group.items()]
    assert [line[3:] for line in page if line.startswith("## ")] == list(METRICS)
    assert rows == expected, "\n".join(["The rows of docs/metrics.md should be:", *expected])


def test_every_key_of_fidelity_as_json_has_a_row_in_the_glossary_page_and_every_row_is_one():
    replays = fidelity_json(summarise([], []))
    audit = replays | {"unreadable": 0, "masked": 0, "bound": measure_bound([]).to_json(), "decided_by": decided_json([], [])}
    audit |= dict.fromkeys(("in_support", "out_of_support"), replays | {"share": replays["state_exact"]})
    predictions = measure([], [], known=()).to_json()
    kinds = {"with_guard": predictions, "without_guard": predictions}
    beside_control = {kind: predictions | {"over_no_model": ahead([], [], []).json()} for kind in kinds}
    about = ("episodes", "transitions", "near_misses", "near_misses_that_took_effect", "near_misses_lost")
    about = (*about, "split", "episodes_seed", "recorded", "policy")
    compared = NextActions(0, wilson(0, 0), wilson(0, 0), wilson(0, 0), {})
    gap = {"policy": "dream", "real_steps": 0, "revisits": {}, "revisits_no_model": {}, **asdict(compare_success([], []))}
    found = audit_measures(dict.fromkeys(("with_guard", "without_guard", "no_model"), audit), gap) | {
        "experience": "experience",
        "held_out": dict.fromkeys(about) | beside_control,
        "held_out_no_model": kinds,
        "reason": "",
        "recorded_replay": asdict(RecordedReplay(wilson(0, 0), wilson(0, 0), wilson(0, 0), 0, 0, {})),
        "uncertified": {"dream": dict.fromkeys(("uncertified_dream_success", "masked", "failed_rollouts", "decided_by"))},
        "next_actions": {"held_out_by": "task", "by_policy": {"dream": dict.fromkeys(("held_out", "training"), compared.to_json())}},
    }
    assert fidelity_keys(found) == fidelity_rows()


def test_every_other_key_of_a_run_with_a_row_in_the_glossary_page_stands_in_the_code():
    code = "".join(path.read_text("utf-8") for path in (ROOT / "dreamgym").rglob("*.py"))
    words = {word for name in rows_under(OTHERS) for word in re.split(r"-|_(?=usage)", name)}  # written as f"{model}_usage"
    assert words and not {word for word in words if not re.search(rf"\b{word}\b", code)}
    assert not rows_under(OTHERS) & {name for group in METRICS.values() for name in group}


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings are linked to, as GitHub and MyST write them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ +(.*?) *$", prose, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_the_repositorys_files_lead_somewhere(document: Path):
    for target, anchor in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?[^)]*\)", document.read_text("utf-8")):
        if not re.match(r"[a-z]+:", target):
            path = document.parent / target if target else document
            assert path.exists(), f"{document.name} links to {target}, which is not there"
            if anchor and path.suffix == ".md":
                assert anchor in anchors(path), f"{document.name} links to {target}#{anchor}, and {path.name} has no such heading"


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The configuration classes that a field's annotation holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in models_in(inner)]


def is_setting(key: str, models: Sequence[type[BaseModel]]) -> bool:
    """Whether a dotted key such as `rl.algorithm.name` is a setting of one of the classes. A table that takes any key ends the search."""
    name, _, rest = key.partition(".")
    fields = [model.model_fields[name] for model in models if name in model.model_fields]
    inner = [model for field in fields for model in models_in(field.annotation)]
    return bool(fields) and (not rest or not inner or any(m.model_config.get("extra") == "allow" for m in inner) or is_setting(rest, inner))


def settings_named(page: Path) -> set[str]:
    """KEY=VALUE of the page's commands, and dotted keys in its code spans."""
    text = page.read_text("utf-8")
    commands = [words for line in bash_lines(text) for words in [shlex.split(line)] if {"train", "quickstart"} & set(words)]
    given = {word.split("=")[0] for words in commands for word in words if re.match(r"[a-z][a-z0-9_.]*=", word)}
    spans = re.findall(r"`([a-z_0-9]+(?:\.[a-z_0-9]+)+)(?: ?= ?[^`]*)?`", text)
    return given | {span for span in spans if span.split(".")[0] in BLOCKS and not exists(f"dreamgym.{span}")}


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.stem)
def test_a_setting_that_a_page_names_exists(page: Path):
    unknown = {key for key in settings_named(page) if not is_setting(key, CONFIGS)}
    assert not unknown, f"{page.name} names settings that are not there: {unknown}"


def test_an_unknown_setting_is_noticed():
    assert is_setting("rl.algorithm.name", CONFIGS) and is_setting("env.options.files", CONFIGS) and is_setting("seed", CONFIGS)
    assert not is_setting("rl.algoritm", CONFIGS) and not is_setting("rl.learner.rate", CONFIGS) and not is_setting("warm.epochs", CONFIGS)


@pytest.mark.parametrize("page", PRESENT, ids=lambda page: page.stem)
def test_a_command_that_a_page_shows_exists(page: Path):
    commands: Any = typer.main.get_command(cli.app)
    lines = bash_lines(page.read_text("utf-8"))
    shown = {match[1] for line in lines for match in re.finditer(r"\bdreamgym ([a-z]+)", line)}
    assert shown <= set(commands.commands)
    for name in re.findall(r"--config ([\w-]+)(?=\s|$)", "\n".join(lines)):
        assert (ROOT / "dreamgym" / "presets" / f"{name}.toml").is_file(), f"{page.name} names the preset '{name}', which is not there"


def test_the_commands_of_the_results_name_what_is_there():
    lines = [line for line in (DOCS / "results.md").read_text("utf-8").splitlines() if line.startswith("Command: ")]
    assert lines
    for line in lines:
        given = re.findall(r"([a-z][a-z_0-9]*(?:\.[a-z_0-9]+)+)=", line)
        assert all(is_setting(key, CONFIGS) for key in given), line
        named = re.findall(r"--config ([\w-]+)", line)
        named += [name for name in re.findall(r"presets? ([\w-]+)(?: and ([\w-]+))?", line) for name in name if name]
        assert all(name == "FILE" or (ROOT / "dreamgym" / "presets" / f"{name}.toml").is_file() for name in named), line
        for shown in re.findall(r"dreamgym quickstart((?: --[a-z]+ \w+)+)", line):
            options = dict(zip(*[iter(shown.split())] * 2, strict=True))
            assert budget_config(options.get("--budget", "default"), options.get("--env", "")), line
        for program, after in re.findall(r"bench/(\w+)\.py((?: [^`;]*)?)", line):
            source = "".join((ROOT / "bench" / name).read_text("utf-8") for name in (f"{program}.py", "common/options.py"))
            assert all(f'"{option}"' in source for option in re.findall(r"(?<=\s)--[a-z-]+", after)), line


@pytest.mark.slow
def test_the_site_builds_and_every_link_in_it_leads_somewhere(tmp_path: Path):
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason="the extra 'docs' is not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "api" / "training.html").is_file()
