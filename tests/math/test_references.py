"""Our losses and advantages beside those of verl and TRL, on one small batch (`oracles`).

The numbers were given by verl 0.9.1 and TRL 1.16.0 themselves, by calling the functions of `oracles`; where either is installed, the slow
tests call it again. Departures are named: our deviation of a group is that of all its rollouts (divided by n, as in the GRPO paper),
theirs the unbiased one.
"""

from __future__ import annotations

import math
from typing import Any

import oracles as oracles
import pytest
import torch
from losses import inputs
from oracles import ADVANTAGES, MASK, NEW, OLD, PREDICTED, REF, RETURNS, REWARDS, VALUES
from rollouts import tiny

from dreamgym.returns import GroupStatistics
from dreamgym.train.algos import grpo, gspo
from dreamgym.train.algos.grpo import group_relative
from dreamgym.train.algos.ppo import gae, whiten
from dreamgym.train.batch import TokenSequence
from dreamgym.train.critic import Critic
from dreamgym.train.objective import kl_estimate, token_weights
from dreamgym.train.settings import CriticConfig

BY_TOKENS = (-0.642867, [-0.112933, 0.0, -0.130564, -0.090812, -0.080472, 0.090644, 0.061198, 0.0, 0.0, -0.050959, -0.03806])
BY_SEQUENCES = (-0.34633, [-0.082817, 0.0, -0.095747, -0.066595, -0.059013, 0.16618, 0.112197, 0.0, 0.0, -0.046713, -0.034888])
BY_CONSTANT = (-0.047144, [-0.008282, 0.0, -0.009575, -0.00666, -0.005901, 0.006647, 0.004488, 0.0, 0.0, -0.003737, -0.002791])
WITH_KL = (
    -0.638391,
    [-0.110171, -0.000838, -0.135117, -0.090644, -0.077318, 0.091099, 0.060036, -0.002993, -0.005813, -0.053537, -0.036231],
)
GSPO = (-0.335726, [-0.081748, -0.081748, -0.081748, -0.081748, -0.081748, 0.136546, 0.136546, 0.0, 0.0, 0.0, 0.0])
DUAL = (-0.733755, [-0.145008, 0.0, 0.0, -0.116605, -0.103329, 0.0, 0.07858, 0.0, 0.0, -0.065433, -0.04887])
VALUE = (0.464062, [-0.097004, -0.096117, 0.088703, 0.102714, 0.02229, -0.107255, 0.109649, -0.064716, 0.039917, 0.10785, 0.076626])
GAE = (
    [1.239873, 1.306703, -0.094424, -0.078387, -0.168924, 1.711276, -1.369504, -0.265598, -0.545341, -0.738577, -0.997098],
    [0.541402, -0.321766, -0.573043, 0.371699, 0.656987, 0.101416, -0.536573, -1.344045, -1.279116, -0.478746, 0.149877],
)
GROUP_STD = [1.452741, -0.660337, -0.660337, -0.132067, 1.499997, -0.499999, -0.499999, -0.499999]
GROUP_MEAN = [0.6875, -0.3125, -0.3125, -0.0625, 0.75, -0.25, -0.25, -0.25]
KL = {
    "k1": [0.362045, -0.088198, -0.406019, 0.018606, 0.426125, 0.051358, -0.120294, -0.284607, -0.494371, -0.249612, 0.224639],
    "k2": [0.065538, 0.003889, 0.082426, 0.000173, 0.090791, 0.001319, 0.007235, 0.040501, 0.122201, 0.031153, 0.025231],
    "k3": [0.058296, 0.004006, 0.094812, 0.000172, 0.07916, 0.001297, 0.007534, 0.044633, 0.145096, 0.033915, 0.023443],
}

TOKENS, SEQUENCES, CONSTANT = {}, {"aggregate": "trajectory"}, {"aggregate": "constant", "max_tokens": 50}


def rows(values: torch.Tensor | None = None) -> list[TokenSequence]:
    """The batch as rows of one observed token and the six after it."""
    masks = MASK.tolist()
    made = [TokenSequence([0] * 7, [0.0, *mask], [], i) for i, mask in enumerate(masks)]
    for row, mask, own in zip(made, masks, [] if values is None else values.tolist(), strict=False):
        row.advantages = [0.0, *(v * m for v, m in zip(own, mask, strict=True))]
    return made


def ours(old: torch.Tensor = OLD, make: Any = grpo.make, **config: Any) -> tuple[float, list[float]]:
    """(value, gradient at the trained tokens) of our loss, weighed and normalised as the learner does it."""
    algorithm, chosen, leaf = make(**config), MASK != 0, NEW[MASK != 0].clone().requires_grad_()
    weights, normaliser = token_weights(rows(), range(3), algorithm.config)
    grid = torch.tensor(weights, dtype=torch.float64)[:, 1:]
    advantages = ADVANTAGES[:, None].expand(3, 6)[chosen]
    facts = {"ref_logprobs": REF[chosen], "token_weights": grid[chosen], "turn_ids": chosen.nonzero()[:, 0]}
    loss, _ = algorithm.loss(inputs(leaf, old[chosen], advantages, normaliser=normaliser, **facts))
    loss.backward()
    return loss.item(), leaf.grad.tolist()


