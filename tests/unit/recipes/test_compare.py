"""`dreamgym compare`: arms that share logs, experience model and warm start, and the tables they make."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from toy import LOOP, SHARED, command, object_in, shrink, weights

from dreamgym.config import build, dump, read
from dreamgym.envs import corridor
from dreamgym.errors import ConfigError, RunDirError, UsageError
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes import compare, comparison, settings
from dreamgym.recipes.ablations import ABLATIONS
from dreamgym.recipes.config import CompareConfig, RunConfig
from dreamgym.recipes.factory import checked_suite
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import wilson
from dreamgym.train import dpo as dpo_training
from dreamgym.train import sft
from dreamgym.types import Trajectory

TOY = f"""
seeds = [0, 1]
arms = ["dpo", "grpo-real"]
sft_patience = 1
{SHARED}
[sft]
epochs = 4.0
lr = 5e-3
batch_tokens = 512
bf16 = false
[dpo]
epochs = 1.0
bf16 = false
[real]
{LOOP}
"""


def digest(run: Path, name: str) -> str:
    return hashlib.sha256(weights(run, name)).hexdigest()


def test_arms_share_what_they_start_from_and_later_arms_and_calls_train_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shrink(monkeypatch)
    orders = Counter[tuple[str, int]]()
    for name, module in (("sft", sft), ("dpo", dpo_training)):

        def noted(*arguments: Any, name: str = name, train: Any = module.train, **options: Any) -> dict[str, float]:
            orders.update([(name, options["seed"])] if "seed" in options else [])  # the estimate fits a few sequences, too
            return train(*arguments, **options)

        monkeypatch.setattr(module, "train", noted)
    (tmp_path / "toy.toml").write_text(TOY)
    out = tmp_path / "compared"
    call = ("compare", "--config", tmp_path / "toy.toml", "--out", out, "--json", "--latency", "2")
    code, said, _ = command(monkeypatch, capsys, *call)
    assert code == 0
    found = object_in(said)
    assert found == json.loads((out / "compare.json").read_text()) and list(found["table1"]) == ["warm_start", "dpo", "grpo-real"]
    assert orders == {("sft", 0): 3, ("sft", 1): 3, ("dpo", 0): 1, ("dpo", 1): 1}, "each fit draws its order with the seed of its run"
    assert "| GRPO, real only |" in (out / "compare.md").read_text() and found["seeds"] == [0, 1]
    real, dpo = found["table1"]["grpo-real"], found["table1"]["dpo"]
    runs = [RunDir.view(out / f"seed-{seed}") for seed in (0, 1)]
    steps = [run.data("grpo-real")["steps"] for run in runs]
    assert real["real_transitions_online"] == sum(steps) / 2 and real["per_seed"] and real["relative_cost"] == 1.0
    assert real["cost_seconds"] == pytest.approx(real["seconds"] + 2 * sum(steps) / 2)
    assert dpo["real_transitions_online"] == 0 and dpo["dream_transitions"] == 0
    assert dpo["real_transitions_probe"] > 0, "choosing the best epoch of SFT is paid for in real steps"
    assert 0 < dpo["real_seconds"] < dpo["seconds"] + 60 and "| real: hours |" in (out / "compare.md").read_text()
    assert real["real_seconds"] == pytest.approx(sum(run.data(n)["real_seconds"] for run in runs for n in ("logs", "grpo-real")) / 2)
    assert dpo["relative_cost"] == pytest.approx(dpo["cost_seconds"] / real["cost_seconds"])

    shared = {name: digest(out / "seed-0", name) for name in ("experience", "warm_start", "grpo-real")}
    written = (out / "seed-0" / "checkpoints" / "experience" / "model.safetensors").stat().st_mtime_ns
    code, said, _ = command(monkeypatch, capsys, *call, 'arms=["sft", "grpo-real"]', "seeds=[0]")  # another arm, in the same folder
    assert code == 0 and list(object_in(said)["table1"]) == ["warm_start", "sft", "grpo-real"]
    assert {name: digest(out / "seed-0", name) for name in shared} == shared
    assert (out / "seed-0" / "checkpoints" / "experience" / "model.safetensors").stat().st_mtime_ns == written

    code, said, _ = command(monkeypatch, capsys, "compare", out, "--latency", "0", "--json")
    again = object_in(said)["table1"]["grpo-real"]
    assert code == 0 and again["cost_seconds"] == again["seconds"]
    code, said, _ = command(monkeypatch, capsys, "compare", out)
    assert code == 0 and "GRPO, real" in said and "DPO" not in said


@pytest.mark.slow
def test_dream_sim_to_real_mixed_and_ablated_arms_run_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)
    arms = '["grpo-dream", "grpo-s2r", "gigpo-mixed"]\nablations = ["replay", "reasoning", "curriculum"]'
    text = (
        TOY.replace('["dpo", "grpo-real"]', arms)
        .replace("[0, 1]", "[0]")
        .replace("epochs = 4.0\nbatch_tokens = 1024", "epochs = 40.0\nbatch_tokens = 1024")
        .replace("dev_tasks = 3", "dev_tasks = 3\ngap_tasks = 4")
    )
    (tmp_path / "toy.toml").write_text(text + f"[dream]\n{LOOP}\n[mixed]\n{LOOP}\n[s2r]\niterations = 1\ntasks_per_iter = 2\n")
    found = compare.run(read(CompareConfig, tmp_path / "toy.toml"), tmp_path / "out", latency_s=1.0, say=lambda text: None)
    dream, s2r, mixed = (found["table1"][arm] for arm in ("grpo-dream", "grpo-s2r", "gigpo-mixed"))
    assert dream["real_transitions_online"] == 0 < dream["dream_transitions"] == s2r["dream_transitions"]
    assert s2r["real_transitions_online"] > 0 and mixed["real_transitions_online"] > 0 < mixed["dream_transitions"]
    assert s2r["seconds"] > dream["seconds"] and dream["relative_cost"] is None, "there is no real arm to compare with"
    assert [entry["label"] for entry in found["table2"].values()] == [
        "GRPO, dream", "GRPO, dream, without replay", "GRPO, dream, without reasoning", "GRPO, dream, without curriculum"
    ]  # fmt: skip
    measured = [*found["table2"].values(), mixed]
    assert all(len(entry["gap"]["gap"]) == 1 for entry in measured) and "gap" not in s2r, "every policy that trained in a dream"
    assert comparison.GAP in (tmp_path / "out/compare.md").read_text()
    run = tmp_path / "out" / "seed-0"
    assert {path.name for path in (run / "checkpoints").glob("experience*")} == {
        "experience",
        "experience-no-replay",
        "experience-no-reasoning",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('arms = ["grpo"]', "'grpo' is no arm"),
        ('arms = ["grpo-drem"]', "'grpo-drem' is no arm"),
        ('arms = ["grppo-dream"]', "Did you mean 'grpo'"),
        ('arms = ["sft"]\nablations = ["replay"]\nablated = "grpo-real"', "is no dream"),
        ('arms = []\nablations = ["reasoning"]\n[experience]\nreasoning = false', "'reasoning' changes nothing here"),
        ('arms = []\nablations = ["task_generation"]\n[dream.curriculum]\nsynthetic_share = 0.0', "changes nothing here"),
        ("[algorithms.grpo]\nclip_lo = 0.1", "Did you mean 'clip_low'"),
        ('[dream]\nalgorithm = {name = "ppo"}', "Arms name their algorithms"),
        ('arms = ["dpo"]\n[policy]\nwindow = 0', "dpo compares whole episodes"),
        ('arms = ["ppo-dream"]\n[dream]\nmax_refills = 2', "must be 0, because ppo learns from groups without variance too"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused_before_anything_is_trained(tmp_path: Path, text: str, words: str):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(Exception, match=words) as caught:
        read(CompareConfig, tmp_path / "bad.toml")
    assert isinstance(caught.value, UsageError)


def test_a_seed_that_a_comparison_would_not_run_is_refused_and_one_of_its_seeds_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "seeded.toml"
    file.write_text('seed = 3\narms = ["sft"]\n[env]\nname = "corridor"\n')
    code, _, said = command(monkeypatch, capsys, "compare", "--config", file, "--out", tmp_path / "out")
    assert code == 2 and "seed = 3" in said and "seeds = [0] are run. Write seeds = [3]" in said and not (tmp_path / "out").exists()
    assert settings.read(CompareConfig, file, {"seeds": [1, 3]}).seeds == (1, 3)
    file.write_text(dump(build(CompareConfig, {"arms": ["sft"], "seed": 2, "seeds": (2,)})))
    assert settings.read(CompareConfig, file).seed == 2, "as a run directory keeps it"


NO_NEW_TASKS = {"curriculum": {"synthetic_share": 0.0}}
BACKBONE = {"policy": {"backbone": {"model": "m"}}, **{name: {"optimiser": "adamw", "lr": 1e-4} for name in ("warm_start", "sft")}}
UNGUARDED = {"admissibility": False, "grounding": False}
OFF: dict[str, list[dict[str, Any]]] = {
    "curriculum": [{"dream": {"curriculum": {"strategy": "uniform"}}}],
    "task_generation": [
        {"dream": {"curriculum": {"strategy": "uniform"}}},
        {"dream": {"curriculum": {"proposals": 0}}},
        {"dream": {"tasks_per_iter": 9, "curriculum": {"synthetic_share": 0.1}}},
    ],
    "replay": [{"experience": {"k": 0, "recall": False}}],
    "random_retrieval": [{"experience": {"k": 0, "recall": False}}, {"experience": {"retrieval": "random", "recall": False}}],
    "recall": [{"experience": {"recall": False}}],
    "conditions": [{"experience": {"conditions": False}}, {"experience": {"recall": False}}],
    "model": [{"experience": {"name": "no_model", "k": 3}, **{name: NO_NEW_TASKS for name in ("dream", "real", "mixed")}, **BACKBONE}],
    "reasoning": [{"experience": {"reasoning": False}}, {"rules": "none", "experience": {"reasoning": False}}],
    "history": [{"experience": {"history": 0}}],
    "verifier": [{}],
    "probes": [{"experience": {"verifier": {"name": "learned", "probes": {"every": 0}}}}],
    "guard": [{"guard": UNGUARDED}, {"guard": UNGUARDED | {"mask_disputed": False, "mask_doubtful": False}}],
}
"""By ablation, settings in which its part is off."""


@pytest.mark.parametrize(("ablation", "settings"), [(name, settings) for name in ABLATIONS for settings in OFF[name]])
def test_an_ablation_of_a_part_that_is_off_already_is_refused_by_name(ablation: str, settings: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"The ablation '{ablation}' changes nothing here: .* Leave it out"):
        build(CompareConfig, {"arms": ["grpo-dream"], "ablations": [ablation], **settings})


@pytest.mark.parametrize(
    ("ablation", "settings"),
    [
        ("replay", {"experience": {"k": 0}}),
        ("curriculum", {"dream": {"curriculum": {"proposals": 0}}}),
        ("task_generation", {"dream": {"tasks_per_iter": 9, "max_refills": 1}}),
        ("guard", {"guard": UNGUARDED, "experience": {"verifier": {"name": "learned"}}}),
    ],
)
def test_an_ablation_of_a_part_that_still_does_something_is_taken(ablation: str, settings: dict[str, Any]):
    assert build(CompareConfig, {"arms": ["grpo-dream"], "ablations": [ablation], **settings}).ablations == (ablation,)


@pytest.mark.parametrize(
    ("arms", "changes", "dreams"),
    [
        (["sft", "dpo", "grpo-real"], BACKBONE, False),
        (["grpo-real"], {}, True),  # a small policy starts as the experience model
        (["grpo-real", "grpo-s2r"], BACKBONE, True),
        (["ppo-mixed"], BACKBONE, True),
        (["grpo-real"], {"ablations": ["recall"], **BACKBONE}, True),
    ],
)
def test_an_experience_model_is_needed_where_something_dreams_or_starts_as_one(arms: list[str], changes: dict[str, Any], dreams: bool):
    assert build(CompareConfig, {"arms": arms, **changes}).dreams is dreams


@pytest.mark.parametrize("rules", ["none", "induced"])
def test_the_ablation_of_a_reasoning_that_the_logs_do_not_have_is_refused_before_anything_is_trained(rules: str, tmp_path: Path):
    settings: dict[str, Any] = {"rules": rules, "env": {"name": "corridor"}, "arms": ["grpo-dream"], "ablations": ["reasoning"]}
    config = build(CompareConfig, settings)
    with pytest.raises(ConfigError, match=rf'The ablation \'reasoning\' changes nothing here: .*rules = "{rules}".*Leave it out'):
        checked_suite(config)
    checked_suite(build(CompareConfig, settings | {"rules": "suite"}))
    checked_suite(build(CompareConfig, settings | {"experience": {"reasoning": "changes"}}))
    write_trajectories(tmp_path / "silent.jsonl", [silent(log) for log in collect(corridor.make(), 40, seed=0)])
    config = build(CompareConfig, settings | {"logs": {"files": [tmp_path / "silent.jsonl"]}})
    with RunDir.open(tmp_path / "run", dump(config)) as run, pytest.raises(ConfigError, match="no step of the logs is explained"):
        prepare_logs(run, config, suite=checked_suite(config))


def silent(log: Trajectory) -> Trajectory:
    """The same episode as somebody recorded it who explained nothing."""
    return replace(log, turns=tuple(replace(turn, transition=turn.transition.with_reasoning("")) for turn in log.turns))


def test_a_dream_without_its_model_is_cut_off_where_the_dream_is():
    assert build(CompareConfig, {"experience": {"horizon": 4}}).without("model").experience.horizon == 4


def entry(wins: int, n: int = 100, **costs: Any) -> dict[str, Any]:
    zero = dict.fromkeys(
        ("real_transitions_offline", "real_transitions_online", "real_transitions_probe", "dream_transitions", "seconds"), 0.0
    )
    rate = {"value": wins / n, "low": 0.0, "high": 1.0, "n": n}
    return {"real_success": wins / n, "ci95": [0.0, 1.0], "sampled": rate, "episodes": n, **zero, **costs}


def finished(path: Path, seed: int, *, iterations: int = 80, **rows: Any) -> Path:
    dream = RunConfig().dream.model_copy(update={"iterations": iterations})
    with RunDir.open(path, dump(RunConfig(seed=seed, seeds=(seed,), dream=dream))) as run:
        run.write_summary({**rows, "ablations": {}, "seeds": [seed], "commit": "abc"})
    return path


def test_finished_runs_that_differ_in_their_seed_alone_are_pooled_and_others_are_named(tmp_path: Path):
    real = {"seconds": 100.0, "real_transitions_online": 900.0}
    a = finished(tmp_path / "a", 0, dream=entry(80, seconds=300.0), real_only=entry(60, **real))
    b = finished(tmp_path / "b", 1, dream=entry(60, seconds=500.0), real_only=entry(40, **real))
    found = comparison.of_runs([a, b], latency_s=1.0)
    assert found["seeds"] == [0, 1] and found["table1"]["dream"]["episodes"] == 200
    assert found["table1"]["dream"]["real_success"] == 0.7 and found["table1"]["dream"]["relative_cost"] == pytest.approx(0.4)
    c = finished(tmp_path / "c", 0, iterations=5, dream=entry(10))
    apart = comparison.of_runs([a, b, c], latency_s=0.0)["table1"]
    assert list(apart) == ["a/dream", "a/real_only", "c/dream"] and apart["c/dream"]["label"] == "Dream (c)"
    assert "| Dream (c) | 10.0 [5.5, 17.4] | 10.0 |" in comparison.markdown(comparison.of_runs([a, c], latency_s=0.0))


def test_finished_runs_side_by_side_show_the_gain_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    a = finished(tmp_path / "a", 0, warm_start=entry(20), dream=entry(50))
    b = finished(tmp_path / "b", 0, iterations=5, sft=entry(30), dream=entry(40))
    code, said, _ = command(monkeypatch, capsys, "compare", a, b, "--out", tmp_path / "out")
    assert code == 0 and "a: dream over warm_start: greedy +30.0 points" in said and "b: dream over sft: greedy +10.0 points" in said
    assert "- b: dream over sft: greedy +10.0 points" in (tmp_path / "out" / "compare.md").read_text()
    code, said, _ = command(monkeypatch, capsys, "compare", a)
    assert code == 0 and "dream over warm_start: greedy +30.0 points" in said


def test_an_ablation_costs_what_it_costs_beside_the_real_arm_of_its_own_algorithm(tmp_path: Path):
    spent = {"ppo-real": 1000.0, "grpo-real": 200.0, "grpo-dream": 100.0}
    table = {name: (name, entry(50, seconds=seconds, per_seed=[0.5])) for name, seconds in spent.items()}
    less = {name: (name, entry(50, seconds=seconds, per_seed=[0.5])) for name, seconds in (("", 100.0), ("model", 50.0))}
    found = comparison.report_of(table, less, seeds=[0], commit="c", latency_s=0.0, ablated_arm="grpo-dream")
    costs = {name: one["relative_cost"] for name, one in found["table2"].items()}
    assert costs == {"": 0.5, "model": 0.25} and found["table1"]["grpo-dream"]["relative_cost"] == 0.5
    comparison.save(found, tmp_path)
    assert comparison.of_runs([tmp_path], latency_s=0.0)["table2"] == found["table2"], "the folder says which arm is ablated"


def test_verdicts_on_real_episodes_are_counted_over_the_seeds_that_have_them(tmp_path: Path):
    def judged(accepted: int, kept: int) -> dict[str, Any]:
        return {"logs": {name: asdict(wilson(k, n)) for name, k, n in (("false_success", accepted, 10), ("true_positive_rate", kept, 40))}}

    a, b = (
        finished(tmp_path / str(seed), seed, dream=entry(80, verifiers=judged(accepted, 30 + seed))) for seed, accepted in ((0, 0), (1, 2))
    )
    found = comparison.of_runs([a, b], latency_s=1.0)
    rates = found["table1"]["dream"]["verifiers"]["logs"]
    assert (rates["false_success"]["value"], rates["false_success"]["n"]) == (0.1, 20) and rates["true_positive_rate"]["value"] == 61 / 80
    assert "| Dream | logs | 10.0 [2.8, 30.1] | 20 | 76.2 [65.9, 84.2] | 80 |" in comparison.markdown(found)
    assert comparison.VERIFIED not in comparison.markdown(comparison.of_runs([finished(tmp_path / "c", 2, dream=entry(80))], latency_s=1.0))


def test_gaps_are_shown_by_seed_with_an_interval_over_seeds(tmp_path: Path):
    def gap(dream: float, false: float | None) -> dict[str, Any]:
        return {"dream_success": [dream], "real_success": [0.5], "gap": [dream - 0.5], "masked_share": [0.1], "accepted_false": [false]}

    a, b, c = (
        finished(tmp_path / str(seed), seed, dream=entry(80, gap=gap(dream, false)))
        for seed, dream, false in ((0, 0.5, 0.25), (1, 0.75, 0.5), (2, 0.75, None))
    )
    line = "| Dream | 62.5 [0.0, 100.0] | 50.0 [50.0, 50.0] | 12.5 [-100.0, 100.0] | +0.0 / +25.0 | 10.0 [10.0, 10.0] | 37.5 [0.0, 100.0] |"
    assert line in comparison.markdown(comparison.of_runs([a, b], latency_s=0.0))
    assert "| Dream | 75.0 | 50.0 | 25.0 | +25.0 | 10.0 | - |" in comparison.markdown(comparison.of_runs([c], latency_s=0.0))


def test_values_by_seed_are_in_the_order_of_the_seeds(tmp_path: Path):
    for seed, wins in ((2, 20), (10, 90), (3, 30)):
        finished(tmp_path / "mine" / f"seed-{seed}", seed, dream=entry(wins))
    found = comparison.of_runs([tmp_path / "mine"], latency_s=0.0)
    assert found["seeds"] == [2, 3, 10] and found["table1"]["dream"]["per_seed"] == [0.2, 0.3, 0.9]
    assert "| 20.0 / 30.0 / 90.0 |" in comparison.markdown(found)


def test_folders_of_seeds_are_named_by_their_own_names_and_no_seed_is_counted_twice(tmp_path: Path):
    for folder, iterations, wins in (("mine", 80, 90), ("theirs", 5, 10)):
        for seed in (0, 1):
            finished(tmp_path / folder / f"seed-{seed}", seed, iterations=iterations, dream=entry(wins))
    found = comparison.of_runs([tmp_path / "mine", tmp_path / "theirs"], latency_s=1.0)["table1"]
    wins = {name: (one["real_success"], one["episodes"]) for name, one in found.items()}
    assert wins == {"mine/dream": (0.9, 200), "theirs/dream": (0.1, 200)}
    with pytest.raises(UsageError, match="Seed 0 of 'mine' is given twice"):
        comparison.of_runs([tmp_path / "mine", tmp_path / "mine" / "seed-0"], latency_s=1.0)


@pytest.mark.parametrize("text", ["{", "[]", '{"table1": {}}'])
def test_a_file_that_is_no_comparison_is_named(text: str, tmp_path: Path):
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(RunDirError, match=r"compare.json' is n"):
        comparison.of_runs([tmp_path], latency_s=1.0)


def test_an_unfinished_run_and_no_run_at_all_are_refused(tmp_path: Path):
    RunDir.open(tmp_path / "run", dump(RunConfig())).close()
    with pytest.raises(RunDirError, match="not finished"):
        comparison.of_runs([tmp_path / "run"], latency_s=1.0)
    with pytest.raises(UsageError, match="Nothing to compare"):
        comparison.of_runs([], latency_s=1.0)
