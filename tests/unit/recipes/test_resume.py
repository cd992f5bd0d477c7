"""Stopping leaves no trace: k iterations, a kill, and the rest are the same as all of them in one go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from dreamgym.config import build, dump
from dreamgym.errors import EnvironmentFailure, RunDirError
from dreamgym.llm import sizes
from dreamgym.policy import loading
from dreamgym.recipes import context as make
from dreamgym.recipes.arms import RolloutSource
from dreamgym.recipes.blocks import VerifierConfig
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.factory import open_replay
from dreamgym.recipes.phases import rl
from dreamgym.recipes.phases.baselines import converge_sft
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.fit import fit
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.phases.rl import RLPhase, had_gradient
from dreamgym.recipes.phases.warm_start import demonstrations
from dreamgym.recipes.plan import Loop
from dreamgym.report.metrics import METRICS
from dreamgym.runs.rundir import RunDir
from dreamgym.train import checkpoint, sft
from dreamgym.train.batch import pad
from dreamgym.train.settings import SFTConfig

BLOCK = {
    "iterations": 4, "tasks_per_iter": 6, "group_size": 4, "train_tasks": 12, "probe_every": 2, "probe_tasks": 4, "on_gap": "warn",
    "learner": {"lr": 1e-3, "minibatches": 2}, "curriculum": {"proposals": 4, "synthetic_share": 0.5},
}  # fmt: skip
SETTINGS = {
    "env": {"name": "corridor", "options": {"length": 4, "keys": False, "max_steps": 4}},
    "logs": {"trajectories": 40, "task_pairs": 20},
    "model": {"size": "test", "vocab_size": 320},
    "experience": {
        "k": 1,
        "max_answer_tokens": 40,
        "training": {"epochs": 25.0, "max_seconds": None, "lr": 5e-3, "batch_tokens": 1024, "bf16": False},
    },
    "dream": BLOCK,
    "s2r": {"iterations": 4, "tasks_per_iter": 6},
    "sft": {"epochs": 12.0, "lr": 5e-3, "batch_tokens": 512, "bf16": False},
    "sft_patience": 9,
    "eval": {"tasks": 3, "dev_tasks": 3},
}
Prepared = Callable[[str], tuple[RunDir, RunContext]]
Unbroken = Callable[[RolloutSource], RLPhase]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Logs, tokenizer, an experience model and a warm start, made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sizes.SIZES, "test", {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "mlp": 64})
        config = build(RunConfig, SETTINGS)
        with RunDir.open(tmp_path_factory.mktemp("made") / "run", dump(config)) as run:
            context = prepare_logs(run, config)
            train_experience(run, context)
            warm = context.load_experience_model("tokenizer")
            ids, weights = demonstrations(context)
            sft.train(warm, ids, weights, SFTConfig(epochs=25.0, lr=5e-3, batch_tokens=512, bf16=False))
            return {"config": config, "context": context, "experience": context.load_experience_model("experience"), "warm_start": warm}


def fresh_run(trained: dict[str, Any], path: Path, opened: ExitStack) -> tuple[RunDir, RunContext]:
    """A run directory with everything that the RL phase starts from."""
    run = opened.enter_context(RunDir.open(path, dump(trained["config"])))
    old: RunContext = trained["context"]
    context = RunContext(old.config, run.path, old.suite, old.logs, old.tokenizer, old.vocabulary)
    for name in ("experience", "warm_start"):
        context.save_experience_model(trained[name], name)
    return run, context


@pytest.fixture
def prepared(trained: dict[str, Any], tmp_path: Path) -> Iterator[Prepared]:
    """A function that makes a fresh run of the given name."""
    with ExitStack() as opened:
        yield lambda name: fresh_run(trained, tmp_path / name, opened)


@pytest.fixture(scope="module")
def unbroken(trained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unbroken]:
    """A function that gives the uninterrupted RL phase with rollouts of a source, run once."""
    folder = tmp_path_factory.mktemp("unbroken")
    with ExitStack() as opened:
        yield cache(lambda source: run_rl_phase(*fresh_run(trained, folder / source, opened), source=source))


class Killed(BaseException): ...


def converge(run: RunDir, context: RunContext) -> None:
    config = build(RunConfig, SETTINGS)
    converge_sft(run, context, config.sft, patience=config.sft_patience)


def run_rl_phase(run: RunDir, context: RunContext, *, source: RolloutSource, kill_in: int | None = None) -> RLPhase:
    """An RL phase run to its end, or killed within iteration `kill_in`, when all is done but the checkpoint."""
    block = context.config.dream
    if source == "mixed":
        block = block.model_copy(update={"real_share": 0.5, "max_refills": 2})
    session = RLPhase(run, context, Loop("policy", "warm_start", block, source, context.config))
    if kill_in is not None:
        save = session._save

        def die() -> None:
            if session.progress.iteration == kill_in + 1:
                raise Killed
            save()

        session._save = die  # type: ignore[method-assign]
        with pytest.raises(Killed):
            session.run_loop()
    else:
        session.run_loop()
    session.replay.close()
    return session


def facts(session: RLPhase) -> dict[str, Any]:
    """What must not depend on interruptions."""
    with open_replay(session.run.path / "replay" / "policy.sqlite", []) as replay:
        rows = [(m.trajectory, m.step, m.state, m.action, m.next_state, m.reward, m.source) for m in replay.memories()]
    return {
        "weights": {name: value.clone() for name, value in session.model.state_dict().items()},
        "curriculum": session.curriculum.state_dict(),
        "used": session.used,
        "iteration": session.progress.iteration,
        "version": session.learner.version,
        "replay": rows,
    }


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for name, value in a["weights"].items():
        assert torch.equal(value, b["weights"][name]), name
    for name in a.keys() - {"weights"}:
        assert a[name] == b[name], name


@pytest.mark.parametrize(("source", "kills"), [("real", [1]), ("real", [1, 1, 3]), ("dream", [1]), ("dream", [1, 1, 3]), ("mixed", [2])])
def test_an_rl_phase_that_was_killed_ends_bit_for_bit_where_an_unbroken_one_does(
    prepared: Prepared, unbroken: Unbroken, source: RolloutSource, kills: list[int]
):
    whole = unbroken(source)
    start = whole.context.load_experience_model("warm_start").parameters()
    assert any(not torch.equal(a, b) for a, b in zip(whole.model.parameters(), start, strict=True))
    expected = facts(whole)
    run, context = prepared("broken")
    for kill_in in kills:
        run_rl_phase(run, context, source=source, kill_in=kill_in)
    assert_same(expected, facts(run_rl_phase(run, context, source=source)))
    assert [m["iteration"] for m in run.read_jsonl("metrics.jsonl")] == [0, 1, 2, 3]


def test_what_a_paid_model_was_used_for_before_an_interruption_counts_after_it(prepared: Prepared):
    def paid(context: RunContext) -> RunContext:
        experience = context.config.experience.model_copy(update={"verifier": VerifierConfig(name="outside.paid_verifier")})
        return replace(context, config=context.config.model_copy(update={"experience": experience}))

    run, context = prepared("whole")
    expected = run_rl_phase(run, paid(context), source="dream").result()["verifier_usage"]
    run, context = prepared("broken")
    run_rl_phase(run, paid(context), source="dream", kill_in=2)
    found = run_rl_phase(run, paid(context), source="dream").result()["verifier_usage"]
    assert found == expected and expected["prompt_tokens"] > 0 and expected["cost"] > 0


def test_an_rl_phase_killed_before_its_first_checkpoint_starts_anew(prepared: Prepared, unbroken: Unbroken):
    expected = facts(unbroken("real"))
    run, context = prepared("broken")
    run_rl_phase(run, context, source="real", kill_in=0)
    assert_same(expected, facts(run_rl_phase(run, context, source="real")))


def test_the_training_state_of_another_version_is_refused_with_what_it_lacks(prepared: Prepared):
    run, context = prepared("older")
    run_rl_phase(run, context, source="real", kill_in=1)
    file = run.path / "checkpoints" / "policy.pt"
    state = checkpoint.load(file)
    del state["learner"]["iterations_without_reward"]
    checkpoint.save(file, state)
    with pytest.raises(RunDirError, match="another version of dreamgym: it has no 'iterations_without_reward'"):
        run_rl_phase(run, context, source="real")


@pytest.mark.slow
def test_an_rl_phase_whose_checkpoint_was_removed_starts_anew_from_the_logs_alone(prepared: Prepared, unbroken: Unbroken):
    expected = facts(unbroken("dream"))
    run, context = prepared("broken")
    run_rl_phase(run, context, source="dream", kill_in=2)
    (run.path / "checkpoints" / "policy.pt").unlink()
    assert_same(expected, facts(run_rl_phase(run, context, source="dream")))


@pytest.mark.parametrize("every_s", [-1.0, 1e9])
def test_a_baseline_that_was_killed_has_the_curve_and_the_costs_of_an_unbroken_one(
    prepared: Prepared, every_s: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sft.FitCheckpoint, "EVERY_S", every_s)
    whole, context = prepared("unbroken")
    converge(whole, context)
    best = context.load_experience_model("sft").state_dict()
    run, context = prepared("broken")
    mark = run.mark
    for entries in (1, 3):

        def killing(phase: str, data: Any, entries: int = entries) -> None:
            if phase == "sft-curve" and len(data["curve"]) == entries:
                mark(phase, data)
                raise Killed
            mark(phase, data)

        monkeypatch.setattr(run, "mark", killing)
        with pytest.raises(Killed):
            converge(run, context)
    monkeypatch.setattr(run, "mark", mark)
    converge(run, context)
    found, expected = ({k: v for k, v in one.data("sft").items() if "seconds" not in k} for one in (run, whole))
    assert all(seen.pop("real_seconds") > 0 for one in (found, expected) for seen in one["curve"])
    assert found == expected and len(found["curve"]) > 3 and found["real_steps_dev"] == found["curve"][-1]["real_steps"] > 0
    assert all(torch.equal(value, best[name]) for name, value in context.load_experience_model("sft").state_dict().items())
    assert not (run.path / "checkpoints" / "sft.pt").exists()


def test_a_baseline_is_measured_after_every_two_passes_over_its_rows(prepared: Prepared, monkeypatch: pytest.MonkeyPatch):
    run, context = prepared("passes")
    rows, mark, shown, measured = len(demonstrations(context)[0]), run.mark, 0, dict[float, int]()

    def padded(ids: Any, weights: Any, chosen: Any) -> Any:
        nonlocal shown
        shown += len(chosen)
        return pad(ids, weights, chosen)

    def marked(phase: str, data: Any = None) -> None:
        if phase == "sft-curve":
            measured[data["curve"][-1]["epoch"]] = shown
        mark(phase, data)

    monkeypatch.setattr(sft, "pad", padded)
    monkeypatch.setattr(run, "mark", marked)
    converge(run, context)
    assert len(measured) > 3 and measured == {2.0 * i: 2 * i * rows for i in range(len(measured))}


@pytest.mark.parametrize("every_s", [-1.0, 1e9])
def test_a_fit_that_was_killed_leaves_the_metrics_of_an_unbroken_one(prepared: Prepared, every_s: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sft.FitCheckpoint, "EVERY_S", every_s)
    config = SFTConfig(epochs=60.0, lr=5e-3, batch_tokens=512, bf16=False)

    def fitted(run: RunDir, context: RunContext, *, kill_at: int = 0) -> list[dict[str, Any]]:
        def on_step(step: int) -> bool:
            if step == kill_at:
                raise Killed
            return False

        ids, weights = demonstrations(context)
        fit(run, "warm_start", context.load_experience_model("experience"), ids, weights, config, seed=0, on_step=on_step)
        return run.read_jsonl("metrics.jsonl")

    whole, broken = prepared("whole"), prepared("broken")
    expected = fitted(*whole)
    for kill_at in (30, 55):
        with pytest.raises(Killed):
            fitted(*broken, kill_at=kill_at)
    assert fitted(*broken) == expected and len(expected) >= 3


def test_a_checkpoint_whose_bytes_changed_is_noticed(prepared: Prepared):
    run, context = prepared("changed")
    run.mark("warm_start")
    assert context.load_policy("warm_start") is not None
    file = context.checkpoint("warm_start") / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(RunDirError, match="was changed after its phase finished"):
        context.load_policy("warm_start")


def test_a_gap_that_was_open_from_the_start_rolls_back_to_where_the_policy_came_from(prepared: Prepared, monkeypatch: pytest.MonkeyPatch):
    run, context = prepared("gap")
    strict = {"dream": context.config.dream.model_copy(update={"on_gap": "rollback", "max_gap": -1.0, "probe_every": 1})}
    context.config = context.config.model_copy(update=strict)
    session = run_rl_phase(run, context, source="dream")
    assert session.progress.iteration == 2 and "rolled back to the policy it started from" in session.progress.stop_reason
    start = context.load_experience_model("warm_start").state_dict()
    assert all(torch.equal(value, start[name]) for name, value in session.model.state_dict().items())


def refreshing(context: RunContext) -> RunContext:
    """A gap that is always open, and a short training that answers it."""
    training = {"epochs": 1.0, "lr": 1e-3, "batch_tokens": 512, "bf16": False}
    block = {"on_gap": "refresh", "max_gap": -1.0, "refresh": {"training": training}}
    context.config = build(RunConfig, {**SETTINGS, "dream": {**BLOCK, **block}})
    return context


def test_an_open_gap_refreshes_the_experience_model_on_what_was_probed_and_the_loop_goes_on(prepared: Prepared):
    run, context = prepared("refreshed")
    session = run_rl_phase(run, refreshing(context), source="dream")
    assert (session.envs.refreshes, session.progress.iteration, session.progress.stop_reason) == (2, 4, "")
    assert session.envs.experience.version == session.envs.dream.version == 3 and session.result()["dreams_with"] == "experience-policy-2"
    old, new = (context.load_experience_model(name).state_dict() for name in ("experience", "experience-policy-2"))
    assert any(not torch.equal(value, new[name]) for name, value in old.items())
    probed = session.gap_probes.episodes
    assert (
        sum(len(episode.turns) for episode in probed) == session.used["probe"] == session.gap_probes.meter.real_steps > 0
    )  # each real step is charged
    assert all(t.info.reasoning for episode in probed for t in episode.transitions) and {e.source for e in probed} == {"real"}
    with open_replay(run.path / "replay" / "policy.sqlite", []) as replay:
        remembered = [m.trajectory for m in replay.memories(source="real")]
    assert len(remembered) == session.used["probe"] and set(remembered) == {episode.id for episode in probed}
    versions = {e.model_version for name in run.episode_names() if name.startswith("policy-0") for e in run.read_episodes(name)}
    assert versions == {1, 2} and run.read_episodes("policy-probed")  # of iterations 0 and 3: each dream says which version dreamed it


def test_an_rl_phase_that_was_killed_after_a_refresh_ends_where_an_unbroken_one_does(prepared: Prepared):
    run, context = prepared("unbroken")
    expected = run_rl_phase(run, refreshing(context), source="dream")
    run, context = prepared("broken")
    run_rl_phase(run, refreshing(context), source="dream", kill_in=3)
    resumed = run_rl_phase(run, context, source="dream")
    assert_same(facts(expected), facts(resumed))
    assert resumed.envs.refreshes == expected.envs.refreshes == 2
    assert [e.id for e in resumed.gap_probes.episodes] == [e.id for e in expected.gap_probes.episodes]
    one, other = (session.context.load_experience_model("experience-policy-2").state_dict() for session in (expected, resumed))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_probe_without_a_sound_episode_neither_opens_the_gap_nor_vouches_for_the_policy(prepared: Prepared):
    run, context = prepared("nothing")
    session = RLPhase(run, context, Loop("policy", "warm_start", context.config.dream, "dream", context.config))
    assert set(session.gap_probes.probe([], 0).values()) == {None} and session.gap_probes.failed_in_a_row == 0
    assert not context.checkpoint("policy-good").exists()


def test_a_resume_at_another_commit_is_told_and_a_look_at_a_finished_run_is_not(prepared: Prepared, monkeypatch: pytest.MonkeyPatch):
    run, _ = prepared("signed")
    for commit in ("aaa", "bbb", "bbb"):
        monkeypatch.setattr(make, "commit", lambda commit=commit: commit)
        make.record_commit(run)
    run.write_summary({})
    monkeypatch.setattr(make, "commit", lambda: "ccc")
    make.record_commit(run)
    assert run.data("process") == {"commits": ["aaa", "bbb"]}


def test_every_number_that_an_rl_phase_writes_is_explained(prepared: Prepared):
    run, context = prepared("explained")
    bf16 = {"learner": context.config.dream.learner.model_copy(update={"bf16": True})}
    context.config = context.config.model_copy(update={"dream": context.config.dream.model_copy(update=bf16)})
    run_rl_phase(run, context, source="mixed")
    written = {name for line in run.read_jsonl("metrics.jsonl") for name in line} - {"phase", "iteration"}
    assert {"logprob_mismatch", "refills", "real_part_success", "gap"} <= written
    assert written <= {name for group in METRICS.values() for name in group}


def test_a_finished_rl_phase_has_nothing_left_to_do(prepared: Prepared):
    run, context = prepared("finished")
    first = facts(run_rl_phase(run, context, source="real"))
    assert_same(first, facts(run_rl_phase(run, context, source="real")))


def test_every_real_step_is_charged_and_dreams_cost_only_their_probes(unbroken: Unbroken):
    real = unbroken("real")
    assert real.used == {"train": real.envs.real.steps, "real": real.envs.real.steps, "probe": 0} and real.used["train"] > 24 * 4 / 2
    dream = unbroken("dream")
    assert dream.used["real"] == 0 and dream.used["train"] == dream.envs.dream.steps
    assert 0 < dream.envs.real.steps == dream.used["probe"] == dream.gap_probes.meter.real_steps <= 2 * 2 * 4 * 4
    assert dream.result()["iterations"] == 4 and dream.result()["replay"]["dream"] > 0


def test_a_loop_stops_before_it_exceeds_its_budget_of_real_steps(prepared: Prepared, unbroken: Unbroken):
    free = unbroken("real")
    run, context = prepared("bound")
    limit = free.used["train"] - 1
    block = context.config.dream.model_copy(update={"max_real_steps": limit})
    bound = RLPhase(run, context, Loop("s2r", "warm_start", block, "real", context.config))
    bound.run_loop()
    assert 0 < bound.used["train"] <= limit
    assert bound.progress.iteration == 3 and "no room for another iteration" in bound.progress.stop_reason


def test_a_loop_that_made_all_its_iterations_did_not_stop_early_though_nothing_is_left_of_its_budget(
    prepared: Prepared, unbroken: Unbroken
):
    run, context = prepared("spent")
    free = unbroken("real")
    block = context.config.dream.model_copy(update={"max_real_steps": free.used["train"] + free.collector.longest - 1})
    spent = RLPhase(run, context, Loop("s2r", "warm_start", block, "real", context.config))
    spent.run_loop()
    assert spent.progress.iteration == block.iterations and spent.collector.budget_exhausted(0.0)
    assert spent.result()["stop_reason"] == ""


def test_a_mixed_loop_acts_in_both_worlds_at_once_and_pays_for_its_real_part(unbroken: Unbroken):
    session = unbroken("mixed")
    run = session.run
    assert session.envs.dream is not None and session.used["real"] + session.used["probe"] == session.envs.real.steps > 0
    assert session.used["train"] - session.used["real"] == session.envs.dream.steps > 0
    assert session.result()["real_steps"] == session.used["real"] > 0
    (first,) = (run.read_episodes(name) for name in run.episode_names() if name == "policy-0000")
    by_group = [{t.source for t in first[i : i + 4]} for i in range(0, len(first), 4)]
    assert {"real"} in by_group and {"dream"} in by_group and {"dream", "real"} not in by_group, "a group is of one source"
    assert len({t.id for t in first}) == len(first)
    replay = session.result()["replay"]
    assert replay["dream"] > 0 and replay["real"] > 0, "both worlds are remembered"


def test_an_iteration_draws_further_tasks_until_enough_groups_differ(prepared: Prepared):
    run, context = prepared("refilled")
    block = context.config.dream.model_copy(update={"max_refills": 2, "tasks_per_iter": 3})
    session = RLPhase(run, context, Loop("policy", "warm_start", block, "real", context.config))
    session.run_loop()
    lines = run.read_jsonl("metrics.jsonl")
    drawn = [sum(count for name, count in line.items() if name.startswith("groups_")) for line in lines]
    assert any(line["refills"] for line in lines), "this policy is seldom torn on three tasks of three"
    for line, groups in zip(lines, drawn, strict=True):
        enough = line.get("groups_mixed", 0) >= 3
        assert groups >= 3 and (groups > 3) == bool(line["refills"]) and (enough or line["refills"] == 2 or groups == 7)
    assert session.used["real"] == session.used["train"] == session.envs.real.steps, "further episodes are charged like the others"
    tasks = [t.task.id for t in run.read_episodes("policy-0003")[::4]]
    assert len(set(tasks)) == len(tasks), "no task is drawn twice in an iteration"


def test_no_further_task_is_drawn_that_could_exceed_the_budget_of_real_steps(prepared: Prepared):
    run, context = prepared("poor")
    session = RLPhase(run, context, Loop("policy", "warm_start", context.config.dream, "real", context.config))
    plain = session.collector.roll([t for t in session.curriculum.sample(6) for _ in range(4)], 0)
    steps = sum(len(t.turns) for t in plain)
    session.collector.block = context.config.dream.model_copy(update={"max_refills": 2, "max_real_steps": steps + 1, "tasks_per_iter": 7})
    assert session.collector.refill_tasks(plain) == []
    session.collector.block = session.collector.block.model_copy(update={"max_real_steps": 10_000})
    assert len(session.collector.refill_tasks(plain)) == 1, "seven tasks are all there are"


def test_iterations_in_which_nothing_was_earned_are_counted_and_said_aloud(prepared: Prepared):
    run, context = prepared("hopeless")
    session = RLPhase(run, context, Loop("policy", "warm_start", context.config.dream, "real", context.config))
    step = session.envs.real.step
    session.envs.real.step = lambda slots, actions: [replace(r, reward=0.0) for r in step(slots, actions)]  # type: ignore[method-assign]
    session.run_loop()
    lines = run.read_jsonl("metrics.jsonl")
    assert [line["iterations_without_reward"] for line in lines] == [1, 2, 3, 4] and not had_gradient(run, "policy")
    assert rl._note(lines[-1], "") == "success 0.00, nothing earned for 4 iterations" and rl._note(lines[0], "") == "success 0.00"


@pytest.mark.parametrize("source", ["dream", "real"])
def test_rl_ends_by_name_where_every_rollout_of_two_iterations_failed_and_a_real_outage_can_be_tried_again(source: str, prepared: Prepared):
    run, context = prepared(f"broken {source}")
    session = RLPhase(run, context, Loop("policy", "warm_start", context.config.dream, "real", context.config))
    roll = session.collector.roll
    session.collector.roll = lambda *of, **how: [replace(t, error="it could not be read", source=source) for t in roll(*of, **how)]  # type: ignore[method-assign]
    if source == "real":
        with pytest.raises(EnvironmentFailure, match="two iterations in a row of 'policy' failed.*could not be read"):
            session.run_loop()
        session.close()
        again = RLPhase(run, context, Loop("policy", "warm_start", context.config.dream, "real", context.config))
        assert again.progress.iteration == 1 and not again.progress.stop_reason
        again.run_loop()
        assert [line["iteration"] for line in run.read_jsonl("metrics.jsonl")] == [0, 1, 2, 3] and again.progress.failed_in_a_row == 0
        again.close()
    else:
        session.run_loop()
        assert len(run.read_jsonl("metrics.jsonl")) == 2
        assert session.progress.stop_reason == "every rollout of two iterations in a row failed: it could not be read"


def test_an_outage_of_one_iteration_does_not_stop_rl_that_had_earned_nothing(prepared: Prepared):
    run, context = prepared("outage")
    session = RLPhase(run, context, Loop("policy", "warm_start", context.config.dream, "real", context.config))
    step, roll = session.envs.real.step, session.collector.roll
    session.envs.real.step = lambda slots, actions: [replace(r, reward=0.0) for r in step(slots, actions)]  # type: ignore[method-assign]

    def broken_once(tasks: Any, i: int, *of: Any, **how: Any) -> Any:
        return [replace(t, error="the site is away") if i == 1 else t for t in roll(tasks, i, *of, **how)]

    session.collector.roll = broken_once  # type: ignore[method-assign]
    session.run_loop()
    assert len(run.read_jsonl("metrics.jsonl")) == 4 and not session.progress.stop_reason


@pytest.mark.parametrize(("bf16", "full_precision"), [(True, False), (False, True)])
def test_a_learner_without_bfloat16_trains_with_a_sampler_without_it(
    bf16: bool, full_precision: bool, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log-probs of a sampler at another precision are not those that the loss compares with."""
    asked = []
    built = loading.build_engine
    monkeypatch.setattr(loading, "build_engine", lambda settings, **how: asked.append(how["full_precision"]) or built(settings, **how))
    run, context = prepared("run")
    block = context.config.dream.model_copy(update={"learner": context.config.dream.learner.model_copy(update={"bf16": bf16})})
    RLPhase(run, context, Loop("policy", "warm_start", block, "real", context.config)).replay.close()
    assert asked == [full_precision]


def test_a_run_without_its_logs_says_so_instead_of_dreaming_without_memories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sizes.SIZES, "test", {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "mlp": 64})
    config = build(RunConfig, SETTINGS)
    with RunDir.open(tmp_path, dump(config)) as run:
        prepare_logs(run, config)
        assert len(make.open_context(tmp_path).logs) == 40
        (tmp_path / "episodes" / "logs.jsonl").unlink()
        for read in (lambda: prepare_logs(run, config), lambda: make.open_context(tmp_path)):
            with pytest.raises(RunDirError, match=r"logs\.jsonl' holds 0 trajectories, and phases\.json says 40"):
                read()
