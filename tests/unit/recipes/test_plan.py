"""What a run will do: its loops, and the models that are in memory at once in its phases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_model import save_instruct_model
from toy import LOOP, SHARED, shrink

from dreamgym import config as configuration
from dreamgym.config import read, resolve
from dreamgym.errors import MissingModel, UsageError
from dreamgym.llm import memory
from dreamgym.recipes import context, plan
from dreamgym.recipes.config import CompareConfig, RunConfig, SharedConfig, TrainConfig
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.settings import COMMANDS, command_of
from dreamgym.runs.rundir import RunDir

BOTH = {"policy.instructions": "Such as Action: left.", "warm_start.optimiser": "adamw", "experience.training.optimiser": "adamw"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_instruct_model(tmp_path_factory.mktemp("instruct")))


def settings(folder: Path, model: str, **changes: Any) -> TrainConfig:
    """A run with the model, trained whole, in both roles."""
    file = folder / "train.toml"
    file.write_text(f"{SHARED}\n[rl]\n{LOOP}")
    backbone = {"model": model, "device": "cpu"}
    roles = {"policy.backbone": backbone, "experience.backbone": backbone, "experience.name": "finetuned_chat"}
    return read(TrainConfig, file, {**BOTH, **roles, "experience.max_answer_tokens": 40, **changes})


def roles(config: SharedConfig) -> dict[str, list[tuple[str, bool]]]:
    return {phase: [(held.role, held.trains) for held in found] for phase, found in plan.models_by_phase(config).items()}


OFF = {"tasks": 0, "paired_replays": 0}
UNPROBED = {"iterations": 8, "probe_every": 0}


def verified(by: str, every: int) -> dict[str, Any]:
    return {"verifier": {"name": "learned", "probes": {"by": by, "every": every}}}


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        (TrainConfig, {"eval": OFF, "rl": UNPROBED}, []),
        (TrainConfig, {"eval": OFF, "rl": UNPROBED | {"probe_every": 9}}, []),
        (TrainConfig, {"eval": OFF, "rl": UNPROBED | {"probe_every": 8}}, ["the probes of dream"]),
        (TrainConfig, {"eval": OFF, "rl": UNPROBED, "experience": {"verifier": {"name": "learned"}}}, ["the probes of dream"]),
        (TrainConfig, {"eval": OFF, "rl": UNPROBED, "experience": verified("actions", 9)}, []),
        (TrainConfig, {"eval": OFF, "rl": UNPROBED, "experience": verified("rollouts", 9)}, ["the probes of dream"]),
        (TrainConfig, {"eval": {"tasks": 1, "gap_tasks": 1}, "rl": UNPROBED}, ["eval.tasks", "eval.gap_tasks", "eval.paired_replays"]),
        (TrainConfig, {"eval": OFF, "rl": UNPROBED, "mode": "s2r"}, ["the loop s2r"]),
        (CompareConfig, {"eval": {"tasks": 0}, "dream": UNPROBED, "arms": ["grpo-dream"]}, []),
        (CompareConfig, {"eval": {"tasks": 0}, "dream": UNPROBED, "arms": ["grpo-real"]}, ["the loop grpo-real"]),
        (CompareConfig, {"eval": {"tasks": 0}, "arms": ["sft"]}, ["the choice of a checkpoint of SFT (eval.dev_tasks)"]),
    ],
)
def test_a_run_acts_in_its_real_environment_by_its_loops_probes_and_measures(
    kind: type[SharedConfig], changes: dict[str, Any], expected: list[str]
) -> None:
    assert plan.acts_for_real(resolve(kind, changes, where="here")) == expected


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        (TrainConfig, {}, ["dream"]),
        (TrainConfig, {"mode": "s2r"}, ["dream", "s2r"]),
        (TrainConfig, {"mode": "real"}, ["real_only"]),
        (RunConfig, {"real_only": {"iterations": 3}, "equal_budget": True}, ["dream", "real_only", "real_equal"]),
        (RunConfig, {"ablations": ["model"]}, ["dream", "dream-no-model"]),
        (CompareConfig, {"arms": ["sft", "grpo-s2r", "grpo-dream"]}, ["grpo-dream", "grpo-s2r"]),
        (CompareConfig, {"arms": ["ppo-real"], "ablations": ["history"]}, ["ppo-real", "grpo-dream", "grpo-dream-no-history"]),
    ],
)
def test_the_loops_of_a_run_are_those_that_its_settings_ask_for(
    kind: type[SharedConfig], changes: dict[str, Any], expected: list[str]
) -> None:
    assert [loop.name for loop in plan.loops_of(resolve(kind, changes, where="here"))] == expected


def test_a_loop_starts_from_the_policy_that_its_row_names_and_ablations_from_the_warm_start() -> None:
    changes: dict[str, Any] = {"s2r": {"iterations": 2}, "real_only": {"iterations": 3}, "equal_budget": True, "ablations": ["model"]}
    loops = {loop.name: loop for loop in plan.loops_of(resolve(RunConfig, changes))}
    starts = {name: (loop.init_policy, loop.source, loop.ablation) for name, loop in loops.items()}
    assert starts == {
        "dream": ("warm_start", "dream", ""),
        "s2r": ("dream", "real", ""),
        "real_only": ("warm_start", "real", ""),
        "real_equal": ("warm_start", "real", ""),
        "dream-no-model": ("warm_start", "dream", "model"),
    }
    assert loops["s2r"].block.learner.lr == 1e-4 and loops["s2r"].block.tasks_per_iter == 8
    assert loops["dream-no-model"].block.curriculum.synthetic_share == 0.0 < loops["dream"].block.curriculum.synthetic_share
    arms = resolve(CompareConfig, {"arms": ["ppo-s2r", "gigpo-mixed"], "ablations": ["history"], "ablated": "grpo-dream"})
    assert {loop.name: (loop.init_policy, loop.source) for loop in plan.loops_of(arms)} == {
        "ppo-dream": ("warm_start", "dream"),
        "ppo-s2r": ("ppo-dream", "real"),
        "gigpo-mixed": ("warm_start", "mixed"),
        "grpo-dream": ("warm_start", "dream"),
        "grpo-dream-no-history": ("warm_start", "dream"),
    }


def test_a_dream_holds_the_policy_with_its_optimiser_and_what_the_dream_samples_from(tmp_path: Path, model: str) -> None:
    policy, dream = ("policy.backbone", True), ("experience.backbone", False)
    found = roles(settings(tmp_path, model))
    assert found == {"experience": [("experience.backbone", True)], "warm_start": [policy], "dream": [policy, dream]}
    assert roles(settings(tmp_path, model, mode="s2r"))["s2r"] == [policy]
    refreshed = roles(settings(tmp_path, model, **{"rl.on_gap": "refresh", "rl.probe_every": 2}))["dream"]
    assert refreshed == [policy, dream, ("the refreshed experience.backbone", True)]
    assert ("the reference of kl_coef", False) in roles(settings(tmp_path, model, **{"rl.algorithm.kl_coef": 0.1}))["dream"]
    critic = {"rl.algorithm": {"name": "ppo", "critic": {"kind": "separate"}}}
    assert ("the critic", True) in roles(settings(tmp_path, model, **critic))["dream"]
    assert ("the critic", True) not in roles(settings(tmp_path, model, **{"rl.algorithm": {"name": "ppo"}}))["dream"]
    reader = {"experience.verifier": {"name": "learned", "features": "backbone"}}
    reading = roles(settings(tmp_path, model, **reader))
    assert ("experience.verifier.backbone", False) in reading["experience"] and ("experience.verifier.backbone", False) in reading["dream"]
    verifier = {"name": "chat", "engine": {"name": "instruct", "model": model}}
    judged = roles(settings(tmp_path, model, **{"experience.verifier": verifier}))["dream"]
    assert judged == [policy, dream, ("experience.verifier.engine", False)]


def test_two_roles_that_fit_one_by_one_and_not_together_are_refused_before_anything_is_made(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch)
    config = settings(tmp_path, model)
    one = memory.memory_of_each(plan.models_by_phase(config)["warm_start"])[0]
    monkeypatch.setattr(memory, "machine_memory", lambda: one)
    with context.open_run(tmp_path / "run", config) as run, pytest.raises(UsageError, match=r"policy.backbone.*experience.backbone"):
        prepare_logs(run, config)
    assert not RunDir.view(tmp_path / "run").done("logs")
    monkeypatch.setattr(memory, "machine_memory", lambda: one * 5 // 4)
    plan.require_memory(config)


def test_presets_without_a_pretrained_model_hold_none_and_others_name_their_roles() -> None:
    for name in configuration.presets():
        config = read(COMMANDS[command_of(Path(name))], Path(name))
        held = plan.models_by_phase(config)
        assert bool(held) == bool(config.policy.backbone or config.experience.backbone), name
        try:
            assert not held or plan.peak_memory(config) < 80e9, f"{name} is for one GPU"
        except MissingModel:
            continue
