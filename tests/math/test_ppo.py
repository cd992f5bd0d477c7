"""PPO: advantages worked by hand and by slow obvious loops, where values are read, and what the critic's gradient moves."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rollouts import completion, gradients, groups, hidden, learner, logprobs, next_prompt, tiny, trajectory

from dreamgym.errors import UsageError
from dreamgym.train.algos import ppo
from dreamgym.train.algos.ppo import gae, whiten
from dreamgym.train.batch import TokenSequence, sequences_of
from dreamgym.train.critic import Critic
from dreamgym.train.settings import CriticConfig
from dreamgym.types import Completion, Trajectory

SAID = [Completion((2, 3), (4, 5), (0.0, 0.0), "", "stop"), Completion((2, 3, 4, 5, 6), (7,), (0.0,), "", "stop")]


# --- advantages ----------------------------------------------------------------------------------------------------------------------


def test_advantages_as_worked_by_hand():
    # gamma 1/2, lambda 1/2, V = (0.4, 0.8), r = (0, 1), the task ended: delta_1 = 1 - 0.8 = 0.2, delta_0 = 0 + 0.4 - 0.4 = 0
    advantages, returns = gae([0.0, 1.0], [0.4, 0.8], 0.0, gamma=0.5, lam=0.5)
    assert advantages == pytest.approx([0.05, 0.2]) and returns == pytest.approx([0.45, 1.0])
    # cut at the horizon, before a state of value 0.6: delta_1 = 1 + 0.3 - 0.8 = 0.5
    advantages, returns = gae([0.0, 1.0], [0.4, 0.8], 0.6, gamma=0.5, lam=0.5)
    assert advantages == pytest.approx([0.125, 0.5]) and returns == pytest.approx([0.525, 1.3])


def test_the_ends_of_lambda_are_the_one_step_error_and_the_return_less_the_value():
    rewards, values = [0.3, 0.0, 1.0], [0.5, 0.2, 0.9]
    td, _ = gae(rewards, values, 0.4, gamma=0.9, lam=0.0)
    assert td == pytest.approx([0.3 + 0.9 * 0.2 - 0.5, 0.9 * 0.9 - 0.2, 1.0 + 0.9 * 0.4 - 0.9])
    _, returns = gae(rewards, values, 0.4, gamma=0.9, lam=1.0)
    assert returns == pytest.approx([0.3 + 0.9**2 * 1.0 + 0.9**3 * 0.4, 0.9 * 1.0 + 0.9**2 * 0.4, 1.0 + 0.9 * 0.4])
    assert gae([], [], 0.0, gamma=0.9, lam=0.9) == ([], [])


def test_advantages_match_a_slow_obvious_loop():
    rng = np.random.default_rng(0)
    for _ in range(30):
        n = int(rng.integers(1, 9))
        rewards, values, last = rng.normal(size=n).tolist(), rng.normal(size=n).tolist(), float(rng.normal())
        gamma, lam = float(rng.random()), float(rng.random())
        found, returns = gae(rewards, values, last, gamma=gamma, lam=lam)
        after = [*values[1:], last]
        for t in range(n):
            expected = sum((gamma * lam) ** (k - t) * (rewards[k] + gamma * after[k] - values[k]) for k in range(t, n))
            assert found[t] == pytest.approx(expected) and returns[t] == pytest.approx(expected + values[t])


def with_advantages(episode: Trajectory, last: float = 0.0, **config: Any) -> TokenSequence:
    """The one row of an episode, with the values 0.1, 0.2, ... where they are read, and what PPO makes of it."""
    algorithm = ppo.make(**({"gamma": 0.5, "lam": 1.0} | config))
    (row,) = sequences_of(episode, 0)
    algorithm.mark_valued([row])
    read = itertools.count(1)
    row.values = [next(read) / 10 if at else 0.0 for at in row.value_mask]
    algorithm.set_advantages(episode, [row], last)
    return row


def test_a_turn_is_a_step_and_its_advantage_is_on_all_its_tokens():
    row = with_advantages(trajectory([0.0, 1.0], SAID))
    assert row.ids == [2, 3, 4, 5, 6, 7] and row.value_mask == [0, 0, 1, 0, 0, 1]
    # V = (0.1, 0.2): A_1 = 1 - 0.2, A_0 = 0.5 - 0.1
    assert row.advantages == pytest.approx([0, 0, 0.4, 0.4, 0, 0.8]) and row.returns == pytest.approx([0, 0, 0.5, 0, 0, 1.0])


def test_by_token_the_reward_comes_with_the_last_token_of_its_turn():
    row = with_advantages(trajectory([3.0, 1.0], SAID), level="token")
    assert row.value_mask == [0, 0, 1, 1, 0, 1]
    # three steps with rewards 0, 3, 1: returns 0.5 * 3.5, 3 + 0.5, 1; V = (0.1, 0.2, 0.3)
    assert row.returns == pytest.approx([0, 0, 1.75, 3.5, 0, 1.0]) and row.advantages == pytest.approx([0, 0, 1.65, 3.3, 0, 0.7])


def test_an_idle_turn_pays_its_penalty_as_a_reward():
    row = with_advantages(trajectory([0.0, 1.0], SAID, ["a", "a"]), invalid_penalty=0.2)  # the first turn stays in a
    assert row.returns == pytest.approx([0, 0, 0.5 - 0.2, 0, 0, 1.0])


def test_a_turn_without_tokens_cannot_be_valued():
    with pytest.raises(UsageError, match="turn 1 of 't' has no sampled tokens"):
        with_advantages(trajectory([0.0, 1.0, 0.0], [SAID[0], None, SAID[1]]))  # type: ignore[list-item]


def test_whitened_advantages_have_mean_0_and_variance_1_over_the_trained_tokens():
    rng = np.random.default_rng(0)
    rows = [TokenSequence([0] * n, rng.integers(0, 2, n).astype(float).tolist(), [], 0, rng.normal(3, 2, n).tolist()) for n in (9, 4, 20)]
    before = np.array([a for row in rows for a, m in zip(row.advantages, row.mask, strict=True) if m])
    whiten(rows)
    after = np.array([a for row in rows for a, m in zip(row.advantages, row.mask, strict=True) if m])
    assert after == pytest.approx((before - before.mean()) / before.std(ddof=1))
    assert all(a == 0 for row in rows for a, m in zip(row.advantages, row.mask, strict=True) if not m)
    alone = [TokenSequence([0], [1.0], [], 0, [5.0])]
    whiten(alone)
    assert alone[0].advantages == [0.0]


# --- values --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["detached", "separate"])
def test_a_value_is_read_at_the_last_token_before_the_action_and_knows_nothing_of_it(kind: str):
    model = tiny()
    one = learner(model, {"name": "ppo", "critic": {"kind": kind}})
    assert one.critic is not None

    def read(ids: list[int], at: int) -> float:
        return one._values([ids], [[float(i == at) for i in range(len(ids))]])[0][at]

    value = read([2, 3, 4, 5], 2)
    assert value == pytest.approx(one.critic.head(hidden(model, [2, 3])[-1]).item(), abs=1e-6)
    assert value == pytest.approx(read([2, 3, 9, 9, 9], 2), abs=1e-6) and abs(value - read([2, 4, 4, 5], 2)) > 1e-4


def test_the_head_starts_at_zero():
    model = tiny()
    batch_values = Critic(model, CriticConfig()).head(torch.randn(3, 32))
    assert batch_values.abs().max() == 0


def test_the_value_loss_is_the_worse_of_the_clipped_and_the_plain_one():
    critic = Critic(tiny(), CriticConfig(clip=0.2))
    values, old, returns = (torch.tensor(x, dtype=torch.float64) for x in ([0.5, 0.1, 1.0], [0.0, 0.0, 1.1], [1.0, 0.0, 1.0]))
    # moved 0.5 towards 1: allowed 0.2, so (0.2 - 1)^2 = 0.64; within bounds: 0.01; already right: 0
    assert critic.loss(values, old, returns).item() == pytest.approx(0.5 * (0.64 + 0.01 + 0.0))
    free = Critic(tiny(), CriticConfig(clip=0.0))
    assert free.loss(values, old, returns).item() == pytest.approx(0.5 * (0.25 + 0.01 + 0.0))


def slow_advantages(one: Any, made: list[list[Trajectory]]) -> list[list[tuple[float, float, float]]]:
    """(advantage before whitening, value, target) of every turn, from transformers' forward and the definition of GAE."""
    found = []
    for episode in (e for group in made for e in group):
        prompts = [list(t.completion.prompt_ids) for t in episode.turns] + [next_prompt(episode)]
        with torch.no_grad():
            values = [one.critic.head(hidden(one.model, prompt)[-1]).item() for prompt in prompts]
        if not episode.truncated:
            values[-1] = 0.0
        n = len(episode.turns)
        deltas = [episode.turns[t].transition.reward + 0.99 * values[t + 1] - values[t] for t in range(n)]
        advantages = [sum((0.99 * 0.95) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]
        found.append([(a, v, a + v) for a, v in zip(advantages, values[:-1], strict=True)])
    return found


@pytest.mark.parametrize("kind", ["detached", "shared"])
def test_the_gradient_is_that_of_a_slow_obvious_loop(kind: str):
    model = tiny()
    made = groups(model)
    settings = {"name": "ppo", "bootstrap": True, "critic": {"kind": kind}}
    trained, slow = (learner(tiny(), settings, old_logprobs="sampler") for _ in range(2))
    assert any(e.truncated for group in made for e in group)
    metrics = trained.update(made)
    steps = slow_advantages(slow, made)
    episodes = [e for group in made for e in group]
    pairs = list(zip(episodes, steps, strict=True))
    tokens = [a for e, own in pairs for turn, (a, _, _) in zip(e.turns, own, strict=True) for _ in turn.completion.ids]
    mean, std = np.mean(tokens), np.std(tokens, ddof=1)
    policy, value, decisions = torch.zeros(()), torch.zeros(()), sum(len(e.turns) for e in episodes)
    for episode, own in pairs:
        for turn, (a, old, target) in zip(episode.turns, own, strict=True):
            said, white = turn.completion, (a - mean) / std
            new = logprobs(slow.model, [*said.prompt_ids, *said.ids])[len(said.prompt_ids) - 1 :]
            rho = torch.exp(new - torch.tensor(said.logprobs))
            least = torch.minimum(rho * white, rho.clamp(0.8, 1.2) * white)
            policy = policy - (torch.maximum(least, torch.tensor(3.0 * white)) if white < 0 else least).sum() / len(tokens)
            state = hidden(slow.model, said.prompt_ids)[-1]
            v = slow.critic.head(state.detach() if kind == "detached" else state)[0]
            assert v.item() == pytest.approx(old, abs=1e-6)  # the first step has not moved yet, so no value is clipped
            value = value + 0.5 * (v - target) ** 2
    (policy + 0.5 * value / decisions).backward()
    assert torch.allclose(gradients(trained), gradients(slow), atol=2e-6)
    assert metrics["value_loss"] == pytest.approx(value.item() / decisions, rel=1e-4)
    targets, read = (np.array([step[i] for own in steps for step in own]) for i in (2, 1))
    assert metrics["explained_variance"] == pytest.approx(1 - (targets - read).var() / targets.var(), abs=1e-4)


def test_an_episode_cut_at_the_horizon_goes_on_in_its_value_and_one_that_ended_does_not():
    model = tiny()
    said = [completion(model, [2, 3], [4])]

    def target(episode: Trajectory, **config: Any) -> float:
        one = learner(tiny(), {"name": "ppo", "bootstrap": True, **config})
        rows, _ = one._critic_sequences([[episode]])
        return max(rows[0].returns, key=abs)

    one = learner(tiny(), {"name": "ppo"})
    with torch.no_grad():
        onward = one.critic.head(hidden(model, [2, 3, 4, 3, 4])[-1]).item()  # after the action, the next state and its cue
    cut = trajectory([0.25], said, truncated=True)
    assert abs(onward) > 0.01 and target(cut) == pytest.approx(0.25 + 0.99 * onward, abs=1e-5)
    assert target(replace(cut, truncated=False)) == pytest.approx(0.25, abs=1e-5)
    assert target(cut, bootstrap=False) == pytest.approx(0.25, abs=1e-5)
    outgrown = learner(tiny(), {"name": "ppo", "bootstrap": True})
    outgrown._next_prompt = lambda episode: None  # as the agent answers where the conversation no longer fits the context
    assert max(outgrown._critic_sequences([[cut]])[0][0].returns, key=abs) == pytest.approx(0.25, abs=1e-5)


def test_a_learner_that_cannot_see_beyond_the_horizon_says_so():
    one = learner(tiny(), {"name": "ppo", "bootstrap": True})
    one._next_prompt = None
    with pytest.raises(UsageError, match="next_prompt=agent.next_prompt"):
        one.update([[trajectory([0.0], SAID[:1], truncated=True)]])


@pytest.mark.parametrize(("kind", "moves"), [("detached", False), ("separate", False), ("shared", True)])
def test_only_a_shared_critic_moves_the_policys_weights(kind: str, moves: bool):
    """Advantages that are all equal are whitened to 0, so that whatever moves the policy comes from the value loss."""
    one = learner(tiny(), {"name": "ppo", "critic": {"kind": kind}})
    before = [p.clone() for p in one.model.parameters()]
    head = one.critic.head.weight.clone()
    said = completion(tiny(), [2, 3], [4])
    one.update([[trajectory([1.0], [said]), trajectory([1.0], [said])]])
    still = all(torch.equal(a, b) for a, b in zip(before, one.model.parameters(), strict=True))
    assert still is not moves and not torch.equal(head, one.critic.head.weight)


@pytest.mark.parametrize("kind", ["detached", "shared", "separate"])
@pytest.mark.parametrize("level", ["turn", "token"])
def test_the_critic_learns_what_states_are_worth(kind: str, level: str):
    model = tiny()
    good, bad = (trajectory([r], [completion(model, [2, state], [4])]) for r, state in ((1.0, 5), (0.0, 6)))
    one = learner(model, {"name": "ppo", "level": level, "critic": {"kind": kind, "lr": 2e-2, "clip": 0.0}}, lr=1e-4)
    torch.nn.init.zeros_(one.critic.head.weight)
    metrics = [one.update([[good, bad]]) for _ in range(40)]
    assert metrics[0]["explained_variance"] == pytest.approx(0.0) and metrics[-1]["explained_variance"] > 0.9
    assert metrics[-1]["value_loss"] < 0.1 * metrics[0]["value_loss"]


@pytest.mark.parametrize("kind", ["detached", "separate"])
def test_of_a_policy_with_adapters_the_critic_trains_and_remembers_adapters_alone(kind: str):
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        torch.manual_seed(1)
        return learner(peft.get_peft_model(tiny(), config).eval(), {"name": "ppo", "critic": {"kind": kind}}, minibatches=2)

    made = groups(tiny())
    whole, half, resumed = adapted(), adapted(), adapted()
    whole.update(made)
    half.update(made)
    state = half.state_dict()
    assert all("lora" in name for name in state["critic"]["body"]) and bool(state["critic"]["body"]) is (kind == "separate")
    if kind == "separate":  # the frozen base is in memory once, and the critic has adapters of its own
        own = {w.data_ptr() for w in whole.critic.body.parameters()} - {w.data_ptr() for w in whole.model.parameters()}
        assert own == {w.data_ptr() for name, w in whole.critic.body.named_parameters() if "lora" in name}
    resumed.load_state_dict(state)
    assert whole.update(made) == resumed.update(made)
    assert all(torch.equal(a, b) for a, b in zip(whole.critic.parameters(), resumed.critic.parameters(), strict=True))
