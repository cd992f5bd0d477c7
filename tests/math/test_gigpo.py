"""GiGPO's step advantages over anchor states, worked by hand and by a slow obvious loop."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from rollouts import completion, gradients, groups, learner, logprobs, tiny, trajectory

from dreamgym.returns import discounted
from dreamgym.train.algos import gigpo, grpo
from dreamgym.types import Completion, Trajectory, Turn

SAID = Completion((2,), (3,), (0.0,), "", "stop")


def rollout(states: str, *rewards: float) -> Trajectory:
    """One turn per letter; the letter is the state."""
    return trajectory(list(rewards), [SAID] * len(states), list(states))


def test_returns_are_discounted_from_the_end():
    assert discounted([0.0, 1.0, 2.0], 0.5) == [1.0, 2.0, 2.0]
    assert discounted([], 0.5) == []


def test_steps_from_the_same_state_are_compared_and_lonely_ones_are_not():
    # State a: returns 0.5^2 = 0.25 and 0; state b, seen twice in the first rollout: 0.5 and 1.0; c alone.
    group = [rollout("abb", 0.0, 0.0, 1.0), rollout("ac", 0.0, 0.0)]
    steps = gigpo.make(gamma=0.5, scale_by_std=False).steps(group)
    assert steps == [pytest.approx([0.125, -0.25, 0.25]), pytest.approx([-0.125, 0.0])]
    divided = gigpo.make(gamma=0.5).steps(group)
    assert divided == [pytest.approx([1.0, -1.0, 1.0], abs=1e-4), pytest.approx([-1.0, 0.0], abs=1e-4)]


def test_the_advantage_is_the_episodes_plus_omega_times_the_steps():
    group = [rollout("abb", 0.0, 0.0, 1.0), rollout("ac", 0.0, 0.0)]
    (found,) = gigpo.make(gamma=0.5, scale_by_std=False, omega=2.0).compute_advantages([group])
    assert found == [pytest.approx([0.75, 0.0, 1.0]), pytest.approx([-0.75, -0.5])]
    (plain,) = gigpo.make(omega=0.0, scale_by_std=False).compute_advantages([group])
    assert plain == [[0.5] * 3, [-0.5] * 2]


def test_states_are_shared_within_a_task_and_not_between_tasks():
    alone = [[rollout("a", 1.0), rollout("b", 0.0)], [rollout("b", 1.0), rollout("a", 0.0)]]
    assert all(gigpo.make().steps(group) == [[0.0], [0.0]] for group in alone)


def test_where_all_succeed_the_shorter_way_is_still_better():
    (found,) = gigpo.make(gamma=0.5, scale_by_std=False).compute_advantages([[rollout("ab", 0.0, 1.0), rollout("a", 1.0)]])
    assert found == [pytest.approx([-0.25, 0.0]), pytest.approx([0.25])]


def test_equal_returns_that_floats_cannot_add_exactly_are_no_signal():
    group = [rollout("a", 0.1) for _ in range(7)]
    assert gigpo.make().compute_advantages([group]) == [[[0.0]] * 7]


def test_steps_are_compared_by_their_rewards_alone_and_every_turn_pays_its_own_penalty():
    """The first rollout stays in a for a turn; the turns after it pay nothing for that, and neither do those of the other rollout."""
    group = [rollout("aab", 0.0, 0.0, 0.0), rollout("ab", 0.0, 0.0)]
    one = gigpo.make(gamma=0.5, invalid_penalty=0.3)
    assert one.steps(group) == [[0.0] * 3, [0.0] * 2]
    assert one.compute_advantages([group]) == [[[-0.3, 0.0, 0.0], [0.0, 0.0]]]


def test_an_action_that_changes_nothing_loses_also_where_all_rollouts_repeat_it():
    stuck = [rollout("aaa", 0.0, 0.0, 0.0) for _ in range(8)]
    idle = [replace(t, turns=tuple(_idle(turn) for turn in t.turns)) for t in stuck]
    (found,) = gigpo.make(invalid_penalty=0.3).compute_advantages([idle])
    assert found == [[-0.3] * 3] * 8


def test_penalties_are_those_of_grpo():
    """The first rollout does nothing in its second turn, the second in its first, whose state both see."""
    first = rollout("abc", 0.0, 0.0, 1.0)
    first = replace(first, turns=(first.turns[0], _idle(first.turns[1]), first.turns[2]))
    second = rollout("ad", 0.0, 0.0)
    second = replace(second, turns=(_idle(second.turns[0]), second.turns[1]))
    (found,) = gigpo.make(gamma=0.5, scale_by_std=False, invalid_penalty=0.3).compute_advantages([[first, second]])
    # a: returns 0.25 and 0, mean 0.125; the other turns have the episode's part alone
    assert found == [pytest.approx([0.5 + 0.125, 0.5 - 0.3, 0.5]), pytest.approx([-0.5 - 0.125 - 0.3, -0.5])]
    (plain,) = gigpo.make(omega=0.0, invalid_penalty=0.3).compute_advantages([[first, second]])
    (same,) = grpo.make(invalid_penalty=0.3).compute_advantages([[first, second]])
    assert plain == same


def _idle(turn: Turn) -> Turn:
    """The turn, with an action that changed nothing."""
    return replace(turn, transition=replace(turn.transition, next_state=turn.transition.state, terminated=False))


@pytest.mark.parametrize("scale_by_std", [True, False])
def test_step_advantages_match_a_slow_obvious_loop(scale_by_std: bool):
    rng = np.random.default_rng(0)
    group = []
    for _ in range(6):
        n = int(rng.integers(1, 8))
        group.append(rollout("".join(rng.choice(list("abcd"), n)), *rng.choice([0.0, 0.5, 1.0], n).tolist()))
    found = gigpo.make(gamma=0.9, scale_by_std=scale_by_std).steps(group)
    for i, one in enumerate(group):
        for t, turn in enumerate(one.turns):
            peers = []
            for other in group:
                for u, seen in enumerate(other.turns):
                    if seen.transition.state == turn.transition.state:
                        peers.append(sum(0.9 ** (k - u) * other.turns[k].transition.reward for k in range(u, len(other.turns))))
            own = sum(0.9 ** (k - t) * one.turns[k].transition.reward for k in range(t, len(one.turns)))
            mean = sum(peers) / len(peers)
            std = math.sqrt(sum((p - mean) ** 2 for p in peers) / len(peers))
            expected = (own - mean) / (std + 1e-6 if scale_by_std else 1.0) if std > 1e-6 else 0.0
            assert found[i][t] == pytest.approx(expected, abs=1e-9)


def test_each_turns_advantage_lands_on_its_own_tokens_also_where_turns_share_a_row():
    model = tiny()
    made = groups(model)
    trained = learner(tiny(), {"name": "gigpo"}, old_logprobs="sampler")
    trained.update(made)
    total = torch.zeros(())
    z = sum(len(t.completion.ids) for group in made for e in group for t in e.turns)
    for group, advantages in zip(made, gigpo.make().compute_advantages(made), strict=True):
        for episode, by_turn in zip(group, advantages, strict=True):
            for turn, a in zip(episode.turns, by_turn, strict=True):
                said = turn.completion
                new = logprobs(model, [*said.prompt_ids, *said.ids])[len(said.prompt_ids) - 1 :]
                rho = torch.exp(new - torch.tensor(said.logprobs))
                total = total - torch.minimum(rho * a, rho.clamp(0.8, 1.28) * a).sum() / z
    total.backward()
    assert torch.allclose(gradients(trained), torch.cat([p.grad.flatten() for p in model.parameters()]), atol=1e-6)


def test_the_better_of_two_steps_from_one_state_becomes_likelier_where_the_episodes_say_nothing():
    """Both episodes earn 1, but one needs a detour from the first state: only the step's advantage can tell the arms apart."""
    model = tiny(seed=3)
    trained = learner(model, {"name": "gigpo", "gamma": 0.5}, lr=3e-3)
    before = [completion(model, [4, 7], [arm]).logprobs[0] for arm in (5, 6)]
    straight = trajectory([1.0], [completion(model, [4, 7], [5])], ["a"])
    detour = trajectory([0.0, 1.0], [completion(model, [4, 7], [6]), completion(model, [4, 7, 6, 9], [8])], ["a", "b"])
    assert trained.update([[straight, detour]])["groups_solved"] == 1
    after = [completion(model, [4, 7], [arm]).logprobs[0] for arm in (5, 6)]
    assert after[0] > before[0] and after[1] < before[1]
