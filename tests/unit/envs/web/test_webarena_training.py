"""Training on WebArena-Lite from recorded episodes, as the tutorial prints it, on hand-made tasks, recordings and a site of four pages."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import bash_lines
from test_webarena import FormSite, file_of, record
from toy import LOOP, SHARED, command, object_in, shrink
from web_pages import browser

from dreamgym.envs.web.webarena.benchmark import VARIABLES
from dreamgym.recipes.blocks import EnvConfig
from dreamgym.recipes.factory import start_workers
from dreamgym.runs.rundir import RunDir

ROOT = Path(__file__).parents[4]
TASKS = 30


def printed(run: str) -> list[str]:
    """The arguments of the tutorial's command with that run directory."""
    lines = bash_lines((ROOT / "docs/tutorials/web.md").read_text("utf-8"))
    return next(shlex.split(line)[1:] for line in lines if re.match(rf"\.venv/bin/dreamgym train {run}\b", line))


def recorded(number: int) -> list[dict[str, Any]]:
    """BrowserGym's steps of an episode of one task: two in three are solved."""
    tree = f"RootWebArea 'Books', focused\n\t[12] link 'Shelf {number}', clickable, visible\n\tStaticText 'books'"
    observed = {"goal": f"Which  colour {number}?", "axtree_txt": tree}
    solved = number % 3 > 0
    answer = f"send_msg_to_user('{'blue' if solved else 'red'}')"
    actions = [{"obs": observed, "action": action, "reward": 0.0} for action in ("click('12')", answer)]
    return [*actions, {"obs": observed, "action": None, "reward": float(solved), "terminated": True}]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with tasks and a study of recorded episodes, and a site at all of WebArena's addresses."""
    site = FormSite()
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, site.address)
    monkeypatch.chdir(tmp_path)
    shrink(monkeypatch)
    file_of(tmp_path, *(record(number) for number in range(TASKS)))
    for number in range(TASKS):
        (tmp_path / f"agentlab_results/{number}").mkdir(parents=True)
        (tmp_path / f"agentlab_results/{number}/steps_info.json").write_text(json.dumps(recorded(number)))
    yield tmp_path
    site.server.shutdown()


def test_without_recorded_episodes_the_command_says_what_is_missing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    browser()
    options = 'env.options={benchmark = "webarena_lite", tasks_file = "tasks.json"}'
    code, _, err = command(monkeypatch, capsys, "train", "run", "env.name=web", options)
    assert code == 2 and "no scripted policies" in err and "Set logs.files" in err


def arguments(place: Path, *more: str) -> list[str]:
    """A small training in the dream from the recorded episodes, whose policies are scored at the site unless `more` says otherwise."""
    (place / "small.toml").write_text(f"{SHARED}\n[rl]\n{LOOP}")
    options = 'env.options={benchmark = "webarena_lite", tasks_file = "tasks.json"}'
    given = ["env.name=web", options, 'logs.files=["episodes.jsonl"]', "logs.task_pairs=0", "experience.replayed_starts=true"]
    return ["train", "run", *given, *more, "--config", "small.toml"]


@pytest.mark.slow
def test_without_addresses_only_a_training_that_never_acts_at_the_sites_begins(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    browser()
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable)
    assert command(monkeypatch, capsys, "web", "import", "agentlab_results/", "--out", "episodes.jsonl")[0] == 0
    for more, named in (
        ([], "eval.tasks"),
        (["eval.tasks=0", 'mode="real"'], "the loop real"),
        (["eval.tasks=0", "rl.probe_every=1"], "probes"),
    ):
        code, _, err = command(monkeypatch, capsys, *arguments(place, *more))
        assert code == 2 and "Not set: WA_SHOPPING, WA_SHOPPING_ADMIN" in err and named in err and not (place / "run").exists()
    code, _, err = command(monkeypatch, capsys, *arguments(place, "eval.tasks=0", "rl.iterations=8", "experience.training.epochs=20"))
    assert code == 0, err


def test_workers_know_that_nothing_resets_the_sites(place: Path):
    browser()
    options = {"tasks_file": str(place / "tasks.json")}
    for benchmark, repeats in (("webarena_lite", False), ("miniwob", True)):
        env = EnvConfig(name="web", workers=1, options={"benchmark": benchmark, **options})
        with start_workers(env) as workers:
            assert workers and workers.repeats is repeats and workers.concurrent is not repeats
        wrapped = EnvConfig(name="dreamgym.envs.wrappers.renamed", workers=1, options={"suite": "web", "options": env.options})
        with start_workers(wrapped) as workers:
            assert workers and workers.repeats is repeats


@pytest.mark.slow
def test_the_command_of_the_tutorial_trains_from_imported_episodes_and_is_scored_at_the_site(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    browser()
    code, out, _ = command(monkeypatch, capsys, "web", "import", "agentlab_results/", "--out", "episodes.jsonl")
    assert code == 0 and f"{TASKS} episodes" in out
    given = printed("runs/webarena")
    assert 'logs.files=["episodes.jsonl"]' in given
    (place / "small.toml").write_text(f"{SHARED}\n[rl]\n{LOOP}")
    tasks = '"webarena_lite", tasks_file = "tasks.json"'
    smaller = [one.replace('"webarena_lite"', tasks) for one in given if not one.startswith("env.workers")]  # whose browsers take long
    smaller += ["logs.task_pairs=0", "experience.replayed_starts=true", "experience.training.epochs=20"]
    smaller += ["rl.iterations=8"]  # in two, the rollouts of each task may well end alike
    code, out, err = command(monkeypatch, capsys, *smaller, "--config", "small.toml", "--json")
    assert code == 0, err
    logs = RunDir.view(place / "runs/webarena").data("logs")
    assert object_in(out)["dream"]["episodes"] >= 1 and logs["real_seconds"] == 0.0
    assert 0 < logs["successes"] < logs["trajectories"] < TASKS, "recordings of held-out tasks are left out"
