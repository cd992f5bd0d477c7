"""The learned verifier in a run: fitted once, judging dreams, probed and refitted during RL, resumed exactly, and charged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from chat_model import save_instruct_model
from toy import LOOP, SHARED, shrink

from dreamgym import rollout as rollouts
from dreamgym.config import dump, parse_text, resolve
from dreamgym.envs import corridor
from dreamgym.envs.induction import induce
from dreamgym.envs.logs import LogConfig, LogRules
from dreamgym.envs.wrappers.induced_rules import InducedRules
from dreamgym.envs.wrappers.without_rules import StateMapping
from dreamgym.errors import ConfigError, UsageError
from dreamgym.experience.guard import REFUSED
from dreamgym.experience.learned_verifier import verifier as outcome
from dreamgym.experience.learned_verifier.verifier import LearnedVerifier, Probe
from dreamgym.experience.verifiers import VerifierInputs, text_check
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes import factory
from dreamgym.recipes import train as recipe
from dreamgym.recipes.blocks import VerifierConfig
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.context import open_context
from dreamgym.recipes.phases import remote, verifier_audit
from dreamgym.recipes.phases import verifier as phase
from dreamgym.recipes.phases.audit import after
from dreamgym.recipes.phases.collect import Environments
from dreamgym.recipes.phases.rl import RLPhase
from dreamgym.recipes.phases.verifier import claims_of, probe_rates
from dreamgym.recipes.settings import policies
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Observation, StepInfo, Task, Trajectory, Transition, Turn, Verdict

VERIFIED = {"verifier": {"name": "learned", "probes": {"every": 2, "episodes": 8, "max_real_steps": 60}}}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    shrink(monkeypatch)


def settings(experience: Mapping[str, Any] = VERIFIED, **changes: Any) -> TrainConfig:
    values = parse_text(f'rules = "none"\n{SHARED}\n[rl]\n{LOOP}', "the toy")
    values["logs"] |= {"trajectories": 300, "mix": {"expert": 0.2, "noisy": 0.4, "random": 0.4}}
    values["experience"] |= experience
    values["rl"] |= {"iterations": 4, "curriculum": {"synthetic_share": 0.0}} | changes
    return resolve(TrainConfig, values)


def claim(name: str, *, real: bool, verdict: str, probability: float = 1.0) -> Probe:
    step = Transition(Observation("a"), "open", Observation("b"), 1.0, True)
    return Probe(Trajectory(name, Task(name, name, "toy"), "dream", (Turn(step),), True), real, probability, verdict)


def test_a_run_fits_probes_refits_and_charges_and_its_rows_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prepared, prepare = list[int](), outcome.prepare
    monkeypatch.setattr(outcome, "prepare", lambda logs, rules, **how: prepared.append(len(logs)) or prepare(logs, rules, **how))
    summary = recipe.run(settings(), tmp_path / "run", say=lambda _: None)
    assert len(prepared) == 1, "the phase that fits it and the probes of RL share the features of the logs"
    run = RunDir.view(tmp_path / "run")
    dream, fitted = run.data("dream"), run.data("verifier")
    assert fitted["status"] == "uncertified under policy shift: calibrated on logs" and "verifier" not in policies(run.path)
    found = dream["verifier"]
    assert found["probes"] > 0 and 0 < found["probe_steps"] <= 60 and dream["probe_steps"] == found["probe_steps"]
    assert summary["dream"]["real_transitions_probe"] == found["probe_steps"]
    assert dream["replay"]["real"] == found["probe_steps"], "what was paid for is remembered"
    refits = sum("verifier_alpha" in line for line in run.read_jsonl("metrics.jsonl"))
    assert dream["judged_with"] == f"verifier-dream-{refits}" and (run.path / "checkpoints" / dream["judged_with"]).is_dir()
    lines = [line for line in run.read_jsonl("metrics.jsonl") if line["phase"] == "dream"]
    assert all(0 <= line["claims"] <= 1 for line in lines) and any("probe_accepted_false" in line for line in lines)
    assert summary["dream"]["verifier"]["status"] == found["calibration"]["status"]


def test_workers_judge_dreams_with_the_verifier_of_the_last_refit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    used, refitted, play, load = list[float](), list[float](), remote.rollout, Environments.load_verifier

    def judged(agent: Any, env: Any, *arguments: Any, **options: Any) -> list[Trajectory]:
        used.append(float(env.inner.model.guard.second.verifier.head.weights.sum()))
        return play(agent, env, *arguments, **options)

    def loaded(envs: Environments, name: str) -> None:
        load(envs, name)
        assert envs.experience and envs.experience.guard.second
        refitted.append(float(envs.experience.guard.second.verifier.head.weights.sum()))

    monkeypatch.setattr(remote, "rollout", judged)
    monkeypatch.setattr(Environments, "load_verifier", loaded)
    values = parse_text(dump(settings({"verifier": {"name": "learned", "probes": {"every": 1, "episodes": 8}}})), "the toy")
    recipe.run(resolve(TrainConfig, values | {"exec": {"name": "outside.worker_threads"}}), tmp_path / "run", say=lambda _: None)
    after_logs, *after_refits = dict.fromkeys(used)
    assert len(after_refits) > 1 and after_logs not in refitted
    assert after_refits == [weights for weights in dict.fromkeys(refitted) if weights in used], "each as soon as it is there"


def test_a_dream_that_both_kinds_of_probe_replay_is_remembered_once(tmp_path: Path):
    probes = {"verifier": {"name": "learned", "probes": {"every": 1, "episodes": 8, "max_real_steps": 200}}}
    config = settings(probes, probe_every=1, probe_tasks=16, iterations=2, on_gap="warn")
    recipe.run(config, tmp_path / "run", say=lambda _: None)
    context = open_context(tmp_path / "run")
    rows = [(memory.trajectory, memory.step) for memory in factory.replay_buffer(context, "dream").memories(source="real")]
    assert rows and len(set(rows)) == len(rows)
    data = RunDir.view(tmp_path / "run").data("dream")
    assert data["verifier"]["probe_steps"] < data["probe_steps"], "both have replayed"
    assert len(rows) < data["probe_steps"], "and some of it was the same"


def test_a_refreshed_experience_model_keeps_who_judges_its_dreams(tmp_path: Path):
    recipe.run(settings(iterations=1), tmp_path / "run", say=lambda _: None)
    context = open_context(tmp_path / "run")
    envs = Environments(context, factory.replay_in_memory(context), "dream", "dream")
    assert envs.experience
    before = envs.experience.guard.second
    model = context.load_experience_model("experience")
    context.save_experience_model(model, "experience-dream-1")
    envs.load_dream(1)
    assert envs.experience.guard.second is before and envs.dreams_with == "experience-dream-1"


def test_real_episodes_that_a_policy_ended_are_judged_as_if_they_claimed_a_success(tmp_path: Path):
    config = settings()
    more = config.model_copy(update={"eval": config.eval.model_copy(update={"tasks": 30})})
    summary = recipe.run(more, tmp_path / "run", say=lambda _: None)
    run = RunDir.view(tmp_path / "run")
    ended = [t for t in run.read_episodes("eval-dream-sampled") if t.transitions[-1].terminated]
    judged = summary["dream"]["verifiers"]
    assert set(judged) == {"accept_all", "logs", "probes", "text_check"}
    everyone = judged["accept_all"]
    assert everyone["true_positive_rate"]["n"] == sum(t.success for t in ended) and everyone["false_success"]["n"] == sum(
        not t.success for t in ended
    )
    last = LearnedVerifier.load(run.path / "checkpoints" / run.data("dream")["judged_with"])
    passed = [verdict.passed for verdict in last.judge([(t.task.instruction, t.transitions) for t in ended])]
    accepted = [judged["probes"][name]["value"] * judged["probes"][name]["n"] for name in ("true_positive_rate", "false_success")]
    assert passed and sum(accepted) == pytest.approx(sum(passed))
    assert "verifiers" not in summary["warm_start"], "nothing judged it"


@pytest.mark.parametrize("rules", ["suite", "none", "induced"])
def test_the_hand_written_check_is_the_suites_own_whatever_rules_a_run_has(rules: str, tmp_path: Path):
    suite = corridor.make(length=4, keys=False, max_steps=4)
    logs = collect(suite, 60, seed=0)
    own = {"suite": suite.rules, "none": StateMapping(suite.rules)}
    own["induced"] = InducedRules(own["none"], induce(logs))
    check = text_check.make(VerifierInputs(own[rules]))
    ends = [t for t in logs if t.transitions[-1].terminated and not t.success]
    kinds = [
        v.kind for v in check.verify([(t.task.instruction, t.transitions[:-1], replace(t.transitions[-1], reward=1.0)) for t in ends]) if v
    ]
    assert check.judges and len(kinds) == len(ends) > 3 and set(kinds) == {"refused"}
    assert not text_check.make(VerifierInputs(LogRules("somebody", LogConfig(files=[Path("episodes.jsonl")])))).judges, "nobody wrote one"


def test_a_verifier_that_grants_successes_is_probed_on_all_that_it_decided(tmp_path: Path):
    granting = {"recall": False, "verifier": VERIFIED["verifier"] | {"grants": True}}
    recipe.run(settings(granting), tmp_path / "run", say=lambda _: None)
    run = RunDir.view(tmp_path / "run")
    lines = [line for line in run.read_jsonl("metrics.jsonl") if line["phase"] == "dream"]
    dream, claimed = run.data("dream"), sum(16 * line["claims"] for line in lines)
    assert 0 < dream["decided_by"]["rewards"]["verifier"] <= claimed, "what it decided where the model said failure is a claim too"
    assert dream["verifier"]["probes"] > 0


@pytest.mark.parametrize(("key", "words"), [("grant", "Did you mean 'grants'"), ("alfa", "Did you mean 'alpha'")])
def test_a_misspelt_setting_of_a_verifier_is_named_whether_it_is_the_plug_ins_or_not(key: str, words: str):
    with pytest.raises(ConfigError, match=words):
        settings({"verifier": VERIFIED["verifier"] | {key: True}})


def test_a_verifier_grants_no_successes_where_a_failure_is_no_end():
    values = parse_text(f"[guard]\nonly_success_ends = true\n{SHARED}\n[rl]\n{LOOP}", "the toy")
    values["experience"] |= {"verifier": VERIFIED["verifier"] | {"grants": True}}
    with pytest.raises(ConfigError, match="a failure is no end. Leave one of them out"):
        resolve(TrainConfig, values)


def test_probes_by_rollouts_are_real_episodes_of_the_policy_that_ended(tmp_path: Path):
    config = settings()
    probes = {**VERIFIED["verifier"]["probes"], "by": "rollouts", "max_real_steps": 200}  # type: ignore[dict-item]
    block = config.experience.model_copy(update={"verifier": VerifierConfig.model_validate({"name": "learned", "probes": probes})})
    tried: list[Probe] = []
    observe = phase.VerifierProbes.observe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phase.VerifierProbes, "observe", lambda self, *args: (observe(self, *args), tried.extend(self.probes))[0])
        recipe.run(config.model_copy(update={"experience": block}), tmp_path / "run", say=lambda _: None)
    found = RunDir.view(tmp_path / "run").data("dream")["verifier"]
    assert found["probes"] > 0 and 0 < found["probe_steps"] <= 200
    assert RunDir.view(tmp_path / "run").data("dream")["replay"]["real"] == found["probe_steps"]
    assert all(p.episode.source == "real" and p.episode.success is p.real_success and p.verdict for p in tried)


def test_probes_act_like_the_training_and_open_no_more_episodes_than_the_environment_keeps(tmp_path: Path):
    config = settings(probe_every=1, iterations=2, learner={"lr": 1e-3, "minibatches": 1, "min_trajectories": 1, "temperature": 0.7})
    probes = {**VERIFIED["verifier"]["probes"], "by": "rollouts", "max_real_steps": 200}  # type: ignore[dict-item]
    block = config.experience.model_copy(update={"verifier": VerifierConfig.model_validate({"name": "learned", "probes": probes})})
    played, play = list[tuple[str, int, float]](), rollouts._play

    def noted(agent: Any, env: Any, tasks: Any, indices: Any, **options: Any) -> list[Trajectory]:
        played.append((options["name"], len(tasks), options["temperature"]))
        return play(agent, env, tasks, indices, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dreamgym.rollout._play", noted)
        patch.setattr(corridor.CorridorSuite, "max_parallel", 3)
        recipe.run(config.model_copy(update={"experience": block}), tmp_path / "run", say=lambda _: None)
    probed = [(name, n) for name, n, _ in played if "probe" in name]
    evaluations = ("warm_start/greedy", "warm_start/sampled", "dream/greedy", "dream/sampled")
    assert {temperature for name, _, temperature in played if not name.startswith(evaluations)} == {0.7} and max(n for _, n in probed) == 3
    assert {name.partition("/")[0] for name, _ in probed} == {"probe", "dream"}, "of the gap, and of the verifier"


def test_an_interrupted_phase_goes_on_with_the_same_probes_and_the_same_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    recipe.run(settings(), tmp_path / "whole", say=lambda _: None)

    class Interrupted(Exception): ...

    saved = RLPhase._save

    def once(self: RLPhase) -> None:
        saved(self)
        if self.progress.iteration == 3:
            raise Interrupted

    monkeypatch.setattr(RLPhase, "_save", once)
    with pytest.raises(Interrupted):
        recipe.run(settings(), tmp_path / "resumed", say=lambda _: None)
    monkeypatch.setattr(RLPhase, "_save", saved)
    recipe.run(settings(), tmp_path / "resumed", say=lambda _: None)
    whole, resumed = (RunDir.view(tmp_path / name).data("dream") for name in ("whole", "resumed"))
    assert whole["verifier"] == resumed["verifier"]
    weights = [(tmp_path / name / "checkpoints" / "dream" / "model.safetensors").read_bytes() for name in ("whole", "resumed")]
    assert weights[0] == weights[1]


def test_rl_on_logged_tasks_draws_no_others(tmp_path: Path):
    config = settings(iterations=2, logged_tasks=True)
    logs = config.logs.model_copy(update={"tasks": 4})
    block = config.experience.model_copy(update={"verifier": None})
    judged = config.eval.model_copy(update={"paired_replays": 6})
    changed = {"experience": block, "logs": logs, "eval": judged}
    recipe.run(config.model_copy(update=changed), tmp_path / "run", say=lambda _: None)
    run = RunDir.view(tmp_path / "run")
    logged = {t.task.id for t in run.read_episodes("logs")}
    assert len(logged) == 4 and {t.task.id for t in run.read_episodes("dream-0000")} <= logged
    assert {t.task.id for t in run.read_episodes("audit-with_guard")} == logged, "the audit dreams of the tasks that were trained on"
    assert sum(one["predicted"] for one in run.data("dream")["recall"] if one["situation"] == "task") > 0


def test_dreams_are_cut_off_at_the_horizon_that_is_set_and_real_episodes_are_not(tmp_path: Path):
    config = settings(iterations=3)
    block = config.experience.model_copy(update={"horizon": 2, "verifier": None})
    recipe.run(config.model_copy(update={"experience": block}), tmp_path / "run", say=lambda _: None)
    run = RunDir.view(tmp_path / "run")
    assert max(len(t.turns) for t in run.read_episodes("dream-0000")) == 2
    assert max(len(t.turns) for t in run.read_episodes("eval-dream-sampled")) > 2


def test_an_ablation_fits_an_experience_model_only_where_what_it_reads_or_writes_changes():
    config = settings()
    assert config.refitted_without("replay") == (config.experience.settings["k"] != 0)
    shown = config.experience.model_copy(update={"k": 2})
    hidden = config.experience.model_copy(update={"k": 0})
    assert config.model_copy(update={"experience": shown}).refitted_without("replay"), "its prompts had memories"
    assert not config.model_copy(update={"experience": hidden}).refitted_without("replay"), "no prompt has memories, with it or without"
    assert not config.model_copy(update={"experience": hidden}).refitted_without("random_retrieval"), "nobody reads what is drawn"
    assert config.refitted_without("model") and not config.refitted_without("verifier") and not config.refitted_without("curriculum")


def test_a_verifier_that_reads_with_a_pretrained_model_judges_dreams_and_is_refitted(tmp_path: Path):
    backbone = {"model": str(save_instruct_model(tmp_path / "blank")), "device": "cpu"}
    values = parse_text(dump(settings(iterations=2)), "the toy")
    values["experience"]["verifier"] |= {"features": "backbone", "backbone": backbone}
    recipe.run(resolve(TrainConfig, values), tmp_path / "run", say=lambda _: None)
    run = RunDir.view(tmp_path / "run")
    found = run.data("dream")
    assert found["verifier"]["probes"] > 0 and found["judged_with"].startswith("verifier-dream-")
    judged = after(run, open_context(run.path), "dream")
    claimed = [(t.task.instruction, t.transitions) for t in run.read_episodes("eval-dream-sampled")]
    guard = factory.make_guard(judged).second
    assert guard and isinstance(guard.verifier, LearnedVerifier) and np.ptp(guard.verifier.scores(claimed)) > 0
    tabled = verifier_audit._verifiers(judged)["probes"]
    assert isinstance(tabled, LearnedVerifier) and (tabled.scores(claimed) == guard.verifier.scores(claimed)).all()


def test_a_verifier_that_reads_with_the_experience_models_backbone_does_so_in_the_control_without_a_model_too(tmp_path: Path):
    backbone = {"model": str(save_instruct_model(tmp_path / "blank")), "device": "cpu"}
    values = parse_text(dump(settings()), "the toy")
    values["experience"]["verifier"]["features"] = "both"
    with pytest.raises(UsageError, match=r"experience\.verifier\.features = 'both'"):
        resolve(TrainConfig, values)
    values["experience"]["backbone"] = values["policy"]["backbone"] = backbone
    control = resolve(TrainConfig, values).without("model").experience
    assert control.name == "no_model" and control.backbone is None and control.verifier
    assert control.verifier.settings["backbone"]["model"] == backbone["model"] and control.verifier.settings["features"] == "both"


def test_the_ablations_take_the_probes_or_the_verifier_away():
    config = settings()
    assert config.experience.verifier is not None
    without_probes, without = config.without("probes"), config.without("verifier")
    assert without.experience.verifier is None and without_probes.experience.verifier is not None
    assert without_probes.experience.verifier.settings["probes"] | {"every": 2} == config.experience.verifier.settings["probes"]
    assert without_probes.experience.verifier.settings["probes"]["every"] == 0
    with pytest.raises(ConfigError, match=r"no setting 'probes\.every'"):
        without.without("probes")


def test_claims_are_dreams_of_real_tasks_whose_model_called_them_a_success_whatever_the_guard_said():
    def dreamed(verdict: str, raw: float, *, source: Any = "real", error: str | None = None) -> Trajectory:
        info = StepInfo(verdict=Verdict(verdict), raw_reward=raw, raw_terminated=True)  # type: ignore[arg-type]
        step = Transition(Observation("a"), "open", Observation("b"), 0.0, True, info)
        return Trajectory("t", Task("t", "t", "toy", source=source), "dream", (Turn(step),), False, error=error)

    masked = dreamed("masked", 1.0, error="masked by the guard: unsure")
    assert claims_of([masked, dreamed("refused", 1.0), dreamed("passed", 1.0)]) != []
    assert len(claims_of([masked, dreamed("refused", 1.0), dreamed("passed", 1.0)])) == 3
    assert claims_of([dreamed("passed", 0.0), dreamed("passed", 1.0, source="synthetic"), dreamed("unreadable", 1.0, error="no")]) == []
    assert claims_of([replace(masked, source="real")]) == []
    failed = dreamed("passed", 0.0)
    info = replace(failed.transitions[0].info, reward_by="verifier")
    granting = replace(failed, turns=(Turn(replace(failed.transitions[0], info=info)),))
    assert claims_of([failed, granting]) == [granting], "a verifier that grants successes judged its end"

    def judged_by_rules(reason: str) -> Trajectory:
        refused = dreamed("refused", 1.0)
        info = replace(refused.transitions[0].info, reward_by="rule", verdict=Verdict("refused", (reason,)))
        return replace(refused, turns=(Turn(replace(refused.transitions[0], info=info)),))

    assert claims_of([judged_by_rules("nothing supports it")]) == [], "the rules refused it, and the verifier was not asked"
    assert len(claims_of([judged_by_rules(REFUSED)])) == 1, "the rules passed it, and the verifier refused it"


def test_rates_of_probes_weigh_each_by_one_over_its_probability():
    probes = [
        claim("a", real=False, verdict="passed", probability=0.25),
        claim("b", real=False, verdict="refused"),
        claim("c", real=True, verdict="passed"),
        claim("d", real=True, verdict="masked"),
        claim("e", real=False, verdict=""),  # recalled: the verifier was not asked
    ]
    rates = probe_rates(probes)
    assert [rates.false_success.value, rates.true_positive_rate.value, rates.accepted_false.value] == pytest.approx([0.8, 0.5, 0.8])
    assert rates.claims_true.value == pytest.approx(2 / 7)


def probed_run(path: Path, *, iterations: int) -> dict[str, Any]:
    """What the dream of a run leaves that is probed after every iteration."""
    config, probes = settings(iterations=iterations), {"every": 1, "episodes": 16, "max_real_steps": 5000, "max_accepted_false": 0.5}
    block = config.experience.model_copy(update={"verifier": VerifierConfig.model_validate({"name": "learned", "probes": probes})})
    recipe.run(config.model_copy(update={"experience": block}), path, say=lambda _: None)
    return RunDir.view(path).data("dream")


def answer_probes(monkeypatch: pytest.MonkeyPatch, *holds: bool) -> None:
    """Every claim is accepted; the claims of the first probes have a real success or none, as given, and later ones as the last."""
    answers, found = iter(holds), phase.replay_actions
    monkeypatch.setattr(outcome, "_verdict", lambda *_: Verdict("passed"))

    def replayed(*args: Any) -> list[tuple[Trajectory, Trajectory]]:
        success = next(answers, holds[-1])
        return [(dream, replace(real, success=success)) for dream, real in found(*args)]

    monkeypatch.setattr(phase, "replay_actions", replayed)


def test_a_verifier_that_two_probes_prove_wrong_stops_the_phase_and_the_last_good_policy_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    answer_probes(monkeypatch, False)
    dream = probed_run(tmp_path / "run", iterations=12)
    assert dream["iterations"] == 2
    assert dream["stop_reason"].startswith("100% of probed accepted claims have no real success, rolled back to the policy it started from")
    json.dumps(dream, allow_nan=False)


def test_one_bad_probe_does_not_stop_the_phase_where_the_claims_of_the_next_one_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    answer_probes(monkeypatch, False, True)
    dream = probed_run(tmp_path / "run", iterations=4)
    assert dream["iterations"] == 4 and dream["stop_reason"] == "" and dream["verifier"]["probes"] > 16


@pytest.mark.parametrize(("false", "of", "passed"), [(0, 9, True), (4, 9, True), (7, 9, None), (9, 9, False), (0, 0, None)])
def test_a_probe_in_which_most_accepted_claims_are_false_makes_no_good_policy_even_where_too_few_were_tried_to_stop(
    false: int, of: int, passed: bool | None
):
    probes = phase.VerifierProbes.__new__(phase.VerifierProbes)
    limits = SimpleNamespace(by="actions", max_accepted_false=0.5)
    probes.settings, probes.failed_in_a_row, probes.passed = SimpleNamespace(probes=limits), 0, None
    probes._stop_if_false([phase.ProbedClaim(True, i >= false, 1.0, 0) for i in range(of)])
    assert probes.passed is passed and probes.failed_in_a_row == (passed is False)


@pytest.mark.parametrize(
    ("first", "then", "passed"),
    [(12, 6, None), (12, 14, True), (12, 1, False), (0, 0, False), (0, 2, None), (0, 30, True), (30, 20, None)],
    ids=[
        "weaker, not significantly",
        "better",
        "collapsed",
        "never a success",
        "from nothing",
        "from nothing to most",
        "most claims still hold",
    ],
)
def test_by_rollouts_a_probe_is_compared_with_the_first_one(first: int, then: int, passed: bool | None):
    """Of 36 accepted claims each, on whose tasks the policy has `first` and `then` real successes: a weak policy is no false claim."""
    probes = phase.VerifierProbes.__new__(phase.VerifierProbes)
    limits = SimpleNamespace(by="rollouts", max_accepted_false=0.5)
    probes.settings, probes.failed_in_a_row, probes.passed = SimpleNamespace(probes=limits), 0, None
    one, two = ([phase.ProbedClaim(True, i < hits, 1.0, iteration) for i in range(36)] for iteration, hits in ((1, first), (5, then)))
    probes.tried = [*one, *two]
    probes._stop_if_false(two)
    assert probes.passed is passed and probes.failed_in_a_row == (passed is False)


def test_rl_stops_when_the_real_steps_of_probes_are_spent(tmp_path: Path):
    config, probes = settings(iterations=8), {"every": 1, "episodes": 8, "max_real_steps": 12}
    block = config.experience.model_copy(update={"verifier": VerifierConfig.model_validate({"name": "learned", "probes": probes})})
    recipe.run(config.model_copy(update={"experience": block}), tmp_path / "run", say=lambda _: None)
    dream = RunDir.view(tmp_path / "run").data("dream")
    assert dream["iterations"] < 8 and 0 < dream["probe_steps"] <= 12
    assert dream["stop_reason"].startswith(f"{dream['probe_steps']} of 12 real steps of probes are spent")


def test_claims_that_the_real_steps_left_do_not_pay_are_left_out_at_random_and_not_by_their_length():
    probes = phase.VerifierProbes.__new__(phase.VerifierProbes)
    probes.context = SimpleNamespace(config=SimpleNamespace(seed=0), suite=SimpleNamespace(max_steps=50))
    probes.settings, probes.steps = SimpleNamespace(probes=SimpleNamespace(by="actions", max_real_steps=12)), 0

    def chosen(lengths: list[int], iteration: int = 0) -> tuple[int, ...]:
        drawn = [(SimpleNamespace(turns=[0] * n), 0.5) for n in lengths]
        taken = probes._affordable(drawn, iteration)
        assert {p for _, p in taken} <= {0.5 * len(taken) / len(drawn or [1])}, "of being drawn, and then of being taken"
        return tuple(len(claim.turns) for claim, _ in taken)

    assert chosen([3, 4, 3]) == (3, 4, 3) and chosen([3, 13]) == () and chosen([]) == ()
    assert {chosen([12, 3, 4], iteration) for iteration in range(20)} == {(12,), (3,), (4,)}


def test_by_rollouts_a_dream_whose_accepted_claims_the_policy_cannot_repeat_stops_the_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Real episodes that reach no end make no claim, so no verdict on them is wrong; but the dreamed claim has not come true."""
    monkeypatch.setattr(outcome, "_verdict", lambda *_: Verdict("passed"))
    found = phase.rollout

    def endless(*args: Any, **how: Any) -> list[Trajectory]:
        return [replace(t, success=False, truncated=True, turns=tuple(_going_on(turn) for turn in t.turns)) for t in found(*args, **how)]

    monkeypatch.setattr(phase, "rollout", endless)
    config = settings(iterations=12)
    probes = {"every": 1, "episodes": 16, "by": "rollouts", "max_real_steps": 5000, "max_accepted_false": 0.5}
    block = config.experience.model_copy(update={"verifier": VerifierConfig.model_validate({"name": "learned", "probes": probes})})
    recipe.run(config.model_copy(update={"experience": block}), tmp_path / "run", say=lambda _: None)
    dream = RunDir.view(tmp_path / "run").data("dream")
    assert dream["iterations"] < 12 and "100% of probed accepted claims have no real success" in dream["stop_reason"]
    assert dream["verifier"]["probes"] == 0 and dream["verifier"]["probe_steps"] > 0


def _going_on(turn: Turn) -> Turn:
    return replace(turn, transition=replace(turn.transition, terminated=False, reward=0.0))
