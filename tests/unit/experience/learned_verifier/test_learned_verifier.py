"""The learned verifier: what it makes of good and of poor logs, which claims it sends to the real environment, and what probes repair."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shop_claims import LOGS, OTHERS, SHOP

from dreamgym.errors import RunDirError, UsageError
from dreamgym.experience.learned_verifier.calibration import Calibration, CalibrationConfig
from dreamgym.experience.learned_verifier.cases import scored_episodes
from dreamgym.experience.learned_verifier.verifier import LearnedVerifier, Probe, draw_probes, fit_verifier, prepare
from dreamgym.protocols import Verifier
from dreamgym.types import Observation, RewardBy, StepInfo, Task, Trajectory, Transition, Turn

CONFIG = CalibrationConfig()
CLAIMS = [
    replace(t, turns=(*t.turns[:-1], replace(t.turns[-1], transition=replace(t.transitions[-1], reward=1.0))))
    for t in scored_episodes(OTHERS)
]


def kinds(verifier: Verifier, claims: list[Trajectory]) -> list[str]:
    cases = [(t.task.instruction, t.transitions[:-1], t.transitions[-1]) for t in claims]
    return [verdict.kind for verdict in verifier.verify(cases) if verdict is not None]


@pytest.fixture(scope="module")
def verifier() -> LearnedVerifier:
    return fit_verifier(prepare(LOGS, SHOP.rules, seed=0), CONFIG)


def test_it_keeps_most_true_claims_of_other_tasks_and_accepts_few_false_ones(verifier: LearnedVerifier):
    found = kinds(verifier, CLAIMS)
    accepted = {kind: np.mean([f == "passed" for f, t in zip(found, CLAIMS, strict=True) if t.success is kind]) for kind in (True, False)}
    assert accepted[True] > 0.6 and accepted[False] < 0.2
    assert "refused" in found and verifier.calibration.status == "uncertified under policy shift: calibrated on logs"


def test_claims_of_no_success_pass_and_the_answers_keep_their_order(verifier: LearnedVerifier):
    failures = [replace(t, turns=OTHERS[0].turns) for t in CLAIMS[:1]]
    failures = [
        replace(t, turns=(*t.turns[:-1], replace(t.turns[-1], transition=replace(t.transitions[-1], reward=0.0)))) for t in failures
    ]
    assert kinds(verifier, [*failures, CLAIMS[3], *failures]) == ["passed", *kinds(verifier, [CLAIMS[3]]), "passed"]
    assert verifier.verify([]) == []


def test_a_saved_verifier_gives_the_same_verdicts_and_a_damaged_one_is_named(verifier: LearnedVerifier, tmp_path: Path):
    verifier.save(tmp_path / "verifier")
    loaded = LearnedVerifier.load(tmp_path / "verifier")
    assert kinds(loaded, CLAIMS) == kinds(verifier, CLAIMS) and loaded.calibration == verifier.calibration
    (tmp_path / "verifier" / "calibration.json").write_text("{}")
    with pytest.raises(RunDirError, match=r"calibration\.json"):
        LearnedVerifier.load(tmp_path / "verifier")


def test_logs_without_failures_still_give_a_verifier_that_is_not_certified():
    found = fit_verifier(prepare([t for t in LOGS if t.success], SHOP.rules, seed=0), CONFIG)
    assert found.calibration.status == "not certified: too few logged failures, calibrated on constructed ones"
    assert any("Only 0 logged failures" in message for message in found.messages)
    assert {"passed", "masked"} & set(kinds(found, CLAIMS))


def test_logs_of_one_policy_are_said_to_be_of_one_policy():
    found = fit_verifier(prepare([replace(t, behaviour="agent") for t in LOGS], SHOP.rules, seed=0), CONFIG)
    assert found.calibration.negatives == "episodes" and "one behaviour policy" in found.messages[0]


def test_logs_without_outcomes_or_without_successes_are_refused_with_the_way_out():
    with pytest.raises(UsageError, match=r"none of them has an outcome.*dreamgym import"):
        fit_verifier(prepare([replace(t, scored=False) for t in LOGS], SHOP.rules, seed=0), CONFIG)
    with pytest.raises(UsageError, match="none of them ends in a success"):
        fit_verifier(prepare([t for t in LOGS if not t.success], SHOP.rules, seed=0), CONFIG)


def test_unscored_episodes_are_counted_and_left_out():
    found = fit_verifier(prepare([*LOGS, replace(LOGS[0], id="unknown", scored=False)], SHOP.rules, seed=0), CONFIG)
    assert found.messages[0].startswith("1 logged episode has no outcome")


def test_a_claim_that_shows_what_no_log_has_is_masked_however_well_it_reads(verifier: LearnedVerifier):
    good = CLAIMS[kinds(verifier, CLAIMS).index("passed")]
    last = replace(good.transitions[-1], next_state=Observation("\n".join(f"a purple moon {i}" for i in range(9))))
    assert kinds(verifier, [replace(good, turns=(*good.turns[:-1], Turn(last)))]) == ["masked"]


def task_episode(task: int, again: int, *, success: bool) -> Trajectory:
    """One step of a task whose answer has three lines that only its own episodes have, and a line that decides."""
    lines = [f"{part} of customer {task}" for part in ("name", "address", "order")]
    answer = Observation("\n".join([*lines, "sent" if success else "lost"]))
    step = Transition(Observation("ready"), "send()", answer, float(success), True)
    return Trajectory(f"{task}/{again}", Task(f"t{task}", f"send parcel {task}", "toy"), "demo", (Turn(step),), success)


def test_true_claims_of_a_new_task_are_in_support_where_every_logged_task_has_lines_of_its_own():
    logs = [task_episode(task, again, success=again < 3) for task in range(40) for again in range(5)]
    found = fit_verifier(prepare(logs, SHOP.rules, seed=0), CONFIG)
    assert found.most_novel == 3 and found.true_positive_rate.value > 0.9 and found.true_positive_rate.n == 120
    new = [task_episode(task, 0, success=True) for task in range(100, 120)]
    assert set(kinds(found, new)) == {"passed"}
    strange = replace(new[0].transitions[0], next_state=Observation("\n".join([new[0].transitions[0].next_state.text, "a", "b"])))
    assert kinds(found, [replace(new[0], turns=(Turn(strange),))]) == ["masked"]


def test_a_verifier_that_accepts_few_logged_successes_of_left_out_tasks_says_so():
    rng = random.Random(0)
    logs = [task_episode(task, again, success=rng.random() < 0.5) for task in range(40) for again in range(5)]
    blind = [replace(t, turns=(Turn(replace(t.transitions[0], next_state=Observation("sent"))),)) for t in logs]  # the text decides nothing
    found = fit_verifier(prepare(blind, SHOP.rules, seed=0), CONFIG)
    assert found.true_positive_rate.value < 0.5 and any(
        "of real successes on new tasks it may pay for as few" in message for message in found.messages
    )


def test_enough_refuted_probes_certify_and_their_own_verdicts_are_out_of_sample(verifier: LearnedVerifier):
    probes = [Probe(t, t.success, 1.0) for t in CLAIMS]
    refuted = sum(not p.real_success for p in probes)
    assert refuted >= 45
    found = fit_verifier(prepare(LOGS, SHOP.rules, seed=0), CONFIG, probes=probes)
    assert (found.calibration.negatives, found.calibration.n) == ("probes", refuted)
    assert found.calibration.status.startswith("certified at ")
    acted = fit_verifier(
        prepare(LOGS, SHOP.rules, seed=0), CONFIG, probes=[replace(p, episode=replace(p.episode, source="real")) for p in probes]
    )
    assert acted.calibration == replace(found.calibration, negatives="rollouts"), "real episodes of the policy say nothing of dreams"


def test_a_verifier_that_may_refuse_true_claims_accepts_fewer_false_ones_and_takes_confirmed_probes_where_there_are_enough():
    logs, judged = prepare(LOGS, SHOP.rules, seed=0), [Probe(t, t.success, 1.0) for t in CLAIMS[:60]]
    confirmed = sum(p.real_success for p in judged)
    assert 20 <= confirmed < 60
    for probes in ([], judged):
        lenient, strict = (fit_verifier(logs, CalibrationConfig(refuse_true=share), probes=probes) for share in (0.0, 0.5))
        assert strict.calibration.accept_above > lenient.calibration.accept_above
        passed = [[kinds(one, [claim]) == ["passed"] for claim in CLAIMS] for one in (lenient, strict)]
        assert sum(passed[1]) < sum(passed[0]) and all(before or not after for before, after in zip(*passed, strict=True))


def test_claims_of_another_run_that_a_person_judged_certify_nothing(verifier: LearnedVerifier):
    labels = [Probe(t, t.success, 1.0) for t in CLAIMS]
    found = fit_verifier(prepare(LOGS, SHOP.rules, seed=0), CONFIG, labels=labels)
    assert found.calibration.status == "uncertified under policy shift: calibrated on labelled claims of another run"


def test_own_probes_certify_whatever_labels_there_are_and_labels_do_not_make_up_for_missing_ones(verifier: LearnedVerifier):
    own = [Probe(t, t.success, 1.0) for t in CLAIMS]
    labels = [replace(p, episode=replace(p.episode, id=f"label/{p.episode.id}")) for p in own]
    logs = prepare(LOGS, SHOP.rules, seed=0)
    assert fit_verifier(logs, CONFIG, probes=own, labels=labels[:30]).calibration.status.startswith("certified at ")
    few = fit_verifier(logs, CONFIG, probes=own[:30], labels=labels).calibration
    assert few.status == "uncertified under policy shift: calibrated on labelled claims of another run"


def test_refuted_probes_of_too_few_tasks_to_bound_anything_leave_the_threshold_to_the_logs(verifier: LearnedVerifier):
    false = next(t for t in CLAIMS if not t.success)
    probes = [Probe(replace(false, id=f"again/{i}"), False, 1.0) for i in range(60)]
    found = fit_verifier(prepare(LOGS, SHOP.rules, seed=0), CONFIG, probes=probes).calibration
    assert found.negatives == "policies" and found.bounded


def test_a_probe_is_scored_by_a_member_that_has_seen_no_probe_of_its_task():
    """Logs that say nothing, and probes in which a task alone decides: a member that had seen a task's other probes would know."""
    logs = [replace(bandit_episode(i, "plainly", success=i % 2 == 0), behaviour=f"agent-{i % 4}") for i in range(80)]

    def probe(i: int) -> Probe:
        task = i % 24
        episode = bandit_episode(1000 + i, f"word{task}", success=True)
        return Probe(replace(episode, task=Task(f"t{task}", f"send parcel{task}", "toy")), task % 2 == 0, 1.0)

    probes = [probe(i) for i in range(120)]
    found = fit_verifier(prepare(logs, SHOP.rules, seed=0), CONFIG, probes=probes)
    assert found.calibration.n >= 45 and found.calibration.negatives == "probes"
    own = found.scores([(p.episode.task.instruction, p.episode.transitions) for p in probes if not p.real_success]).mean(0)
    assert own.max() < -1.5 and found.calibration.accept_above > -0.5, "scored with the task's other probes, the threshold would be as low"


