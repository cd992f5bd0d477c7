"""Several processes on shards of a model: the updates of one process on the whole, supervised and by rollouts."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.engines.local.engine import LocalEngine
from dreamgym.errors import ConfigError, UsageError
from dreamgym.train import parallel
from dreamgym.train.algos import grpo, ppo
from dreamgym.train.learner import Learner
from dreamgym.train.settings import LearnerConfig, SFTConfig
from dreamgym.train.sft import train
from dreamgym.types import Completion, Observation, Task, Trajectory, Transition, Turn

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


def trained(model: Any, micro_tokens: int | None = None) -> tuple[Any, list[float]]:
    losses: list[float] = []
    config = CONFIG.model_copy(update={"micro_tokens": micro_tokens})
    train(model, *rows(), config, on_step=lambda step, done, found: losses.append(found["loss"]) and None)
    return model, losses


def process(rank: int, port: int, body: Callable[..., None], *args: Any) -> None:
    """One of two processes. It ends without Python's own tidying: a thread of gloo that lets go of its last tensor only then finds no
    interpreter to ask for its lock, and aborts the process (https://github.com/pytorch/pytorch/pull/179291)."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    body(rank, *args)
    dist.destroy_process_group()
    os._exit(0)


def in_two_processes(body: Callable[..., None], *args: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    torch.multiprocessing.spawn(process, (port, body, *args), nprocs=2)


def supervised(rank: int, tied: bool, micro_tokens: int | None, path: str) -> None:
    model = parallel.shard(tiny(tied))
    with pytest.raises(ConfigError, match="without a checkpoint"):
        train(model, *rows(), CONFIG, checkpoint=Path(path))
    for algorithm in (ppo.make(), grpo.make(kl_coef=0.1)):
        with pytest.raises(ConfigError, match="without a critic and without a reference"):
            Learner(model, algorithm, LearnerConfig())
    with pytest.raises(ConfigError, match="several processes"):
        LocalEngine(model, None)
    _, losses = trained(model, micro_tokens)
    weights = parallel.whole(model)
    assert bool(weights) == (rank == 0)
    if rank == 0:
        torch.save({"losses": losses, "weights": weights}, path)


@pytest.mark.slow
@pytest.mark.parametrize(("tied", "micro_tokens"), [(False, None), (True, None), (True, 20)])
def test_two_processes_take_the_steps_of_one(tied: bool, micro_tokens: int | None, tmp_path: Path) -> None:
    path = tmp_path / "two.pt"
    in_two_processes(supervised, tied, micro_tokens, str(path))
    found = torch.load(path)
    model, losses = trained(tiny(tied))
    assert len(losses) > 3 and np.allclose(found["losses"], losses, atol=1e-5)
    own = model.state_dict()
    assert found["weights"].keys() == own.keys()
    assert all(torch.allclose(own[name], value, atol=1e-5) for name, value in found["weights"].items())
    assert not torch.allclose(own["lm_head.weight"], tiny(tied).lm_head.weight, atol=1e-4)


def rollouts() -> list[list[Trajectory]]:
    """Five tasks, three rollouts each, of one or two turns and uneven lengths: an odd number of rows for two processes."""
    rng = np.random.default_rng(1)
    groups = []
    for _ in range(5):
        group = []
        for i in range(3):
            prompt: list[int] = rng.integers(2, 24, rng.integers(2, 9)).tolist()
            turns = []
            for _ in range(int(rng.integers(1, 3))):
                said = rng.integers(2, 24, rng.integers(1, 5)).tolist()
                turns.append(Completion(tuple(prompt), tuple(said), tuple((-rng.random(len(said)) - 2.5).tolist()), "", "stop"))
                prompt = [*prompt, *said, *rng.integers(2, 24, 3).tolist()]
            steps = [Turn(Transition(Observation("s"), "a", Observation("t"), 0.0, False), said) for said in turns]
            last = Turn(Transition(Observation("s"), "a", Observation("t"), float(i == 0), True), turns[-1])
            group.append(Trajectory("t", Task("t", "i", "e"), "real", (*steps[:-1], last), i == 0))
        groups.append(group)
    return groups


LEARNER = LearnerConfig(minibatches=2, min_trajectories=1, micro_tokens=40, grad_clip=0.1, lr=1e-3, bf16=False)
ALGORITHM = {"aggregate": "trajectory", "entropy_coef": 0.01, "importance_cap": 2.0}


def learnt(model: Any, made: list[list[Trajectory]]) -> tuple[Learner, list[dict[str, float]]]:
    learner = Learner(model, grpo.make(**ALGORITHM), LEARNER)
    return learner, [learner.update(made) for _ in range(2)]


def whole_gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for name, p in model.named_parameters()}


def learning(rank: int, path: str) -> None:
    learner, metrics = learnt(parallel.shard(tiny(True)), parallel.from_first(rollouts))
    with pytest.raises(UsageError, match="parallel.whole"):
        learner.state_dict()
    gradients, weights = whole_gradients(learner.model), parallel.whole(learner.model)
    torch.save({"metrics": metrics, "gradients": gradients, "weights": weights}, f"{path}/{rank}.pt")


@pytest.mark.slow
def test_two_processes_learn_from_rollouts_as_one_does(tmp_path: Path) -> None:
    in_two_processes(learning, str(tmp_path))
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    learner, metrics = learnt(tiny(True), rollouts())
    assert first["metrics"] == second["metrics"]
    for found, expected in zip(first["metrics"], metrics, strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    own = whole_gradients(learner.model)
    assert all(torch.allclose(own[name], value, atol=1e-6) for name, value in first["gradients"].items())
    assert max(value.abs().max() for value in own.values()) > 1e-3
    assert all(torch.allclose(learner.model.state_dict()[name], value, atol=1e-5) for name, value in first["weights"].items())


def test_sharding_needs_processes() -> None:
    with pytest.raises(UsageError, match="torchrun"):
        parallel.shard(tiny(True))
    assert not parallel.sharded(tiny(True))
