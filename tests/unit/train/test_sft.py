"""Supervised training: what is weighted is learnt, and an interruption leaves no trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.errors import InvariantError, UsageError
from dreamgym.train import sft
from dreamgym.train.batch import pad
from dreamgym.train.forward import supervised_logprobs, token_logprobs
from dreamgym.train.settings import SFTConfig
from dreamgym.train.sft import train

CONFIG = SFTConfig(epochs=4.0, lr=3e-3, batch_tokens=64, bf16=False)


def tiny() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=24,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
            tie_word_embeddings=True,
        )
    )


def rows(n: int = 24) -> tuple[list[list[int]], list[list[float]], list[list[str]]]:
    """Numbers to be repeated after a mark: the first half is given, the second written."""
    rng = np.random.default_rng(0)
    ids, weights, names = [], [], []
    for _ in range(n):
        given = rng.integers(3, 24, rng.integers(2, 8)).tolist()
        ids.append([*given, 2, *given])
        weights.append([0.0] * (len(given) + 1) + [1.0] * len(given))
        names.append([""] * (len(given) + 1) + ["copy"] * len(given))
    return ids, weights, names


IDS, WEIGHTS, NAMES = rows()


class Killed(BaseException): ...


def killer(at: int):
    def on_step(step: int, done: float, losses: dict[str, float]) -> None:
        if step == at:
            raise Killed

    return on_step


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize(("stops", "optimiser"), [([1], "adamw"), ([7], "muon"), ([3, 4, 11], "adamw")])
def test_an_interrupted_training_ends_bit_for_bit_where_an_uninterrupted_one_does(
    stops: list[int], optimiser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sft.FitCheckpoint, "EVERY_S", -1.0)  # a checkpoint every step
    whole, path, config = tiny(), tmp_path / "new" / "sft.pt", CONFIG.model_copy(update={"optimiser": optimiser})
    expected = train(whole, IDS, WEIGHTS, config, segments=NAMES)
    for at in stops:
        with pytest.raises(Killed):
            train(tiny(), IDS, WEIGHTS, config, segments=NAMES, checkpoint=path, on_step=killer(at))
        assert path.exists() == (at > 1)  # a step is saved when `on_step` has seen it
    resumed = tiny()
    found = train(resumed, IDS, WEIGHTS, config, segments=NAMES, checkpoint=path)
    assert same(whole, resumed) and path.exists()  # the caller removes it, once the model is safe elsewhere
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"}


def test_a_training_that_was_interrupted_behind_its_last_step_still_reports_its_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sft.FitCheckpoint, "EVERY_S", -1.0)
    path, model = tmp_path / "sft.pt", tiny()
    expected = train(model, IDS, WEIGHTS, CONFIG, segments=NAMES, checkpoint=path)
    found = train(tiny(), IDS, WEIGHTS, CONFIG, segments=NAMES, checkpoint=path)
    assert {k: v for k, v in found.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"} and "loss" in found


@pytest.mark.parametrize("kinds", [("adamw", "muon"), ("muon", "adamw")])
def test_a_checkpoint_of_another_optimiser_is_refused_and_stays(kinds: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sft.FitCheckpoint, "EVERY_S", -1.0)
    path = tmp_path / "sft.pt"
    before, after = (CONFIG.model_copy(update={"optimiser": kind}) for kind in kinds)
    with pytest.raises(Killed):
        train(tiny(), IDS, WEIGHTS, before, checkpoint=path, on_step=killer(3))
    with pytest.raises(UsageError, match="written under another optimiser"):
        train(tiny(), IDS, WEIGHTS, after, checkpoint=path)
    train(tiny(), IDS, WEIGHTS, before, checkpoint=path)


def test_steps_after_the_last_checkpoint_are_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sft.FitCheckpoint, "EVERY_S", -1.0)
    path, whole, resumed = tmp_path / "sft.pt", tiny(), tiny()
    train(whole, IDS, WEIGHTS, CONFIG)
    kept = b""

    def on_step(step: int, done: float, losses: dict[str, float]) -> None:
        nonlocal kept
        kept = path.read_bytes() if step == 5 else kept
        if step == 9:
            raise Killed

    with pytest.raises(Killed):
        train(tiny(), IDS, WEIGHTS, CONFIG, checkpoint=path, on_step=on_step)
    path.write_bytes(kept)
    train(resumed, IDS, WEIGHTS, CONFIG, checkpoint=path)
    assert same(whole, resumed)


def test_the_weighted_tokens_are_learnt_and_the_others_are_not():
    model = tiny()
    first: list[float] = []
    config = CONFIG.model_copy(update={"epochs": 40.0, "lr": 1e-2})
    losses = train(model, IDS, WEIGHTS, config, segments=NAMES, on_step=lambda step, done, found: first.append(found["loss"]) and None)
    assert losses["loss"] < 0.5 * first[0] and losses["loss_copy"] == pytest.approx(losses["loss"], rel=1e-4)
    batches = sum(len(sft.one_pass(list(map(len, IDS)), config, seed=0, epoch=epoch)) for epoch in range(40))
    assert losses["optimiser_steps"] == len(first) == batches > 40 * sum(map(len, IDS)) / 64 and not model.training


def test_the_loss_is_the_weighted_mean_of_the_tokens_losses():
    ids, weights = [[3, 4, 5, 6]], [[0.0, 1.0, 0.0, 3.0]]
    model = tiny()
    with torch.no_grad():
        scores = torch.log_softmax(model(torch.tensor(ids)).logits[0, :-1], -1)
    expected = -(1.0 * scores[0, 4] + 3.0 * scores[2, 6]) / 4.0
    losses = train(model, ids, weights, CONFIG.model_copy(update={"epochs": 1.0}), segments=[["", "a", "", "b"]])
    assert losses["loss"] == pytest.approx(expected.item(), abs=1e-5)
    assert losses["loss_a"] == pytest.approx(-scores[0, 4].item(), abs=1e-5) and losses["loss_b"] == pytest.approx(
        -scores[2, 6].item(), abs=1e-5
    )


@pytest.mark.parametrize("tokens", [1, 30, 64, 10_000])
def test_a_step_in_parts_has_the_loss_and_the_gradient_of_the_whole_and_holds_fewer_tokens(tokens: int, monkeypatch: pytest.MonkeyPatch):
    ids, _, names = rows(12)
    weights = [[0.0] + [float(1 + (i + j) % 3) for j in range(1, len(row))] for i, row in enumerate(ids)]
    real, held = sft.supervised_logprobs, list[tuple[int, int]]()

    def watch(model: Any, batch: Any, **how: Any) -> torch.Tensor:
        held.append(tuple(batch.ids.shape))
        return real(model, batch, **how)

    monkeypatch.setattr(sft, "supervised_logprobs", watch)
    config, found = CONFIG.model_copy(update={"epochs": 1e-9, "batch_tokens": 10_000, "grad_clip": 1e9}), []
    for micro in (None, tokens):
        held.clear()
        model = tiny()
        losses = train(model, ids, weights, config.model_copy(update={"micro_tokens": micro}), segments=names)
        found.append(({k: v for k, v in losses.items() if k != "seconds"}, [p.grad for p in model.parameters()]))
        assert losses["optimiser_steps"] == 1 and sum(n for n, _ in held) == len(ids)
    (loss, gradients), (split, summed) = found
    assert split == pytest.approx(loss, abs=1e-5) and loss.keys() == {"loss", "loss_", "loss_copy", "optimiser_steps"}
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients, summed, strict=True))
    assert (len(held) == 1) == (tokens == 10_000) and all(n == 1 or n * width <= tokens for n, width in held)


def test_a_fit_in_parts_ends_where_a_fit_of_whole_steps_does():
    whole, parts = tiny(), tiny()
    train(whole, IDS, WEIGHTS, CONFIG)
    train(parts, IDS, WEIGHTS, CONFIG.model_copy(update={"micro_tokens": 20}))
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))


def test_log_probabilities_in_blocks_have_the_values_and_the_gradients_of_the_whole():
    model, (ids, weights, _) = tiny(), rows(6)
    batch, found = pad(ids, weights, range(6)), []
    for logprobs in (supervised_logprobs(model, batch), token_logprobs(model, batch)[0]):
        model.zero_grad()
        (logprobs * torch.arange(1.0, 1 + len(logprobs))).sum().backward()
        found.append([logprobs.detach(), *(p.grad.clone() for p in model.parameters())])
    assert len(found[0][0]) == sum(weight != 0 for row in weights for weight in row[1:])
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in zip(*found, strict=True))


def test_the_learning_rate_rises_and_then_falls_to_its_least(monkeypatch: pytest.MonkeyPatch):
    seen: list[float] = []
    real = sft._set_lr

    def watch(optimiser: torch.optim.Optimizer, config: SFTConfig, done: float, step: float) -> None:
        real(optimiser, config, done, step)
        seen.append(optimiser.param_groups[0]["lr"])

    monkeypatch.setattr(sft, "_set_lr", watch)
    train(tiny(), IDS, WEIGHTS, CONFIG.model_copy(update={"epochs": 10.0, "warmup_ratio": 0.2}))
    top = seen.index(max(seen))
    assert 0 < top < 0.3 * len(seen) and max(seen) <= CONFIG.lr and seen[-1] < 0.1 * CONFIG.lr
    assert seen[:top] == sorted(seen[:top]) and seen[top:] == sorted(seen[top:], reverse=True)


def test_the_seed_draws_the_order_of_the_sequences():
    trained = []
    for seed in (0, 0, 1):
        train(model := tiny(), IDS, WEIGHTS, CONFIG, seed=seed)
        trained.append(model)
    assert same(trained[0], trained[1]) and not same(trained[0], trained[2])


@pytest.mark.parametrize("length", [(8, 20), (40, 40), (90, 130)], ids=["short", "batches half empty", "longer than a batch"])
@pytest.mark.parametrize("epochs", [1.0, 2.0, 2.5])
def test_epochs_are_passes_in_which_every_sequence_is_seen_once(length: tuple[int, int], epochs: float, monkeypatch: pytest.MonkeyPatch):
    rng, seen, dones = np.random.default_rng(0), list[int](), list[float]()
    lengths = rng.integers(length[0], length[1] + 1, 30).tolist()
    monkeypatch.setattr(sft, "_step", lambda model, optimiser, batch, segments, config: seen.extend(batch.sequences) or {"loss": 1.0})
    config = CONFIG.model_copy(update={"epochs": epochs})
    losses = train(
        tiny(), [[3] * n for n in lengths], [[1.0] * n for n in lengths], config, on_step=lambda step, done, _: dones.append(done)
    )
    for epoch in range(int(epochs)):
        assert sorted(seen[30 * epoch : 30 * epoch + 30]) == list(range(30)), "once a pass, the long ones too"
    per_pass = [sft.one_pass(lengths, config, seed=0, epoch=epoch) for epoch in range(3)]
    steps = sum(map(len, per_pass[: int(epochs)])) + (math.ceil(len(per_pass[2]) / 2) if epochs == 2.5 else 0)
    assert losses["optimiser_steps"] == steps == len(dones) and dones == sorted(dones) and dones[0] == 0.0 and dones[-1] < 1.0


def test_a_caller_may_stop_early_and_a_clock_does():
    assert train(tiny(), IDS, WEIGHTS, CONFIG, on_step=lambda step, done, losses: step == 3)["optimiser_steps"] == 3
    endless = CONFIG.model_copy(update={"epochs": 1e9, "max_seconds": 0.2})
    assert train(tiny(), IDS, WEIGHTS, endless)["seconds"] < 2.0


def test_nothing_to_train_on_is_the_users_error():
    with pytest.raises(UsageError, match="Nothing to train on"):
        train(tiny(), [], [], CONFIG)


def test_sequences_in_which_nothing_is_weighted_are_left_out():
    unweighted = [[0.0] * len(row) for row in IDS]
    first_alone = [[1.0, *row[1:]] for row in unweighted]  # nothing predicts a first token
    mixed = train(tiny(), [*IDS, *IDS, *IDS], [*unweighted, *WEIGHTS, *first_alone], CONFIG, segments=[*NAMES, *NAMES, *NAMES])
    alone = train(tiny(), IDS, WEIGHTS, CONFIG, segments=NAMES)
    assert {k: v for k, v in mixed.items() if k != "seconds"} == {k: v for k, v in alone.items() if k != "seconds"}
    with pytest.raises(UsageError, match="Nothing to train on: no sequence has a weighted token"):
        train(tiny(), IDS, first_alone, CONFIG)


def test_a_gradient_that_is_not_a_number_stops_the_training_before_it_is_stepped_on():
    model = tiny()
    model.model.norm.weight.register_hook(lambda grad: grad * math.inf)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InvariantError, match="supervised gradient"):
        train(model, IDS, WEIGHTS, CONFIG)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_loss_that_is_not_a_number_stops_the_training():
    model = tiny()
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(InvariantError, match="learning rate"):
        train(model, IDS, WEIGHTS, CONFIG)
