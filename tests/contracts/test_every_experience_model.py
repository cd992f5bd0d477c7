"""What every experience model promises (`experience.pipeline.ExperienceModel`). Models are discovered, and so is one outside the package.

Fitted ones have fresh weights, so that most of what they write cannot be read; a server of this process claims successes that are none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from chat_model import save_instruct_model
from fault_server import FaultServer
from outside.nearest_memory import Config, NearestMemory

from dreamgym import plugins
from dreamgym.envs import corridor
from dreamgym.errors import UsageError
from dreamgym.experience.guard import Guard
from dreamgym.experience.parse import Answer
from dreamgym.experience.pipeline import ExperienceModel, ModelInputs, Unreadable
from dreamgym.llm import backbones, tiny
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.recipes.factory import learn_tokenizer, make_vocabulary, open_replay
from dreamgym.types import Neighbour, Observation, Prediction, Query, Task, Transition

SUITE = corridor.make(length=4, keys=False)
TASKS, UNSEEN = SUITE.tasks("train", 6), SUITE.tasks("test", 3)
LOGS = [SUITE.demonstrate(task, "noisy", seed=i) for i in range(40) for task in TASKS]  # so many that precedents are believed
UNKNOWN = "room 3 of 9\n[left] [right] [open]"
"""A state that no log holds and no rule knows the answer in."""
Open = Callable[[], Any]
"""The model in a `with` block."""


def asked(action: str, *, state: str = UNKNOWN, task: Task = UNSEEN[0], history: tuple[Transition, ...] = (), episode: int = 0) -> Query:
    return Query(task, history, Observation(state), action, (3, episode, len(history)))


def reply(messages: Sequence[dict[str, Any]]) -> str:
    """An instruct model that opens every door and says that this was asked for."""
    question = messages[-1]["content"]
    if not question.startswith("{"):
        return f"{UNKNOWN.splitlines()[0]}\nthe door is open [SUCCESS]"  # a released model
    if "action" not in (told := json.loads(question)):
        return json.dumps({"task": told["task"]} if "more tasks" in told else {"state": f"the start of {told['task']}"})
    claim = {"next_state": f"{told['state'].splitlines()[0]}\nthe door is open", "reward": 1, "done": True}
    return json.dumps({"reasoning": "so it is.", **claim} if '"reasoning"' in messages[0]["content"] else claim)


@cache
def small() -> dict[str, Any]:
    """The run's own tokenizer, and a small transformer that was fitted to nothing."""
    tokenizer = learn_tokenizer(LOGS, SUITE.rules, 320)
    module = tiny.build(tokenizer, "100k", seed=0).eval()
    return {"tokenizer": tokenizer, "vocabulary": make_vocabulary(tokenizer), "module": module, "checkpoint": Path("fitted")}


@cache
def instruct() -> tuple[Path, dict[str, Any]]:
    path = save_instruct_model(Path(mkdtemp()) / "instruct")
    module, tokenizer = backbones.load(BackboneConfig(model=str(path), device="cpu"))
    return path, {"tokenizer": tokenizer, "module": module.eval(), "checkpoint": path}


