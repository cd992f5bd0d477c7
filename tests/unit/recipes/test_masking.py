"""What a run says of dreams that the guard masked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dreamgym.recipes import train
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.masking import warning
from dreamgym.runs.rundir import RunDir


def lines(*values: tuple[float, float | None]) -> list[dict[str, Any]]:
    return [{"phase": "dream", "iteration": i, "masked_share": one, "claims_masked": other} for i, (one, other) in enumerate(values)]


def test_many_masked_claims_are_named_with_their_shares_and_few_are_not():
    text = warning("dream", lines((0.02, 0.1), (0.03, 0.2)))
    assert text.startswith("The guard masked 2% of the rollouts (masked_share) and 15% of the claims of success (claims_masked) in 'dream'")
    assert warning("dream", lines((0.03, 0.03), (0.03, None))) == warning("s2r", lines((0.5, 0.5))) == warning("dream", []) == ""


def test_rollouts_without_a_learned_verifier_have_no_claims_to_name():
    text = warning("dream", lines((0.5, None), (0.1, None)))
    assert "30% of the rollouts" in text and "claims_masked" not in text


def test_an_iteration_that_a_resumed_run_wrote_twice_counts_once():
    assert warning("dream", [*lines((0.9, 0.9)), *lines((0.0, 0.0))]) == ""


def test_train_warns_of_masked_dreams_in_a_run_with_an_environment_too(tmp_path: Path):
    with RunDir.open(tmp_path / "run", "seed = 0\n") as run:
        for line in lines((0.2, 0.3)):
            run.append_jsonl("metrics.jsonl", line)
        shared: Any = SimpleNamespace(suite=SimpleNamespace(has_env=True))
        (text,) = train._warnings(run, shared, TrainConfig(), ["dream"], {})
    assert "30% of the claims of success" in text
