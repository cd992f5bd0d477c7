"""Plug-ins of one's own that lack something are refused before anything is fitted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from toy import LOOP, SHARED, shrink

from dreamgym.config import parse_text, resolve
from dreamgym.errors import ConfigError, UsageError
from dreamgym.recipes import factory
from dreamgym.recipes import train as recipe
from dreamgym.recipes.blocks import ReplayConfig
from dreamgym.recipes.config import TrainConfig
from dreamgym.runs.rundir import RunDir

ENCODER = """
import numpy as np

class Mine:
    id = "mine"
    dim = 3
    def encode(self, states, actions):
        return np.ones((len(states), 3), np.float32) / np.float32(3) ** 0.5

def make(**config):
    return Mine()
"""
VERIFIER = """
from dreamgym.types import Verdict

class Mine:
    def verify(self, cases):
        return [Verdict("passed") for _ in cases]

def make(inputs, **settings):
    return Mine()
"""
Write = Callable[[str], str]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module as `mine_too.plugin`, and return that name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_too").mkdir()

    def write(source: str) -> str:
        (tmp_path / "mine_too" / "plugin.py").write_text(source)
        for name in ("mine_too", "mine_too.plugin"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        return "mine_too.plugin"

    yield write
    factory._encoder.cache_clear()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("    dim = 3\n", "", r"lacks dim: protocols.Encoder has id, dim, encode"),
        ("def encode(", "def encodes(", r"lacks encode \(it has 'encodes'\)"),
        (
            "np.ones((len(states), 3)",
            "np.ones((len(states), 4)",
            r"returns float32 of shape \(1, 4\). Expected a float32 array of shape \(1, 3\)",
        ),
        (" / np.float32(3) ** 0.5", "", r"returns a row of length 1.73"),
        ("np.float32) /", "np.float64) /", r"returns float64 of shape"),
        ("return np.ones((len(states), 3), np.float32) / np.float32(3) ** 0.5", "return [[1.0, 0.0, 0.0]]", r"returns list"),
    ],
)
def test_an_encoder_that_lacks_something_is_refused_with_the_configuration(written: Write, old: str, new: str, says: str):
    assert old in ENCODER
    with pytest.raises(ConfigError, match=rf"The encoder 'mine_too.plugin' \(Mine\) {says}"):
        factory.check_replay(ReplayConfig.model_validate({"encoder": {"name": written(ENCODER.replace(old, new))}}))


def test_an_encoder_with_all_its_members_is_taken(written: Write):
    factory.check_replay(ReplayConfig.model_validate({"encoder": {"name": written(ENCODER)}}))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "def verify(",
            "def verified(",
            r"The verifier 'mine_too.plugin' \(Mine\) lacks verify \(it has 'verified'\): protocols.Verifier has verify",
        ),
        (
            'Verdict("passed") for',
            "True for",
            r"verify\(\) of the verifier Mine returned True as a verdict. Expected a list with a types.Verdict",
        ),
        ("for _ in cases]", "for _ in cases[1:]]", r"verify\(\) of the verifier Mine returned 1 verdict for 2 cases"),
        ('[Verdict("passed") for _ in cases]', "None", r"returned NoneType for 2 cases"),
    ],
)
def test_a_verifier_that_is_none_is_refused_before_anything_is_fitted(
    written: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str
):
    shrink(monkeypatch)
    assert old in VERIFIER
    values = parse_text(f"{SHARED}\n[rl]\n{LOOP}", "the toy")
    values["experience"] |= {"verifier": {"name": written(VERIFIER.replace(old, new))}}
    with pytest.raises(UsageError, match=says):
        recipe.run(resolve(TrainConfig, values), tmp_path / "run")
    assert not {"experience", "warm_start"} & set(RunDir.view(tmp_path / "run").finished())