def test_successes_of_one_step_and_one_instruction_are_refused_because_nothing_is_false():
    alike = [bandit_episode(0, "plainly", success=True) for _ in range(4)]
    alike = [replace(t, id=f"e{i}", task=Task("t", "send the parcel", "toy")) for i, t in enumerate(alike)]
    with pytest.raises(UsageError, match=r"claims that are false.*Log failures"):
        prepare(alike, SHOP.rules, seed=0)


def test_fewer_refuted_probes_join_the_logged_failures(verifier: LearnedVerifier):
    probes = [Probe(t, t.success, 1.0) for t in CLAIMS if not t.success][:20]
    found = fit_verifier(prepare(LOGS, SHOP.rules, seed=0), CONFIG, probes=probes)
    assert found.calibration.negatives == "policies" and found.calibration.n == verifier.calibration.n + 20


def test_probes_weighted_by_their_probabilities_give_the_true_rate_of_all_claims(verifier: LearnedVerifier):
    """Drawn 60 times with unequal probabilities: the weighted number of true claims is right on average."""
    some = CLAIMS[::3]
    truth = sum(t.success for t in some)
    estimates = []
    for seed in range(60):
        drawn = draw_probes(some, verifier, 16, seed=seed, iteration=0)
        estimates.append(sum(t.success / p for t, p in drawn))
    error = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - truth) < 4 * error
    assert draw_probes([], verifier, 16, seed=0, iteration=0) == []


