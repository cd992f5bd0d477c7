"""DPO: which trajectories are paired, what the loss prefers, and an interruption that leaves no trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dreamgym.errors import InvariantError, UsageError
from dreamgym.train import dpo
from dreamgym.train.dpo import dpo_loss, dpo_pairs, train
from dreamgym.train.fitting import FitCheckpoint
from dreamgym.train.settings import DPOConfig
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

CONFIG = DPOConfig(epochs=2.0, lr=1e-3, pairs=4, bf16=False, grad_clip=1e9, warmup_ratio=0.1, weight_decay=0.0)
SHAPE = {
    "vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
    "tie_word_embeddings": True,
}  # fmt: skip


def tiny(seed: int = 0, kind: str = "llama") -> Any:
    torch.manual_seed(seed)
    return (LlamaForCausalLM(LlamaConfig(**SHAPE)) if kind == "llama" else Qwen2ForCausalLM(Qwen2Config(**SHAPE))).eval()


def rows(n: int = 10, seed: int = 0) -> list[dpo.Row]:
    """Rows of two turns: some tokens given, some said, some given, some said."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        parts = [rng.integers(2, 24, rng.integers(1, 5)).tolist() for _ in range(4)]
        made.append(([token for part in parts for token in part], [float(k % 2) for k, part in enumerate(parts) for _ in part]))
    return made


CHOSEN, REJECTED = rows(seed=1), rows(seed=2)


def row_logprob(model: Any, row: dpo.Row) -> torch.Tensor:
    """The sum over said tokens, one at a time, by transformers' own forward."""
    ids, weights = row
    scores = torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].float(), -1)
    return sum((scores[t - 1, ids[t]] for t in range(1, len(ids)) if weights[t]), torch.zeros(()))


def logged(task: str, success: bool, name: str, **facts: Any) -> Trajectory:
    turn = Turn(Transition(Observation("s"), "a", Observation("t"), float(success), True))
    return Trajectory(name, Task(task, f"do {task}", "e"), "demo", (turn,), success, **facts)


def test_pairs_are_a_success_and_a_failure_of_the_same_task_and_no_trajectory_is_in_two():
    logs = [logged(f"t{i % 3}", bool(i % 2), f"e{i}") for i in range(20)]
    logs += [logged("always", True, "a"), logged("always", True, "b"), logged("never", False, "c")]
    logs += [logged("broken", True, "d"), logged("broken", False, "e", error="unreadable")]
    pairs = dpo_pairs(logs, seed=0)
    assert all(won.success and not lost.success and won.task.id == lost.task.id for won, lost in pairs)
    names = [t.id for pair in pairs for t in pair]
    assert len(set(names)) == len(names)
    expected = sum(min(sum(t.task.id == name and t.success is kind for t in logs) for kind in (True, False)) for name in ("t0", "t1", "t2"))
    assert len(pairs) == expected and {won.task.id for won, _ in pairs} == {"t0", "t1", "t2"}
    assert dpo_pairs(logs, seed=0) == pairs != dpo_pairs(logs, seed=1)


def test_the_loss_as_worked_by_hand():
    zero = torch.zeros(3)
    assert dpo_loss(zero, beta=0.1).item() == pytest.approx(3 * math.log(2))
    x = torch.tensor([2.0])
    sigmoid = 1 / (1 + math.exp(-1.0))
    assert dpo_loss(x, beta=0.5).item() == pytest.approx(-math.log(sigmoid))


def test_before_the_first_step_the_policy_is_its_reference_and_the_loss_is_log_2():
    found: list[dict[str, float]] = []
    train(tiny(), CHOSEN, REJECTED, CONFIG, on_step=lambda step, done, metrics: found.append(metrics) or True)
    assert found[0] == pytest.approx({"loss": math.log(2), "accuracy": 0.0, "margin": 0.0}, abs=1e-5)


