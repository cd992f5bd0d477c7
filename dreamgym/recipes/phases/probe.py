"""Probes during an RL phase: they measure the gap between dream and real success, and stop, roll back or refresh when it is open."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dreamgym.evals.gap import GapMeter
from dreamgym.policy.agent import Agent
from dreamgym.recipes.blocks import RLBlock
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases import refresh
from dreamgym.recipes.phases.collect import Environments
from dreamgym.runs.episodes import trajectory_from_json, trajectory_to_json
from dreamgym.runs.rundir import RunDir
from dreamgym.train.weights import restore, state_of
from dreamgym.types import Trajectory


def last_good(phase: str) -> str:
    """The checkpoint of the last policy of an RL phase of which probes found nothing wrong."""
    return f"{phase}-good"


def roll_back(context: RunContext, model: Any, phase: str, start: str) -> str:
    """Give a model in training the weights of the last good policy of its phase, or of the policy it started from; says which, in words."""
    found = context.checkpoint(last_good(phase)).exists()
    restore(model, state_of(context.policy(last_good(phase) if found else start)))
    return f"rolled back to the {'last good policy' if found else 'policy it started from'}"


class Prober:
    """Owns the gap meter, the probed episodes, and what follows from an open gap."""

    def __init__(self, run: RunDir, envs: Environments, agent: Agent, model: Any, block: RLBlock, *, start: str) -> None:
        self.run, self.envs, self.agent, self.model, self.block, self.start = run, envs, agent, model, block, start
        self.context, self.name = envs.context, envs.name
        self.meter = GapMeter(self.context.suite, self.context.real())
        self.steps = 0  # real steps of probes
        self.open_gaps = 0  # consecutive probes above `max_gap`
        self.episodes: list[Trajectory] = []  # real episodes of probes, kept for refreshes of the experience model
        self.passed: bool | None = None  # whether the last probe found nothing wrong; None: it measured nothing
        self.stopped = ""

    def state_dict(self) -> dict[str, Any]:
        episodes = json.dumps([trajectory_to_json(episode, completions=False) for episode in self.episodes])
        return {"steps": self.steps, "open_gaps": self.open_gaps, "refreshes": self.envs.refreshes, "episodes": episodes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.open_gaps = state["steps"], state["open_gaps"]
        self.episodes = [trajectory_from_json(record) for record in json.loads(state["episodes"])]
        if state["refreshes"]:
            self.envs.enter_dream(state["refreshes"])

    def probe(self, trajectories: Sequence[Trajectory], iteration: int) -> dict[str, Any]:
        """Measure the gap of the dreamed trajectories; the real episodes join the replay buffer. With `on_gap = "refresh"` an open gap
        refreshes the experience model; else two open gaps in a row stop the loop, and a rollback restores the last policy whose dream and
        real success agreed."""
        dreamed = [t for t in trajectories if t.source == "dream"]
        temperature = self.block.learner.temperature
        gap = self.meter.measure(self.agent, dreamed, n=self.block.probe_tasks, seed=10_000 + iteration, temperature=temperature)
        self.steps += gap.real_steps
        episodes = refresh.explained(gap.episodes, self.context.suite.rules)
        self.envs.replay.add(episodes)
        if gap.gap is None:  # every dreamed episode failed, or was of a synthetic task: nothing was measured
            return gap.metrics()
        if self.block.on_gap == "refresh":
            self.episodes += episodes
            if gap.gap > self.block.max_gap:
                self._refresh()
            return gap.metrics() | {"refreshes": float(self.envs.refreshes)}
        self.open_gaps = self.open_gaps + 1 if gap.gap > self.block.max_gap else 0
        self.passed = self.open_gaps == 0
        if self.open_gaps >= 2 and self.block.on_gap != "warn":
            self.stopped = f"the gap opened to {gap.gap:.2f}"
            if self.block.on_gap == "rollback":
                self.stopped += f", {roll_back(self.context, self.model, self.name, self.start)}"
        return gap.metrics()

    def _refresh(self) -> None:
        """Fit the next version of the experience model to the probed episodes; the dream goes on with it."""
        envs, refreshes = self.envs, self.envs.refreshes + 1
        new = refresh.version_name(self.context.experience, self.name, refreshes)
        refresh.refit(replace(self.context, experience=envs.dreams_with), self.episodes, self.block.refresh, new)
        self.run.episodes(f"{self.name}-probed", self.episodes, completions=False)
        envs.enter_dream(refreshes)
