"""PPO for agents: the clipped objective with a learned value function and GAE (arXiv:1707.06347; DreamGym Eq. 2).

    delta_t = r_t + gamma * V_(t+1) - V_t        A_t = delta_t + gamma * lam * A_(t+1)        target of V_t:  A_t + V_t

A step t is a turn: one value, read just before the action's first token, one reward, and one advantage for all tokens of the action. With
`level = "token"` every sampled token is a step, and a turn's reward comes with its last token. After the last step V is 0 when the
task ended or the horizon cut the episode; with `bootstrap`, a cut episode goes on in the value of the state that would have come next.
Advantages are whitened over the trained tokens of the whole batch. Groups are not compared, so they may be of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dreamgym.config import build
from dreamgym.errors import UsageError
from dreamgym.returns import rewards
from dreamgym.train.objective import ClippedConfig, LossInputs, LossOutputs, clipped_loss
from dreamgym.train.settings import CriticConfig
from dreamgym.types import Trajectory

if TYPE_CHECKING:
    from dreamgym.train.batch import TokenSequence


class PPOConfig(ClippedConfig):
    """The switches of PPO."""

    clip_high: float = Field(default=0.2, ge=0.0)
    dual_clip: float = Field(default=3.0, ge=0.0)
    gamma: float = Field(default=0.99, ge=0.0, le=1.0)
    """Discount per step: per turn, or per token where `level` says so."""
    lam: float = Field(default=0.95, ge=0.0, le=1.0)
    level: Literal["turn", "token"] = "turn"
    bootstrap: bool = False
    """Whether an episode cut at the horizon goes on in its value. Off, it counts as ended: a success after the horizon is none, and a
    policy that reads its whole episode is valued there at a turn it never acts in, so nothing corrects a value that is too high
    (docs/lab/decisions/0010). Switch it on for tasks that would continue and whose states do not show the remaining time."""
    whiten: bool = True
    critic: CriticConfig = CriticConfig()


class PPO:
    """The functions of the algorithm with their settings (`protocols.ActorCritic`)."""

    grouped = False

    def __init__(self, config: PPOConfig) -> None:
        self.config, self.critic = config, config.critic

    def mark_valued(self, sequences: Sequence[TokenSequence]) -> None:
        """Mark the tokens before which a value is read: the first of every turn, or all that were sampled."""
        for sequence in sequences:
            first = [turn >= 0 and turn != before for before, turn in zip([-1, *sequence.turns], sequence.turns, strict=False)]
            sequence.value_mask = [float(new) for new in first] if self.config.level == "turn" else list(sequence.mask)

    def set_advantages(self, trajectory: Trajectory, sequences: Sequence[TokenSequence], last: float) -> None:
        """Put advantages and value targets on the tokens of one trajectory, from the values read there and `last`, the value after it."""
        places = [(sequence, at) for sequence in sequences for at, m in enumerate(sequence.mask) if m]
        steps = [(sequence, at) for sequence, at in places if sequence.value_mask[at]]
        turns = [sequence.turns[at] for sequence, at in steps]
        if missing := set(range(len(trajectory.turns))) - set(turns):
            raise UsageError(f"PPO values every turn, but turn {min(missing)} of '{trajectory.id}' has no sampled tokens.")
        earned = rewards(trajectory, self.config.penalty)
        step_rewards = [earned[turn] if turn != after else 0.0 for turn, after in zip(turns, [*turns[1:], -1], strict=True)]
        advantages, returns = gae(
            step_rewards, [sequence.values[at] for sequence, at in steps], last, gamma=self.config.gamma, lam=self.config.lam
        )
        for sequence in sequences:
            sequence.advantages, sequence.returns = [0.0] * len(sequence.ids), [0.0] * len(sequence.ids)
        step = -1
        for sequence, at in places:
            if sequence.value_mask[at]:
                step += 1
                sequence.returns[at] = returns[step]
            sequence.advantages[at] = advantages[step]

    def normalise(self, sequences: Sequence[TokenSequence]) -> None:
        """Whiten the advantages of the whole batch, where that is switched on."""
        if self.config.whiten:
            whiten(sequences)

    def loss(self, inputs: LossInputs) -> LossOutputs:
        """The policy's loss; see `objective.clipped_loss`. The value's is `Critic.loss`."""
        return clipped_loss(inputs, self.config)


def gae(rewards: Sequence[float], values: Sequence[float], last: float, *, gamma: float, lam: float) -> tuple[list[float], list[float]]:
    """(advantages, value targets) of the steps of one episode; `last` is the value after its last step, 0.0 when the task ended."""
    advantages: list[float] = []
    following, ahead = last, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        ahead = reward + gamma * following - value + gamma * lam * ahead
        advantages.append(ahead)
        following = value
    advantages.reverse()
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


def whiten(sequences: Sequence[TokenSequence]) -> None:
    """Shift and scale the advantages of all trained tokens to mean 0 and unbiased variance 1; without variance, only shift."""
    import torch

    tokens = torch.tensor(
        [a for sequence in sequences for a, m in zip(sequence.advantages, sequence.mask, strict=True) if m], dtype=torch.float64
    )
    if not len(tokens):
        return
    mean, scale = tokens.mean().item(), tokens.std().item() if len(tokens) > 1 else 0.0
    for sequence in sequences:
        sequence.advantages = [
            (a - mean) / (scale if scale > 1e-8 else 1.0) * m for a, m in zip(sequence.advantages, sequence.mask, strict=True)
        ]


def make(**config: Any) -> PPO:
    """PPO by configuration (see PPOConfig)."""
    return PPO(build(PPOConfig, config, where="algorithm ppo"))
