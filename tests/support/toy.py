"""Settings under which a whole training in the corridor takes seconds, and the command line as a function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dreamgym import cli
from dreamgym.llm import sizes

SIZE = {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "mlp": 64}
SHARED = """
[env]
name = "corridor"
options = {length = 4, keys = false, max_steps = 4}
[logs]
trajectories = 40
task_pairs = 10
[model]
size = "test"
vocab_size = 320
[experience]
max_answer_tokens = 40
[experience.training]
optimiser = "adamw"
epochs = 4.0
batch_tokens = 1024
bf16 = false
[warm_start]
optimiser = "adamw"
epochs = 12.0
lr = 5e-3
batch_tokens = 512
bf16 = false
[eval]
tasks = 3
dev_tasks = 3
paired_replays = 0
uncertified_dreams = 0
"""
LOOP = """
iterations = 2
tasks_per_iter = 4
group_size = 4
train_tasks = 7
probe_every = 0
learner = {lr = 1e-3, minibatches = 1, min_trajectories = 1}
"""
COMPARE = f'arms = ["grpo-dream"]\n{SHARED}\n[dream]\n{LOOP}'
"""A comparison of one arm."""
OBSERVED = {"goal": "Search.", "axtree_txt": "RootWebArea 'A shop', focused\n\t[12] link 'Search', clickable, visible"}
RECORDED = [{"obs": OBSERVED, "action": "click('12')"}, {"obs": OBSERVED, "action": None, "reward": 1.0, "terminated": True}]
"""BrowserGym's steps of an episode, for `dreamgym web import`."""


def renamed(settings: str) -> str:
    """The same settings for the corridor under another name."""
    return settings.replace('name = "corridor"', 'name = "dreamgym.envs.wrappers.renamed"').replace(
        "options = {length = 4, keys = false, max_steps = 4}",
        'options = {suite = "corridor", options = {length = 4, keys = false, max_steps = 4}}',
    )


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Let configurations name a model of the toy's size."""
    patch.setitem(sizes.SIZES, "test", SIZE)


def command(patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of `dreamgym ARGUMENTS` in this process."""
    patch.setattr("sys.argv", ["dreamgym", *map(str, arguments)])
    capsys.readouterr()
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def weights(run: Path, name: str) -> bytes:
    """A policy's weights as they lie on disk."""
    return (run / "checkpoints" / name / "model.safetensors").read_bytes()


def object_in(text: str) -> Any:
    """The JSON object that a command printed with --json."""
    return json.loads(text)
