"""Several processes on shards of a model: the update of one process on the whole."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.errors import ConfigError, UsageError
from dreamgym.llm.hf import HFEngine
from dreamgym.train import parallel
from dreamgym.train.algos import grpo
from dreamgym.train.learner import Learner, LearnerConfig
from dreamgym.train.sft import SFTConfig, train

CONFIG = SFTConfig(epochs=2.0, lr=1e-3, batch_tokens=40, bf16=False, grad_clip=0.5)


def tiny(tied: bool) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=24, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=None, eos_token_id=1, tie_word_embeddings=tied,
        )
    )  # fmt: skip


def rows() -> tuple[list[list[int]], list[list[float]]]:
    """Rows of uneven lengths and weights; with batches of 40 positions some batches hold a single row."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(2, 24, n).tolist() for n in (38, 5, 9, 12, 7, 30)]
    return ids, [[0.0, *rng.choice([0.0, 0.5, 1.0], len(row) - 1).tolist()] for row in ids]


def trained(model: Any) -> tuple[Any, list[float]]:
    losses: list[float] = []
    train(model, *rows(), CONFIG, on_step=lambda step, done, found: losses.append(found["loss"]) and None)
    return model, losses


def process(rank: int, port: int, tied: bool, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = parallel.shard(tiny(tied))
    with pytest.raises(ConfigError, match="without a checkpoint"):
        train(model, *rows(), CONFIG, checkpoint=Path(path))
    with pytest.raises(UsageError, match="Do not shard"):
        Learner(model, grpo.make(), LearnerConfig())
    with pytest.raises(ConfigError, match="cut over several processes"):
        HFEngine(model, None)
    _, losses = trained(model)
    weights = parallel.whole(model)
    assert bool(weights) == (rank == 0)
    if rank == 0:
        torch.save({"losses": losses, "weights": weights}, path)
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_two_processes_take_the_steps_of_one(tied: bool, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "two.pt"
    torch.multiprocessing.spawn(process, (port, tied, str(path)), nprocs=2)
    found = torch.load(path)
    model, losses = trained(tiny(tied))
    assert len(losses) > 3 and np.allclose(found["losses"], losses, atol=1e-5)
    own = model.state_dict()
    assert found["weights"].keys() == own.keys()
    assert all(torch.allclose(own[name], value, atol=1e-5) for name, value in found["weights"].items())
    assert not torch.allclose(own["lm_head.weight"], tiny(tied).lm_head.weight, atol=1e-4)


def test_sharding_needs_processes() -> None:
    with pytest.raises(UsageError, match="torchrun"):
        parallel.shard(tiny(True))
    assert not parallel.sharded(tiny(True))
