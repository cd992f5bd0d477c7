"""The pieces that the algorithms share: what each KL estimate really follows, the clips, the weights, and the averages."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from losses import inputs
from rollouts import gradients, groups, learner, logprobs, shifted, tiny, trajectory

from dreamgym.envs import corridor
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import ConfigError, EnvironmentFailure
from dreamgym.train.algos import grpo
from dreamgym.train.batch import sequences_of
from dreamgym.train.objective import ObjectiveConfig, importance, kl_estimate, token_weights
from dreamgym.types import Completion, Observation, StepInfo, Task, Transition, Verdict

BETA = 0.7


def kl_gradient(**config: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(expected gradient of the KL term by the logits, policy's logits, reference's log-probs) of a policy over five tokens.

    The batch holds every token once, weighed by its probability, so that the sum is the expectation and nothing is left to chance.
    """
    torch.manual_seed(0)
    logits, reference = torch.randn(5, dtype=torch.float64, requires_grad=True), torch.log_softmax(torch.randn(5, dtype=torch.float64), 0)
    pi = torch.log_softmax(logits, 0)
    zero = torch.zeros(5, dtype=torch.float64)
    loss, sums = grpo.make(kl_coef=BETA, **config).loss(
        inputs(pi, pi.detach(), zero, ref_logprobs=reference, token_weights=pi.detach().exp())
    )
    loss.backward()
    assert "kl" in sums
    return logits.grad / BETA, logits.detach().requires_grad_(), reference


def gradient_of(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


def test_k2_in_the_loss_and_k1_in_the_reward_follow_the_divergence_from_the_reference():
    # grad KL(pi||ref) = sum pi x grad log pi, because sum pi grad x = grad sum pi = 0. With k2 = x^2/2, grad k2 = x grad log pi.
    for config in ({"kl": "k2"}, {"kl": "k1", "kl_in": "reward"}):
        found, logits, reference = kl_gradient(**config)
        pi = torch.log_softmax(logits, 0)
        assert torch.allclose(found, gradient_of((pi.exp() * (pi - reference)).sum(), logits), atol=1e-12)


def test_k3_in_the_loss_follows_the_divergence_of_the_reference_from_the_policy():
    # grad k3 = (1 - exp(-x)) grad log pi; under pi the 1 vanishes, and -pi exp(-x) = -ref: -sum ref grad log pi = grad KL(ref||pi).
    found, logits, reference = kl_gradient(kl="k3")
    pi = torch.log_softmax(logits, 0)
    assert torch.allclose(found, gradient_of((reference.exp() * (reference - pi)).sum(), logits), atol=1e-12)


def test_k3_in_the_reward_follows_the_one_divergence_less_the_other():
    # sum pi (ref/pi - 1 + x) grad log pi = sum ref grad log pi + grad KL(pi||ref) = grad KL(pi||ref) - grad KL(ref||pi)
    found, logits, reference = kl_gradient(kl="k3", kl_in="reward")
    pi = torch.log_softmax(logits, 0)
    expected = (pi.exp() * (pi - reference)).sum() - (reference.exp() * (reference - pi)).sum()
    assert torch.allclose(found, gradient_of(expected, logits), atol=1e-12)


def test_k2_in_the_reward_is_the_score_function_gradient_of_half_the_squared_log_ratio():
    found, logits, reference = kl_gradient(kl="k2", kl_in="reward")
    pi = torch.log_softmax(logits, 0)
    assert torch.allclose(found, gradient_of((pi.exp() * (pi - reference).detach().square() / 2).sum(), logits), atol=1e-12)


def test_k1_in_the_loss_would_follow_nothing_and_is_refused():
    logits = torch.randn(5, requires_grad=True)
    pi = torch.log_softmax(logits, 0)
    expected = (pi.detach().exp() * kl_estimate(pi, torch.log_softmax(torch.randn(5), 0), "k1")).sum()
    assert gradient_of(expected, logits).abs().max() < 1e-6
    with pytest.raises(ConfigError, match="kl_in = 'reward'"):
        grpo.make(kl_coef=0.1, kl="k1")


@pytest.mark.parametrize("config", [{"kl": "k2"}, {"kl": "k3"}, {"kl": "k1", "kl_in": "reward"}])
def test_a_policy_that_left_its_reference_is_pulled_back(config: dict[str, Any]):
    found, logits, reference = kl_gradient(**config)

    def divergence(at: torch.Tensor) -> float:
        pi = torch.log_softmax(at, 0)
        return float((pi.exp() * (pi - reference)).sum())

    assert divergence(logits.detach() - 0.05 * found) < divergence(logits.detach())


def test_a_sampler_that_is_off_is_weighed_by_the_ratio_up_to_the_cap_and_without_a_gradient():
    old, sampled = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True), torch.tensor([-1.0, -1.5, -4.0])
    assert importance(old, sampled, 2.0).tolist() == pytest.approx([1.0, math.exp(0.5), 2.0])
    assert not importance(old, sampled, 2.0).requires_grad
    x = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    loss, sums = grpo.make(importance_cap=2.0).loss(inputs(x, old.detach(), torch.tensor([1.0, -1.0, 1.0]), rollout_logprobs=sampled))
    loss.backward()
    assert x.grad.tolist() == pytest.approx([-1.0, math.exp(0.5), -2.0]) and sums["importance_weight"] == pytest.approx(3 + math.exp(0.5))


