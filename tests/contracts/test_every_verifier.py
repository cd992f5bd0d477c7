"""What every verifier promises (`experience.verifiers`). Verifiers are discovered, and so is one outside the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer

from dreamgym import plugins
from dreamgym.config import build, dump
from dreamgym.envs import corridor
from dreamgym.errors import ConfigError
from dreamgym.experience.verifiers import VerifierInputs, verdicts_of
from dreamgym.protocols import Verifier
from dreamgym.recipes.blocks import ExperienceConfig
from dreamgym.types import Observation, Transition

SUITE = corridor.make(length=4, keys=False)
LOGS = [
    SUITE.demonstrate(task, policy, seed=seed)
    for task in SUITE.tasks("train", 6)
    for policy in SUITE.scripted_policies
    for seed in range(20)
]
WIN = next(log for log in LOGS if log.success)

every_verifier = pytest.mark.parametrize("name", [*plugins.known("experience.verifiers"), "outside.logged_ends"])


@pytest.fixture
def settings(name: str) -> Iterator[dict[str, Any]]:
    """What a verifier cannot do without; a server answers the chat model's questions."""
    with FaultServer() as server:
        server.answer = lambda messages: json.dumps({"reasoning": "so it is.", "believable": "purple" not in str(messages)})
        engine = {"base_url": server.url, "model": "policy", "backoff_s": 0.01}
        yield {"chat": {"engine": engine}}.get(name, {})


def made(name: str, settings: dict[str, Any], folder: Path) -> Verifier:
    """The verifier, fitted into `folder` where it is one that is fitted."""
    inputs = VerifierInputs(SUITE.rules, LOGS, checkpoint=folder / "verifier")
    if fit := getattr(plugins.load("experience.verifiers", name), "fit", None):
        json.dumps(fit(inputs, **settings), allow_nan=False)  # kept with the run
    verifier: Verifier = plugins.make("experience.verifiers", name, inputs=inputs, **settings)
    return verifier


@every_verifier
def test_there_is_one_verdict_per_case_in_order_and_a_logged_success_is_believed(name: str, settings: dict[str, Any], tmp_path: Path):
    verifier = made(name, settings, tmp_path)
    *past, last = WIN.transitions
    nowhere: Transition = replace(last, state=Observation("room 0 of 4\n[right]"), next_state=Observation("a purple moon"))
    cases = [(WIN.task.instruction, tuple(past), claim) for claim in (last, nowhere, last)]
    found = verifier.verify(cases)
    kinds = [verdict.kind if verdict else None for verdict in found]
    assert kinds in (["passed", "refused", "passed"], ["passed", "masked", "passed"])
    assert verifier.verify(cases) == found and verifier.verify([]) == []


def test_the_verifier_that_the_documentation_shows_judges_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[2] / "docs/trust.md").read_text("utf-8").partition("## A verifier of your own")[2]
    (tmp_path / "documented_folder").mkdir()
    (tmp_path / "documented_folder/refunds.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    block = build(ExperienceConfig, {"verifier": {"name": "documented_folder.refunds"}})
    assert block.verifier is not None and block.verifier.on_disagreement == "zero"
    verifier: Verifier = plugins.make("experience.verifiers", "documented_folder.refunds", inputs=VerifierInputs(SUITE.rules, LOGS))
    *past, last = WIN.transitions
    looked = replace(past[0], action='get_order(id="17")')
    cases = [("Refund my order.", tuple(past), last), ("Refund my order.", (looked,), last), ("Walk.", tuple(past), last)]
    assert [verdict.kind if verdict else None for verdict in verdicts_of(verifier, cases)] == ["refused", "passed", None]


@every_verifier
def test_a_configuration_completes_the_settings_refuses_unknown_ones_and_reads_back(name: str, settings: dict[str, Any]):
    block = build(ExperienceConfig, {"verifier": {"name": name, "applies_to": "all", **settings}})
    usual = getattr(plugins.load("experience.verifiers", name), "ON_DISAGREEMENT", "mask")
    assert block.verifier is not None and (block.verifier.applies_to, block.verifier.on_disagreement) == ("all", usual)
    assert build(ExperienceConfig, {"verifier": {"name": name, "on_disagreement": "keep", **settings}}).verifier.on_disagreement == "keep"
    assert settings.keys() <= block.verifier.settings.keys() and f'name = "{name}"' in dump(block)
    with pytest.raises(ConfigError, match=r"Unknown key 'experience\.verifier\.colour'"):
        build(ExperienceConfig, {"verifier": {"name": name, "colour": 1, **settings}})
