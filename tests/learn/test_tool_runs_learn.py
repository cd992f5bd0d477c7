"""Tool-calling agents in a connected environment: a run that trains there, and a pretrained model with its own tool format."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tool_desk
import torch
from tokenizers import AddedToken
from tool_templates import MARKS, QWEN
from toy import SIZE, command, object_in
from transformers import Qwen2Config, Qwen2ForCausalLM

from dreamgym.llm import sizes, tiny
from dreamgym.runs.episodes import write_trajectories
from dreamgym.runs.rundir import RunDir
from dreamgym.tool_calls import calls_of
from dreamgym.types import Task

pytestmark = pytest.mark.slow
TOOLS = [
    {"name": "get_lamp", "parameters": {"properties": {"room": {"type": "string"}}, "required": ["room"]}},
    {"name": "switch", "parameters": {"properties": {"on": {"type": "boolean"}, "room": {"type": "string"}}, "required": ["on", "room"]}},
    {"name": "done", "parameters": {"properties": {}}},
]
CONNECTED = """
mode = "{mode}"
start = "{start}"
[env]
name = "tools"
options = {{files = ["episodes.jsonl"], tools = "episodes.tools.json", max_steps = 5}}
connect = "python:tool_runs_learn:lamps"
[env.connection]
score = "tool_runs_learn:lit"
final_calls = ["done", "respond"]
[logs]
task_pairs = 0
relabelled_goals = 0.0
[model]
size = "test"
vocab_size = 512
[experience]
history = 4
reasoning = false
replayed_starts = true
[experience.training]
epochs = 20.0
bf16 = false
batch_tokens = 1024
[warm_start]
optimiser = "adamw"
bf16 = false
batch_tokens = 1024
epochs = {epochs}
lr = 5e-3
[rl]
iterations = {iterations}
tasks_per_iter = 6
probe_every = 0
[rl.curriculum]
synthetic_share = 0.0
[rl.learner]
lr = 2e-3
bf16 = false
[eval]
tasks = 20
dev_tasks = 10
paired_replays = 16
"""


class Lamps:
    """The rooms of the recorded agent; in most a lamp is off."""

    def reset(self, task: Task) -> None:
        self.on = {room: sum(map(ord, task.id + room)) % 10 < 3 for room in tool_desk.ROOMS}

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        if name == "done":
            return ""
        room = str(arguments.get("room"))
        if room not in self.on:
            return "Error: no such room"
        if name == "get_lamp":
            return f'{{"room": "{room}", "on": {str(self.on[room]).lower()}}}'
        self.on[room] = bool(arguments.get("on"))
        return f"switched {'on' if self.on[room] else 'off'}"


def lamps() -> Lamps:
    return Lamps()


def lit(task: Task, steps: list[tuple[str, dict[str, Any]]]) -> bool:
    """Whether the lamp of the task's room was seen on, or switched on."""
    room = task.instruction.split(" in the ")[1].split(" ")[0]
    text = str(steps[-1][1]["text"])
    return f'switch(on=true, room="{room}")\nswitched on' in text or f'{{"room": "{room}", "on": true}}' in text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sizes.SIZES, "test", SIZE)
    monkeypatch.setitem(sys.modules, "tool_runs_learn", sys.modules[__name__])
    write_trajectories(tmp_path / "episodes.jsonl", tool_desk.episodes(240))
    (tmp_path / "episodes.tools.json").write_text(json.dumps(TOOLS))
    return tmp_path


def settings(folder: Path, more: str = "", **values: Any) -> Path:
    path = folder / "train.toml"
    path.write_text(CONNECTED.format(**{"mode": "s2r", "start": "experience", "epochs": 6.0, "iterations": 4, **values}) + more)
    return path


def test_a_run_from_logs_trains_in_the_dream_and_then_in_a_connected_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = command(monkeypatch, capsys, "train", "run", "--config", settings(folder), "--json")
    assert code == 0, err
    found = object_in(out)
    assert found["dream"]["dream_transitions"] > 0 and 0 < found["s2r"]["real_transitions_online"] <= 2000
    assert found["s2r"]["episodes"] == 20 and not found["skipped"]
    real = [episode for episode in RunDir.view(folder / "run").read_episodes("s2r-0000") if episode.source == "real"]
    assert any('{"room": ' in step.next_state.text for episode in real for step in episode.transitions), "the connected tools answered"


def tool_model(path: Path) -> Path:
    """A small Qwen2 that knows nothing, whose chat template has tools."""
    logs = tool_desk.episodes(60)
    texts = [text for e in logs for t in e.transitions for text in (e.task.instruction, t.next_state.text, json.dumps(TOOLS))]
    texts += [json.dumps({"name": c.name, "arguments": c.arguments}) for e in logs for t in e.transitions for c in calls_of(t.action)]
    texts += ["You are an agent in the environment 'desk'. system user assistant Task: <tool_response> Return # Tools"] * 20
    tokenizer = tiny.train_tokenizer(texts, vocab_size=600, special=("<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    tokenizer.chat_template = QWEN
    tokenizer.eos_token = "<|im_end|>"
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=4096, tie_word_embeddings=True, initializer_range=48**-0.5, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen2ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_pretrained_model_is_trained_in_a_connected_environment_by_native_tool_calls(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = f'[policy]\ntool_calls = "native"\nmax_reply_tokens = 48\n[policy.backbone]\nmodel = "{tool_model(folder / "model")}"\n'
    file = settings(folder, more, mode="real", epochs=12.0, iterations=6)
    code, out, err = command(monkeypatch, capsys, "train", "run", "--config", file, "--json")
    assert code == 0, err
    found, run = object_in(out), RunDir.view(folder / "run")
    episode = run.read_episodes("real_only-0000")[0]
    assert any(calls_of(step.action) for step in episode.transitions if step.action.startswith("get_lamp("))
    curve = [line["success"] for line in run.read_jsonl("metrics.jsonl") if line["phase"] == "real_only"]
    assert len(curve) == 6 and max(curve) > 0 and found["real_only"]["real_transitions_online"] > 0
    assert any(line.get("grad_norm", 0) > 0 for line in run.read_jsonl("metrics.jsonl") if line["phase"] == "real_only")
