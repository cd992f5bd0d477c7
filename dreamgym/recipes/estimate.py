"""What an experiment will take, before it starts: tokens, memory and hours, phase by phase.

`recipes.pilot` measures a few dozen logged episodes and seconds of this machine. Everything else is arithmetic on the settings.
Estimates are high where RL goes well: episodes get shorter, rules and recall answer steps, and groups without a signal are not learned
from.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from dreamgym.errors import counted
from dreamgym.recipes import plan
from dreamgym.recipes.arms import OFFLINE_ARMS
from dreamgym.recipes.config import BaselineConfig, CompareConfig, RunConfig, SharedConfig
from dreamgym.recipes.pilot import Pilot, Planned, measure
from dreamgym.recipes.transfer import POLICIES

RECOMPUTED = 1 / 3
"""What one more forward pass costs beside a forward and a backward one."""
NAMED = 0.01
"""Share of all hours from which on a phase is named."""
BUSY = 0.5
"""Other processes that want a core, as a share of the cores, from which on they are named: what was measured beside them is slower."""


@dataclass(frozen=True)
class PhaseCost:
    """What a phase does. Episodes are average ones of the logs."""

    phase: str
    fitted: float = 0.0  # tokens that the experience model is fitted to
    imitated: float = 0.0  # tokens that the policy is fitted to
    learned: float = 0.0  # tokens of RL updates
    acted: float = 0.0  # episodes of the policy
    dreamed: float = 0.0  # episodes of the experience model
    real_steps: float = 0.0
    judged_s: float = 0.0  # seconds of a learned verifier
    most_s: float = inf  # seconds after which the phase is ended

    def hours(self, pilot: Pilot) -> float:
        """The hours on the machine of the pilot, whose rates are known."""
        policy, experience = pilot.policy, pilot.experience
        assert policy and experience
        seconds = self.fitted / experience.fitted_per_s + (self.imitated + self.learned) / policy.fitted_per_s
        seconds += self.acted * (pilot.prompt_tokens / policy.prompt_per_s + pilot.reply_tokens / policy.sampled_per_s)
        seconds += self.dreamed * (pilot.question_tokens / experience.prompt_per_s + pilot.answer_tokens / experience.sampled_per_s)
        return (min(seconds + self.real_steps * pilot.real_step_s, self.most_s) + self.judged_s) / 3600


@dataclass(frozen=True)
class Cost:
    """Tokens, real steps, memory and hours. Tokens are None where a pretrained model is not here, hours where `unknown` says why."""

    fitted_tokens: float | None = 0.0
    """Tokens read by supervised fits, every epoch counted."""
    sampled_tokens: float | None = 0.0
    """Tokens written by policies and experience models."""
    learned_tokens: float | None = 0.0
    """Tokens read by RL updates, prompts included."""
    real_steps: float = 0.0
    memory_gb: float | None = 0.0
    hours: float | None = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    """Hours of each phase, where they are known."""
    unknown: str = ""
    """Why hours are unknown."""
    basis: str = ""
    """How pretrained models were measured."""
    load: float = 0.0
    """Other processes that wanted a core while the rates were measured."""

    def __add__(self, other: Cost) -> Cost:
        names = [*self.phases, *(name for name in other.phases if name not in self.phases)]
        return Cost(
            _sum(self.fitted_tokens, other.fitted_tokens),
            _sum(self.sampled_tokens, other.sampled_tokens),
            _sum(self.learned_tokens, other.learned_tokens),
            self.real_steps + other.real_steps,
            None if self.memory_gb is None or other.memory_gb is None else max(self.memory_gb, other.memory_gb),
            _sum(self.hours, other.hours),
            {name: self.phases.get(name, 0.0) + other.phases.get(name, 0.0) for name in names},
            "; ".join(dict.fromkeys(part.unknown for part in (self, other) if part.unknown)),
            "; ".join(dict.fromkeys(part.basis for part in (self, other) if part.basis)),
            max(self.load, other.load),
        )

    def __str__(self) -> str:
        real = f"{_short(self.real_steps)} real steps"
        if self.fitted_tokens is None or self.sampled_tokens is None or self.learned_tokens is None or self.memory_gb is None:
            return f"{real}; tokens, memory and hours unknown: {self.unknown}"
        tokens = (
            f"{_short(self.fitted_tokens)} tokens fitted, {_short(self.sampled_tokens)} sampled, {_short(self.learned_tokens)} learned from"
        )
        pretrained = self.basis or self.hours is None
        memory = f"{self.memory_gb:.1f} GB of memory " + ("before activations of training" if pretrained else "or more")
        if self.hours is None:
            return f"{tokens}; {real}; {memory}; hours unknown: {self.unknown}"
        cores = os.cpu_count() or 1
        most = sorted(self.phases.items(), key=lambda item: -item[1])
        named = ", ".join(f"{name} {_hours(hours)}" for name, hours in most if hours >= NAMED * self.hours)
        basis = f" ({self.basis})" if self.basis else ""
        busy = (
            f"; measured beside other work (load {self.load:.1f} on {cores} cores), and less without it" if self.load > BUSY * cores else ""
        )
        return f"{tokens}; {real}; {memory}; about {_hours(self.hours)} on this machine{basis}: {named}{busy}"


def estimate_cost(configs: Sequence[Planned], *, held_out: int = 0, transfer: bool = False, universal: bool = False) -> Cost:
    """What all of them take together, one after the other, each with all of its seeds. `held_out`: episodes on which a sweep or a transfer
    predicts next states; `transfer`: every policy acts in every environment; `universal`: one more model is fitted to the logs of all."""
    total = Cost()
    for config in configs:
        seeds = len(config.seeds) if isinstance(config, BaselineConfig) else 1
        pilot = measure(config)
        models = (len(configs) if transfer else 1) + universal  # that predict in this environment
        beside = [_held_out(held_out * models, pilot)] if held_out else []
        beside += [_pairs(config, len(configs), pilot)] if transfer else []
        beside += [_experience("universal", config, pilot)] if universal else []
        one_seed = seed_cost(config, pilot, beside)
        for _ in range(seeds):
            total += one_seed
    return total


def seed_cost(config: Planned, pilot: Pilot, beside: Sequence[PhaseCost] = ()) -> Cost:
    """What one seed takes, with what is measured `beside` its run."""
    parts = [*_phases(config, pilot), *beside]
    real = sum(part.real_steps for part in parts)
    if pilot.missing:
        return Cost(None, None, None, real, None, None, unknown=pilot.unknown)
    measured = pilot.policy is not None and pilot.experience is not None
    phases = {part.phase: part.hours(pilot) for part in parts} if measured else {}
    return Cost(
        sum(part.fitted + part.imitated for part in parts),
        sum(part.acted * pilot.reply_tokens + part.dreamed * pilot.answer_tokens for part in parts),
        sum(part.learned for part in parts),
        real,
        pilot.memory_gb,
        sum(phases.values()) if measured else None,
        phases,
        pilot.unknown,
        pilot.basis,
        pilot.load,
    )


def _phases(config: Planned, pilot: Pilot) -> Iterator[PhaseCost]:
    """The phases of one seed."""
    n = _episodes(config, pilot)
    wins = n * pilot.successes * pilot.policy_tokens
    loops = list(plan.loops_of(config))
    yield PhaseCost("logs", real_steps=n * pilot.steps * (not pilot.recorded))
    judges = config.dreams and config.experience.verifier is not None and config.experience.verifier.name == "learned"
    yield _experience("experience", config, pilot, judged_s=n * (pilot.read_s + pilot.judged_s) * judges)
    for name in config.ablations if isinstance(config, CompareConfig | RunConfig) else ():
        if config.refitted_without(name):
            yield _experience(f"experience-no-{name}", config.without(name), pilot)
    yield PhaseCost("warm_start", imitated=wins * config.warm_start.epochs, most_s=config.warm_start.max_seconds or inf)
    imitates = isinstance(config, RunConfig) or (isinstance(config, CompareConfig) and any(arm in OFFLINE_ARMS for arm in config.arms))
    if isinstance(config, BaselineConfig) and imitates and config.sft.epochs:
        looks = 1 + max(1, int(config.sft.epochs // 2))  # the warm start, and every two epochs
        acted = 2.0 * looks * config.eval.dev_tasks * pilot.has_env  # greedy and sampled
        most_s = config.sft.max_seconds or inf
        yield PhaseCost("sft", imitated=wins * config.sft.epochs, acted=acted, real_steps=acted * pilot.steps, most_s=most_s)
    if isinstance(config, CompareConfig) and "dpo" in config.arms:  # a failure for each success, and the reference reads both once
        yield PhaseCost("dpo", imitated=2 * wins * (config.dpo.epochs + RECOMPUTED))
    for loop in loops:
        yield _loop(loop, n, pilot)
    policies = 1 + len(loops)
    if isinstance(config, CompareConfig):
        policies = 1 + len({*config.arms, *([config.ablated] if config.ablations else [])}) + len(config.ablations)
    elif isinstance(config, RunConfig):
        policies += bool(config.sft.epochs)
    acted = 2.0 * config.eval.tasks * policies * pilot.has_env  # greedy and sampled
    yield PhaseCost("evaluation", acted=acted, real_steps=acted * pilot.steps)
    if not isinstance(config, CompareConfig) and loops[0].source != "real":
        yield from _measured_dreams(config, loops, n, pilot)
    measured = [loop for loop in loops if loop.source != "real" and (loop.ablation or _has_gap(loop.name, config, loops))]
    yield from _gaps(config, len(measured), pilot)


def _has_gap(name: str, config: SharedConfig, loops: Sequence[plan.Loop]) -> bool:
    """Whether the gap of a policy is measured: of each that a comparison names, and of the first of another run."""
    if isinstance(config, CompareConfig):
        return name in config.arms or (bool(config.ablations) and name == config.ablated)
    return name == loops[0].name


def _gaps(config: SharedConfig, policies: int, pilot: Pilot) -> Iterator[PhaseCost]:
    """Each policy in its dream, in the control's where a state hides things, and in the real environment, where its dreams' actions are
    repeated otherwise."""
    if tasks := float(config.eval.gap_tasks * policies * pilot.has_env):
        control = pilot.hides and "k" in config.experience.settings
        yield PhaseCost("gap", acted=(2 + control) * tasks, dreamed=tasks, real_steps=(2 - pilot.hides) * tasks * pilot.steps)


def _measured_dreams(config: SharedConfig, loops: Sequence[plan.Loop], n: float, pilot: Pilot) -> Iterator[PhaseCost]:
    """What a trained policy dreams at the end of a run, and what is done in the real environment to compare: `n` are the logged episodes.

    The control without a model dreams too, and its dreams sample nothing.
    """
    block, control = config.eval, "k" in config.experience.settings
    if not pilot.has_env:  # tasks are those of the logs
        from dreamgym.recipes.phases.next_actions import MOST  # here, because it imports torch

        dreams = min(float(block.uncertified_dreams), n) * (1 + len(loops))
        yield PhaseCost("uncertified", acted=dreams, dreamed=dreams)
        yield PhaseCost("next_actions", acted=2 * min(float(MOST), n) * (1 + len(loops)))  # held-out and training episodes
        return
    arms = 2 + control  # with the guard, without it, and the control
    each = float(block.paired_replays)
    yield PhaseCost("audit", acted=arms * each, dreamed=2 * each, real_steps=arms * each * pilot.steps)


def _held_out(episodes: float, pilot: Pilot) -> PhaseCost:
    """Next states predicted on real episodes and on their near misses, each of which is tried after the steps before it. The control
    without a model samples nothing."""
    from dreamgym.recipes.fidelity import MISSES  # here, because it imports torch

    misses = MISSES * pilot.has_env
    steps = episodes * pilot.steps * (1 + misses * (pilot.steps + 1) / 2)
    return PhaseCost("held-out predictions", dreamed=episodes * (1 + misses), real_steps=steps * pilot.has_env)


def _pairs(config: SharedConfig, sources: int, pilot: Pilot) -> PhaseCost:
    """The policies of all runs of a transfer in the environment of one, greedy and sampled."""
    acted = 2.0 * len(POLICIES) * sources * config.eval.tasks * pilot.has_env
    return PhaseCost("pairs", acted=acted, real_steps=acted * pilot.steps)


def _experience(phase: str, config: SharedConfig, pilot: Pilot, judged_s: float = 0.0) -> PhaseCost:
    training = config.experience.training if config.dreams else None
    if training is None:
        return PhaseCost(phase, judged_s=judged_s)
    fitted = _episodes(config, pilot) * pilot.experience_tokens * training.epochs
    return PhaseCost(phase, fitted=fitted, most_s=training.max_seconds or inf, judged_s=judged_s)


def _loop(loop: plan.Loop, n: float, pilot: Pilot) -> PhaseCost:
    """An RL loop with its probes; `n` are the logged episodes, which a learned verifier reads again."""
    block, source, probes = loop.block, loop.source, loop.probes
    episodes = float(block.iterations * block.tasks_per_iter * block.group_size)
    dreamed = episodes * {"dream": 1.0, "real": 0.0, "mixed": 1.0 - block.real_share}[source]
    acted, judged = episodes, 0.0
    real = min((episodes - dreamed) * pilot.steps, block.max_real_steps or inf)
    if source != "real" and block.probe_every and pilot.has_env:
        real += block.iterations // block.probe_every * block.probe_tasks * pilot.steps
    if probes:
        tried = len(probes.after(block.iterations)) if pilot.has_env else 0
        steps = min(tried * probes.episodes * pilot.steps, float(probes.max_real_steps))
        acted += steps / pilot.steps * (probes.by == "rollouts")
        real, judged = real + steps, n * (pilot.read_s + pilot.judged_s * tried)
    learned = episodes * pilot.policy_tokens * block.learner.epochs * (1 + RECOMPUTED * (block.learner.old_logprobs == "learner"))
    return PhaseCost(
        loop.name,
        learned=learned,
        acted=acted,
        dreamed=dreamed,
        real_steps=real,
        judged_s=judged,
        most_s=block.max_seconds or inf,
    )


def _episodes(config: SharedConfig, pilot: Pilot) -> float:
    """How many episodes the logs hold."""
    if pilot.recorded:
        return float(pilot.recorded)
    limit = config.logs.transitions
    return min(config.logs.trajectories, limit / pilot.steps) if limit else config.logs.trajectories


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _short(n: float) -> str:
    """A count as people say it: 950, 12 k, 3.4 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.2g} {unit}" if n < 10 * size else f"{n / size:,.0f} {unit}"
    return f"{n:.0f}"


def _hours(hours: float) -> str:
    return counted(max(1, round(60 * hours)), "minute") if hours < 1.5 else f"{hours:.1f} hours"