def test_the_learner_weighs_every_token_by_how_far_its_sampler_was_off():
    model = tiny()
    made = [[shifted(e, 0.5) for e in group] for group in groups(model, shift=0.0)]
    plain, weighed = learner(tiny(), {"name": "grpo"}), learner(tiny(), {"name": "grpo", "importance_cap": 2.0})
    plain.update(groups(model, shift=0.0))
    metrics = weighed.update(made)
    # All tokens were reported 0.5 nats too likely: the ratio starts at 1 against the learner's own, and every weight is exp(-0.5).
    assert torch.allclose(gradients(weighed), math.exp(-0.5) * gradients(plain), atol=1e-6)
    assert metrics["importance_weight"] == pytest.approx(math.exp(-0.5), rel=1e-4)
    assert metrics["logprob_mismatch"] == pytest.approx(0.5, rel=1e-4)


def test_the_learners_own_log_probs_leave_those_of_the_rollout_as_they_were():
    model = tiny()
    episodes = [shifted(e, 0.5) for group in groups(model, shift=0.0) for e in group]
    sequences = [sequence for i, e in enumerate(episodes) for sequence in sequences_of(e, i)]
    reported = [list(sequence.rollout_logprobs) for sequence in sequences]
    assert [sequence.old_logprobs for sequence in sequences] == reported
    assert learner(model, {"name": "grpo"})._recompute(sequences) == pytest.approx(0.5, rel=1e-4)
    assert [sequence.rollout_logprobs for sequence in sequences] == reported
    for sequence in sequences:
        assert sequence.old_logprobs == pytest.approx([r - 0.5 * m for r, m in zip(sequence.rollout_logprobs, sequence.mask, strict=True)])


def test_the_dual_clip_bounds_what_a_bad_token_that_became_likelier_can_weigh():
    for ratio, advantage, gradient in ((2.9, -1.0, 2.9), (3.1, -1.0, 0.0), (3.1, 1.0, 0.0), (0.5, 1.0, -0.5)):
        x = torch.tensor([math.log(ratio)], requires_grad=True)
        loss, _ = grpo.make(dual_clip=3.0).loss(inputs(x, torch.zeros(1), torch.tensor([advantage])))
        loss.backward()
        assert x.grad.item() == pytest.approx(gradient), ratio
    with pytest.raises(ConfigError, match="above 1 \\+ clip_high"):
        grpo.make(dual_clip=1.1)


def test_each_average_weighs_tokens_as_it_says():
    a, b = Completion((2,), (3, 4, 5), (0.0,) * 3, "", "stop"), Completion((2, 3, 4, 5, 6), (7,), (0.0,), "", "stop")
    apart = Completion((9,), (8, 8), (0.0,) * 2, "", "stop")
    rows = [*sequences_of(trajectory([0.0, 1.0], [a, apart]), 0), *sequences_of(trajectory([0.0, 1.0], [a, b]), 1)]
    assert [row.trajectory for row in rows] == [0, 0, 1]  # three tokens and two, and four in one row
    masks = [[0, 1, 1, 1], [0, 1, 1], [0, 1, 1, 1, 0, 1]]
    assert token_weights(rows, range(3), ObjectiveConfig()) == (masks, 9)
    assert token_weights(rows, [2], ObjectiveConfig()) == (masks, 4)
    weights, normaliser = token_weights(rows, range(3), ObjectiveConfig(aggregate="trajectory"))
    assert normaliser == 2 and [sum(row) for row in weights] == pytest.approx([0.6, 0.4, 1.0]) and weights[2][1] == 0.25
    assert token_weights(rows, range(3), ObjectiveConfig(aggregate="constant", max_tokens=50)) == (masks, 100)
    for wrong in ({"aggregate": "constant"}, {"max_tokens": 9}):
        with pytest.raises(ConfigError, match="belong together"):
            ObjectiveConfig(**wrong)


@pytest.mark.parametrize("config", [{"aggregate": "trajectory"}, {"aggregate": "constant", "max_tokens": 12, "scale_by_std": False}])
def test_the_learners_gradient_under_each_average_is_that_of_a_slow_obvious_loop(config: dict[str, Any]):
    model = tiny()
    made = groups(model)
    trained = learner(tiny(), {"name": "grpo", **config}, old_logprobs="sampler")
    trained.update(made)
    total = torch.zeros(())
    for group in made:
        mean = sum(e.total_reward for e in group) / len(group)
        std = math.sqrt(sum((e.total_reward - mean) ** 2 for e in group) / len(group))
        for episode in group:
            a = (episode.total_reward - mean) / (1.0 if config.get("scale_by_std") is False else std + 1e-6)
            said = [t.completion for t in episode.turns]
            part = torch.zeros(())
            for one in said:
                new = logprobs(model, [*one.prompt_ids, *one.ids])[len(one.prompt_ids) - 1 :]
                rho = torch.exp(new - torch.tensor(one.logprobs))
                part = part + torch.minimum(rho * a, rho.clamp(0.8, 1.28) * a).sum()
            total = total - part / (12 if "max_tokens" in config else sum(len(one.ids) for one in said)) / 12  # twelve trajectories
    total.backward()
    assert torch.allclose(gradients(trained), torch.cat([p.grad.flatten() for p in model.parameters()]), atol=1e-6)


