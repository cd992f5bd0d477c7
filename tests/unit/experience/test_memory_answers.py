"""Which kinds of actions the nearest memory answers: what predicts more of the validation steps, and never a reward or an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from dreamgym import plugins
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.memory_answers import MemoryAnswers, ValidationStep, account, choose, sentence
from dreamgym.experience.models.no_model import NoModel
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import ModelInputs
from dreamgym.logs.demonstrations import collect
from dreamgym.recipes.factory import open_replay
from dreamgym.types import Query


def steps(kind: str, model: int, memory: int, n: int, *, episode: int = 0) -> list[ValidationStep]:
    """`n` steps of a kind, the first so many of them right."""
    return [ValidationStep(episode + i, kind, i < model, i < memory) for i in range(n)]


def test_of_every_kind_the_better_of_both_answers():
    assert choose([*steps("look", 2, 9, 10), *steps("open", 9, 2, 10)]) == {"look"}


def test_a_kind_with_few_steps_leans_towards_the_mean_of_all_kinds():
    better = steps("look", 0, 20, 20)
    assert choose([*better, *steps("open", 1, 0, 1)]) == {"look", "open"}, "one step says less than three of the mean"
    assert choose([*better, *steps("open", 9, 0, 9)]) == {"look"}


def test_kinds_that_pay_or_end_are_left_to_the_model_and_the_share_of_the_choice_is_of_other_episodes():
    measured = [*steps("done", 0, 10, 10), *steps("look", 0, 10, 10, episode=20)]
    record = account(measured, {"done"})
    assert record == {"kinds": ["look"], "steps": 20, "model": 0.0, "memory": 1.0, "chosen": 0.5}
    alone = account([ValidationStep(0, "look", False, True)], ())
    assert alone["kinds"] == ["look"] and alone["chosen"] == 0.0, "of one episode no other one says what to choose"
    assert "memory answers look" in sentence(record) and "the model answers all kinds" in sentence(account([], ()))


@given(st.lists(st.builds(ValidationStep, st.integers(0, 4), st.sampled_from("abc"), st.booleans(), st.booleans()), max_size=40))
def test_what_is_chosen_is_never_a_kind_of_which_no_step_was_seen_or_which_pays(measured: list[ValidationStep]):
    record = account(measured, {"c"})
    assert set(record["kinds"]) <= {step.kind for step in measured} - {"c"}
    assert record["steps"] == len(measured) and (record["chosen"] is None) == (not measured)


@dataclass
class OneAnswer:
    """A control that gives the same answer to every query."""

    said: Answer
    asked: list[Query] = field(default_factory=list)

    def from_memory(self, queries: Sequence[Query]) -> list[Answer]:
        self.asked += queries
        return [self.said] * len(queries)


def test_memory_is_asked_for_its_kinds_alone_and_an_answer_that_pays_or_ends_is_left_to_the_model():
    suite = plugins.make("envs", "corridor")
    episode = suite.demonstrate(suite.tasks("train", 1)[0], "expert", seed=0)
    first = episode.transitions[0]
    query = Query(episode.task, (), first.state, "left")
    kind = suite.rules.action_kind(first.state, "left")
    control = OneAnswer(Answer("", "room 1 of 4", 0.0, False))
    asked = [query, replace(query, action="open"), query]
    answers = MemoryAnswers(control, frozenset({kind}), suite.rules).answer(asked)
    assert answers == [control.said, None, control.said] and control.asked == [query, query]
    for said in (Answer("", "room 1 of 4", 1.0, False), Answer("", "room 1 of 4", 0.0, True)):
        assert MemoryAnswers(OneAnswer(said), frozenset({kind}), suite.rules).answer([query]) == [None]


def test_in_a_dream_memory_answers_its_kinds_under_the_guard_and_the_model_the_others():
    suite = plugins.make("envs", "webshop")
    logs = collect(suite, 100, seed=0)

    def model(**settings: bool) -> NoModel:
        inputs = ModelInputs(Guard(suite.rules, GuardConfig()), open_replay(None, logs), logs)
        made = plugins.make("experience.models", "no_model", inputs=inputs, recall=False, **settings)
        assert isinstance(made, NoModel)
        made.answers_by = "generated"  # in the place of a fitted model
        return made

    dream = model()
    dream.memory_answers = MemoryAnswers(model(), frozenset({"search"}), suite.rules)
    queries = [
        Query(episode.task, episode.transitions[:i], step.state, step.action)
        for episode in collect(suite, 20, seed=3, split="dev")
        for i, step in enumerate(episode.transitions)
    ]
    answered = list(zip(queries, dream.predict(queries), strict=True))
    by_memory = [query for query, one in answered if one.info.decided_by == "composed"]
    generated = [query for query, one in answered if one.info.decided_by == "generated"]
    kinds = {suite.rules.action_kind(query.state, query.action) for query in generated}
    assert {suite.rules.action_kind(query.state, query.action) for query in by_memory} == {"search"}
    assert kinds and "search" not in kinds and dream.counts["from_nearest"] == len(by_memory) > 0
