"""An instruct model fitted in its own chat template: it is asked what it was trained on, and its checkpoint is an ordinary one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_model import bytes_tokenizer, save_instruct_model
from toy import shrink

from dreamgym.config import build, resolve
from dreamgym.engines.scripted import ScriptedLLM
from dreamgym.engines.token_chat import TokenChat
from dreamgym.errors import ConfigError, ServerError, UsageError
from dreamgym.experience.chat_requests import AskConfig, ask
from dreamgym.experience.dataset import ExperienceRow, Variation, task_variations
from dreamgym.experience.fitted_models import FittedModels
from dreamgym.experience.models import finetuned_chat
from dreamgym.experience.models.finetuned_chat import FinetunedChatModel
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.llm.vocabulary import MARKERS
from dreamgym.recipes import context, factory
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.experience import train_experience
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Observation, Query, Task, Trajectory, Transition, Turn

FORMAT = ChatFormat(bytes_tokenizer())
ANSWER = '{"reasoning": "so", "next_state": "here", "reward": 0, "done": false}'


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def instruct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_instruct_model(tmp_path_factory.mktemp("hub") / "blank")


@contextmanager
def prepared(path: Path, model: Path, *, acts: bool = True, **experience: Any) -> Iterator[tuple[RunDir, RunContext]]:
    training = {"epochs": 1.0, "lr": 5e-3, "batch_tokens": 8192, "bf16": False}
    found = {
        "env": {"name": "corridor", "options": {"length": 4, "keys": False, "max_steps": 4}},
        "logs": {"trajectories": 6, "task_pairs": 3, "relabelled_goals": 0.0},
        "model": {"size": "test", "vocab_size": 320},
        "experience": {
            "name": "finetuned_chat", "backbone": {"model": str(model)}, "training": training, "k": 1, "max_answer_tokens": 90, **experience
        },
        "policy": {"instructions": "Such as Action: left.", "backbone": {"model": str(model)}},
        "warm_start": {"optimiser": "adamw", "epochs": 0.0},
        "eval": {"tasks": 3, "dev_tasks": 3, "paired_replays": 0},
    }  # fmt: skip
    if not acts:
        found = {key: value for key, value in found.items() if key != "policy"} | {"start": "scratch"}
    config = resolve(TrainConfig, found, where="here")
    with context.open_run(path, config) as run:
        yield run, prepare_logs(run, config)


def reply_of(row: ExperienceRow) -> dict[str, Any]:
    ids = [i for i, segment in zip(row.ids, row.segments, strict=True) if segment]
    assert ids[-1] == FORMAT.end and row.ids[-len(ids) :] == ids
    found: dict[str, Any] = json.loads(FORMAT.tokenizer.decode(ids[:-1]))
    return found


def question_to(row: ExperienceRow) -> list[int]:
    return row.ids[: next(i for i, segment in enumerate(row.segments) if segment)]


def long_episode(logs: Sequence[Trajectory]) -> Trajectory:
    return max(logs, key=lambda t: len(t.turns))


def test_what_is_asked_in_a_dream_is_what_was_trained_on_token_for_token(instruct: Path, tmp_path: Path):
    with prepared(tmp_path / "run", instruct, k=0) as (_, shared):
        replay = factory.replay_in_memory(shared)
        episode = long_episode(shared.logs)
        first, *steps = factory.row_builder(shared, replay).episodes([episode])
        model = asked_model(shared, replay)
    assert len(steps) == len(episode.turns)
    for t, step in enumerate(episode.transitions):
        model.generate([Query(episode.task, episode.transitions[:t], step.state, step.action, (0, 0, t))], [()])
        assert model.chat.llm.asked[-1] == question_to(steps[t])
    model.start([Task("unknown", "never heard of", "corridor")], seed=0)
    known = FORMAT.tokenizer.decode(question_to(first)).rpartition('"task"')
    stranger = FORMAT.tokenizer.decode(model.chat.llm.asked[-1]).rpartition('"task"')
    assert stranger[0] == known[0] != "" and "never heard of" in stranger[2], "the same words, about another task"


def asked_model(shared: RunContext, replay: Any) -> Any:
    """The model of a run over an engine that keeps what it was asked, and always gives the same answer."""

    class Keeps(ScriptedLLM):
        asked: list[list[int]] = []

        def generate(self, requests: Any) -> Any:
            self.asked += [list(request.prompt) for request in requests]
            return super().generate(requests)

    inputs = factory._inputs(shared, replay, factory.make_guard(shared))
    config = shared.config.experience.settings
    made = build(finetuned_chat.FinetunedChatConfig, config, prefix="experience.").fitting()
    chat = TokenChat(Keeps(lambda _: ANSWER), FORMAT)
    count = lambda text: len(FORMAT.encode(text))  # noqa: E731
    return FinetunedChatModel(chat, replay, inputs.guard, made, openings=inputs.openings, count_tokens=count)


def test_a_reply_is_one_json_object_whose_parts_carry_the_weights_of_their_segments(instruct: Path, tmp_path: Path):
    weights = {"reasoning": 1.5, "state": 1.0, "reward": 2.0}
    with prepared(tmp_path / "run", instruct, segment_weights={**weights, "start": 0.5, "task": 3.0}) as (_, shared):
        builder = factory.row_builder(shared, factory.replay_in_memory(shared))
        episode = long_episode(shared.logs)
        first, *steps = builder.episodes([episode])
        (varied,) = builder.tasks([Variation((episode.task,), Task("t", "go elsewhere", "corridor"))])
    assert reply_of(first) == {"state": episode.transitions[0].state.text} and reply_of(varied) == {"task": "go elsewhere"}
    for row, step in zip(steps, episode.transitions, strict=True):
        found = reply_of(row)
        assert list(found) == ["reasoning", "next_state", "reward", "done"] and found["reasoning"]
        assert (found["next_state"], found["reward"], found["done"]) == (step.next_state.text, step.reward, step.terminated)
        assert {(s, w) for s, w in zip(row.segments, row.weights, strict=True)} == {("", 0.0), *weights.items()}
    assert set(first.weights) == {0.0, 0.5} and set(varied.weights) == {0.0, 3.0}


def test_a_question_about_a_new_task_never_shows_the_task_that_is_to_be_written(instruct: Path, tmp_path: Path):
    with prepared(tmp_path / "run", instruct, max_context=4096) as (_, shared):
        builder = factory.row_builder(shared, factory.replay_in_memory(shared))
        tasks = [episode.task for episode in shared.logs]
        variations = task_variations(tasks, 30, 0)
        rows = builder.tasks(variations)
    assert len({task.instruction for task in tasks}) > 4 and len(rows) == 30
    for one, row in zip(variations, rows, strict=True):
        asked = FORMAT.tokenizer.decode(question_to(row)).rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        shown = json.loads(asked)
        assert reply_of(row) == {"task": one.new.instruction} and shown["task"] == one.seeds[0].instruction
        assert len(shown["more tasks"]) == 3, "another takes its place, as a dream shows so many"
        assert not {one.new.instruction, one.seeds[0].instruction} & set(shown["more tasks"])


@pytest.mark.parametrize(("history", "trace"), [(0, "a new state; it goes on"), (1, "back to an earlier state; it goes on")])
def test_a_trace_names_only_states_that_the_question_shows(instruct: Path, tmp_path: Path, history: int, trace: str):
    moves = [("start", "away", "there"), ("there", "home", "start")]
    turns = tuple(Turn(Transition(Observation(state), action, Observation(after), 0.0, False)) for state, action, after in moves)
    with prepared(tmp_path / "run", instruct, k=0, history=history) as (_, shared):
        builder = factory.row_builder(shared, factory.replay_in_memory(shared))
        *_, last = builder.episodes([replace(shared.logs[0], turns=turns, success=False)])
    assert reply_of(last)["reasoning"] == trace


def test_a_model_without_a_chat_template_is_refused_before_anything_is_made(instruct: Path, tmp_path: Path):
    plain = shutil.copytree(instruct, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    with (
        pytest.raises(UsageError, match=r"has no chat template\. Use an instruct model"),
        prepared(tmp_path / "run", instruct, backbone={"model": str(plain)}),
    ):
        pass


def test_markers_are_refused_where_the_model_keeps_its_own_layout(instruct: Path):
    with pytest.raises(ConfigError, match="markers are for the layout of small models"):
        build(finetuned_chat.FinetunedChatConfig, {"backbone": {"model": str(instruct), "markers": True}}, prefix="experience.")


def test_a_run_in_which_a_small_policy_starts_from_scratch_is_opened_again(instruct: Path, tmp_path: Path):
    with prepared(tmp_path / "run", instruct, acts=False) as (_, shared):
        logs = shared.logs
    again = context.open_context(tmp_path / "run")
    assert again.logs == logs and again.config.experience.backbone == shared.config.experience.backbone


def test_without_reasoning_a_reply_begins_with_the_state(instruct: Path, tmp_path: Path):
    with prepared(tmp_path / "run", instruct, reasoning=False) as (_, shared):
        _, step, *_ = factory.row_builder(shared, factory.replay_in_memory(shared)).episodes(shared.logs[:1])
    assert list(reply_of(step)) == ["next_state", "reward", "done"]


def test_a_model_is_fitted_and_dreams_and_its_checkpoint_has_no_markers(instruct: Path, tmp_path: Path):
    with prepared(tmp_path / "run", instruct) as (run, shared):
        train_experience(run, shared)
        assert run.data("experience")["loss_state"] < 5.0, "letters alone are 5.6 nats"
        _, model = factory.make_dream(shared, factory.replay_in_memory(shared))
        (task, *_) = shared.suite.tasks("train", 2, seed=0)
        (predicted,) = model.predict([Query(task, (), shared.logs[0].transitions[0].state, "left", (0, 0, 0))])
    assert predicted.next_state.text and sum(model.counts.values()) >= 1 and model.version == 1
    assert not set(MARKERS) & set(FittedModels(shared.config.experience.backbone, None).tokenizer.get_vocab())
    config = json.loads((tmp_path / "run" / "checkpoints" / "experience" / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["Qwen2ForCausalLM"]


def test_a_correction_follows_the_reply_as_the_template_has_it():
    chat = TokenChat(ScriptedLLM(lambda _: "fine"), FORMAT)
    talk = [("system", "Be good."), ("user", "One?"), ("assistant", "<|im_end|>"), ("user", "Again.")]
    messages = [{"role": role, "content": content} for role, content in talk]
    expected = FORMAT.render([{**m, "content": m["content"].replace("<|im_end|>", "X")} for m in messages])
    assert FORMAT.tokenizer.decode(chat.prompt(messages)) == expected.replace("X", "<|im_end|>")
    assert chat.prompt(messages).count(FORMAT.end) == 4, "what a reply spells is no end of it"
    with pytest.raises(UsageError, match="takes turns"):
        chat.prompt(messages[:3])


def test_a_reply_that_is_cut_is_an_error_unless_it_is_allowed():
    chat = TokenChat(ScriptedLLM(lambda _: "a long reply"), FORMAT)
    ask = [[{"role": "user", "content": "Well?"}]]
    ((_, cut),) = chat.replies(ask, max_tokens=3)
    assert isinstance(cut, ServerError)
    assert list(chat.replies(ask, max_tokens=3, allow_truncated=True)) == [(0, "a l")]
    assert chat.usage.requests == 2 and chat.usage.completion_tokens == 6


def test_a_request_that_a_server_fails_for_good_fails_its_conversation_alone():
    class Refusing(ScriptedLLM):
        def _advance(self) -> bool:
            refused, *waiting = self._waiting
            self._waiting = {ticket: self._waiting[ticket] for ticket in waiting}
            self._failed[refused] = ServerError("status 500", ticket=refused)
            return super()._advance()

    chat = TokenChat(Refusing(lambda _: ANSWER), FORMAT)
    talks = [[{"role": "user", "content": text}] for text in ("One?", "Two?")]
    (_, refused), (_, answered) = chat.replies(talks, max_tokens=200)
    assert "status 500" in str(refused) and answered == ANSWER and chat.usage.requests == 1


def test_a_conversation_that_does_not_fit_the_context_fails_alone():
    llm = ScriptedLLM(lambda _: ANSWER)
    llm.max_context = 400  # type: ignore[attr-defined]
    talks = [[{"role": "user", "content": text}] for text in ("One?", "a long question " * 20, "Two?")]
    first, long, last = ask(TokenChat(llm, FORMAT), talks, lambda _, text: text, AskConfig(max_tokens=200), {})
    assert (first.value, last.value) == (ANSWER, ANSWER)
    assert (long.kind, long.value) == ("failed", None) and "does not fit: the context of 400 leaves 200" in long.problem
