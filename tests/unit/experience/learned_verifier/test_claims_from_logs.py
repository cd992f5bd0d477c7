"""Claims with labels from logs alone, and what a head learns from them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shop_claims import LOGS, OTHERS, SHOP

from dreamgym.envs.actions import kind_of
from dreamgym.envs.tools.conversation import START, Exchange, extend
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.errors import InvariantError
from dreamgym.experience.learned_verifier import features
from dreamgym.experience.learned_verifier.cases import LABEL, constructed_claims, logged_claims, scored_episodes, write_like
from dreamgym.experience.learned_verifier.head import LabelledClaim, fit
from dreamgym.experience.learned_verifier.regression import L2
from dreamgym.experience.learned_verifier.support import KnownLines
from dreamgym.tool_calls import ToolCall
from dreamgym.types import Observation, StepInfo, Task, Trajectory, Transition, Turn


def steps(*answers: tuple[str, str]) -> tuple[Transition, ...]:
    found, state = [], "start"
    for i, (action, answer) in enumerate(answers):
        found.append(Transition(Observation(state), action, Observation(answer), 0.0, i == len(answers) - 1))
        state = answer
    return tuple(found)


def episode(name: str, *answers: tuple[str, str], success: bool = False) -> Trajectory:
    return Trajectory(name, Task(name, name, "toy"), "demo", tuple(map(Turn, steps(*answers))), success)


@given(st.text(), st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4))
def test_any_text_has_features_and_the_same_text_the_same_ones(instruction: str, answers: list[tuple[str, str]]):
    row = features.features(instruction, steps(*answers))
    assert row == features.features(instruction, steps(*answers))
    assert all(0 <= name < features.DIM for name in row) and np.isfinite(list(row.values())).all()


def test_a_number_of_the_state_is_compared_with_one_of_the_instruction():
    cheap, dear = (features.features("below 70 dollars", steps(("open[b1]", f"item ${price} lamp"), ("buy", "done"))) for price in (51, 91))
    cheaper, dearer = (features._hashed(("number", "item", order, "below")) for order in ("less", "more"))
    assert cheaper in cheap and dearer not in cheap and dearer in dear and cheaper not in dear


def test_states_that_the_model_wrote_and_lines_that_no_log_has_are_features_that_logs_do_not_have():
    walk = steps(("open[b1]", "item"), ("buy", "done"))
    dreamed = tuple(replace(step, info=StepInfo(decided_by="generated")) for step in walk)
    of_log, of_dream, of_novel = features.features("a", walk), features.features("a", dreamed), features.features("a", walk, novel=2)
    assert len(of_dream) == len(of_log) + 1  # of the end itself nothing is known
    assert len(of_novel) == len(of_log) + 2 and of_log.items() <= of_dream.items() & of_novel.items()


def test_lines_are_known_from_other_tasks_than_their_own_however_often_their_own_has_them():
    logs = [("a", steps(("look()", "one\ntwo"))), ("a", steps(("look()", "one\ntwo"))), ("b", steps(("look()", "one\nthree")))]
    known = KnownLines.of_logs(logs)
    assert [known.novel(walk, task) for task, walk in logs] == [1, 1, 1]
    assert known.novel(steps(("look()", "one\nfour")), "c") == 1 and known.novel(logs[0][1], "c") == 0
    assert KnownLines.of_arrays(known.arrays()).owners == known.owners
    turned = KnownLines(dict(reversed(known.owners.items()))).arrays()
    assert all((known.arrays()[name] == turned[name]).all() for name in turned), "the same logs give the same file"


def test_rows_put_together_give_the_products_of_their_parts():
    parts = [features.rows_of(logged_claims(LOGS[:9])), features.rows_of(logged_claims(LOGS[9:20])), features.rows_of([])]
    weights = np.random.default_rng(0).normal(size=features.DIM)
    whole = parts[0].then(parts[1]).then(parts[2])
    assert np.allclose(whole.times(weights), np.concatenate([part.times(weights) for part in parts]))
    assert np.allclose(whole.times(weights), features.rows_of(logged_claims(LOGS[:20])).times(weights))


def test_an_action_is_write_like_where_later_answers_to_the_same_action_differ():
    writes = [episode(f"w{i}", ("look()", f"{i} off"), ("turn_on()", "ok"), ("look()", f"{i} on"), ("done()", "end")) for i in range(20)]
    reads = [episode(f"r{i}", ("look()", f"{i} off"), ("wait()", "ok"), ("look()", f"{i} off"), ("done()", "end")) for i in range(20)]
    assert write_like([*writes, *reads], SHOP.rules) == {"turn_on"}
    assert write_like(reads, SHOP.rules) == frozenset()


def test_made_up_claims_differ_from_the_success_that_they_are_made_of_and_are_never_labelled_true():
    found = constructed_claims(scored_episodes(LOGS), SHOP.rules, seed=0)
    own = {t.id: (t.task.instruction, t.transitions) for t in LOGS}
    assert found and all((case.instruction, case.steps) != own[name] for name, case in found)
    assert {case.label for _, case in found} == set(LABEL.values()) and max(LABEL.values()) <= 0.1
    assert (
        found
        == constructed_claims(scored_episodes(LOGS), SHOP.rules, seed=0)
        != constructed_claims(scored_episodes(LOGS), SHOP.rules, seed=1)
    )


def test_a_success_is_cut_before_its_last_write():
    logs = [
        episode(f"e{i}", ("look()", f"{i} off"), ("turn_on()", "ok"), ("look()", f"{i} on"), ("done()", "end"), success=True)
        for i in range(20)
    ] + [episode(f"r{i}", ("look()", f"{i} off"), ("wait()", "ok"), ("look()", f"{i} off"), ("done()", "end")) for i in range(20)]
    cut = [case.steps for _, case in constructed_claims(logs, SHOP.rules, seed=0, kinds=("truncated",))]
    assert cut and all([step.action for step in one] == ["look()", "done()"] for one in cut)


def called(name: str, *answers: tuple[str, str], success: bool = False) -> Trajectory:
    """An episode of tool calls, whose states hold the conversation so far; its last call ends it."""
    state, turns = Observation(START), []
    for i, (call, answer) in enumerate(answers):
        action = f"{call}()"
        after = extend(state, Exchange((ToolCall(call, {}),), (answer,)))
        end = i == len(answers) - 1
        turns.append(Turn(Transition(state, action, after, float(success and end), end)))
        state = after
    return Trajectory(name, Task(name, name, "tools"), "demo", tuple(turns), success)


def test_in_conversations_what_is_made_up_stands_in_every_later_state_too():
    """A state holds all that came before, so that equal calls have equal states never, and a change in one place alone would be seen."""
    logs = [
        called(f"e{i}", ("look", f"{i} off"), ("turn_on", f"ok {i}"), ("look", f"{i} on"), ("done", "end"), success=True) for i in range(20)
    ] + [called(f"r{i}", ("look", f"{i} off"), ("wait", "ok"), ("look", f"{i} off"), ("done", "end")) for i in range(20)]
    rules = ToolRules("tools", [])
    assert write_like(logs, rules) == {"turn_on"}
    cut = [case.steps for _, case in constructed_claims(logs, rules, seed=0, kinds=("truncated",))]
    assert cut and all([kind_of(step.action) for step in one] == ["look", "done"] for one in cut)
    assert all(len(features.new_lines(one[-1])) == len(features.new_lines(logs[0].transitions[-1])) for one in cut)
    changed = [case.steps for _, case in constructed_claims(logs, rules, seed=0, kinds=("observation",))]
    own = {t.transitions[-1].next_state for t in logs}
    assert len(changed) == 20 and all(one[-1].next_state not in own for one in changed)
    assert all(before.next_state == after.state for one in (*cut, *changed) for before, after in pairwise(one))


def test_episodes_without_an_outcome_or_an_end_say_nothing():
    silent = [replace(LOGS[0], scored=False), replace(LOGS[1], error="lost"), replace(LOGS[2], turns=())]
    assert scored_episodes(silent) == []


def test_a_head_scores_every_case_by_the_member_that_has_not_seen_it():
    cases = [replace(case, fold=i % 3) for i, case in enumerate(logged_claims(scored_episodes(LOGS)))]
    rows = features.rows_of(cases)
    head, scores = fit(cases, rows, members=3)
    logits = head.logits(rows)
    assert np.allclose(scores, [logits[case.fold, i] for i, case in enumerate(cases)])
    rest = [case for case in cases if case.fold != 0]
    others, _ = fit(rest, features.rows_of(rest), members=4)
    assert np.allclose(head.weights[0], others.weights[3], atol=1e-4)  # the member of fold 0 used nothing of it, and nobody is in fold 3


def test_the_weights_minimise_the_penalised_loss_although_equal_columns_are_fitted_as_one():
    cases = logged_claims(scored_episodes(LOGS))
    rows = features.rows_of(cases)
    head, _ = fit(cases, rows, members=1)
    (weights,), labels = head.weights, np.array([case.label for case in cases])
    errors = (1 / (1 + np.exp(-rows.times(weights))) - labels) / len(cases)
    slope = np.bincount(rows.columns, rows.values * errors[rows.rows], minlength=features.DIM) + L2 * weights
    assert np.abs(slope).max() < 1e-6
    dense = np.zeros((rows.n, features.DIM))
    dense[rows.rows, rows.columns] = rows.values
    used = np.unique(rows.columns)
    groups = np.unique(dense[:, used], axis=1, return_inverse=True)[1].ravel()
    assert len(set(groups)) < len(used)  # some columns are equal
    assert np.allclose(weights[used], (np.bincount(groups, weights[used]) / np.bincount(groups))[groups])


def test_failures_of_other_policies_score_below_their_successes():
    """Held-out scripted policies of the shop, of which the fit saw neither tasks nor failures."""
    cases = logged_claims(scored_episodes(LOGS)) + [case for _, case in constructed_claims(scored_episodes(LOGS), SHOP.rules, seed=0)]
    head, _ = fit(cases, features.rows_of(cases), members=1)
    others = scored_episodes(OTHERS)
    scores = head.logits(features.rows_of(logged_claims(others)))[0]
    true, false = (scores[[t.success is kind for t in others]] for kind in (True, False))
    assert len(true) > 30 and len(false) > 30
    assert np.mean(true[:, None] > false[None]) > 0.9  # the area under the curve; 0.5 is chance


def test_claims_of_one_kind_alone_are_refused():
    with pytest.raises(InvariantError, match="true and claims that are false"):
        fit([LabelledClaim("a", steps(("x", "y")), 1.0)], features.rows_of([]), members=2)
