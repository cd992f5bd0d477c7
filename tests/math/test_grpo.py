"""GRPO's numbers, worked by hand or by slow obvious loops, and the learner's gradients on a Llama small enough to check.

What every algorithm must keep is in test_algorithms.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from losses import inputs
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from dreamgym.config import build
from dreamgym.errors import ConfigError, UsageError
from dreamgym.returns import GroupStatistics, group_statistics
from dreamgym.train.algos import grpo
from dreamgym.train.algos.grpo import GRPO, GRPOConfig
from dreamgym.train.batch import cut, pad, sequences_of
from dreamgym.train.forward import token_logprobs
from dreamgym.train.learner import Learner
from dreamgym.train.settings import LearnerConfig
from dreamgym.types import Completion, Observation, Task, Trajectory, Transition, Turn

SHAPE = {
    "vocab_size": 20, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
    "tie_word_embeddings": True,
}  # fmt: skip


def tiny(seed: int = 0, kind: Any = LlamaForCausalLM, config: Any = LlamaConfig) -> Any:
    torch.manual_seed(seed)
    return kind(config(**SHAPE)).eval()


def plain_logprobs(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[T-1] log-probabilities of ids[1:], by transformers' own forward."""
    scores = torch.log_softmax(model(torch.tensor([list(ids)])).logits[0, :-1].float(), -1)
    return scores[torch.arange(len(ids) - 1), torch.tensor(list(ids[1:]))]


def completion(model: Any, prompt: Sequence[int], ids: Sequence[int], shift: float = 0.0) -> Completion:
    """As if sampled from `model`, whose log-probabilities have since moved by `-shift`."""
    with torch.no_grad():
        logprobs = plain_logprobs(model, [*prompt, *ids])[len(prompt) - 1 :] + shift
    return Completion(tuple(prompt), tuple(ids), tuple(logprobs.tolist()), "", "stop")


def trajectory(reward: float, *said: Completion, error: str | None = None) -> Trajectory:
    state = Observation("s")
    rewards = [0.0] * (len(said) - 1) + [reward]
    turns = tuple(Turn(Transition(state, "a", state, r, r == rewards[-1]), c) for r, c in zip(rewards, said, strict=True))
    return Trajectory("t", Task("t", "i", "e"), "real", turns, reward >= 1, error=error)


