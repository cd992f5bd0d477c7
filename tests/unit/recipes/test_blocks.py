"""An algorithm of one's own is checked when its block is read, before an experience model is fitted for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dreamgym.errors import ConfigError
from dreamgym.recipes.blocks import AlgorithmConfig

SOURCE = """
from dreamgym.config import Config
class Mine:
    config, grouped = Config(), False
{members}
def make(**config):
    return Mine()
"""
PPO = "    critic = 0\n" + "".join(f"    def {name}(self, *_): ...\n" for name in ("mark_valued", "set_advantages", "normalise", "loss"))
Write = Callable[[str], str]


def methods(*names: str) -> str:
    return "".join(f"    def {name}(self, *_): ...\n" for name in names)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a class with these members as `mine_of.algorithm`, and return that name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_of").mkdir()

    def write(members: str) -> str:
        (tmp_path / "mine_of" / "algorithm.py").write_text(SOURCE.format(members=members))
        for name in ("mine_of", "mine_of.algorithm"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        return "mine_of.algorithm"

    return write


@pytest.mark.parametrize(
    ("members", "lacks"),
    [
        (
            methods("compute_advantage", "loss"),
            r"lacks compute_advantages \(it has 'compute_advantage'\): protocols.Algorithm has config, grouped, compute_advantages, loss",
        ),
        (methods("compute_advantages", "losses"), r"lacks loss \(it has 'losses'\)"),
        (methods("something"), r"lacks compute_advantages, loss: protocols.Algorithm"),
        (PPO.replace("normalise", "normalize"), r"lacks normalise \(it has 'normalize'\): protocols.ActorCritic has config, grouped"),
        (PPO.replace("critic =", "critics ="), r"lacks critic \(it has 'critics'\): protocols.ActorCritic"),
        (methods("compute_advantages", "loss", "state_dict"), r"lacks load_state_dict: state that checkpoints hold needs state_dict and"),
        (methods("compute_advantages", "loss", "state_dct", "load_state_dict"), r"lacks state_dict \(it has 'state_dct'\)"),
        (
            methods("compute_advantages", "loss", "statedict", "load_statedict"),
            r"lacks state_dict \(.*\), load_state_dict \(it has 'load_statedict'\)",
        ),
    ],
)
def test_a_method_that_is_missing_or_misspelt_is_named_with_what_is_near(written: Write, members: str, lacks: str) -> None:
    with pytest.raises(ConfigError, match=rf"The algorithm 'mine_of.algorithm' \(Mine\) {lacks}.*Add or rename"):
        AlgorithmConfig.model_validate({"name": written(members)})


@pytest.mark.parametrize("more", [(), ("state_dict", "load_state_dict"), ("load_state", "statistics", "_state_dict")])
@pytest.mark.parametrize("members", [methods("compute_advantages", "loss"), PPO])
def test_what_has_all_methods_may_have_others_too(written: Write, members: str, more: tuple[str, ...]) -> None:
    assert AlgorithmConfig.model_validate({"name": written(members + methods(*more))}).name == "mine_of.algorithm"


def test_the_command_refuses_it_before_torch_is_imported_and_before_anything_is_written(written: Write, tmp_path: Path) -> None:
    name = written(methods("compute_advantage", "loss"))
    script = "import sys\nsys.modules['torch'] = None\nfrom dreamgym import cli\nsys.argv = ['dreamgym', *sys.argv[1:]]\ncli.main()"
    command = [sys.executable, "-c", script, "train", "run", "env.name=corridor", f"rl.algorithm.name={name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2 and "lacks compute_advantages (it has 'compute_advantage')" in " ".join(done.stderr.split()), done.stderr
    assert not (tmp_path / "run").exists()
