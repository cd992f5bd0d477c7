"""Teacher-forced fidelity: worked by hand on a corridor, whose truth is known, and on the shop, whose pages are long."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from corridor_dynamics import transition_table
from predictions import predicted

from dreamgym import cli
from dreamgym.envs import corridor, webshop
from dreamgym.envs.base import EnvSuite
from dreamgym.envs.corridor import CorridorRules, read_goal
from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.wrappers.without_rules import StateMapping
from dreamgym.evals import near_misses
from dreamgym.evals.one_step import Question, ahead, apply_guard, draw_questions, f1, forecast, known_parts, measure, parts_of
from dreamgym.experience.guard import Guard, SecondOpinion
from dreamgym.experience.pipeline import Unreadable, prediction
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes import fidelity as recipe
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import wilson
from dreamgym.types import Prediction, Query, Transition, Verdict

SHOP = webshop.make()
CORRIDOR = corridor.make(length=4)
FAMILIES: dict[str, EnvSuite] = {"corridor": CORRIDOR, "webshop": SHOP}


def questions_of(suite: EnvSuite, n: int = 30, *, misses: float = 0.5) -> list[Question]:
    real = EnvPool(suite.env, suite.rules)
    return draw_questions(collect(suite, n, seed=5, split="dev"), real, suite.rules, misses=misses, seed=1)[0]


def told(question: Question, state: str | None = None, reward: float | None = None, terminated: bool | None = None) -> Prediction:
    """The truth, or what is said in its place."""
    truth = question.truth
    return predicted(
        truth.next_state if state is None else state,
        truth.reward if reward is None else reward,
        truth.terminated if terminated is None else terminated,
    )


# --- near misses -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_near_miss_is_what_the_real_environment_refuses_and_comes_in_three_ways(name: str):
    suite = FAMILIES[name]
    episodes = collect(suite, 40, seed=5, split="dev")
    drawn = near_misses.draw(episodes, EnvPool(suite.env, suite.rules), suite.rules, share=0.5, seed=0)
    assert {one.way for one in drawn.misses} == {"letter", "elsewhere", "grammar"} and drawn.lost == 0
    steps = sum(len(episode.turns) for episode in episodes)
    assert 0.4 * steps < len(drawn.misses) + drawn.took_effect < 0.6 * steps
    env = suite.env()
    for one in drawn.misses[:40]:
        episode = episodes[one.episode]
        state = suite.rules.abstract(env.reset(episode.task))
        for past in episode.transitions[: one.step]:
            state = suite.rules.abstract(env.step(past.action)[0])
        raw, reward, terminated = env.step(one.truth.action)
        assert (suite.rules.abstract(raw), reward, terminated) == (state, 0.0, False)


def test_the_same_seed_draws_the_same_near_misses_and_another_seed_others():
    episodes = collect(SHOP, 10, seed=5, split="dev")
    real = EnvPool(SHOP.env, SHOP.rules)
    one, same, other = (near_misses.draw(episodes, real, SHOP.rules, share=0.5, seed=seed) for seed in (0, 0, 1))
    assert one == same != other


def test_an_action_that_works_after_all_is_dropped_and_counted():
    """Nothing is invalid where every action moves on: the label is the environment's, not the generator's."""

    class Obliging(corridor.Corridor):
        def step(self, action: str):
            return super().step(action if action in corridor.ACTIONS else "open")

    episodes = collect(CORRIDOR, 20, seed=5)
    real = EnvPool(lambda: Obliging(CORRIDOR.config), CORRIDOR.rules)
    drawn = near_misses.draw(episodes, real, CORRIDOR.rules, share=1.0, seed=0)
    assert drawn.took_effect > 0 and drawn.lost > 0 and all(one.truth.action in corridor.ACTIONS for one in drawn.misses)


# --- parts and their F1 ----------------------------------------------------------------------------------------------------------------


def test_a_page_consists_of_items_with_what_is_said_of_them_of_facts_and_of_buttons():
    results = "results 1\n[b017] $12 red mug\n[b020] $9 blue mug\n[next >][back to search]"
    assert parts_of(results) == ("results 1", "[b017] $12 red mug", "[b020] $9 blue mug", "[next >]", "[back to search]")
    assert parts_of("item $12 mug\ncolor: [red][blue]\nchosen [red]") == ("item $12 mug", "color", "[red]", "[blue]", "chosen [red]")
    assert parts_of("room 2 of 4\n[left] [right]") == ("room 2 of 4", "[left]", "[right]") and parts_of("") == ()


def test_f1_as_worked_by_hand():
    assert f1("a\n[b] [c]", "a\n[b] [d]") == pytest.approx(2 * 2 / 6)
    assert f1("[b] [b]", "[b] [c]") == pytest.approx(2 * 1 / 4)  # counted as often as it stands there
    assert f1("a", "a") == 1.0 and f1("a", "") == 0.0 and f1("", "") == 1.0


# --- measures --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_who_says_the_truth_makes_no_mistake_with_and_without_a_guard(name: str):
    suite = FAMILIES[name]
    questions = questions_of(suite)
    truth = [told(question) for question in questions]
    for said in (truth, apply_guard(Guard(suite.rules), questions, truth)):
        found = measure(questions, said, known=set())
        assert found.state_exact.value == found.state_exact_valid.value == found.state_exact_invalid.value == found.element_f1.value == 1.0
        assert found.false_success.value == found.false_failure.value == found.false_end.value == found.reward_error.value == 0.0
        assert found.unknown_elements.value == 0.0 and found.false_success.n > 0 and found.false_failure.n > 0
        assert sum(sum(row.values()) for row in found.confusion.values()) == len(questions)


def test_what_memory_answers_is_not_reviewed_as_in_a_dream():
    class Refuses:
        def verify(self, cases: Sequence[tuple[str, Sequence[Transition], Transition]]) -> list[Verdict | None]:
            return [Verdict("refused") for _ in cases]

    questions = [q for q in questions_of(CORRIDOR) if q.truth.terminated and q.truth.reward]
    truth = [told(question) for question in questions]
    guard = Guard(StateMapping(CORRIDOR.rules), second=SecondOpinion(Refuses(), "zero"))
    assert all(one.reward == 0.0 for one in apply_guard(guard, questions, truth))
    assert apply_guard(guard, questions, truth, [True] * len(truth)) == truth


def test_the_rates_of_wrong_predictions_as_worked_by_hand():
    questions = questions_of(CORRIDOR, 40)
    won = next(q for q in questions if q.truth.terminated and q.truth.reward)
    lost = next(q for q in questions if q.truth.terminated and not q.truth.reward)
    walked = next(q for q in questions if q.valid and not q.truth.terminated)
    refused = next(q for q in questions if q.near_miss)
    said = [
        (won, told(won, reward=0.0)),  # a false failure
        (won, told(won, terminated=False)),  # and another
        (won, told(won)),
        (lost, told(lost, reward=1.0)),  # a false success
        (walked, told(walked, state="room 9 of 4\n[fly]", terminated=True)),  # an end that is none, on a page that is nowhere
        (refused, told(refused, state="room 3 of 4\n[left] [right] [open]")),
    ]
    found = measure([q for q, _ in said], [one for _, one in said], known=known_parts(["room 3 of 4\n[left] [right] [open] [take]"]))
    assert (found.false_failure.value, found.false_failure.n) == (pytest.approx(2 / 3), 3)
    assert (found.false_success.value, found.false_success.n) == (1.0, 1)
    assert (found.false_end.value, found.false_end.n) == (1 / 2, 2)
    assert (found.state_exact_valid.value, found.state_exact_valid.n) == (4 / 5, 5)
    assert (found.state_exact_invalid.value, found.state_exact_invalid.n) == (0.0, 1)
    assert found.reward_error.value == pytest.approx(2 / 6)
    assert found.unknown_elements.value * found.unknown_elements.n == pytest.approx(2)  # "room 9 of 4" and "[fly]"
    assert found.confusion["success"] == {"success": 1, "failure": 1, "goes on": 1, "left out": 0}


def test_the_steps_of_an_episode_are_one_cluster_and_the_difference_of_two_predictors_is_of_the_same_steps():
    questions = [q for q in questions_of(CORRIDOR, 40) if q.valid]
    truth = [told(q) for q in questions]
    wrong = [told(q, state="room 9 of 4\n[fly]") if q.query.stream[1] % 2 else told(q) for q in questions]
    found = measure(questions, wrong, known=set()).state_exact_valid
    independent = wilson(found.value * found.n, found.n)
    assert found.n == len(questions) and found.high - found.low > 1.2 * (independent.high - independent.low)
    difference = ahead(questions, wrong, truth)
    assert difference.value == pytest.approx(found.value - 1) and difference.high is not None and difference.high < 0
    assert difference.n == len(questions)


def test_an_answer_that_cannot_be_read_is_never_right_though_it_leaves_the_state_alone():
    asked = questions_of(corridor.make(length=6))
    found = measure(asked, [prediction(question.query, Unreadable("?"), ()) for question in asked], known=())
    assert any(q.near_miss for q in asked) and found.unreadable == len(asked)
    assert found.state_exact_invalid.value == found.state_exact.value == found.element_f1.value == 0.0
    assert found.reward_error.n == 0, "what was not said has no error"


def test_masked_successes_are_in_no_rate_but_the_share_left_out_and_false_failure_at_most():
    ended = [q for q in questions_of(SHOP, 60) if q.truth.terminated and not q.near_miss]
    wins = sum(q.truth.reward > 0 for q in ended)
    true = [told(q, reward=q.truth.reward, terminated=True) for q in ended]
    masked = [replace(one, info=replace(one.info, verdict=Verdict("masked"))) if one.reward else one for one in true]
    found = measure(ended, masked, known=set())
    assert 0 < wins < len(ended) and found.false_failure.n == 0
    assert (found.false_failure_at_most.value, found.false_failure_at_most.n) == (1.0, wins)
    assert found.masked_share == wilson(wins, len(ended))
    assert measure(ended, true, known=set()).false_failure_at_most.value == 0.0


def test_the_guard_answers_near_misses_and_refuses_what_the_page_does_not_show():
    questions = questions_of(SHOP, 60)
    optimist = [told(q, state="purchase done", reward=1.0, terminated=True) for q in questions]
    bare, guarded = (
        measure(questions, optimist, known=set()),
        measure(questions, apply_guard(Guard(SHOP.rules), questions, optimist), known=set()),
    )
    assert bare.false_success.value == 1.0 and bare.state_exact_invalid.value == 0.0
    assert guarded.false_success.value == 0.0 and guarded.state_exact_invalid.value == 1.0 and guarded.false_failure.value == 0.0


def test_actions_are_sorted_by_what_they_are_for():
    kinds = {q.kind for q in questions_of(SHOP, 60) if q.valid and not q.near_miss}
    assert kinds == {"search", "open item", "option", "purchase", "other"}
    assert {q.kind for q in questions_of(CORRIDOR, 60) if q.valid and not q.near_miss} == {"left", "right", "take", "open"}


# --- forecasts -------------------------------------------------------------------------------------------------------------------------


class Oracle:
    """Knows the corridor, and notes in which order it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[tuple[int, ...]]] = []

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        self.asked.append([query.stream for query in queries])
        return [self._predict(query) for query in queries]

    def _predict(self, query: Query) -> Prediction:
        goal = read_goal(query.task.instruction)
        assert goal is not None and query.task.goal is not None
        table = transition_table(CORRIDOR, [query.task])
        outcomes = table.get((query.task.instruction, query.state.text, query.action))
        state, reward, end = (outcomes[0].state, outcomes[0].reward, outcomes[0].terminated) if outcomes else (query.state.text, 0.0, False)
        return predicted(state, reward, end)