def gradients(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def step(
    groups: Sequence[Sequence[Trajectory]], *, seed: int = 0, model: Any = None, algorithm: dict[str, Any] | None = None, **config: Any
):
    """(model, gradient, metrics) after one update, without clipping, in one mini-batch."""
    model = model or tiny(seed)
    defaults = {"minibatches": 1, "min_trajectories": 1, "grad_clip": 1e9, "lr": 1e-3, "bf16": False}
    learner = Learner(model, grpo.make(**(algorithm or {})), LearnerConfig(**(defaults | config)))
    metrics = learner.update(groups)
    return model, gradients(model).clone(), metrics


def random_groups(model: Any, *, groups: int = 3, size: int = 4, shift: float = 0.3) -> list[list[Trajectory]]:
    """Rollouts of uneven lengths, two turns each, sampled by slightly other weights."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(groups):
        group = []
        for _ in range(size):
            first = completion(
                model, rng.integers(2, 20, rng.integers(2, 9)), rng.integers(2, 20, rng.integers(1, 5)), rng.normal() * shift
            )
            more = [*first.prompt_ids, *first.ids, *rng.integers(2, 20, rng.integers(1, 6))]
            second = completion(model, more, rng.integers(2, 20, rng.integers(1, 5)), rng.normal() * shift)
            group.append(trajectory(float(rng.random()), first, second))
        made.append(group)
    return made


# --- advantages -------------------------------------------------------------------------------------------------------------------


def advantages(*returns: float, **config: Any) -> list[float]:
    """Of rollouts of one turn."""
    said = Completion((2,), (3,), (0.0,), "", "stop")
    (group,) = GRPO(GRPOConfig(**config)).compute_advantages([[trajectory(reward, said) for reward in returns]])
    return [advantage for (advantage,) in group]


def test_advantages_as_worked_by_hand():
    # one success in four: mean 1/4, variance 3/16, deviation sqrt(3)/4
    assert advantages(1, 0, 0, 0) == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3], abs=1e-5)
    assert advantages(1, 0) == pytest.approx([1, -1], abs=1e-5)
    assert advantages(1, 0, 0, 0, scale_by_std=False) == [0.75, -0.25, -0.25, -0.25]
    assert advantages(0.5, 0.0, 1.0) == pytest.approx([0, -math.sqrt(1.5), math.sqrt(1.5)], abs=1e-5)


@pytest.mark.parametrize(
    ("returns", "kind"), [((), "single"), ((1,), "single"), ((0, 0), "unsolved"), ((1, 1), "solved"), ((0.5, 0.5), "even")]
)
def test_a_group_without_variance_and_a_group_of_one_teach_nothing(returns: tuple[float, ...], kind: str):
    assert GroupStatistics(returns).kind == kind
    assert advantages(*returns) == [0.0] * len(returns)


def test_equal_returns_that_floats_cannot_add_exactly_are_still_without_variance():
    assert advantages(*[0.1] * 7) == [0.0] * 7


def test_negative_advantages_can_be_weakened_or_dropped():
    assert advantages(1, 0, 0, 0, scale_by_std=False, negative_weight=0.5) == [0.75, -0.125, -0.125, -0.125]
    assert [abs(a) for a in advantages(1, 0, 0, 0, scale_by_std=False, negative_weight=0.0)] == [0.75, 0, 0, 0]


def test_advantages_match_a_slow_obvious_loop():
    rng = np.random.default_rng(0)
    for _ in range(50):
        returns = rng.choice([0.0, 0.25, 1.0], size=rng.integers(2, 9)).tolist()
        mean = sum(returns) / len(returns)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in returns) / len(returns))
        expected = [(r - mean) / (deviation + 1e-6) if deviation > 1e-6 else 0.0 for r in returns]
        assert advantages(*returns) == pytest.approx(expected, abs=1e-9)


def test_a_failed_rollout_is_out_of_the_baseline_and_is_no_zero():
    said = Completion((2,), (3,), (0.0,), "", "stop")
    found = group_statistics([trajectory(1.0, said), trajectory(0.0, said), trajectory(0.0, said, error="the server went away")])
    assert found.returns == (1.0, 0.0) and found.mean == 0.5


# --- the loss ---------------------------------------------------------------------------------------------------------------------


def loss(
    logprobs: Sequence[float], old: Sequence[float], adv: Sequence[float], *, z: float = 1.0, ref: Sequence[float] | None = None, **config
):
    """(loss, gradient by each log-probability, sums)"""
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    reference = None if ref is None else torch.tensor(ref, dtype=torch.float64)
    value, sums = GRPO(GRPOConfig(**config)).loss(
        inputs(x, torch.tensor(old, dtype=torch.float64), torch.tensor(adv, dtype=torch.float64), normaliser=z, ref_logprobs=reference)
    )
    value.backward()
    return value.item(), x.grad.tolist(), sums


def test_on_policy_the_gradient_is_minus_the_advantage_over_the_normaliser():
    value, gradient, _ = loss([-1.0, -2.0, -0.5], [-1.0, -2.0, -0.5], [2.0, -1.0, 0.0], z=4.0)
    assert value == pytest.approx(-0.25) and gradient == pytest.approx([-0.5, 0.25, 0.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.27, 1.0, True),
        (1.29, 1.0, False),  # good and already likelier than 1 + 0.28: enough
        (0.5, 1.0, True),  # good and less likely: bring it back, however far
        (0.81, -1.0, True),
        (0.79, -1.0, False),  # bad and already less likely than 1 - 0.2: enough
        (2.0, -1.0, True),  # bad and likelier: bring it back, however far
    ],
)
def test_the_clip_stops_moves_that_went_far_enough_and_no_others(ratio: float, advantage: float, moves: bool):
    _, (gradient,), sums = loss([math.log(ratio)], [0.0], [advantage])
    assert gradient == pytest.approx(-ratio * advantage if moves else 0.0)
    assert sums["clip_fraction"] == float(not moves)


def test_the_loss_matches_a_slow_obvious_loop():
    rng = np.random.default_rng(1)
    logprobs, old, ref = (-rng.random((3, 40)) * 2).tolist()
    adv = rng.normal(size=40).tolist()
    total = kl = clipped = 0.0
    for lp, o, a, r in zip(logprobs, old, adv, ref, strict=True):
        rho = math.exp(lp - o)
        bounded = min(max(rho, 0.8), 1.28)
        total -= min(rho * a, bounded * a)
        clipped += rho * a > bounded * a
        kl += math.exp(r - lp) - 1 - (r - lp)
    value, _, sums = loss(logprobs, old, adv, z=40.0, ref=ref, kl_coef=0.1)
    assert value == pytest.approx((total + 0.1 * kl) / 40) and sums["kl"] == pytest.approx(kl) and sums["clip_fraction"] == clipped


def test_k3_is_zero_at_the_reference_positive_elsewhere_and_pulls_back_to_it():
    assert loss([-1.0], [-1.0], [0.0], ref=[-1.0], kl_coef=1.0)[2]["kl"] == 0.0
    above, (down,), _ = loss([-1.0], [-1.0], [0.0], ref=[-2.0], kl_coef=1.0)
    below, (up,), _ = loss([-1.0], [-1.0], [0.0], ref=[-0.5], kl_coef=1.0)
    assert above == pytest.approx(math.exp(-1)) and below == pytest.approx(math.exp(0.5) - 1.5)
    assert down == pytest.approx(1 - math.exp(-1)) and up == pytest.approx(1 - math.exp(0.5))
    assert loss([-1.0], [-1.0], [0.0], ref=[-9.0])[2].keys() == {"clip_fraction", "approx_kl"}  # without a coefficient none is computed


def test_k3_estimates_the_kl_divergence():
    torch.manual_seed(0)
    p, q = torch.log_softmax(torch.randn(6), 0), torch.log_softmax(torch.randn(6), 0)
    expected = sum(math.exp(p[i]) * loss([p[i].item()], [p[i].item()], [0.0], ref=[q[i].item()], kl_coef=1.0)[2]["kl"] for i in range(6))
    assert expected == pytest.approx((p.exp() * (p - q)).sum().item(), abs=1e-6)


def test_unknown_switches_name_the_nearest_known_one():
    with pytest.raises(ConfigError, match="Did you mean 'clip_low'"):
        grpo.make(clip_lo=0.1)
    assert build(GRPOConfig, {}).clip_high == 0.28


# --- rows -------------------------------------------------------------------------------------------------------------------------


def test_turns_that_go_on_share_a_row_and_a_slid_window_opens_another():
    a = Completion((1, 2), (3, 4), (-0.1, -0.2), "", "stop")
    b = Completion((1, 2, 3, 4, 5), (6,), (-0.3,), "", "stop")
    c = Completion((2, 5, 6), (7,), (-0.4,), "", "stop")
    first, second = sequences_of(trajectory(1.0, a, b, c), 9)
    assert (first.ids, first.mask) == ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])
    assert first.rollout_logprobs == first.old_logprobs == [0, 0, -0.1, -0.2, 0, -0.3] and first.trajectory == second.trajectory == 9
    assert (second.ids, second.mask, second.rollout_logprobs) == ([2, 5, 6, 7], [0, 0, 0, 1], [0, 0, 0, -0.4])


def test_lots_hold_every_row_once_and_no_more_positions_than_allowed():
    rng = np.random.default_rng(0)
    ids = [[0] * int(n) for n in rng.integers(1, 40, 50)]
    lots = cut(list(map(len, ids)), range(50), tokens=100)
    assert sorted(i for lot in lots for i in lot) == list(range(50))
    assert all(len(lot) == 1 or len(lot) * max(len(ids[i]) for i in lot) <= 100 for lot in lots)


@pytest.mark.parametrize("kind", [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)])
def test_padding_and_company_do_not_change_log_probabilities(kind: tuple[Any, Any]):
    model = tiny(0, *kind)
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 20, n).tolist() for n in (5, 12, 2, 9)]
    weights = [[0.0, *[1.0] * (len(row) - 1)] for row in ids]
    together, entropies = token_logprobs(model, pad(ids, weights, [0, 1, 2, 3]))
    assert torch.allclose(together, torch.cat([plain_logprobs(model, row) for row in ids]), atol=1e-5)
    assert together.shape == entropies.shape and bool((entropies >= 0).all()) and bool((entropies <= math.log(20) + 1e-4).all())
    halved, _ = token_logprobs(model, pad(ids, weights, [1]), temperature=0.5)
    scores = torch.log_softmax(model(torch.tensor([ids[1]])).logits[0, :-1] / 0.5, -1)
    assert torch.allclose(halved, scores[torch.arange(11), torch.tensor(ids[1][1:])], atol=1e-5)


# --- the learner ------------------------------------------------------------------------------------------------------------------


def test_the_gradient_is_that_of_a_slow_obvious_loop():
    groups = random_groups(tiny())
    _, found, metrics = step(groups, algorithm={"kl_coef": 0.0}, old_logprobs="sampler")
    model = tiny()
    z = sum(len(t.completion.ids) for group in groups for e in group for t in e.turns)
    total = torch.zeros(())
    for group in groups:
        returns = [e.total_reward for e in group]
        for episode, a in zip(group, advantages(*returns), strict=True):
            for turn in episode.turns:
                said = turn.completion
                new = plain_logprobs(model, [*said.prompt_ids, *said.ids])[len(said.prompt_ids) - 1 :]
                for lp, old in zip(new, said.logprobs, strict=True):
                    rho = torch.exp(lp - old)
                    total = total - torch.minimum(rho * a, rho.clamp(0.8, 1.28) * a) / z
    total.backward()
    assert torch.allclose(found, gradients(model), atol=1e-6)
    assert metrics["tokens"] == z and metrics["sequences"] == 12 and metrics["groups_mixed"] == 3
    assert metrics["grad_norm"] == pytest.approx(found.norm().item(), rel=1e-4)
    assert 0 < metrics["clip_fraction"] < 1 and 0 < metrics["entropy"] <= math.log(20) + 1e-4


def test_groups_without_a_signal_and_failed_rollouts_do_not_dilute_the_others():
    model = tiny()
    (group,) = random_groups(model, groups=1)
    flat = [trajectory(0.0, *(t.completion for t in e.turns)) for e in group]
    broken = trajectory(0.0, *(t.completion for t in group[0].turns), error="unreadable")
    _, gradient, metrics = step([group, flat, [broken, broken]])
    assert torch.allclose(gradient, step([group])[1], atol=1e-7)
    assert torch.allclose(step([[*group, broken]])[1], gradient, atol=1e-7)
    assert (metrics["groups_mixed"], metrics["groups_unsolved"], metrics["groups_single"]) == (1, 1, 1)


def test_an_iteration_without_a_signal_leaves_the_weights_and_still_counts():
    model = tiny()
    before = [p.clone() for p in model.parameters()]
    (group,) = random_groups(model, groups=1)
    learner = Learner(model, grpo.make(), LearnerConfig())
    metrics = learner.update([[trajectory(1.0, *(t.completion for t in e.turns)) for e in group]])
    assert metrics["groups_solved"] == 1 and metrics["sequences"] == 0 and learner.version == learner.updates == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_groups_of_one_are_refused():
    with pytest.raises(UsageError, match="group_size >= 2"):
        step([[trajectory(1.0, Completion((2,), (3,), (0.0,), "", "stop"))]])


def bandit(sign: float, steps: int = 3, **algorithm: Any) -> list[float]:
    """The probability of arm 5 (rather than 6), which earns `record_commit`, before and after each update."""
    model = tiny(seed=3)
    prompt = [4, 7]
    learner = Learner(model, grpo.make(**algorithm), LearnerConfig(lr=3e-3, minibatches=1, bf16=False))
    probabilities = []
    for _ in range(steps + 1):
        arms = [completion(model, prompt, [arm]) for arm in (5, 6)]
        probabilities.append(math.exp(arms[0].logprobs[0]) / sum(math.exp(arm.logprobs[0]) for arm in arms))
        learner.update([[trajectory(sign, arms[0]), trajectory(0.0, arms[1])]])
    return probabilities


def test_a_stronger_pull_to_the_reference_stays_nearer_to_it():
    moved = [abs(bandit(1.0, 6, kl_coef=coefficient)[-1] - bandit(1.0, 0)[0]) for coefficient in (0.0, 1.0, 10.0)]
    assert moved[0] > moved[1] > moved[2]


def test_at_half_precision_the_ratio_starts_at_one_against_the_learners_own_log_probabilities():
    groups = random_groups(tiny(), shift=0.0)
    _, exact, plain = step(groups)
    _, rough, half = step(groups, bf16=True)
    assert plain["logprob_mismatch"] < 1e-5 and 0.0 < half["logprob_mismatch"] < 0.05  # measured without that pass as well
    assert half["approx_kl"] == pytest.approx(0.0, abs=1e-6) and half["clip_fraction"] == 0.0
    assert torch.nn.functional.cosine_similarity(exact, rough, dim=0) > 0.99
    # What the sampler reported plays no part then, so the same rollouts give the same step however far off it was.
    off = [[trajectory(e.total_reward, *(shifted(t.completion) for t in e.turns)) for e in group] for group in groups]
    assert torch.allclose(step(off, bf16=True)[1], rough, atol=1e-6)


def test_in_float32_the_ratio_starts_at_one_too_since_the_sampler_may_compute_at_another_precision():
    off = [[trajectory(e.total_reward, *(shifted(t.completion) for t in e.turns)) for e in group] for group in random_groups(tiny())]
    metrics = step(off)[2]
    assert metrics["logprob_mismatch"] > 0.1 and metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6) and metrics["clip_fraction"] == 0.0


def test_the_samplers_own_log_probabilities_save_a_pass_and_say_how_far_they_are_off():
    groups = random_groups(tiny(), shift=0.0)
    _, recomputed, half = step(groups, bf16=True)
    _, kept, plain = step(groups, bf16=True, old_logprobs="sampler")
    assert plain["logprob_mismatch"] == pytest.approx(half["logprob_mismatch"], rel=0.05)
    assert torch.nn.functional.cosine_similarity(kept, recomputed, dim=0) > 0.99
    off = [[trajectory(e.total_reward, *(shifted(t.completion) for t in e.turns)) for e in group] for group in groups]
    assert step(off, bf16=True, old_logprobs="sampler")[2]["logprob_mismatch"] > 0.1


def shifted(said: Completion) -> Completion:
    return Completion(said.prompt_ids, said.ids, tuple(lp - 0.5 for lp in said.logprobs), said.text, said.finish_reason)


def test_mini_batches_hold_whole_trajectories_and_every_row_once_an_epoch():
    groups = random_groups(tiny())
    metrics = step(groups, minibatches=4, epochs=2)[2]
    assert metrics["optimiser_steps"] == 8
    assert step(groups, minibatches=100)[2]["optimiser_steps"] == 12  # never more lots than trajectories
    assert (
        step(groups, minibatches=4, min_trajectories=5)[2]["optimiser_steps"] == 2
    )  # and none on a few: 12 are too few for three lots of 5


def test_a_linear_schedule_falls_to_a_tenth_over_the_updates_and_needs_to_know_how_many():
    groups, seen = random_groups(tiny()), {}
    for total in (4, None):
        learner = Learner(tiny(), grpo.make(), LearnerConfig(lr=1e-3), total_updates=total)
        seen[total] = [(learner.update(groups), learner.optimiser.param_groups[0]["lr"])[1] for _ in range(5)]
    assert seen[4] == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4, 1e-4])
    assert seen[None] == [1e-3] * 5


def test_the_learning_rate_rises_over_the_warm_up_steps_whatever_updates_they_fall_in():
    groups = random_groups(tiny())
    learner = Learner(tiny(), grpo.make(), LearnerConfig(lr=1e-3, warmup_steps=6, schedule="constant", minibatches=4, min_trajectories=1))
    rates, real = [], learner.optimiser.step
    learner.optimiser.step = lambda *a, **k: (rates.append(learner.optimiser.param_groups[0]["lr"]), real(*a, **k))[1]
    learner.update(groups)
    resumed = Learner(tiny(), grpo.make(), learner.config)
    resumed.load_state_dict(learner.state_dict())
    learner.update(groups)
    assert rates == pytest.approx([1e-3 * share for share in (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1, 1)])
    resumed.update(groups)
    assert resumed.optimiser.param_groups[0]["lr"] == pytest.approx(1e-3) and resumed.optimiser_steps == 8


def test_the_entropy_bonus_is_the_gradient_of_the_mean_entropy_of_the_trained_tokens():
    groups = random_groups(tiny(), groups=1, shift=0.0)
    _, plain, metrics = step(groups)
    _, pulled, _ = step(groups, algorithm={"entropy_coef": 0.5})
    model = tiny()
    said = [turn.completion for episode in groups[0] for turn in episode.turns]
    total = torch.zeros(())
    for one in said:
        logits = model(torch.tensor([[*one.prompt_ids, *one.ids]])).logits[0, len(one.prompt_ids) - 1 : -1]
        total = total + torch.distributions.Categorical(logits=logits).entropy().sum()
    (total / sum(len(one.ids) for one in said)).backward()
    assert torch.allclose(pulled, plain - 0.5 * gradients(model), atol=1e-6)
    assert metrics["entropy"] == pytest.approx(float(total.detach()) / sum(len(one.ids) for one in said), rel=1e-4)


def test_the_seed_divides_the_trajectories_into_minibatches():
    groups, weights = random_groups(tiny()), []
    for seed in (0, 0, 1):
        learner = Learner(tiny(), grpo.make(), LearnerConfig(minibatches=3, min_trajectories=4, lr=1e-3, bf16=False), seed=seed)
        learner.update(groups)
        weights.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("bf16", [False, True])
def test_a_learner_restored_from_its_state_goes_on_as_if_never_stopped(bf16: bool):
    groups = random_groups(tiny())
    config = LearnerConfig(minibatches=3, min_trajectories=4, lr=1e-3, bf16=bf16)
    whole = Learner(tiny(), grpo.make(kl_coef=0.1), config)
    half = Learner(tiny(), grpo.make(kl_coef=0.1), config)
    whole.update(groups)
    half.update(groups)
    published: list[int] = []
    resumed = Learner(tiny(), grpo.make(kl_coef=0.1), config, on_publish=published.append)
    resumed.load_state_dict(half.state_dict())
    assert published == [1]
    assert whole.update(groups) == resumed.update(groups) and whole.version == resumed.version == 2
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
