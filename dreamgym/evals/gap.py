"""The gap between dream and real success: of a trained policy, and during training, as a small budget of real episodes measures it.

The gap meter asks two questions, both on the same tasks: does the policy succeed as often in the real environment (fresh episodes) as in
the dreams it just trained on, which are one update older, and were those dreams true (paired replay of their actions)?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dreamgym.envs.base import EnvSuite
from dreamgym.errors import counted
from dreamgym.evals.paired_replay import Fidelity, compare, paired_episodes, summarise
from dreamgym.evals.success import success
from dreamgym.protocols import Policy, RealEnv
from dreamgym.rollout import rollout
from dreamgym.statistics import Interval, Rate, paired_rate_difference
from dreamgym.types import Trajectory


@dataclass(frozen=True)
class Gap:
    """What a probe found, and what it cost. `dream` and `real` are over the tasks whose fresh real episode has an outcome."""

    dream: Rate
    real: Rate
    paired: Fidelity
    real_steps: int
    episodes: tuple[Trajectory, ...] = ()  # every real episode it took: fresh ones, and replays of dreamed ones

    @property
    def gap(self) -> float | None:
        """Dream success minus real success; None when no episode could be compared."""
        return self.dream.value - self.real.value if self.dream.n and self.real.n else None

    def metrics(self) -> dict[str, float | None]:
        """For metrics.jsonl: rates in [0, 1], None where there was no case to measure."""
        return {
            "probe_dream_success": _known(self.dream),
            "probe_real_success": _known(self.real),
            "probe_real_low": self.real.low if self.real.n else None,
            "probe_real_high": self.real.high if self.real.n else None,
            "gap": self.gap,
            "false_success": _known(self.paired.false_success),
            "false_failure": _known(self.paired.false_failure),
            "state_exact": _known(self.paired.state_exact),
            "first_divergence": self.paired.first_divergence,
        }


@dataclass(frozen=True)
class PolicyGap:
    """One policy on the same tasks in the dream and, acting anew, in the real environment. Rates are over the tasks that have an outcome on
    both sides."""

    dream_success: Rate
    real_success: Rate
    gap: Interval  # dream minus real, task by task
    masked: int  # dreams that the guard left out
    failed_rollouts: int  # tasks with a rollout that failed on either side, for technical reasons


def compare_success(dreamed: Sequence[Trajectory], real: Sequence[Trajectory]) -> PolicyGap:
    """The gap between two lists of episodes, of the same tasks in the same order."""
    pairs = [(one, other) for one, other in zip(dreamed, real, strict=True) if not one.masked]
    sound = _with_outcomes(pairs)
    return PolicyGap(
        success([one for one, _ in sound]),
        success([other for _, other in sound]),
        paired_rate_difference([one.success for one, _ in sound], [other.success for _, other in sound]),
        masked=len(dreamed) - len(pairs),
        failed_rollouts=len(pairs) - len(sound),
    )


def _with_outcomes(pairs: Iterable[tuple[Trajectory, Trajectory]]) -> list[tuple[Trajectory, Trajectory]]:
    """The pairs (dreamed, real) that have an outcome on both sides."""
    return [(one, other) for one, other in pairs if one.error is None and other.error is None and other.scored]


PREFIX = "gap-"


def gap_phase(phases: Iterable[str]) -> str:
    """The first of a run's phases that measured the gap of a policy; "" where none did."""
    return next((name for name in phases if name.startswith(PREFIX)), "")


def gap_sentence(found: Mapping[str, Any]) -> str:
    """A PolicyGap as plain values, as people read it, and how consistent its dreams are, where that was measured."""
    dream, real, gap = found["dream_success"], found["real_success"], found["gap"]
    lost = {"masked dream": found["masked"], "failed rollout": found["failed_rollouts"]}
    left_out = f" Left out: {', '.join(counted(n, what) for what, n in lost.items() if n)}." if any(lost.values()) else ""
    again = ""
    if (seen := found.get("revisits")) and seen["n"]:
        again = f" Of {counted(seen['n'], 'return')} of a dream to what it had shown, {_percent(seen)} showed the same."
        if (control := found.get("revisits_no_model")) and control["n"]:
            again += f" In the dream without a model, of {control['n']}, {_percent(control)}."
    if (false := found.get("accepted_false")) and false["n"]:
        many = counted(false["n"], "dreamed success", "dreamed successes")
        again += f" Of {many}, repeated in the real environment, {_percent(false)} are false."
    if not gap["n"]:
        return f"The gap of the trained policy was not measured: no training task has an outcome on both sides.{left_out}"
    rates = [_percent(one) for one in (dream, real)]
    return (
        f"On {counted(gap['n'], 'training task')} the policy '{found['policy']}' succeeds in {rates[0]} of its dreams and, acting anew, in "
        f"{rates[1]} of real episodes: a gap of {100 * gap['value']:+.1f} points [{100 * gap['low']:.1f}, {100 * gap['high']:.1f}]."
        f"{left_out}{again}"
    )


def _percent(rate: Mapping[str, Any]) -> str:
    return f"{100 * rate['value']:.1f} % [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"


class GapMeter:
    """Probes with real steps and keeps count of them in `real_steps`."""

    def __init__(self, suite: EnvSuite, real: RealEnv) -> None:
        self.suite, self.real = suite, real
        self.real_steps = 0

    def measure(self, policy: Policy, dreamed: Sequence[Trajectory], *, n: int, seed: int, temperature: float = 1.0) -> Gap:
        """Probe with up to `n` of the dreamed episodes whose tasks the real environment knows, spread over them evenly. `temperature` is
        the one that they were sampled at: the same policy acts in both."""
        known = [t for t in dreamed if t.task.source == "real" and t.error is None]
        count = min(n, len(known))
        chosen = [known[i * len(known) // count] for i in range(count)]
        fresh = rollout(
            policy,
            self.real,
            [t.task for t in chosen],
            max_parallel=self.suite.max_parallel,
            seed=seed,
            max_steps=self.suite.max_steps,
            temperature=temperature,
            name=f"probe/{seed}",
        )
        pairs = paired_episodes(chosen, self.real)
        episodes = (*fresh, *(real for _, real in pairs))
        steps = sum(len(t.turns) for t in episodes)
        self.real_steps += steps
        paired = summarise([compare(dream, real) for dream, real in pairs])
        sound = _with_outcomes(zip(chosen, fresh, strict=True))
        return Gap(success([dream for dream, _ in sound]), success([real for _, real in sound]), paired, steps, episodes)


def _known(rate: Rate) -> float | None:
    return rate.value if rate.n else None