def test_every_step_is_asked_from_its_true_history_side_by_side_and_a_near_miss_before_what_was_really_done():
    questions, oracle = questions_of(CORRIDOR, 25), Oracle()
    answers = forecast(oracle, questions, batch=10)
    assert [one.next_state for one in answers] == [q.truth.next_state for q in questions]
    assert all(q.query.history == () or q.query.history[-1].next_state == q.query.state for q in questions)
    assert max(len(keys) for keys in oracle.asked) <= 10 and all(len(set(keys)) == len(keys) for keys in oracle.asked)
    seen = [key for keys in oracle.asked for key in keys]
    twice = [key for key in seen if seen.count(key) == 2]
    assert len(set(twice)) == sum(q.near_miss for q in questions)


def test_the_safe_horizon_is_the_last_step_up_to_which_nine_in_ten_episodes_are_right():
    questions = [q for q in questions_of(CORRIDOR, 60) if not q.near_miss]
    first = sorted({q.query.stream[1] for q in questions if q.query.stream[2] == 2})[0]

    def said(wrong: set[tuple[int, int]]) -> list[Prediction]:
        return [told(q, state="nowhere") if (q.query.stream[1], q.query.stream[2]) in wrong else told(q) for q in questions]

    longest = max(q.query.stream[2] for q in questions) + 1
    right = measure(questions, said(set()), known=set())
    assert right.agreement == [1.0] * longest and right.safe_horizon == longest
    at_step_2 = {q.query.stream[1] for q in questions if q.query.stream[2] == 2}
    one = measure(questions, said({(first, 2), (first, 3)}), known=set())
    assert one.agreement[1] == 1.0 and one.agreement[2] == pytest.approx(1 - 1 / len(at_step_2))
    worse = measure(questions, said({(episode, 2) for episode in at_step_2}), known=set())
    assert worse.agreement == [1.0, 1.0, 0.0] and worse.safe_horizon == 2