def test_a_stray_episode_of_another_policy_does_not_become_all_that_a_member_sees():
    stray = [replace(t, behaviour="one") for t in LOGS[1:]]
    one, two = (prepare([replace(LOGS[0], behaviour=name), *stray], SHOP.rules, seed=0) for name in ("one", "another"))
    assert [case.fold for case in one.cases] == [case.fold for case in two.cases]
    assert one.negatives == two.negatives == "episodes"
    assert "The logs are of one behaviour policy" in one.messages[0]
    assert "are of the behaviour policy 'one', and the others are too few to fit to" in two.messages[0]


def test_half_of_the_probes_go_to_claims_that_were_paid_for(verifier: LearnedVerifier):
    claims = [replace(t, success=i % 5 == 0) for i, t in enumerate(CLAIMS)]
    drawn = [t.success for seed in range(10) for t, _ in draw_probes(claims, verifier, 16, seed=seed, iteration=0)]
    assert np.mean(drawn) > 0.5 and 120 < len(drawn) < 170


def test_what_was_recalled_calibrates_nothing_because_no_verifier_is_asked_about_it(verifier: LearnedVerifier):
    def calibrated(reward_by: RewardBy) -> Calibration:
        last = [replace(t.transitions[-1], info=StepInfo(reward_by=reward_by)) for t in CLAIMS]
        dreamed = [replace(t, source="dream", turns=(*t.turns[:-1], Turn(end))) for t, end in zip(CLAIMS, last, strict=True)]
        logs, probes = prepare(LOGS, SHOP.rules, seed=0), [Probe(t, t.success, 1.0) for t in dreamed]
        return fit_verifier(logs, CONFIG, probes=probes).calibration

    assert calibrated("generated").negatives == "probes"
    assert (calibrated("recalled").negatives, calibrated("recalled").n) == ("policies", verifier.calibration.n)