def alike(found: tuple[float, list[float]], expected: tuple[float, list[float]]) -> bool:
    return found[0] == pytest.approx(expected[0], abs=1e-6) and found[1] == pytest.approx(expected[1], abs=1e-6)


@pytest.mark.parametrize(("config", "expected"), [(TOKENS, BY_TOKENS), (SEQUENCES, BY_SEQUENCES), (CONSTANT, BY_CONSTANT)])
def test_the_clipped_loss_under_each_average_is_that_of_verl_and_of_trl(config: dict[str, Any], expected: tuple[float, list[float]]):
    assert alike(ours(**config), expected)


def test_the_loss_of_gspo_is_that_of_verl_and_of_trl_where_a_row_is_one_sequence():
    assert alike(ours(make=gspo.make), GSPO)


def test_a_pull_to_the_reference_is_that_of_trl():
    assert alike(ours(kl_coef=0.1, kl="k3"), WITH_KL)


def test_the_dual_clip_is_that_of_verl():
    assert alike(ours(old=OLD - 0.25, dual_clip=1.5), DUAL) and not alike(ours(old=OLD - 0.25), DUAL)


def test_advantages_within_a_group_are_those_of_verl_up_to_how_a_deviation_is_estimated():
    for divide, expected in ((True, GROUP_STD), (False, GROUP_MEAN)):
        found = [
            a for task in (RETURNS[:4], RETURNS[4:]) for a in group_relative(task.tolist(), GroupStatistics(tuple(task.tolist())), divide)
        ]
        biased = math.sqrt(4 / 3) if divide else 1.0
        assert found == pytest.approx([biased * a for a in expected], rel=1e-4)


def test_advantages_over_tokens_and_their_whitening_are_those_of_verl_which_skips_what_was_observed():
    advantages, returns = torch.zeros(3, 6, dtype=torch.float64), torch.zeros(3, 6, dtype=torch.float64)
    for i in range(3):
        at = MASK[i] != 0
        found, targets = gae(REWARDS[i][at].tolist(), VALUES[i][at].tolist(), 0.0, gamma=0.9, lam=0.8)
        advantages[i][at], returns[i][at] = torch.tensor([found, targets], dtype=torch.float64)
    made = rows(advantages)
    whiten(made)
    assert [a for row in made for a, m in zip(row.advantages, row.mask, strict=True) if m] == pytest.approx(GAE[0], abs=2e-6)
    assert returns[MASK != 0].tolist() == pytest.approx(GAE[1], abs=1e-6)


def test_the_clipped_value_loss_is_that_of_verl():
    at, critic = MASK != 0, Critic(tiny(), CriticConfig(clip=0.2))
    leaf = PREDICTED[at].clone().requires_grad_()
    loss = critic.loss(leaf, VALUES[at], REWARDS[at]) / MASK.sum()
    loss.backward()
    assert alike((loss.item(), leaf.grad.tolist()), VALUE)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_each_estimate_of_the_divergence_is_that_of_verl(kind: Any):
    assert kl_estimate(NEW, REF, kind)[MASK != 0].tolist() == pytest.approx(KL[kind], abs=1e-6)


@pytest.mark.slow
def test_trl_where_it_is_installed_still_gives_these_numbers():
    pytest.importorskip("trl", reason="TRL is not installed: pip install 'dreamgym[trl]'")
    assert alike(oracles.trl("dapo"), BY_TOKENS) and alike(oracles.trl("dapo", beta=0.1), WITH_KL)
    assert alike(oracles.trl("grpo", level="sequence", clip=(3e-4, 4e-4)), GSPO)
    assert alike(oracles.trl("grpo"), BY_SEQUENCES) and alike(oracles.trl("dr_grpo"), BY_CONSTANT)


@pytest.mark.slow
def test_verl_where_it_is_installed_still_gives_these_numbers():
    core = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install 'dreamgym[verl]'")
    assert alike(oracles.verl_policy(core, "token-mean"), BY_TOKENS)
    assert alike(oracles.verl_policy(core, "seq-mean-token-mean"), BY_SEQUENCES)
    assert alike(oracles.verl_policy(core, "seq-mean-token-mean", kind="gspo", clip=(3e-4, 4e-4)), GSPO)
    assert alike(oracles.verl_policy(core, "seq-mean-token-sum-norm", 50), BY_CONSTANT)
    assert alike(oracles.verl_policy(core, "token-mean", old=OLD - 0.25), DUAL) and alike(oracles.verl_value(core), VALUE)
    for found, expected in zip(oracles.verl_gae(core), GAE, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)
    assert oracles.verl_group(core, True) == pytest.approx(GROUP_STD, abs=1e-6) and oracles.verl_group(core, False) == pytest.approx(
        GROUP_MEAN, abs=1e-6
    )
    for kind, expected in KL.items():
        assert oracles.verl_kl(core, kind) == pytest.approx(expected, abs=1e-6)