def test_statistics_over_steps_count_a_rollout_as_often_as_it_has_turns():
    rng = np.random.default_rng(0)
    said = Completion((2,), (3,), (0.0,), "", "stop")
    lengths, ends = rng.integers(1, 9, 6), rng.random(6)
    group = [trajectory([0.0] * (n - 1) + [r], [said] * n) for n, r in zip(lengths, ends, strict=True)]
    everything = [r for n, r in zip(lengths, ends, strict=True) for _ in range(n)]
    mean, std = sum(everything) / len(everything), math.sqrt(np.mean([(r - sum(everything) / len(everything)) ** 2 for r in everything]))
    (found,) = grpo.make(mean_std_over="turn").compute_advantages([group])
    for n, r, row in zip(lengths, ends, found, strict=True):
        assert row == pytest.approx([(r - mean) / (std + 1e-6)] * n)


def test_an_idle_turn_pays_the_penalty_alone_and_an_even_group_does_not_magnify_it():
    said = Completion((2,), (3,), (0.0,), "", "stop")

    def rollout(reward: float) -> Any:  # the second turn changes nothing
        return trajectory([0.0, 0.0, reward], [said] * 3, ["a", "b", "b"])

    config = {"invalid_penalty": 0.1, "scale_by_std": False}
    (found,) = grpo.make(**config).compute_advantages([[rollout(1.0), rollout(0.0)]])
    assert found == [pytest.approx([0.5, 0.4, 0.5]), pytest.approx([-0.5, -0.6, -0.5])]
    (found,) = grpo.make(**config | {"scale_by_std": True}).compute_advantages([[rollout(1.0), rollout(0.0)]])  # deviation 1/2
    assert found == [pytest.approx([1.0, 0.8, 1.0], abs=1e-5), pytest.approx([-1.0, -1.2, -1.0], abs=1e-5)]
    (even,) = grpo.make(**config | {"scale_by_std": True}).compute_advantages([[rollout(0.0), rollout(0.0)]])
    assert even == [pytest.approx([0.0, -0.1, 0.0])] * 2
    assert grpo.make().compute_advantages([[rollout(0.0), rollout(0.0)]]) == [[[0.0] * 3] * 2]


def test_a_turn_is_charged_that_a_rule_answered_or_that_changed_nothing():
    penalty = ObjectiveConfig(invalid_penalty=0.1).penalty
    moved = Transition(Observation("a"), "go", Observation("b"), 0.0, False)
    assert penalty(moved) == penalty(replace(moved, info=StepInfo(decided_by="generated"))) == 0.0
    assert penalty(replace(moved, info=StepInfo(decided_by="rule"))) == 0.1
    still = replace(moved, next_state=Observation("a"))
    assert penalty(still) == 0.1 and penalty(replace(still, reward=1.0)) == penalty(replace(still, terminated=True)) == 0.0


class Failing:
    """A corridor whose environment fails at one action."""

    def __init__(self) -> None:
        self.inner = corridor.make(length=4).require_env()

    def accepts(self, task: Task) -> bool:
        return self.inner.accepts(task)

    def reset(self, task: Task) -> dict[str, Any]:
        return self.inner.reset(task)

    def step(self, action: str) -> tuple[dict[str, Any], float, bool]:
        if action == "knock":
            raise EnvironmentFailure("the server is away")
        return self.inner.step(action)


def test_an_action_that_the_state_does_not_offer_is_charged_and_one_in_which_the_environment_fails_is_not():
    suite, charged = corridor.make(length=4), ObjectiveConfig(invalid_penalty=0.1, ood_penalty=0.2).penalty
    pool, (task,) = EnvPool(Failing, suite.rules), suite.tasks("train", 1)
    state = pool.start([task], seed=0)[0]

    def turn(action: str) -> Transition:
        (result,) = pool.step([0], [action])
        return Transition(state, action, result.observation, result.reward, result.terminated, result.info)

    assert [charged(turn(action)) for action in ("dance", "click[9]", "")] == [0.1] * 3
    failed = turn("knock")
    assert failed.info.error == "the server is away" and charged(failed) == 0.0
    lost = replace(failed, next_state=state)  # as where a worker dies of a step
    unread = replace(lost, info=StepInfo(verdict=Verdict("unreadable"), error="not read", out_of_support=True))
    assert charged(lost) == charged(unread) == 0.0
    reply = Completion((2,), (3,), (0.0,), "", "stop")
    group = [trajectory([0.0], [reply], ["a"], error="the server is away"), trajectory([1.0], [reply]), trajectory([0.0], [reply])]
    assert [len(rows) for rows in grpo.make(invalid_penalty=0.1).compute_advantages([group])] == [2], (
        "its episode trains nothing in any case"
    )
