"""Which phases read which settings."""

from __future__ import annotations

import pytest

from dreamgym.config import _flat
from dreamgym.engines.server import ServerEngineConfig
from dreamgym.recipes.config import CompareConfig, RunConfig, TrainConfig
from dreamgym.recipes.resume import ANSWERED, READ_BY, read_by


@pytest.mark.parametrize(
    ("setting", "phases"),
    [
        ("env.workers", ()),
        ("env.name", ("*",)),
        ("seed", ("*",)),
        ("experience.training.lr", ("experience*",)),
        ("experience.backbone.model", ("experience*", "verifier", *ANSWERED)),
        ("warm_start.epochs", ("warm_start",)),
        ("s2r.iterations", ("s2r", "*-s2r")),
        ("eval.paired_replays", ("audit",)),
        ("eval.uncertified_dreams", ("uncertified",)),
    ],
)
def test_a_setting_belongs_to_the_phases_that_read_it(setting: str, phases: tuple[str, ...]):
    assert read_by(setting) == phases


def test_the_engine_of_the_policy_may_change_until_a_policy_acts():
    assert not {"logs", "tokenizer", "experience*", "warm_start"} & {*read_by("policy.engine.dtype")}
    assert "warm_start" in read_by("policy.backbone.model")


def test_every_entry_names_a_setting():
    configs = (TrainConfig(), RunConfig(), CompareConfig())
    known = {name for config in configs for name, _ in _flat("", config.model_dump())}
    known |= {f"{role}.engine.{name}" for role in ("policy", "experience") for name in ServerEngineConfig.model_fields}
    assert not [entry for entry in READ_BY if not any(f"{name}.".startswith(f"{entry}.") for name in known)]
