"""Stopping leaves no trace: k iterations, a kill, and the rest are the same as all of them in one go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dreamgym.config import build, dump
from dreamgym.errors import RunDirError
from dreamgym.llm import tiny
from dreamgym.llm.hf import HFEngine
from dreamgym.recipes import fitting, policies, practice
from dreamgym.recipes import parts as make
from dreamgym.recipes.config import RunConfig, World
from dreamgym.recipes.memories import open_replay
from dreamgym.recipes.parts import Parts
from dreamgym.recipes.practice import Practice, had_gradient
from dreamgym.report.metrics import METRICS
from dreamgym.runlog import RunDir
from dreamgym.train import sft

BLOCK = {
    "iterations": 4, "tasks_per_iter": 6, "group_size": 4, "train_tasks": 12, "probe_every": 2, "probe_tasks": 4, "on_gap": "warn",
    "learner": {"lr": 1e-3, "minibatches": 2}, "curriculum": {"proposals": 4, "synthetic_share": 0.5},
}  # fmt: skip
SETTINGS = {
    "env": {"name": "corridor", "options": {"length": 4, "keys": False, "max_steps": 4}},
    "logs": {"trajectories": 40, "task_pairs": 20},
    "model": {"size": "test", "vocab_size": 320},
    "experience": {"k": 1, "max_answer_tokens": 40},
    "experience_training": {"epochs": 25.0, "seconds": None, "lr": 5e-3, "batch_tokens": 1024, "bf16": False},
    "dream": BLOCK,
    "s2r": BLOCK,
    "sft": {"epochs": 12.0, "lr": 5e-3, "batch_tokens": 512, "bf16": False},
    "sft_patience": 9,
    "eval": {"tasks": 3, "dev_tasks": 3},
}
Prepared = Callable[[str], tuple[RunDir, Parts]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Logs, tokenizer, an experience model and a warm start, made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.SIZES, "test", {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "mlp": 64})
        config = build(RunConfig, SETTINGS)
        with RunDir.open(tmp_path_factory.mktemp("made") / "run", dump(config)) as run:
            parts = fitting.gather(run, config)
            fitting.train_experience(run, parts)
            warm = parts.load("tokenizer")
            ids, weights = make.demonstrations(parts)
            sft.train(warm, ids, weights, sft.SFTConfig(epochs=25.0, lr=5e-3, batch_tokens=512, bf16=False))
            return {"config": config, "parts": parts, "experience": parts.load("experience"), "warm": warm}


@pytest.fixture
def prepared(trained: dict[str, Any], tmp_path: Path):
    """A function that makes a fresh run directory with everything that a practice starts from."""
    runs: list[RunDir] = []

    def fresh(name: str) -> tuple[RunDir, Parts]:
        run = RunDir.open(tmp_path / name, dump(trained["config"]))
        runs.append(run)
        old: Parts = trained["parts"]
        parts = Parts(old.config, run.path, old.family, old.logs, old.tokenizer, old.words)
        for checkpoint in ("experience", "warm"):
            parts.save(trained[checkpoint], checkpoint)
        return run, parts

    yield fresh
    for run in runs:
        run.close()


class Killed(BaseException): ...


def converge(run: RunDir, parts: Parts) -> None:
    config = build(RunConfig, SETTINGS)
    fitting.converge_sft(run, parts, config.sft, patience=config.sft_patience)


def practise(run: RunDir, parts: Parts, *, world: World, kill_in: int | None = None) -> Practice:
    """A practice run to its end, or killed within iteration `kill_in`, when all is done but the checkpoint."""
    block = parts.config.s2r if world == "real" else parts.config.dream
    if world == "mixed":
        block = block.model_copy(update={"real_share": 0.5, "max_refills": 2})
    session = Practice(run, parts, "policy", start="warm", block=block, world=world)
    if kill_in is not None:
        save = session._save

        def die() -> None:
            if session.iteration == kill_in + 1:
                raise Killed
            save()

        session._save = die  # type: ignore[method-assign]
        with pytest.raises(Killed):
            session.run_loop()
    else:
        session.run_loop()
    session.replay.close()
    return session


def facts(session: Practice) -> dict[str, Any]:
    """What must not depend on interruptions."""
    with open_replay(session.run.path / "replay" / "policy.sqlite", []) as replay:
        rows = [(m.trajectory, m.step, m.state, m.action, m.next_state, m.reward, m.source) for m in replay.memories()]
    return {
        "weights": {name: value.clone() for name, value in session.model.state_dict().items()},
        "curriculum": session.curriculum.state_dict(),
        "used": session.used,
        "iteration": session.iteration,
        "version": session.learner.version,
        "replay": rows,
    }


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    for name, value in a["weights"].items():
        assert torch.equal(value, b["weights"][name]), name
    for name in a.keys() - {"weights"}:
        assert a[name] == b[name], name


@pytest.mark.parametrize(("world", "kills"), [("real", [1]), ("real", [1, 1, 3]), ("dream", [1]), ("dream", [1, 1, 3]), ("mixed", [2])])
def test_a_practice_that_was_killed_ends_bit_for_bit_where_an_unbroken_one_does(prepared: Prepared, world: World, kills: list[int]):
    unbroken = practise(*prepared("unbroken"), world=world)
    assert any(not torch.equal(a, b) for a, b in zip(unbroken.model.parameters(), unbroken.parts.load("warm").parameters(), strict=True))
    expected = facts(unbroken)
    run, parts = prepared("broken")
    for kill_in in kills:
        practise(run, parts, world=world, kill_in=kill_in)
    assert_same(expected, facts(practise(run, parts, world=world)))
    assert [m["iteration"] for m in run.read_jsonl("metrics.jsonl")] == [0, 1, 2, 3]


def test_a_practice_killed_before_its_first_checkpoint_starts_anew(prepared: Prepared):
    expected = facts(practise(*prepared("unbroken"), world="real"))
    run, parts = prepared("broken")
    practise(run, parts, world="real", kill_in=0)
    assert_same(expected, facts(practise(run, parts, world="real")))


@pytest.mark.slow
def test_a_practice_whose_checkpoint_was_removed_starts_anew_from_the_logs_alone(prepared: Prepared):
    expected = facts(practise(*prepared("unbroken"), world="dream"))
    run, parts = prepared("broken")
    practise(run, parts, world="dream", kill_in=2)
    (run.path / "checkpoints" / "policy.pt").unlink()
    assert_same(expected, facts(practise(run, parts, world="dream")))


@pytest.mark.parametrize("every_s", [-1.0, 1e9])
def test_a_baseline_that_was_killed_has_the_curve_and_the_costs_of_an_unbroken_one(
    prepared: Prepared, every_s: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sft._Clock, "EVERY_S", every_s)
    whole, parts = prepared("unbroken")
    converge(whole, parts)
    best = parts.load("sft").state_dict()
    run, parts = prepared("broken")
    mark = run.mark
    for entries in (1, 3):

        def killing(phase: str, data: Any, entries: int = entries) -> None:
            if phase == "sft-curve" and len(data["curve"]) == entries:
                mark(phase, data)
                raise Killed
            mark(phase, data)

        monkeypatch.setattr(run, "mark", killing)
        with pytest.raises(Killed):
            converge(run, parts)
    monkeypatch.setattr(run, "mark", mark)
    converge(run, parts)
    found, expected = ({k: v for k, v in one.data("sft").items() if k != "seconds"} for one in (run, whole))
    assert found == expected and len(found["curve"]) > 3 and found["real_steps_dev"] == found["curve"][-1]["real_steps"] > 0
    assert all(torch.equal(value, best[name]) for name, value in parts.load("sft").state_dict().items())
    assert not (run.path / "checkpoints" / "sft.pt").exists()


def test_a_gap_that_was_open_from_the_start_rolls_back_to_where_the_policy_came_from(prepared: Prepared, monkeypatch: pytest.MonkeyPatch):
    run, parts = prepared("gap")
    strict = {"dream": parts.config.dream.model_copy(update={"on_gap": "rollback", "max_gap": -2.0, "probe_every": 1})}
    parts.config = parts.config.model_copy(update=strict)
    session = practise(run, parts, world="dream")
    assert session.iteration == 2 and "rolled back to the policy it started from" in session.stopped
    start = parts.load("warm").state_dict()
    assert all(torch.equal(value, start[name]) for name, value in session.model.state_dict().items())


def refreshing(parts: Parts) -> Parts:
    """A gap that is always open, and a short training that answers it."""
    training = {"epochs": 1.0, "lr": 1e-3, "batch_tokens": 512, "bf16": False}
    block = {"on_gap": "refresh", "max_gap": -2.0, "refresh": {"training": training}}
    parts.config = build(RunConfig, {**SETTINGS, "dream": {**BLOCK, **block}})
    return parts


def test_an_open_gap_refreshes_the_experience_model_on_what_was_probed_and_the_loop_goes_on(prepared: Prepared):
    run, parts = prepared("refreshed")
    session = practise(run, refreshing(parts), world="dream")
    assert (session.refreshes, session.iteration, session.stopped) == (2, 4, "")
    assert session.experience.version == session.dream.version == 3 and session.result()["dreams_with"] == "experience-policy-2"
    old, new = (parts.load(name).state_dict() for name in ("experience", "experience-policy-2"))
    assert any(not torch.equal(value, new[name]) for name, value in old.items())
    probed = session.probed
    assert (
        sum(len(episode.turns) for episode in probed) == session.used["probe"] == session.meter.real_steps > 0
    )  # each real step is charged
    assert all(t.reasoning for episode in probed for t in episode.transitions) and {e.source for e in probed} == {"real"}
    with open_replay(run.path / "replay" / "policy.sqlite", []) as replay:
        remembered = [m.trajectory for m in replay.memories(source="real")]
    assert len(remembered) == session.used["probe"] and set(remembered) == {episode.id for episode in probed}
    versions = {e.model_version for name in run.episode_names() if name.startswith("policy-0") for e in run.read_episodes(name)}
    assert versions == {1, 2} and run.read_episodes("policy-probed")  # of iterations 0 and 3: each dream says which version dreamed it


def test_a_practice_that_was_killed_after_a_refresh_ends_where_an_unbroken_one_does(prepared: Prepared):
    run, parts = prepared("unbroken")
    expected = practise(run, refreshing(parts), world="dream")
    run, parts = prepared("broken")
    practise(run, refreshing(parts), world="dream", kill_in=3)
    resumed = practise(run, parts, world="dream")
    assert_same(facts(expected), facts(resumed))
    assert resumed.refreshes == expected.refreshes == 2 and [e.id for e in resumed.probed] == [e.id for e in expected.probed]
    one, other = (session.parts.load("experience-policy-2").state_dict() for session in (expected, resumed))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_probe_without_a_sound_episode_neither_opens_the_gap_nor_vouches_for_the_policy(prepared: Prepared):
    run, parts = prepared("nothing")
    session = Practice(run, parts, "policy", start="warm", block=parts.config.dream, world="dream")
    assert set(session._probe([]).values()) == {None} and session.open_gaps == 0
    assert not parts.checkpoint("policy-good").exists()


def test_a_resume_at_another_commit_is_told_and_a_look_at_a_finished_run_is_not(prepared: Prepared, monkeypatch: pytest.MonkeyPatch):
    run, _ = prepared("signed")
    for commit in ("aaa", "bbb", "bbb"):
        monkeypatch.setattr(make, "commit", lambda commit=commit: commit)
        make.sign(run)
    run.write_summary({})
    monkeypatch.setattr(make, "commit", lambda: "ccc")
    make.sign(run)
    assert run.data("process") == {"commits": ["aaa", "bbb"]}


def test_every_number_that_a_practice_writes_is_explained(prepared: Prepared):
    run, parts = prepared("explained")
    bf16 = {"learner": parts.config.dream.learner.model_copy(update={"bf16": True})}
    parts.config = parts.config.model_copy(update={"dream": parts.config.dream.model_copy(update=bf16)})
    practise(run, parts, world="mixed")
    written = {name for line in run.read_jsonl("metrics.jsonl") for name in line} - {"phase", "iteration"}
    assert {"mismatch", "refills", "real_part_success", "gap"} <= written
    assert written <= {name for group in METRICS.values() for name in group}


def test_a_finished_practice_has_nothing_left_to_do(prepared: Prepared):
    run, parts = prepared("finished")
    first = facts(practise(run, parts, world="real"))
    assert_same(first, facts(practise(run, parts, world="real")))


def test_every_real_step_is_charged_and_dreams_cost_only_their_probes(prepared: Prepared):
    real = practise(*prepared("real"), world="real")
    assert real.used == {"train": real.real.steps, "real": real.real.steps, "probe": 0} and real.used["train"] > 24 * 4 / 2
    dream = practise(*prepared("dream"), world="dream")
    assert dream.real.steps == dream.used["real"] == 0 and dream.used["train"] == dream.dream.steps
    assert 0 < dream.used["probe"] == dream.meter.real_steps <= 2 * 2 * 4 * 4
    assert dream.result()["iterations"] == 4 and dream.result()["replay"]["dream"] > 0


def test_a_loop_stops_before_it_exceeds_its_budget_of_real_steps(prepared: Prepared):
    free = practise(*prepared("free"), world="real")
    run, parts = prepared("bound")
    limit = free.used["train"] - 1
    block = parts.config.s2r.model_copy(update={"max_real_steps": limit})
    bound = Practice(run, parts, "s2r", start="warm", block=block, world="real")
    bound.run_loop()
    assert 0 < bound.used["train"] <= limit and bound.iteration == 3 and "no room for another iteration" in bound.stopped


def test_a_mixed_loop_acts_in_both_worlds_at_once_and_pays_for_its_real_part(prepared: Prepared):
    run, parts = prepared("mixed")
    session = practise(run, parts, world="mixed")
    assert session.dream is not None and session.used["real"] == session.real.steps > 0
    assert session.used["train"] - session.used["real"] == session.dream.steps > 0
    assert session.result()["real_steps"] == session.real.steps
    (first,) = (run.read_episodes(name) for name in run.episode_names() if name == "policy-0000")
    by_group = [{t.source for t in first[i : i + 4]} for i in range(0, len(first), 4)]
    assert {"real"} in by_group and {"dream"} in by_group and {"dream", "real"} not in by_group, "a group is of one world"
    assert len({t.id for t in first}) == len(first)
    assert session.replay.stats()["dream"] > 0 and session.replay.stats()["real"] > 0, "both worlds are remembered"


def test_an_iteration_draws_further_tasks_until_enough_groups_differ(prepared: Prepared):
    run, parts = prepared("refilled")
    block = parts.config.s2r.model_copy(update={"max_refills": 2, "tasks_per_iter": 3})
    session = Practice(run, parts, "policy", start="warm", block=block, world="real")
    session.run_loop()
    lines = run.read_jsonl("metrics.jsonl")
    drawn = [sum(count for name, count in line.items() if name.startswith("groups_")) for line in lines]
    assert any(line["refills"] for line in lines), "this policy is seldom torn on three tasks of three"
    for line, groups in zip(lines, drawn, strict=True):
        enough = line.get("groups_mixed", 0) >= 3
        assert groups >= 3 and (groups > 3) == bool(line["refills"]) and (enough or line["refills"] == 2 or groups == 7)
    assert session.used["real"] == session.used["train"] == session.real.steps, "further episodes are charged like the others"
    tasks = [t.task.id for t in run.read_episodes("policy-0003")[::4]]
    assert len(set(tasks)) == len(tasks), "no task is drawn twice in an iteration"


def test_no_further_task_is_drawn_that_could_exceed_the_budget_of_real_steps(prepared: Prepared):
    run, parts = prepared("poor")
    session = Practice(run, parts, "policy", start="warm", block=parts.config.s2r, world="real")
    plain = session._collect([t for t in session.curriculum.sample(6) for _ in range(4)], 0)
    steps = sum(len(t.turns) for t in plain)
    session.block = parts.config.s2r.model_copy(update={"max_refills": 2, "max_real_steps": steps + 1, "tasks_per_iter": 7})
    assert session._further(plain) == []
    session.block = session.block.model_copy(update={"max_real_steps": 10_000})
    assert len(session._further(plain)) == 1, "seven tasks are all there are"


def test_iterations_in_which_nothing_was_earned_are_counted_and_said_aloud(prepared: Prepared):
    run, parts = prepared("hopeless")
    session = Practice(run, parts, "policy", start="warm", block=parts.config.s2r, world="real")
    step = session.real.step
    session.real.step = lambda slots, actions: [replace(r, reward=0.0) for r in step(slots, actions)]  # type: ignore[method-assign]
    session.run_loop()
    lines = run.read_jsonl("metrics.jsonl")
    assert [line["failed_in_a_row"] for line in lines] == [1, 2, 3, 4] and not had_gradient(run, "policy")
    assert practice._note(lines[-1]) == "success 0.00, nothing earned for 4 iterations" and practice._note(lines[0]) == "success 0.00"


@pytest.mark.parametrize(("bf16", "dtype"), [(True, "auto"), (False, None)])
def test_a_learner_without_bfloat16_practises_with_a_sampler_without_it(
    bf16: bool, dtype: str | None, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log-probs of a sampler at another precision are not those that the loss compares with."""
    asked = []
    monkeypatch.setattr(policies, "HFEngine", lambda *args, **how: asked.append(how["dtype"]) or HFEngine(*args, **how))
    run, parts = prepared("run")
    block = parts.config.s2r.model_copy(update={"learner": parts.config.s2r.learner.model_copy(update={"bf16": bf16})})
    Practice(run, parts, "policy", start="warm", block=block, world="real").replay.close()
    assert asked == [dtype]


def test_a_run_without_its_logs_says_so_instead_of_dreaming_without_memories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(tiny.SIZES, "test", {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "mlp": 64})
    config = build(RunConfig, SETTINGS)
    with RunDir.open(tmp_path, dump(config)) as run:
        fitting.gather(run, config)
        assert len(make.open_parts(tmp_path).logs) == 40
        (tmp_path / "episodes" / "logs.jsonl").unlink()
        for read in (lambda: fitting.gather(run, config), lambda: make.open_parts(tmp_path)):
            with pytest.raises(RunDirError, match=r"logs\.jsonl' holds 0 trajectories, and phases\.json says 40"):
                read()
