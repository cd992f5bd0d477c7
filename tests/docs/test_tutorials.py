"""The code of the tutorials runs as it is printed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from documents import DOCS, bash_lines, python_of
from log_samples import ACTIONS, openai_messages
from toy import command

from dreamgym import plugins
from dreamgym.engines import build_engine
from dreamgym.recipes.settings import train_settings
from dreamgym.runs.episodes import read_trajectories
from dreamgym.train.objective import LossInputs


def test_the_environment_of_the_tutorial_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tutorial_suite").mkdir()
    (tmp_path / "tutorial_suite" / "dial.py").write_text(python_of("tutorials/environment.md")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    suite = plugins.make("envs", "tutorial_suite.dial")
    splits = [{task.instruction for task in suite.tasks(split, 100)} for split in ("train", "dev", "test")]
    assert all(splits) and sum(map(len, splits)) == len(set().union(*splits))
    task = suite.tasks("train", 3)[-1]
    assert suite.demonstrate(task, "expert", seed=0).success
    assert not suite.demonstrate(task, "random", seed=0).success


def test_the_first_commands_of_the_tutorials_have_small_settings(tmp_path: Path):
    for page in ("environment", "algorithm"):
        text = (DOCS / f"tutorials/{page}.md").read_text("utf-8")
        _, _, _, run, *settings = shlex.split(bash_lines(text)[0])
        chosen = [one for one in settings if not one.startswith("rl.algorithm")]  # whose module the reader writes
        config = train_settings(tmp_path / run, None, chosen)
        assert config.logs.trajectories <= 1000 and config.rl.iterations <= 5 and "--dry-run" in text


def test_the_algorithm_of_the_tutorial_is_found_by_its_command_and_has_advantages_and_a_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    page = (DOCS / "tutorials/algorithm.md").read_text("utf-8")
    (source,), (file,) = python_of("tutorials/algorithm.md"), re.findall(r"Save it as `(.+?)`", page)
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(source)
    (command,) = bash_lines(page)
    where, program, train, run, *settings = shlex.split(command)
    assert (where, program, train) == ("PYTHONPATH=.", ".venv/bin/dreamgym", "train")
    monkeypatch.syspath_prepend(str(tmp_path))
    block = train_settings(tmp_path / run, None, settings).rl.algorithm
    assert block.model_dump()["margin"] == 0.1
    raft = plugins.make_named("train.algos", block.model_dump())
    group = [SimpleNamespace(error=None, total_reward=reward, turns=[None] * 2) for reward in (1.0, 0.0, 0.95)]
    group.append(SimpleNamespace(error="broken", total_reward=0.0, turns=[None]))
    assert raft.compute_advantages([group, group[:1]]) == [[[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0]]]

    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    rows = torch.tensor([0, 1])
    inputs = LossInputs(logprobs, logprobs.detach(), torch.tensor([1.0, 0.0]), torch.ones(2), 2.0, sequence_ids=rows, turn_ids=rows)
    raft.loss(inputs).loss.backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-0.5, 0.0]


def test_the_chat_engine_of_the_tutorial_answers_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tutorial_chat").mkdir()
    (tmp_path / "tutorial_chat" / "chat.py").write_text(python_of("tutorials/model.md")[1])
    (tmp_path / "tutorial_chat" / "client.py").write_text(
        "def ask(messages, max_tokens, temperature): return messages[-1]['content'].upper()"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    chat = build_engine({"name": "tutorial_chat.chat", "client": "tutorial_chat.client.ask"})
    conversations = [[{"role": "user", "content": text}] for text in ("one", "two")]
    assert list(chat.replies(conversations, max_tokens=9)) == [(0, "ONE"), (1, "TWO")] and chat.usage.cost == 0


@pytest.mark.parametrize("page", ["tutorials/model.md", "tutorials/environment.md"])
def test_the_python_of_a_tutorial_imports_what_is_there(page: str):
    for block in python_of(page):
        for line in block.splitlines():
            if re.match(r"(from dreamgym|import dreamgym)", line):
                exec(line, {})
        compile(block, page, "exec")


def test_the_file_of_logs_of_the_tutorial_is_read_back(tmp_path: Path):
    snippet = python_of("tutorials/environment.md")[1]
    episode = [("lamp 1: off", "press 1", "lamp 1: on", 0.0, False), ("lamp 1: on", "leave", "you are outside", 1.0, True)]
    exec(snippet.replace('"episodes.jsonl"', repr(str(tmp_path / "episodes.jsonl"))), {"episode": episode})
    (read,) = read_trajectories(tmp_path / "episodes.jsonl")
    assert read.success and [t.action for t in read.transitions] == ["press 1", "leave"] and read.task.env == "desk"


def test_the_log_format_of_the_tutorial_reads_the_runs_of_a_trace_as_one_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = (DOCS / "tutorials/logs.md").read_text("utf-8")
    (source,), (file,) = python_of("tutorials/logs.md"), re.findall(r"Save it as `(.+?)`", page)
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(source)
    (line,) = (line for line in bash_lines(page) if "PYTHONPATH" in line)
    where, program, *arguments = shlex.split(line)
    assert (where, program) == ("PYTHONPATH=.", ".venv/bin/dreamgym")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = [{"run_type": "tool", "trace_id": "t1", "start_time": "2026-01-01T00:00:03"}, None]
    for trace, score in (("t1", 1.0), ("t2", 0.0)):
        messages = openai_messages()
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                facts = {"trace_id": trace, "run_type": "llm", "start_time": f"2026-01-01T00:00:0{i}", "id": f"{trace}-{i}"}
                facts["feedback_stats"] = {"correctness": {"avg": score}}
                talk = {"inputs": {"messages": [messages[:i]]}, "outputs": {"generations": [[{"message": message}]]}}
                lines.append(facts | talk)
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines[::-1]))
    code, out, err = command(monkeypatch, capsys, *arguments)
    assert code == 0, f"{out}\n{err}"
    episodes = read_trajectories(tmp_path / "episodes.jsonl")
    assert {one.id: one.success for one in episodes} == {"t1": True, "t2": False} and all(one.scored for one in episodes)
    assert all([step.action for step in one.transitions] == ACTIONS for one in episodes)
    assert "values that are no record of the format langsmith" in out
