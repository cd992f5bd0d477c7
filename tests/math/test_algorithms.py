"""What every policy-gradient algorithm must keep: signs, invariances, groups that teach nothing, and resume."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from losses import inputs
from rollouts import completion, gradients, groups, learner, tiny, trajectory

from dreamgym import plugins
from dreamgym.errors import InvariantError, UsageError
from dreamgym.train import learner as module
from dreamgym.train.batch import TokenSequence, sequences_of
from dreamgym.types import Completion, Trajectory

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"name": "grpo"},
    "grpo by step, sequence mean, penalty": {
        "name": "grpo", "mean_std_over": "turn", "aggregate": "trajectory", "invalid_penalty": 0.1, "entropy_coef": 0.01,
    },
    "dr grpo, k1 in the reward": {
        "name": "grpo", "scale_by_std": False, "aggregate": "constant", "max_tokens": 12, "kl_coef": 0.1, "kl": "k1", "kl_in": "reward",
    },
    "grpo, truncated importance": {"name": "grpo", "importance_cap": 2.0},
    "gspo": {"name": "gspo"},
    "gspo, wide clip, penalty": {"name": "gspo", "clip_low": 0.2, "clip_high": 0.3, "invalid_penalty": 0.1, "kl_coef": 0.1},
    "gigpo": {"name": "gigpo"},
    "gigpo, means, penalty": {"name": "gigpo", "scale_by_std": False, "invalid_penalty": 0.1, "kl_coef": 0.1},
    "ppo": {"name": "ppo"},
    "ppo, shared": {"name": "ppo", "critic": {"kind": "shared"}, "aggregate": "trajectory", "entropy_coef": 0.01},
    "ppo, separate": {"name": "ppo", "critic": {"kind": "separate"}, "kl_coef": 0.1, "kl": "k2"},
    "ppo by token": {"name": "ppo", "level": "token", "gamma": 0.95, "importance_cap": 2.0},
    "reinforce": {"name": "reinforce"},
    "reinforce, running mean": {"name": "reinforce", "baseline": "running", "kl_coef": 0.1, "kl": "k1", "kl_in": "reward"},
}  # fmt: skip
each = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def test_every_algorithm_of_the_folder_is_tested_here():
    assert {config["name"] for config in ALGORITHMS.values()} == set(plugins.known("train.algos"))


@each
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_neither_padding_nor_the_split_into_micro_batches_changes_the_gradient(algorithm: dict[str, Any], kind: str):
    made = groups(tiny(kind=kind))

    def gradient(tokens: int) -> tuple[torch.Tensor, dict[str, float]]:
        one = learner(tiny(kind=kind), algorithm, micro_tokens=tokens)
        metrics = one.update(made)
        return gradients(one), metrics

    together, expected = gradient(100_000)  # qwen2 pads all rows to the longest
    assert together.abs().max() > 1e-4
    for tokens in (1, 40):  # a row at a time, without padding; a few
        found, metrics = gradient(tokens)
        assert torch.allclose(found, together, atol=2e-6) and metrics == pytest.approx(expected, rel=1e-3, abs=1e-6)


def rows_apart(episode: Trajectory, index: int) -> list[TokenSequence]:
    """As `sequences_of`, but every turn in a row of its own, as a window of one turn makes them."""
    rows = []
    for number, turn in enumerate(episode.turns):
        (row,) = sequences_of(replace(episode, turns=(turn,)), index)
        row.turns = [number if at >= 0 else -1 for at in row.turns]
        rows.append(row)
    return rows


@each
def test_one_row_per_conversation_or_one_per_turn_is_the_same_gradient(algorithm: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    made = groups(tiny())
    merged, apart = learner(tiny(), algorithm), learner(tiny(), algorithm)
    many = merged.update(made)
    monkeypatch.setattr(module, "sequences_of", rows_apart)
    more = apart.update(made)
    assert more["sequences"] > many["sequences"] and more["tokens"] == many["tokens"]
    assert torch.allclose(gradients(merged), gradients(apart), atol=2e-6)


def bandit(algorithm: dict[str, Any], sign: float) -> list[float]:
    """The probability of arm 5 (rather than 6), which earns `record_commit`, before and after each update."""
    model = tiny(seed=3)
    one = learner(model, algorithm, lr=3e-3)
    if one.critic:
        torch.nn.init.zeros_(one.critic.head.weight)
    seen = []
    for _ in range(4):
        arms = [completion(model, [4, 7], [arm]) for arm in (5, 6)]
        seen.append(math.exp(arms[0].logprobs[0]) / sum(math.exp(arm.logprobs[0]) for arm in arms))
        one.update([[trajectory([sign], [arms[0]]), trajectory([0.0], [arms[1]])]])
    return seen


@each
def test_a_bandit_moves_towards_what_is_rewarded_and_away_when_rewards_are_negated(algorithm: dict[str, Any]):
    towards, away = bandit(algorithm, 1.0), bandit(algorithm, -1.0)
    assert all(a < b for a, b in itertools.pairwise(towards))
    assert all(a > b for a, b in itertools.pairwise(away))


@each
def test_a_learner_restored_from_its_state_goes_on_as_if_never_stopped(algorithm: dict[str, Any]):
    made = groups(tiny())

    def fresh() -> Any:
        return learner(tiny(), algorithm, minibatches=3, min_trajectories=4)

    whole, half, resumed = fresh(), fresh(), fresh()
    whole.update(made)
    half.update(made)
    resumed.load_state_dict(half.state_dict())
    assert whole.update(made) == resumed.update(made)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    if whole.critic:
        assert all(torch.equal(a, b) for a, b in zip(whole.critic.parameters(), resumed.critic.parameters(), strict=True))


@each
def test_a_gradient_that_is_not_a_number_stops_the_run(algorithm: dict[str, Any]):
    model = tiny()
    made = groups(model)
    one = learner(model, algorithm)
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(InvariantError, match="learning rate"):
        one.update(made)


def even(reward: float, *, turns: int = 1, error: str | None = None) -> Trajectory:
    said = [Completion((2, *range(3, 3 + i)), (3 + i,), (-3.0,), "", "stop") for i in range(turns)]
    return trajectory([0.0] * (turns - 1) + [reward], said, error=error)


@each
def test_groups_are_counted_by_kind_whatever_the_algorithm(algorithm: dict[str, Any]):
    failed, succeeded = [even(0.0), even(0.0)], [even(1.0), even(1.0)]
    partial, single = [even(0.5), even(0.5)], [even(1.0), even(0.0, error="unreadable")]
    metrics = learner(tiny(), algorithm).update([failed, succeeded, partial, single, [even(1.0), even(0.0)], failed])
    found = {name: value for name, value in metrics.items() if name.startswith("groups_")}
    assert found == {"groups_unsolved": 2, "groups_solved": 1, "groups_even": 1, "groups_single": 1, "groups_mixed": 1}


@pytest.mark.parametrize("name", ["grpo", "gigpo", "reinforce"])
def test_algorithms_that_compare_rollouts_learn_nothing_from_even_groups_and_refuse_groups_of_one(name: str):
    one = learner(tiny(), {"name": name})
    before = [p.clone() for p in one.model.parameters()]
    metrics = one.update([[even(0.0), even(0.0)], [even(1.0), even(1.0)], [even(1.0), even(0.0, error="unreadable")]])
    assert metrics["sequences"] == 0 and "grad_norm" not in metrics and one.version == 1
    assert all(torch.equal(a, b) for a, b in zip(before, one.model.parameters(), strict=True))
    with pytest.raises(UsageError, match="group_size >= 2"):
        one.update([[even(1.0)]])


@pytest.mark.parametrize("algorithm", [{"name": "ppo"}, {"name": "reinforce", "baseline": "running"}])
def test_algorithms_with_a_baseline_of_their_own_take_groups_of_one(algorithm: dict[str, Any]):
    one = learner(tiny(), algorithm)
    metrics = one.update([[even(1.0)], [even(0.5)]])
    assert metrics["sequences"] == 2 and metrics["groups_single"] == 2 and metrics["grad_norm"] > 0


@each
def test_iterations_in_which_nothing_was_earned_are_counted_until_something_is(algorithm: dict[str, Any]):
    one, resumed = learner(tiny(), algorithm), learner(tiny(), algorithm)
    failing, broken = [[even(0.0), even(0.0)]], [[even(1.0, error="unreadable")] * 2]
    assert [one.update(batch)["iterations_without_reward"] for batch in (failing, broken, failing)] == [1, 2, 3]
    resumed.load_state_dict(one.state_dict())
    assert resumed.update(failing)["iterations_without_reward"] == 4
    assert resumed.update([[even(0.0), even(1.0)]])["iterations_without_reward"] == 0


@each
def test_an_iteration_of_broken_rollouts_alone_changes_nothing(algorithm: dict[str, Any]):
    one = learner(tiny(), algorithm)
    before = [p.clone() for p in one.model.parameters()]
    assert one.update([[even(1.0, error="unreadable")] * 2])["sequences"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, one.model.parameters(), strict=True))


# --- REINFORCE -----------------------------------------------------------------------------------------------------------------------


def test_the_leave_one_out_baseline_is_the_mean_of_the_others():
    rewards = [1.0, 0.0, 0.25, 0.0]
    (found,) = plugins.make("train.algos", "reinforce").compute_advantages([[even(r, turns=2) for r in rewards]])
    expected = [r - sum(other for j, other in enumerate(rewards) if j != i) / 3 for i, r in enumerate(rewards)]
    assert found == [pytest.approx([a, a]) for a in expected]


def test_the_running_baseline_follows_the_returns_and_lags_one_iteration():
    algorithm = plugins.make("train.algos", "reinforce", baseline="running", rate=0.5)
    first, second = ([even(1.0)], [even(0.0)]), ([even(1.0)], [even(1.0)])
    assert algorithm.compute_advantages(first) == [[[1.0]], [[0.0]]]  # the mean was 0, and is then 0.25
    assert algorithm.compute_advantages(second) == [[[0.75]], [[0.75]]]
    assert algorithm.state_dict() == {"mean": 0.625}


def test_reinforce_has_the_gradient_of_the_log_probability_times_the_advantage():
    x = torch.tensor([-1.0, -2.0], requires_grad=True)
    tokens = inputs(x, torch.tensor([-1.5, -1.0]), torch.tensor([2.0, -1.0]), normaliser=4.0)
    loss, _ = plugins.make("train.algos", "reinforce").loss(tokens)
    loss.backward()
    assert x.grad.tolist() == [-0.5, 0.25]  # without a ratio: what the sampler's log-probs were plays no part
