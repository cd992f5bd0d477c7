"""GSPO's sequence ratio: by hand, against a slow obvious loop, and with one token and one turn a sequence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from losses import inputs
from rollouts import gradients, groups, learner, logprobs, shifted, tiny, trajectory

from dreamgym.errors import ConfigError
from dreamgym.train.algos import grpo, gspo
from dreamgym.types import Completion


def test_two_sequences_as_worked_by_hand():
    # s_1 = exp((0.1 + 0.3) / 2) = 1.2214, A = 1, clipped at 1.1: 1.1, no gradient. s_2 = exp(-0.2), A = -2, not clipped by 0.3 below.
    x = torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64, requires_grad=True)
    old, advantages = x.detach() - torch.tensor([0.1, 0.3, -0.2], dtype=torch.float64), torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64)
    weights, sequences = torch.tensor([0.5, 0.5, 1.0], dtype=torch.float64), torch.tensor([0, 0, 1])
    facts = {"token_weights": weights, "turn_ids": sequences, "normaliser": 2.0}
    loss, sums = gspo.make(clip_low=0.3, clip_high=0.1).loss(inputs(x, old, advantages, **facts))
    loss.backward()
    assert loss.item() == pytest.approx((-1.1 + 2 * math.exp(-0.2)) / 2)
    assert x.grad.tolist() == pytest.approx([0.0, 0.0, math.exp(-0.2)]) and sums["clip_fraction"] == 2
    x.grad = None
    gspo.make(clip_low=0.3, clip_high=0.3).loss(inputs(x, old, advantages, **facts)).loss.backward()
    assert x.grad.tolist() == pytest.approx([-math.exp(0.2) / 4, -math.exp(0.2) / 4, math.exp(-0.2)])  # -s A / (G |y|), equal within y


def test_sequences_of_one_token_are_grpo():
    x, old = -torch.arange(1.0, 6.0), -torch.arange(1.0, 6.0) + 0.1
    found = gspo.make(aggregate="token").loss(inputs(x, old, torch.ones(5), turn_ids=torch.arange(5)))
    expected = grpo.make(clip_low=3e-4, clip_high=4e-4).loss(inputs(x, old, torch.ones(5)))
    assert found.loss == pytest.approx(float(expected.loss)) and found.sums == pytest.approx(expected.sums)


def test_the_learners_gradient_is_that_of_a_slow_obvious_loop_over_the_turns():
    model, made = tiny(), groups(tiny())
    one = learner(tiny(), {"name": "gspo", "clip_low": 0.1, "clip_high": 0.1}, old_logprobs="sampler")
    one.update(made)
    episodes = []
    for group, advantages in zip(made, one.algorithm.compute_advantages(made), strict=True):
        for episode, by_turn in zip(group, advantages, strict=True):
            said, total = [turn.completion for turn in episode.turns], 0.0
            for completion, advantage in zip(said, by_turn, strict=True):
                own = logprobs(model, [*completion.prompt_ids, *completion.ids])[-len(completion.ids) :]
                ratio = ((own - torch.tensor(completion.logprobs)).sum() / len(completion.ids)).exp()
                total = total + len(completion.ids) * torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)
            episodes.append(total / sum(len(completion.ids) for completion in said))
    (-sum(episodes) / len(episodes)).backward()
    slow = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert slow.abs().max() > 1e-3 and torch.allclose(gradients(one), slow, atol=1e-6)


def test_a_loss_can_tell_rows_and_turns_apart():
    seen = []
    one = learner(tiny(), {"name": "gspo", "clip_low": 0.1, "clip_high": 0.1}, old_logprobs="sampler")
    plain = one.algorithm.loss
    one.algorithm.loss = lambda tokens: seen.append(tokens) or plain(tokens)
    a, b = Completion((2,), (3, 4), (-1.0,) * 2, "", "stop"), Completion((2, 3, 4, 5), (6,), (-1.0,), "", "stop")
    apart = Completion((9,), (8, 8), (-1.0,) * 2, "", "stop")
    one.update([[trajectory([0.0, 0.0, 1.0], [a, b, apart]), trajectory([0.0], [apart])]])
    (tokens,) = seen
    found = sorted(zip(tokens.sequence_ids.tolist(), tokens.turn_ids.tolist(), tokens.advantages.sign().tolist(), strict=True))
    ids = [one for one, _, _ in found]
    assert len(set(ids)) == 3 and sorted(ids.count(i) for i in set(ids)) == [2, 2, 3]
    assert len({turn for _, turn, _ in found}) == 4 and {turn for _, turn, _ in found} == {0, 1, 2, 3}


def test_a_sampler_that_rounds_differently_clips_nothing_before_the_first_step():
    """Half a percent a token is far beyond the clip: against the sampler's own log-probs half of all turns would be clipped."""
    rng = np.random.default_rng(0)
    made = [[shifted(episode, 5e-3 * float(rng.choice([-1, 1]))) for episode in group] for group in groups(tiny(), shift=0.0)]
    metrics = learner(tiny(), {"name": "gspo"}).update(made)
    assert metrics["clip_fraction"] == 0.0 and metrics["logprob_mismatch"] == pytest.approx(5e-3, rel=0.01)
    with pytest.raises(ConfigError, match=r"clipped at 0\.0003; set learner\.old_logprobs = 'learner'"):
        learner(tiny(), {"name": "gspo"}, old_logprobs="sampler")