def test_the_gradient_and_the_metrics_are_those_of_a_slow_obvious_loop():
    config = CONFIG.model_copy(update={"pairs": 10, "beta": 0.3})
    model, reference, slow = tiny(1), tiny(2), tiny(1)
    ratios = [row_logprob(reference, row).detach() for row in [*CHOSEN, *REJECTED]]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    metrics = dpo._step(model, optimiser, [*CHOSEN, *REJECTED], torch.stack(ratios), range(10), config)
    total, margins = torch.zeros(()), []
    for won, lost, a, b in zip(CHOSEN, REJECTED, ratios[:10], ratios[10:], strict=True):
        margin = 0.3 * ((row_logprob(slow, won) - a) - (row_logprob(slow, lost) - b))
        p = 1 / (1 + torch.exp(-margin))
        total = total - torch.log(p) / 10
        margins.append(margin.item())
    total.backward()
    for (name, p), q in zip(model.named_parameters(), slow.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, atol=2e-6), name
    expected = {"loss": total.item(), "accuracy": sum(m > 0 for m in margins) / 10, "margin": sum(margins) / 10}
    assert metrics == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_neither_padding_nor_the_split_into_micro_batches_changes_the_gradient(kind: str):
    found = []
    for tokens in (100_000, 70, 1):
        model = tiny(1, kind)
        reference = torch.linspace(-30, -10, 20)
        config = CONFIG.model_copy(update={"micro_tokens": tokens})
        metrics = dpo._step(model, torch.optim.SGD(model.parameters(), lr=0.0), [*CHOSEN, *REJECTED], reference, range(10), config)
        found.append((torch.cat([p.grad.flatten() for p in model.parameters()]), metrics))
    for gradient, metrics in found[1:]:
        assert torch.allclose(gradient, found[0][0], atol=2e-6) and metrics == pytest.approx(found[0][1], rel=1e-4)


def test_what_has_no_weight_counts_in_neither_sum():
    model = tiny()
    given = [(ids, [0.0 if i == len(ids) - 1 else w for i, w in enumerate(ws)]) for ids, ws in CHOSEN]
    changed = [([*ids[:-1], 23 if ids[-1] != 23 else 22], ws) for ids, ws in given]  # the last token, which is given and seen by none
    sums = [dpo._sums(model, made, CONFIG) for made in (given, changed)]
    assert torch.equal(*sums) and sums[0] == pytest.approx(torch.stack([row_logprob(model, row) for row in given]).detach(), abs=1e-4)


def test_the_preferred_become_likelier_than_the_others_and_the_other_way_round():
    config = CONFIG.model_copy(update={"epochs": 10.0})
    for won, lost in ((CHOSEN, REJECTED), (REJECTED, CHOSEN)):
        model, start = tiny(), tiny()
        metrics = train(model, won, lost, config)
        with torch.no_grad():
            gaps = [
                row_logprob(model, a) - row_logprob(start, a) - row_logprob(model, b) + row_logprob(start, b)
                for a, b in zip(won, lost, strict=True)
            ]
        assert all(gap > 0 for gap in gaps) and metrics["accuracy"] == 1.0 and metrics["loss"] < 0.6 and not model.training
        assert metrics["optimiser_steps"] == 30  # three steps hold ten pairs


class Killed(BaseException): ...


@pytest.mark.parametrize("stops", [[1], [3, 5]])
def test_an_interrupted_training_ends_bit_for_bit_where_an_uninterrupted_one_does(
    stops: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FitCheckpoint, "EVERY_S", -1.0)  # a checkpoint every step
    path, whole, resumed = tmp_path / "dpo.pt", tiny(), tiny()
    expected = train(whole, CHOSEN, REJECTED, CONFIG)

    def killer(at: int):
        def on_step(step: int, done: float, metrics: dict[str, float]) -> None:
            if step == at:
                raise Killed

        return on_step

    for at in stops:
        with pytest.raises(Killed):
            train(tiny(), CHOSEN, REJECTED, CONFIG, checkpoint=path, on_step=killer(at))
    found = train(resumed, CHOSEN, REJECTED, CONFIG, checkpoint=path)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"}


def test_nothing_to_train_on_and_odd_pairs_are_the_users_error():
    for won, lost in (([], []), (CHOSEN, REJECTED[:-1])):
        with pytest.raises(UsageError, match="at least one pair"):
            train(tiny(), won, lost, CONFIG)


def test_a_loss_that_is_not_a_number_stops_the_training():
    model = tiny()
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(InvariantError, match="learning rate"):
        train(model, CHOSEN, REJECTED, CONFIG)