def way(name: str, url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings, inputs beside the logs) without which a model cannot be made."""
    engine = {"engine": {"base_url": url, "model": "policy", "backoff_s": 0.01}}
    if name == "finetuned":
        return {"max_answer_tokens": 12}, small()
    if name == "finetuned_chat":
        return {"backbone": {"model": str(instruct()[0])}, "max_answer_tokens": 24, "k": 0}, instruct()[1]
    return {"prompted": engine, "released": {"format": "word2world", **engine}}.get(name, {}), {}


@contextmanager
def made(name: str) -> Iterator[ExperienceModel]:
    with FaultServer() as server:
        server.answer = reply
        settings, more = way(name, server.url)
        inputs = ModelInputs(Guard(SUITE.rules), open_replay(None, LOGS), LOGS, **more)
        yield plugins.make("experience.models", name, inputs=inputs, **settings)


def in_short(prediction: Prediction) -> tuple[str, float, bool]:
    return prediction.next_state.text, prediction.reward, prediction.terminated


def every_query_has_its_prediction_whatever_else_is_asked(opened: Open) -> None:
    actions = ("open", "left", "dance", "right")
    queries = [asked(action, task=task, episode=i) for i, task in enumerate(UNSEEN) for action in actions[i:]]
    queries = [replace(query, stream=(3, i, 0)) for i, query in enumerate(queries)]
    with opened() as model:
        together = model.predict(queries)
        assert model.predict([]) == [] and len(together) == len(queries)
    for query, one in zip(queries, together, strict=True):
        assert 0 <= one.reward <= 1 and one.info.verdict and one.info.decided_by and one.info.reward_by
        assert not one.info.error or (in_short(one) == (query.state.text, 0.0, False) and one.info.has_verdict("unreadable"))
    with opened() as model:
        alone = [model.predict([query])[0] for query in queries[::-1]][::-1]
    assert [in_short(one) for one in alone] == [in_short(one) for one in together]


def rules_and_precedents_answer_before_the_model(opened: Open) -> None:
    with opened() as model:
        (refused,) = model.predict([asked("dance")])
        assert in_short(refused) == (UNKNOWN, 0.0, False) and refused.info.decided_by == "rule"
        step = next(step for log in LOGS for step in log.transitions if not step.terminated and step.next_state != step.state)
        (known,) = model.predict([asked(step.action, state=step.state.text, episode=1)])
        assert in_short(known) == (step.next_state.text, 0.0, False) and known.info.decided_by in ("recalled", "inferred", "composed")


def no_success_is_paid_that_the_rules_do_not_see(opened: Open) -> None:
    with opened() as model:
        queries = [asked("open", task=task, episode=i) for i, task in enumerate(UNSEEN)]
        for query, one in zip(queries, model.predict(queries), strict=True):
            verdict = SUITE.rules.check_success(query.task.instruction, query.history, query.transition(one))
            assert not one.reward or (verdict is not None and verdict.passed)


def a_first_state_for_every_task_in_order_and_again_the_same(opened: Open) -> None:
    tasks = [TASKS[0], TASKS[1], TASKS[0]]
    with opened() as model:
        first, second, again = (one.text for one in model.start(tasks, seed=4))
        assert first == again
    with opened() as model:
        assert [one.text for one in model.start(tasks, seed=4)] == [first, second, first]


def what_is_forgotten_is_not_answered_and_can_be_asked_again(opened: Open) -> None:
    queries = [asked("open", episode=5), asked("dance", episode=5), asked("open", episode=6)]
    with opened() as model:
        *_, kept = model.submit(queries)
        model.forget([(3, 5), (9, 9)])
        found: list[int] = []
        while more := model.poll():
            found += [ticket for ticket, _ in more]
        assert found == [kept]
        assert len(model.predict(queries)) == 3 and model.poll() == []


def a_new_task_for_each_or_the_setting_that_asks_for_none(opened: Open) -> None:
    with opened() as model:
        try:
            found = model.vary(TASKS[:2], seed=1)
        except UsageError as error:
            assert "curriculum.synthetic_share = 0" in str(error)
        else:
            assert len(found) == 2 and all(isinstance(text, str) for text in found)


PROMISES = [
    every_query_has_its_prediction_whatever_else_is_asked,
    rules_and_precedents_answer_before_the_model,
    no_success_is_paid_that_the_rules_do_not_see,
    a_first_state_for_every_task_in_order_and_again_the_same,
    what_is_forgotten_is_not_answered_and_can_be_asked_again,
    a_new_task_for_each_or_the_setting_that_asks_for_none,
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", [*plugins.known("experience.models"), "outside.nearest_memory"])
def test_an_experience_model_keeps_every_promise(name: str, promise: Callable[[Open], None]) -> None:
    promise(lambda: made(name))


@pytest.mark.parametrize("name", plugins.known("experience.models"))
def test_a_configuration_knows_which_models_vary_no_tasks(name: str) -> None:
    varies = getattr(plugins.load("experience.models", name), "VARIES_TASKS", True)
    with made(name) as model:
        assert varies is (type(model).vary is not ExperienceModel.vary)


# Models that break a promise each


class Backwards(NearestMemory):
    def generate(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer | Unreadable]:
        return [Answer("", f"{query.task.instruction} {query.action}", 0.0, False) for query in queries][::-1]


class Remembers(NearestMemory):
    def _from_memory(self, query: Query) -> Prediction | None:
        return None

    def generate(self, queries: Sequence[Query], memories: Sequence[Sequence[Neighbour]]) -> list[Answer | Unreadable]:
        return [Unreadable("?") for _ in queries]


class Pays(NearestMemory):
    def poll(self) -> list[tuple[int, Prediction]]:
        return [(ticket, replace(one, reward=1.0, terminated=True)) for ticket, one in super().poll()]


class Begins(NearestMemory):
    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        return [Observation(f"{seed} {i}") for i, _ in enumerate(tasks)]


class Holds(NearestMemory):
    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None:
        """Nothing."""


class VariesOne(NearestMemory):
    def vary(self, seeds: Sequence[Task], *, seed: int, level: int = 0) -> list[str]:
        return [seeds[0].instruction]


@pytest.mark.parametrize(("broken", "promise"), list(zip((Backwards, Remembers, Pays, Begins, Holds, VariesOne), PROMISES, strict=True)))
def test_a_broken_model_does_not_keep_its_promise(broken: type[NearestMemory], promise: Callable[[Open], None]) -> None:
    @contextmanager
    def opened() -> Iterator[ExperienceModel]:
        yield broken(ModelInputs(Guard(SUITE.rules), open_replay(None, LOGS), LOGS), Config())

    with pytest.raises(AssertionError):
        promise(opened)