def bandit_episode(i: int, words: str, *, success: bool) -> Trajectory:
    """One step: the policy writes words; success is decided by a digit of the answer that the words cannot change."""
    answer = Observation(f"sent {'7' if success else '4'} {words}")
    step = Transition(Observation("ready"), f"write[{words}]", answer, 1.0, True)
    return Trajectory(f"{words}/{i}", Task(f"t{i}", "send the parcel", "toy"), "dream", (Turn(step),), success)


def test_a_policy_that_writes_the_verifiers_favourite_words_gains_nothing_once_probes_are_in():
    """In the logs, successes happen to say "kindly"; a policy learns to say it in every claim, and fails."""
    rng = random.Random(0)

    def logged(i: int) -> Trajectory:
        success = i % 3 == 0
        words = f"{'kindly' if success or rng.random() < 0.05 else 'plainly'} item{i % 7}"
        found = bandit_episode(i, words, success=success)
        last = replace(found.transitions[0], reward=float(success))
        return replace(found, source="demo", behaviour=f"agent-{i % 4}", turns=(Turn(last),))

    logs = [logged(i) for i in range(400)]
    hacked = [bandit_episode(1000 + i, f"kindly kindly item{i % 7}", success=False) for i in range(120)]
    honest = [bandit_episode(2000 + i, f"kindly item{i % 7}", success=True) for i in range(60)]
    before = fit_verifier(prepare(logs, SHOP.rules, seed=0), CONFIG)
    gullible = before.scores([(t.task.instruction, t.transitions) for t in hacked]).mean()
    probes = [Probe(t, t.success, 0.5) for t in (*hacked[:60], *honest[:30])]
    after = fit_verifier(prepare(logs, SHOP.rules, seed=0), CONFIG, probes=probes)
    assert np.mean([kind == "passed" for kind in kinds(after, hacked[60:])]) <= 0.05
    assert np.mean([kind == "passed" for kind in kinds(after, honest[30:])]) >= 0.8
    assert after.scores([(t.task.instruction, t.transitions) for t in hacked[60:]]).mean() < gullible
