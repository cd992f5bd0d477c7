"""What an experiment will take, said before it starts: the arithmetic, and the pilot against what a run really reads."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from chat_model import save_instruct_model
from toy import LOOP, SHARED, command, object_in, shrink

from dreamgym.cli import training
from dreamgym.config import dump, read
from dreamgym.envs import corridor
from dreamgym.errors import UsageError
from dreamgym.llm import backbones, memory
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes import estimate, pilot, plan
from dreamgym.recipes.config import CompareConfig, RunConfig, TrainConfig
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.pilot import Pilot
from dreamgym.recipes.rates import Rates
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.rundir import RunDir
from dreamgym.train import sft
from dreamgym.train.settings import SFTConfig

RATES = Rates(fitted_per_s=1000.0, prompt_per_s=inf, sampled_per_s=500.0)
PILOT = Pilot(
    steps=10.0, successes=0.5, experience_tokens=400.0, answer_tokens=100.0, policy_tokens=200.0, reply_tokens=50.0, real_step_s=2.0,
    policy=RATES, experience=RATES, memory_gb=1.0,
)  # fmt: skip
SMALL = {
    "logs.trajectories": 100, "experience.training.epochs": 2.0, "warm_start.epochs": 1.0, "eval.tasks": 0, "sft.epochs": 0.0,
    "dream.iterations": 5, "dream.tasks_per_iter": 4, "dream.group_size": 2, "dream.probe_every": 0,
    "dream.learner.old_logprobs": "sampler",
}  # fmt: skip


def compared(folder: Path, **changes: Any) -> CompareConfig:
    file = folder / "compare.toml"
    file.write_text('arms = ["grpo-dream"]\n[env]\nname = "corridor"\n')
    return read(CompareConfig, file, {**SMALL, **changes})


def test_a_comparison_takes_its_fits_its_rollouts_and_its_updates(tmp_path: Path):
    found = estimate.seed_cost(compared(tmp_path), PILOT)
    assert found.fitted_tokens == 100 * 400 * 2 + 100 * 0.5 * 200
    assert found.sampled_tokens == 40 * (50 + 100) and found.learned_tokens == 40 * 200
    assert found.real_steps == 100 * 10 and found.memory_gb == 1.0
    assert found.hours == pytest.approx(((90_000 + 8_000) / 1000 + 6_000 / 500 + 1_000 * 2) / 3600)


@pytest.mark.parametrize(
    ("changes", "name", "more"),
    [
        ({"arms": ["grpo-real"], "real.iterations": 5, "real.tasks_per_iter": 4, "real.group_size": 2}, "real_steps", 40 * 10),
        ({"arms": ["sft"], "sft.epochs": 3.0}, "fitted_tokens", 3 * 50 * 200),
        # the warm start, and every two epochs, greedy and sampled
        ({"arms": ["grpo-dream", "sft"], "sft.epochs": 6.0, "eval.dev_tasks": 5}, "real_steps", (1 + 3) * 2 * 5 * 10),
        ({"arms": ["grpo-dream", "sft"], "sft.epochs": 1.0, "eval.dev_tasks": 5}, "sampled_tokens", (1 + 1) * 2 * 5 * 50),
        ({"arms": ["grpo-dream", "dpo"], "sft.epochs": 1.0, "dpo.epochs": 2.0}, "fitted_tokens", 50 * 200 + 2 * 50 * 200 * (2 + 1 / 3)),
        ({"ablations": ["model"]}, "learned_tokens", 40 * 200),  # the control is fitted to nothing
        ({"ablations": ["replay"]}, "fitted_tokens", 100 * 400 * 2),  # it has an experience model of its own
        ({"dream.learner.old_logprobs": "learner"}, "learned_tokens", 40 * 200 / 3),
        ({"dream.probe_every": 5, "dream.probe_tasks": 7}, "real_steps", 7 * 10),
        ({"eval.tasks": 30}, "real_steps", 2 * 30 * 10 * 2),  # the warm start is judged too
    ],
)
def test_what_is_added_to_a_comparison_adds_its_cost(changes: dict[str, Any], name: str, more: float, tmp_path: Path):
    plain, added = (getattr(estimate.seed_cost(compared(tmp_path, **one), PILOT), name) for one in ({}, changes))
    assert added - plain == pytest.approx(more)


def test_a_learned_verifier_is_fitted_to_the_logs_and_after_every_probe_and_its_probes_are_real_steps(tmp_path: Path):
    probes = {"every": 2, "episodes": 3, "max_real_steps": 50, "by": "rollouts"}
    changes = {"experience.verifier": {"name": "learned", "probes": probes}, "arms": ["grpo-dream", "grpo-real"]}
    plain, judged = (
        estimate.seed_cost(compared(tmp_path, **changes), replace(PILOT, read_s=a, judged_s=b)) for a, b in ((0.0, 0.0), (0.3, 0.1))
    )
    assert plain.hours is not None and judged.hours is not None
    assert (judged.hours - plain.hours) * 3600 == pytest.approx(100 * (0.3 * 2 + 0.1 * (1 + 3))), "three probes, and the real arm has none"
    without = estimate.seed_cost(compared(tmp_path, arms=["grpo-dream", "grpo-real"]), PILOT)
    assert plain.real_steps - without.real_steps == 50, "three probes of three episodes of ten steps, and no more than 50"
    assert plain.sampled_tokens - without.sampled_tokens == 5 * 50


@pytest.mark.parametrize(("mode", "policies"), [("dream", 2), ("s2r", 3)])
def test_every_policy_of_a_training_is_judged(mode: str, policies: int, tmp_path: Path):
    (tmp_path / "train.toml").write_text('[env]\nname = "corridor"\n')
    changes = {"mode": mode, "rl.probe_every": 0, "s2r.iterations": 0}
    with_none, with_thirty = (
        estimate.seed_cost(read(TrainConfig, tmp_path / "train.toml", {**changes, "eval.tasks": n}), PILOT).real_steps for n in (0, 30)
    )
    assert with_thirty - with_none == 2 * 30 * 10 * policies


def test_what_a_sweep_and_a_transfer_measure_beside_their_runs_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(estimate, "measure", lambda config: PILOT)
    sweep = [compared(tmp_path, **{"seeds": [0, 1], "logs.trajectories": n}) for n in (50, 100)]
    runs, predicted = (estimate.estimate_cost(sweep, held_out=n) for n in (0, 8))
    assert predicted.sampled_tokens == (runs.sampled_tokens or 0) + 4 * 8 * 1.5 * 100, "a near miss at every second step"
    assert predicted.real_steps == runs.real_steps + 4 * 8 * 10 * (1 + 0.5 * 11 / 2), "each tried after the steps before it"
    (tmp_path / "train.toml").write_text('[env]\nname = "corridor"\n')
    pair = [read(TrainConfig, tmp_path / "train.toml", {"eval.tasks": 6, "logs.trajectories": 100}) for _ in range(2)]
    alone, both = estimate.estimate_cost(pair), estimate.estimate_cost(pair, held_out=8, transfer=True)
    acted, asked = 4 * 2 * 2 * 6, 4 * 8  # four pairs: two policies, greedy and sampled; and predictions of episodes
    assert both.real_steps == alone.real_steps + acted * 10 + asked * 10 * (1 + 0.5 * 11 / 2)
    assert both.sampled_tokens == (alone.sampled_tokens or 0) + acted * 50 + asked * 1.5 * 100
    every = estimate.estimate_cost(pair, held_out=8, transfer=True, universal=True)
    assert every.sampled_tokens == (both.sampled_tokens or 0) + 2 * 8 * 1.5 * 100
    assert every.fitted_tokens == (both.fitted_tokens or 0) + 2 * 100 * 400 * pair[0].experience.training.epochs  # type: ignore[union-attr]


def test_hours_are_unknown_where_the_model_is_not_measured_and_costs_add_up(tmp_path: Path):
    why = "what policy.engine 'server' takes is not measured"
    known, unknown = (estimate.seed_cost(compared(tmp_path), one) for one in (PILOT, replace(PILOT, policy=None, unknown=why)))
    assert unknown.hours is None and (known + unknown).hours is None and f"hours unknown: {why}" in str(known + unknown)
    assert "1.0 GB of memory before activations of training" in str(unknown) and "1.0 GB of memory or more" in str(known)
    both = known + known
    assert both.fitted_tokens == 180_000 and both.memory_gb == 1.0 and both.hours == pytest.approx(2 * (known.hours or 0))
    assert str(both).startswith("180 k tokens fitted, 12 k sampled, 16 k learned from; 2 k real steps; 1.0 GB")
    assert sum(both.phases.values()) == pytest.approx(both.hours)


def test_other_work_on_the_machine_is_named_because_it_makes_the_hours_too_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    busy = str(estimate.Cost(hours=2.0, load=5.25) + estimate.Cost(hours=1.0))
    assert "about 3.0 hours on this machine" in busy and busy.endswith(
        "measured beside other work (load 5.2 on 4 cores), and less without it"
    )
    assert "other work" not in str(estimate.Cost(hours=2.0, load=1.9))


def test_hours_go_by_phase_at_the_rates_of_each_role_and_never_beyond_a_bound_in_seconds(tmp_path: Path):
    slow = replace(PILOT, policy=Rates(100.0, 1000.0, 10.0), prompt_tokens=500.0, question_tokens=100.0)
    found = estimate.seed_cost(compared(tmp_path), slow).phases
    assert found["experience"] * 3600 == pytest.approx(80_000 / 1000)
    assert found["warm_start"] * 3600 == pytest.approx(10_000 / 100)
    assert found["grpo-dream"] * 3600 == pytest.approx(8_000 / 100 + 40 * (500 / 1000 + 50 / 10) + 40 * 100 / 500)
    bounded = estimate.seed_cost(compared(tmp_path, **{"dream.max_seconds": 30.0, "warm_start.max_seconds": 20.0}), slow).phases
    assert (bounded["grpo-dream"] * 3600, bounded["warm_start"] * 3600) == pytest.approx((30.0, 20.0))


def test_a_quickstart_takes_its_loops_its_evaluations_and_its_audit():
    config = read(RunConfig, Path("quickstart-smollm2"))
    found = estimate.seed_cost(config, replace(PILOT, basis="measured"))
    assert list(found.phases) == ["logs", "experience", "warm_start", "dream", "s2r", "evaluation", "audit"]
    assert found.learned_tokens == (12 + 2) * 64 * 200
    assert found.real_steps == 400 * 10 + 3 * 24 * 10 + 2 * 64 * 10 + 2 * 128 * 3 * 10 + 3 * 64 * 10
    assert "(measured): " in str(found) and "dream " in str(found)


@pytest.mark.parametrize(
    ("changes", "pilot_changes", "policy", "dreamed", "real"),
    [
        ({"eval.paired_replays": 7}, {}, 3 * 7, 2 * 7, 3 * 7),  # the control's dreams sample nothing
        ({"eval.gap_tasks": 7}, {}, 2 * 7, 7, 2 * 7),  # acting anew, and the actions of the dreams
        ({"eval.gap_tasks": 7}, {"hides": True}, 3 * 7, 7, 7),
        ({"eval.gap_tasks": 7, "eval.paired_replays": 7, "mode": "real"}, {}, 0, 0, 0),
        ({"eval.uncertified_dreams": 7}, {}, 0, 0, 0),
        ({"eval.uncertified_dreams": 7, "eval.paired_replays": 7}, {"has_env": False}, 2 * 7, 2 * 7, 0),
        ({"eval.uncertified_dreams": 5000}, {"has_env": False}, 2 * 100, 2 * 100, 0),  # no more than there are logged tasks
    ],
)
def test_the_dreams_that_are_measured_at_the_end_of_a_training_cost_what_they_sample(
    changes: dict[str, Any], pilot_changes: dict[str, Any], policy: int, dreamed: int, real: int, tmp_path: Path
):
    (tmp_path / "train.toml").write_text('[env]\nname = "corridor"\n')
    none = {"logs.trajectories": 100, "eval.tasks": 0, "eval.paired_replays": 0, "eval.uncertified_dreams": 0, "rl.probe_every": 0}
    mode = {"mode": changes.get("mode", "dream")}
    plain, more = (
        estimate.seed_cost(read(TrainConfig, tmp_path / "train.toml", none | mode | one), replace(PILOT, **pilot_changes))
        for one in ({}, changes)
    )
    assert more.sampled_tokens is not None and plain.sampled_tokens is not None
    assert more.sampled_tokens - plain.sampled_tokens == pytest.approx(policy * 50 + dreamed * 100)
    assert more.real_steps - plain.real_steps == pytest.approx(real * 10)
    assert ("next_actions" in plain.phases) is not pilot_changes.get("has_env", True)


def test_frozen_weights_that_both_roles_share_are_counted_once_and_caches_as_far_as_engines_keep_them(tmp_path: Path):
    pytest.importorskip("peft")
    model = str(save_instruct_model(tmp_path / "blank", width=64))

    def gigabytes(acted: float = 0.0, dreamed: float = 0.0, engine: dict[str, Any] | None = None, **experience: Any) -> float:
        lora = {"model": model, "device": "cpu", "lora": {"rank": 2}}
        changes = {"policy.backbone": lora, "experience.backbone": lora | experience, "experience.name": "finetuned_chat"}
        changes |= {f"{fit}.optimiser": "adamw" for fit in ("warm_start", "experience.training")}
        changes |= {"rl.tasks_per_iter": 4, "rl.group_size": 2, "experience.engine": engine or {}}
        config = read(TrainConfig, tmp_path / "train.toml", changes)
        shape = backbones.outline(BackboneConfig(model=model, device="cpu"))
        caches = [pilot._cache(shape, engine or {}, 8 * dreamed), pilot._cache(shape, {}, 8 * acted)]
        return (plan.peak_memory(config) + sum(min(cache) for cache in caches)) / 1e9

    (tmp_path / "train.toml").write_text('env.name = "corridor"\npolicy.instructions = "Such as Action: left."\n')
    shape = backbones.outline(BackboneConfig(model=model, device="cpu")).config
    width = shape.num_key_value_heads * shape.hidden_size // shape.num_attention_heads
    token = 2 * 4 * width * shape.num_hidden_layers  # bytes: keys and values in float32
    assert (gigabytes(100.0, 50.0) - gigabytes()) * 1e9 == pytest.approx(8 * 150 * token)
    assert (gigabytes(100.0, 50.0, {"cache_bytes": 1000}) - gigabytes()) * 1e9 == pytest.approx(8 * 100 * token + 1000)
    assert (gigabytes(100.0, 1e9) - gigabytes()) * 1e9 == pytest.approx(8 * 100 * token + 2e9), "the default budget of an engine"
    base = sum(p.numel() * p.element_size() for p in backbones.outline(BackboneConfig(model=model, device="cpu")).parameters()) / 1e9
    assert gigabytes(attention="eager") - gigabytes() == pytest.approx(base)


def test_the_pilot_counts_the_tokens_that_a_run_reads_within_a_quarter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    file = tmp_path / "train.toml"
    file.write_text(f"{SHARED}\n[rl]\n{LOOP}")
    config = read(TrainConfig, file, {"logs.trajectories": 150, "experience.training.epochs": 1.0})
    found = pilot.measure(config)
    with RunDir.open(tmp_path / "run", dump(config)) as run:
        train_experience(run, prepare_logs(run, config))
        tokens = run.data("experience")["tokens"]
    assert found.experience_tokens * 150 == pytest.approx(tokens, rel=0.25)
    assert found.policy and found.policy.fitted_per_s > 0 and found.policy.sampled_per_s > 0 and found.memory_gb > 0.1


def test_a_rate_of_fitting_counts_the_tokens_of_rows_and_not_what_batches_leave_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    passes, a_pass = 2, list[int]()

    def fitted(model: Any, ids: Any, weights: Any, settings: SFTConfig, *, on_step: Any) -> None:
        a_pass.append(sum(map(len, ids)))
        for i in range(passes + 1):
            on_step(i + 1, i / settings.epochs, {"loss": 1.0})
            time.sleep(0.1)

    monkeypatch.setattr(sft, "train", fitted)
    file = tmp_path / "train.toml"
    file.write_text(f"{SHARED}\n[rl]\n{LOOP}")
    policy = pilot.measure(read(TrainConfig, file, {"logs.trajectories": 150})).policy
    assert policy and 0.5 * a_pass[0] / 0.1 < policy.fitted_per_s <= a_pass[0] / 0.1


@pytest.mark.parametrize("dream", ["finetuned_chat", "finetuned", "no_model"])
def test_a_pretrained_model_is_measured_in_both_roles(dream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("peft")
    shrink(monkeypatch)
    monkeypatch.setattr(pilot, "PILOT", 12)
    config = pretrained(tmp_path, str(save_instruct_model(tmp_path / "model")), dream)
    found = pilot.measure(config)
    assert found.policy and found.experience and not found.unknown
    assert min(found.policy.fitted_per_s, found.policy.prompt_per_s, found.policy.sampled_per_s, found.experience.sampled_per_s) > 0
    assert found.prompt_tokens > 0 and (found.question_tokens > 0) == (dream != "no_model")
    cost = estimate.seed_cost(config, found)
    assert cost.hours and cost.hours > 0 and "with random weights): " in str(cost)


def test_a_small_experience_model_under_a_pretrained_policy_is_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("peft")
    shrink(monkeypatch)
    monkeypatch.setattr(pilot, "PILOT", 12)
    found = pilot.measure(pretrained(tmp_path, str(save_instruct_model(tmp_path / "model")), ""))
    assert found.policy and found.experience and 0 < found.experience.fitted_per_s < inf and found.answer_tokens > 0


def test_what_is_not_measured_is_named_and_a_model_that_is_not_here_or_too_large_ends_no_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("peft")
    shrink(monkeypatch)
    monkeypatch.setattr(pilot, "PILOT", 12)
    model = str(save_instruct_model(tmp_path / "model"))
    verifier = {"experience.verifier": {"name": "chat", "engine": {"base_url": "http://localhost:1/v1", "model": "judge"}}}
    found = pilot.measure(pretrained(tmp_path, model, "", **verifier))
    assert found.unknown == "what experience.verifier.engine 'server' takes is not measured" and found.policy is None
    assert found.policy_tokens > 0
    monkeypatch.setattr(memory, "machine_memory", lambda: 1000)
    large = str(estimate.estimate_cost([pretrained(tmp_path, model, "")]))
    assert "hours unknown: The models that are in memory at once need" in large
    monkeypatch.setenv("DREAMGYM_MODELS", str(tmp_path / "none"))
    missing = estimate.estimate_cost([pretrained(tmp_path, "smollm2", "")])
    assert str(missing).endswith("real steps; tokens, memory and hours unknown: 'smollm2' is not here") and missing.real_steps > 0
    code, out, _ = command(monkeypatch, capsys, "quickstart", "--model", "smollm2", "--dry-run", "--json")
    assert code == 0 and object_in(out)["unknown"] == "'smollm2' is not here" and object_in(out)["hours"] is None


def pretrained(folder: Path, model: str, dream: str, **changes: Any) -> TrainConfig:
    """A training with the model as policy and, but for a dream "" (of the small model), as experience model."""
    file = folder / "train.toml"
    file.write_text(f"{SHARED}\n[rl]\n{LOOP}")
    if dream == "no_model":
        file.write_text(f'[env]\nname = "corridor"\noptions = {{length = 4, keys = false, max_steps = 4}}\n[rl]\n{LOOP}')
        changes = {"warm_start.optimiser": "adamw", "model.size": "test", "model.vocab_size": 320, **changes}
    lora = {"model": model, "device": "cpu", "lora": {"rank": 2}}
    roles = {"policy.backbone": lora, "policy.instructions": "Such as Action: left."}
    roles |= {"experience.name": dream} if dream else {}
    roles |= {"experience.backbone": lora} if dream.startswith("finetuned") else {}
    return read(TrainConfig, file, {**roles, "rl.curriculum.synthetic_share": 0.0, **changes})


def test_logs_without_an_episode_cannot_be_estimated(tmp_path: Path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UsageError, match="holds no episode"):
        pilot.measure(compared(tmp_path, **{"logs.files": [str(tmp_path / "empty.jsonl")]}))


def test_a_dry_run_says_the_cost_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    shrink(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("toy.toml").write_text(f'arms = ["grpo-dream"]\nseeds = [0, 1]\n{SHARED}\n[dream]\n{LOOP}')
    code, out, _ = command(monkeypatch, capsys, "compare", "--config", "toy.toml", "--dry-run")
    assert code == 0 and out.startswith("estimate: ") and "about 1 minute on this machine: " in out and "experience 1 minute" in out
    call = ("sweep", "logs.trajectories=20,40", "--config", "toy.toml", "--dry-run")
    code, out, _ = command(monkeypatch, capsys, *call)
    assert code == 0 and out.startswith("estimate: ")
    predicted, runs = (object_in(command(monkeypatch, capsys, *call, "--json", "--held-out", n)[1])["real_steps"] for n in (50, 0))
    assert predicted > runs + 2 * 2 * 50, "the predictions of each point and seed are counted"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.toml"]
    code, out, _ = command(monkeypatch, capsys, "compare", "--config", "toy.toml", "--dry-run", "--json")
    assert code == 0 and object_in(out)["fitted_tokens"] > 0
    Path("train.toml").write_text(f"{SHARED}\n[rl]\n{LOOP}")
    code, out, _ = command(monkeypatch, capsys, "train", "new", "--config", "train.toml", "--dry-run")
    assert code == 0 and out.startswith("estimate: ") and not Path("new").exists()
    write_trajectories(Path("episodes.jsonl"), collect(corridor.make(), 70, seed=0))
    assert command(monkeypatch, capsys, "init", "logs.toml", "--logs", "episodes.jsonl")[0] == 0
    settings = read(TrainConfig, Path("logs.toml"))
    found = pilot.measure(settings)
    assert found.recorded == 70 and estimate.seed_cost(settings, found).real_steps == 0, (
        "the settings of a run from logs alone name no log twice"
    )
    code, _, err = command(monkeypatch, capsys, "compare", "--dry-run")
    assert code != 0 and "give --config FILE" in err


def test_an_experiment_that_goes_on_is_not_estimated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(estimate, "estimate_cost", lambda configs, **_: "much")
    assert training.estimate_first(tmp_path / "new", [compared(tmp_path)], False, False) and "estimate: much" in capsys.readouterr().err
    assert training.estimate_first(tmp_path, [compared(tmp_path)], False, False) and not capsys.readouterr().err
