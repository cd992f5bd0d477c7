"""How far a dream can mislead: the paper's Theorem 1 with measured errors, and a finite-horizon bound that can be informative.

Both errors are means over the policy's own dreamed steps, up to and with the first step at which an episode parts from reality. They
are estimates with intervals wherever the environment is larger than a table, so what follows from them is an estimate too.

Theorem 1 (arXiv:2511.03773) charges a policy improved in the dream, gamma < 1, rewards up to R_max, with

    2 (eps_R / (1 - gamma) + 2 gamma R_max eps_P / (1 - gamma)^2)

which no episodic task with gamma near 1 survives: it is vacuous once it exceeds the range of J. The finite-horizon form needs no gamma.
Let dream and reality share their random numbers; until an episode parts (in state, reward or end) the policy sees and does the same in
both, so returns differ only in episodes that part, and by at most R_max:

    |J_dream - J_real| <= R_max * P(an episode parts)

An episode that only the dream's horizon cuts parts as well. R_max is 1 of success, which is 0 or 1; of returns it is taken from the rewards
that were seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.evals.paired_replay import Replay
from dreamgym.statistics import Rate, wilson


@dataclass(frozen=True)
class Bound:
    """Errors of a dream under a policy, and what they allow the dream to be wrong by."""

    reward_error: Rate  # eps_R: mean |dreamed reward - real reward| a step
    transition_error: Rate  # eps_P: share of steps whose next state differs
    differs: Rate  # share of episodes that part from reality in state, reward or end, or were left out
    gamma: float
    r_max: float  # the width of the range that all rewards and returns lie in, at least 1

    @property
    def theorem(self) -> float:
        """What Theorem 1 subtracts from an improvement in the dream."""
        return penalty(self.reward_error.value, self.transition_error.value, gamma=self.gamma, r_max=self.r_max)

    @property
    def success_gap(self) -> float:
        """The finite-horizon bound of the difference of dream and real success, at the upper end of its interval. That of returns is
        `r_max` times as large."""
        return self.differs.high

    def to_json(self) -> dict[str, Any]:
        """Plain values, with a word about each bound that says nothing."""
        bounds = {"theorem": (self.theorem, self.r_max), "success_gap": (self.success_gap, 1.0)}
        vacuous = [name for name, (value, most) in bounds.items() if value >= most]
        return {
            "reward_error": asdict(self.reward_error),
            "transition_error": asdict(self.transition_error),
            "differs": asdict(self.differs),
            "gamma": self.gamma,
            "r_max": self.r_max,
            "theorem": self.theorem,
            "success_gap": self.success_gap,
            "kind": "estimated",
            "vacuous": vacuous,
        }


def penalty(reward_error: float, transition_error: float, *, gamma: float, r_max: float = 1.0) -> float:
    """2 (eps_R / (1 - gamma) + 2 gamma R_max eps_P / (1 - gamma)^2): the model error's part of Theorem 1."""
    if not 0 <= gamma < 1:
        raise UsageError(f"gamma={gamma} must be at least 0 and below 1: Theorem 1 divides by 1 - gamma.")
    return 2 * (reward_error / (1 - gamma) + 2 * gamma * r_max * transition_error / (1 - gamma) ** 2)


def measure(replays: Sequence[Replay], *, left_out: int = 0, gamma: float = 0.99) -> Bound:
    """The bounds of a set of paired replays.

    `left_out`: dreams of the same policy that no replay is of, because the guard masked them or they broke. The policy's dream success is
    over them too, and nothing is known of how they compare: each counts as differs.
    """
    steps = sum(one.compared for one in replays)
    r_max = max((one.reward_range[1] for one in replays), default=1.0) - min((one.reward_range[0] for one in replays), default=0.0)
    wrong = sum(one.reward_error for one in replays)
    centre = wilson(min(round(wrong / r_max), steps), steps)
    mean = wrong / steps if steps else 0.0
    return Bound(
        reward_error=Rate(mean, min(mean, r_max * centre.low), max(mean, r_max * centre.high), steps),
        transition_error=wilson(sum(one.diverged for one in replays), steps),
        differs=wilson(sum(one.differs for one in replays) + left_out, len(replays) + left_out),
        gamma=gamma,
        r_max=r_max,
    )
