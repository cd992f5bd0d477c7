"""Probes during an RL phase: real episodes by which its dream is checked.

`GapProbes` measures the gap between dream and real success. An open gap stops the loop, rolls the policy back, or refreshes the experience
model. `phases.verifier.VerifierProbes` probes the claims of success that a learned verifier judged, and refits the verifier to them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from dreamgym.evals.gap import GapMeter
from dreamgym.policy.agent import Agent
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.early_stops import TO_GOOD, TO_START
from dreamgym.recipes.phases import refresh
from dreamgym.recipes.phases.collect import Environments, rollout_seed
from dreamgym.recipes.plan import Loop
from dreamgym.runs.episodes import trajectory_from_json, trajectory_to_json
from dreamgym.runs.rundir import RunDir
from dreamgym.train.weights import restore, state_of
from dreamgym.types import Trajectory


def rollback_checkpoint(phase: str) -> str:
    """The checkpoint of the last policy of an RL phase of which probes found nothing wrong."""
    return f"{phase}-good"


def roll_back(context: RunContext, model: Any, phase: str, init_policy: str) -> str:
    """Give a model in training the weights of the last good policy of its phase, or of the policy it started from; says which, in words."""
    has_good = context.checkpoint(rollback_checkpoint(phase)).exists()
    restore(model, state_of(context.load_policy(rollback_checkpoint(phase) if has_good else init_policy)))
    return TO_GOOD if has_good else TO_START


class Probes(Protocol):
    """Real episodes during an RL phase, by which a dream is checked, and what follows from them."""

    steps: int
    """Number of real steps so far."""
    failed_in_a_row: int
    """Number of probes in a row that found the dream wrong."""
    passed: bool | None
    """Whether the probe of this iteration found nothing wrong; None: there was none, or it cannot be said."""
    stop_reason: str
    """Why training stops, in words; "" while it goes on."""

    def observe(self, trajectories: Sequence[Trajectory], iteration: int) -> dict[str, Any]:
        """Probe, if one is due after an iteration that rolled out `trajectories`; metrics."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class GapProbes:
    """Measures the gap between dream and real success every `probe_every` iterations. An open gap refreshes the experience model, or two
    in a row stop training."""

    def __init__(self, run: RunDir, envs: Environments, agent: Agent, model: Any, loop: Loop) -> None:
        self.run, self.envs, self.agent, self.model = run, envs, agent, model
        self.block, self.init_policy = loop.block, loop.init_policy
        self.context, self.name = envs.context, envs.name
        self.every = self.block.probe_every if envs.dream and "probes" not in self.context.skipped else 0
        self.meter = GapMeter(self.context.suite, self.context.real_env())
        self.steps = 0  # real steps of probes
        self.failed_in_a_row = 0  # probes with a gap above `max_gap`
        self.episodes: list[Trajectory] = []  # real episodes of probes, kept for refreshes of the experience model
        self.passed: bool | None = None
        self.stop_reason = ""

    def state_dict(self) -> dict[str, Any]:
        episodes = json.dumps([trajectory_to_json(episode, completions=False) for episode in self.episodes])
        return {"steps": self.steps, "failed_in_a_row": self.failed_in_a_row, "refreshes": self.envs.refreshes, "episodes": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.failed_in_a_row = state["steps"], state["failed_in_a_row"]
        self.episodes = [trajectory_from_json(record) for record in json.loads(state["episodes"])]
        if state["refreshes"]:
            self.envs.load_dream(state["refreshes"])

    def observe(self, trajectories: Sequence[Trajectory], iteration: int) -> dict[str, Any]:
        """Probe where `iteration` is one of every `probe_every`."""
        self.passed = None
        return self.probe(trajectories, iteration) if self.every and iteration % self.every == 0 else {}

    def probe(self, trajectories: Sequence[Trajectory], iteration: int) -> dict[str, Any]:
        """Measure the gap of the dreamed trajectories; the real episodes join the replay buffer. With `on_gap = "refresh"` an open gap
        refreshes the experience model; else two open gaps in a row stop the loop, and a rollback restores the last policy whose dream and
        real success agreed."""
        dreamed = [t for t in trajectories if t.source == "dream"]
        temperature, seed = self.block.learner.temperature, rollout_seed(self.context.config.seed, 10_000 + iteration)
        gap = self.meter.measure(self.agent, dreamed, n=self.block.probe_tasks, seed=seed, temperature=temperature)
        self.steps += gap.real_steps
        episodes = self.envs.remember(gap.episodes)
        if gap.gap is None:  # every dreamed episode failed, or was of a synthetic task: nothing was measured
            return gap.metrics()
        if self.block.on_gap == "refresh":
            self.episodes += episodes
            if gap.gap > self.block.max_gap:
                self._refresh()
            return gap.metrics() | {"refreshes": float(self.envs.refreshes)}
        self.failed_in_a_row = self.failed_in_a_row + 1 if gap.gap > self.block.max_gap else 0
        self.passed = self.failed_in_a_row == 0
        if self.failed_in_a_row >= 2 and self.block.on_gap != "warn":
            self.stop_reason = f"the gap opened to {gap.gap:.2f}"
            if self.block.on_gap == "rollback":
                self.stop_reason += f", {roll_back(self.context, self.model, self.name, self.init_policy)}"
        return gap.metrics()

    def _refresh(self) -> None:
        """Fit the next version of the experience model to the probed episodes; the dream goes on with it."""
        envs, refreshes = self.envs, self.envs.refreshes + 1
        new = refresh.version_name(self.context.experience_checkpoint, self.name, refreshes)
        refresh.refit(replace(self.context, experience_checkpoint=envs.dreams_with), self.episodes, self.block.refresh, new)
        self.run.episodes(f"{self.name}-probed", self.episodes, completions=False)
        envs.load_dream(refreshes)
