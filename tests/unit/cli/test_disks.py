"""A disk that is full and one that cannot be written end every command in one message that names the file, and nothing is lost."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import absent, run_command
from scripted_chat import ScriptedChat
from toy import COMPARE, LOOP, RECORDED, SHARED, renamed, shrink
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.experience.mappers.fitted import SLOTS, LineMapper
from dreamgym.llm import backbones, tiny
from dreamgym.llm.backbone_settings import BackboneConfig, LoraConfig
from dreamgym.recipes import chat_server

MORE = SHARED.replace("paired_replays = 0", "paired_replays = 2").replace("epochs = 4.0", "epochs = 20.0")
DREAM = f'mode = "dream"\n{MORE}\n[rl]\n{LOOP}'
SERVER = "--base-url http://localhost:9 --model m"
ANNOTATION = '{"tutorial": "walk", "reasoning": "the corridor leads on"}'
WRITERS = f"""
report DISK/run
fidelity DISK/run --replays 3
compare DISK/run --out DISK/out
judge DISK/run {SERVER} --n 2 --controls 0 --dreams dream-0000
label DISK/run
label DISK/run --export DISK/labels.jsonl
annotate DISK/run/episodes/logs.jsonl --out DISK/annotated.jsonl {SERVER}
export DISK/run --format openai --out DISK/out.jsonl
import RUN/exported.jsonl --out DISK/episodes.jsonl
init DISK/train.toml
init DISK/train.toml --logs RUN/episodes/logs.jsonl
replay export DISK/run/replay/dream.sqlite DISK/out.jsonl
replay export DISK/run/replay/dream.sqlite DISK/out.parquet
replay import DISK/new.sqlite RUN/rows.jsonl
webshop build --size 100 --out DISK/shop
train DISK/new --config RUN/../toy.toml
sweep eval.seed=0 --config RUN/../compare.toml --out DISK/sweep --held-out 0
transfer RUN/../toy.toml RUN/../other.toml --out DISK/both
mapping RUN/episodes/logs.jsonl --mapper RUN/mapper.json --mapped DISK/mapped.jsonl
web import RUN/episode.json --out DISK/recorded.jsonl
merge RUN/adapters DISK/whole
quickstart --env webshop --budget small --run DISK/quick
""".strip().splitlines()
FULL = ("No space left", "of the disk are free", "disk is full")
READ_ONLY = ("Read-only file system", "cannot be written", "that can be written")
READERS = ["summary DISK/run", "fidelity DISK/run", "eval DISK/run --tasks 2", "play DISK/run", "replay stats DISK/run/replay/dream.sqlite"]
ELSEWHERE = ("webshop replay", "webshop reward", "replay reencode", "serve", "fetch", "web up", "web reset", "doctor")
"""Commands that write nothing, or nothing where they are told to."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run with logs in another format beside it; a chat host that answers, and a person who says "right"."""
    folder = tmp_path_factory.mktemp("disks")
    (folder / "toy.toml").write_text(DREAM)
    (folder / "other.toml").write_text(renamed(DREAM))
    (folder / "compare.toml").write_text(COMPARE)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        patch.chdir(folder)
        path = folder / "run"
        said = run_command("train", str(path), "--config", "toy.toml")[1]
        assert (path / "summary.json").is_file(), said  # two iterations need not learn anything
        for words in (
            f"export {path} --format openai --out {path}/exported.jsonl",
            f"replay export {path}/replay/dream.sqlite {path}/rows.jsonl",
        ):
            code, said = run_command(*words.split())
            assert code == 0, said
        (path / "episode.json").write_text(json.dumps(RECORDED))
        LineMapper(np.zeros(SLOTS), 0.0).save(path / "mapper.json")
        if importlib.util.find_spec("peft"):
            backbones.save(*adapted(folder / "backbone"), path / "adapters")
        patch.setattr("builtins.input", lambda _: "right")
        patch.setattr(chat_server, "open_chat", lambda *_, **__: nullcontext(ScriptedChat(lambda _: ANNOTATION)))
        yield path


def adapted(folder: Path) -> tuple[Any, Any]:
    """A model of random weights with adapters, and its tokenizer."""
    tokenizer = tiny.train_tokenizer(["go left"], vocab_size=300)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    backbones.save(LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape)), tokenizer, folder)
    return backbones.load(BackboneConfig(model=str(folder), device="cpu", lora=LoraConfig()))


@pytest.fixture
def disk(run: Path, tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MB that holds the run."""
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", path], capture_output=True).returncode:
        pytest.skip("this user may not mount a disk")
    try:
        shutil.copytree(run, path / "run")
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "filling").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"0" * size)


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


def contents(disk: Path) -> dict[str, bytes]:
    names = (file for file in (disk / "run").rglob("*") if file.is_file() and file.suffix not in (".lock", ".sqlite-shm", ".sqlite-wal"))
    return {str(file): file.read_bytes() for file in names if file.name != ".lock"}


def test_every_command_that_writes_is_tried():
    assert not absent([*WRITERS, *READERS, *ELSEWHERE])


@pytest.mark.parametrize("command", [*WRITERS, *READERS])
@pytest.mark.parametrize("state", [fill, make_read_only])
def test_a_disk_without_room_or_permission_is_named_and_nothing_is_lost(command: str, state, run: Path, disk: Path):
    if command.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    if command.startswith("merge"):
        pytest.importorskip("peft", reason="the extra peft is not installed")
    state(disk)
    before = contents(disk)
    code, said = run_command(*command.replace("DISK", str(disk)).replace("RUN", str(run)).split())
    assert "Traceback" not in said, said
    assert code == 2 or (code == 0 and command in READERS), (code, said)
    if code == 2:
        flat = "".join(said.split())
        assert str(disk) in flat, said
        reasons = FULL if state is fill else READ_ONLY
        assert any(reason.replace(" ", "") in flat for reason in reasons), said
    assert before.items() <= contents(disk).items()
