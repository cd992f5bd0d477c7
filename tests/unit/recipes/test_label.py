"""Labels of a person: which episodes are drawn, how answers are kept, and what they estimate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from toy import command

from dreamgym.envs import corridor
from dreamgym.errors import RunDirError
from dreamgym.experience.learned_verifier.labels import labelled_claims
from dreamgym.experience.verifiers import VerifierInputs, learned
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes import label
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import inclusion_probabilities
from dreamgym.types import StepInfo, Turn

REAL = collect(corridor.make(), 60, seed=0)


def dreamed(path: Path) -> Path:
    episodes = []
    for i, episode in enumerate(REAL):
        info = StepInfo(decided_by="generated" if i % 2 else "recalled", reward_by="generated" if i % 2 else "rule")
        turns = tuple(Turn(replace(step, info=info)) for step in episode.transitions)
        episodes.append(replace(episode, id=f"dream/{i}", source="dream", turns=turns))
    with RunDir.open(path, "seed = 0\n") as run:
        run.episodes("uncertified-dream", episodes)
        run.write_summary({"seeds": [0]})
    return path


def test_probabilities_sum_to_the_size_of_the_draw_and_a_larger_draw_contains_a_smaller_one(tmp_path: Path):
    assert inclusion_probabilities([5.0, 1.0, 1.0, 1.0], 2).tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    run = dreamed(tmp_path / "run")
    few, more = ({one.episode.id: one for one in label.candidates(run, n)} for n in (8, 30))
    assert few.keys() <= more.keys() and all(more[name].probability >= few[name].probability for name in few)
    kinds = [one.episode.success for one in label.candidates(run, 30)]
    assert kinds == sorted(kinds, reverse=True) and len({*kinds}) == 2


def test_a_draw_of_everything_gives_the_plain_rate(tmp_path: Path):
    run = dreamed(tmp_path / "run")
    shown = label.candidates(run, 1000)
    claims = [one for one in shown if one.claim == "success"]
    label.store(run, shown, {one.episode.id: "wrong" if i < 3 else "right" for i, one in enumerate(claims)})
    found = label.labelled(run)
    assert found is not None and (RunDir.view(run).summary() or {})["labelled"] == found
    assert found["false_success_among_accepted"]["value"] == pytest.approx(3 / len(claims))
    assert found["false_success_among_accepted"]["n"] == len(claims)


def test_a_larger_draw_enters_the_rate_when_all_of_it_is_answered(tmp_path: Path):
    run = dreamed(tmp_path / "run")
    few, more = label.candidates(run, 8), label.candidates(run, 1000)
    label.store(run, few, {one.episode.id: "right" for one in few})
    before, probabilities = label.labelled(run), {name: one["probability"] for name, one in label.labels(run).items()}
    asked = [one for one in more if one.episode.id not in probabilities]
    for one in asked[:-1]:
        label.store(run, more, {one.episode.id: "wrong"})
    during, kept = label.labelled(run), label.labels(run)
    assert before and during and during["pending"] == len(asked) - 1
    assert during["false_success_among_accepted"] == before["false_success_among_accepted"]
    assert {name: kept[name]["probability"] for name in probabilities} == probabilities
    label.store(run, few, {few[0].episode.id: "right"})
    label.store(run, more, {asked[-1].episode.id: "wrong"})
    claims = [one for one in label.labels(run).values() if one["claim"] == "success"]
    after = label.labelled(run)
    assert after and after["pending"] == 0
    assert after["false_success_among_accepted"]["value"] == pytest.approx(sum(one["answer"] == "wrong" for one in claims) / len(claims))
    label.store(run, few, {few[0].episode.id: "right"})
    assert label.labelled(run) == after, "a smaller draw takes nothing back"


def test_answers_of_another_draw_than_was_exported_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run, file = dreamed(tmp_path / "run"), tmp_path / "ask.jsonl"
    assert command(monkeypatch, capsys, "label", run, "--n", 8, "--export", file)[0] == 0
    file.write_text(file.read_text().replace('"answer": ""', '"answer": "right"'))
    code, _, err = command(monkeypatch, capsys, "label", run, "--n", 30, "--import", file)
    assert code == 2 and "Line 1" in err and "is of a draw of 8, and not of 30" in err and not label.labels(run)
    assert command(monkeypatch, capsys, "label", run, "--n", 8, "--import", file)[0] == 0


def test_labels_are_exported_filled_in_and_read_back_and_asked_for_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run, file = dreamed(tmp_path / "run"), tmp_path / "ask.jsonl"
    assert command(monkeypatch, capsys, "label", run, "--n", 10, "--export", file)[0] == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**row, "answer": "right"}) + "\n" for row in rows))
    code, out, err = command(monkeypatch, capsys, "label", run, "--n", 10, "--import", file)
    assert code == 0 and "false among claimed successes" in out, err
    assert len(label.labels(run)) == len(rows) and label.export(run, file, 10) == 0


def test_answers_in_the_terminal_are_stored_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    run, said = dreamed(tmp_path / "run"), iter(["wrong", "perhaps", "s", "quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(said))
    code, out, _ = command(monkeypatch, capsys, "label", run)
    assert code == 0 and "the dream claims: success" in out
    assert [one["answer"] for one in label.labels(run).values()] == ["wrong", "skip"]


def test_judged_claims_are_probes_of_a_verifier_and_skipped_ones_and_failures_are_not(tmp_path: Path):
    run = dreamed(tmp_path / "run")
    shown = label.candidates(run, 1000)
    claims = [one for one in shown if one.claim == "success"]
    answers = {one.episode.id: ("wrong", "right", "skip")[i % 3] for i, one in enumerate(claims)}
    label.store(run, shown, answers | {one.episode.id: "wrong" for one in shown if one.claim == "failure"})  # type: ignore[arg-type]
    probes = labelled_claims(run)
    assert [(p.episode.id, p.real_success) for p in probes] == [(k, v == "right") for k, v in answers.items() if v != "skip"]
    inputs = VerifierInputs(rules=corridor.make().rules, logs=collect(corridor.make(), 80, seed=1), checkpoint=tmp_path / "verifier")
    assert learned.fit(inputs, labels=str(run))["labels"] == len(probes)
    held = probes[0].episode.task.id
    assert [p.episode.id for p in labelled_claims(run, lambda task: task.id == held)] == [
        p.episode.id for p in probes if p.episode.task.id != held
    ], "nothing is learned of tasks that the run is judged by"
    assert "labels" in learned.fit(inputs) and (tmp_path / "verifier").is_dir()


@pytest.mark.parametrize(("has_env", "setting"), [(False, "eval.uncertified_dreams"), (True, "eval.paired_replays")])
def test_a_run_without_dreams_names_the_setting_that_keeps_some(has_env: bool, setting: str, tmp_path: Path):
    with RunDir.open(tmp_path / "run", "seed = 0\n") as run:
        run.mark("logs", {"has_env": has_env})
    with pytest.raises(RunDirError, match=f"keeps no dreamed episodes to label. Finish the run with {setting} above 0"):
        label.candidates(tmp_path / "run", 3)


def test_labels_that_do_not_fit_the_run_are_named(tmp_path: Path):
    run = dreamed(tmp_path / "run")
    with pytest.raises(RunDirError, match="has no labels. Judge its dreams with: dreamgym label"):
        labelled_claims(run)
    shown = label.candidates(run, 1000)
    claim = next(one for one in shown if one.claim == "success")
    label.store(run, shown, {claim.episode.id: "wrong"})
    (run / "episodes" / "uncertified-dream.jsonl").write_text("")
    with pytest.raises(RunDirError, match="which the run does not keep"):
        labelled_claims(run)


@pytest.mark.parametrize(
    ("line", "reason"),
    [("{", "not JSON"), ('{"episode": "x"}', "no episode 'x'"), ('{"episode": "ID", "answer": "yes"}', "the answer is 'yes'")],
)
def test_a_bad_line_is_named_and_nothing_is_stored(
    line: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run, file = dreamed(tmp_path / "run"), tmp_path / "bad.jsonl"
    name = label.candidates(run, 40)[0].episode.id
    file.write_text("\n" + line.replace("ID", name))
    code, _, err = command(monkeypatch, capsys, "label", run, "--import", file)
    assert code == 2 and "Line 2" in err and reason in err and not label.labels(run)