# --- what can be known  ------------------------------------------------------------------------------------------


def test_what_a_page_shows_can_be_known_from_history_or_from_a_log_of_the_same_action():
    questions = questions_of(SHOP)
    valid = [q for q in questions if q.valid]
    said = [told(q) for q in questions]
    alone = measure(questions, said, known=set()).state_exact_knowable.n
    kinds = {"option", "other", "search", "open item"}
    assert 0 < alone < sum(q.kind in kinds for q in valid)
    logged = {(q.query.action, q.truth.next_state.text) for q in valid if q.kind == "search"}
    found = measure(questions, said, known=set(), logged=logged).state_exact_knowable
    assert alone + len(logged) <= found.n <= alone + sum(q.kind == "search" for q in valid) and found.value == 1.0


# --- the command -----------------------------------------------------------------------------------------------------------------------


def test_held_out_episodes_share_no_task_with_training_and_hold_both_ends():
    episodes = recipe.held_out_episodes(SHOP, 60, seed=3)
    training = {task.instruction for task in SHOP.tasks("train", 5000)}
    assert len(episodes) == 60 and not training & {episode.task.instruction for episode in episodes}
    wins = sum(episode.success for episode in episodes)
    assert 15 < wins < 55


def test_the_command_prints_what_was_measured_on_held_out_transitions_and_measures_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rate = {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    side = dict.fromkeys(("dream_success", "real_success", "state_exact", "state_exact_valid", "state_exact_invalid"), rate)
    side |= dict.fromkeys(("false_success", "false_failure", "raw_false_success", "consistency"), rate)
    bound = {"reward_error": rate, "transition_error": rate, "success_gap": 0.1, "gamma": 0.99, "theorem": 9.0, "vacuous": ["theorem"]}
    side |= dict.fromkeys(("masked_share", "false_failure_at_most", "accepted_false", "premature_failure", "state_exact_generated"), rate)
    by = dict.fromkeys(("rule", "recalled", "composed", "generated"), 0.25)
    side |= {"decided_by": {"states": by, "rewards": by}}
    audit = side | {"unreadable": 0, "masked": 0, "gap": 0.0, "first_divergence": None, "bound": bound}
    audit |= dict.fromkeys(("in_support", "out_of_support"), audit | {"share": rate})
    path = tmp_path / "run"
    with RunDir.open(path, "seed = 0\n") as run:
        run.mark("audit", {"with_guard": audit, "without_guard": audit, "no_model": audit})
        run.mark("experience", {})
    questions = questions_of(CORRIDOR)
    truth = measure(questions, [told(q) for q in questions], known=set()).to_json()
    asked: list[int] = []

    def measured(context: object, n: int, **_: object) -> dict:
        asked.append(n)
        counts = {"episodes": n, "transitions": 9, "near_misses": 4, "split": "dev"}
        return {"held_out": counts | {"with_guard": truth, "without_guard": truth},
                "no_model": {"with_guard": truth, "without_guard": truth}}  # fmt: skip

    monkeypatch.setattr(recipe, "measure_context", measured)
    monkeypatch.setattr(recipe, "open_context", lambda path: None)
    call = calling(monkeypatch, capsys)
    assert json.loads(call(path, "--json"))["held_out"] is None and "not measured yet" in call(path)
    found = json.loads(call(path, "--held-out", "30", "--json"))
    assert found["held_out"]["with_guard"]["state_exact_valid"]["value"] == 1.0
    assert found["held_out"]["with_guard"]["terminals"]["real_failures"] > 0 and found["held_out_no_model"]["without_guard"]["false_end"]
    assert json.loads(call(path, "--held-out", "30", "--json")) == json.loads(call(path, "--json")) == found and asked == [30]
    assert "elsewhere" in call(path) and "30 held-out episodes" in call(path)


def calling(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`dreamgym fidelity` with these arguments, and what it prints."""

    def call(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["dreamgym", "fidelity", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        return capsys.readouterr().out

    return call


def test_domains_that_sort_no_actions_are_sorted_by_their_verbs():
    assert isinstance(CORRIDOR.rules, CorridorRules) and not hasattr(CORRIDOR.rules, "kind")
