"""The learned verifier of a run: fitted to the logs as a phase, and refitted during RL to probes of the claims that it judged.

A probe takes a dreamed claim of success to the real environment: its actions are replayed there, and what really follows is the label.
Where a dream invents what the world hides, the policy acts there anew on the claim's task, and its real episode is the probe.
Probes that a fit has used calibrate no threshold of that fit (`experience.learned_verifier.verifier`). They are charged as real steps of
probes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dreamgym.evals.paired_replay import replay_actions
from dreamgym.experience.guard import is_second_opinion
from dreamgym.experience.learned_verifier.labels import labelled_claims
from dreamgym.experience.learned_verifier.verifier import (
    LearnedVerifier,
    PreparedLogs,
    Probe,
    draw_probes,
    fit_verifier,
    is_asked_about,
    prepare_once,
)
from dreamgym.experience.verifiers.learned import LearnedVerifierConfig
from dreamgym.policy.agent import Agent
from dreamgym.recipes import factory
from dreamgym.recipes.phases.collect import Environments, rollout_seed
from dreamgym.recipes.phases.probes import roll_back
from dreamgym.recipes.plan import Loop
from dreamgym.rollout import rollout
from dreamgym.runs.episodes import trajectory_from_json, trajectory_to_json
from dreamgym.statistics import Rate, difference, weighted_rate
from dreamgym.types import Trajectory


@dataclass(frozen=True)
class ProbeRates:
    """What probed claims say of the verifier that judged them before it had seen them. Weighted by one over their probability."""

    false_success: Rate  # of claims that are false, the share accepted
    true_positive_rate: Rate  # of claims that are true, the share accepted
    accepted_false: Rate  # of accepted claims, the share that is false
    claims_true: Rate  # of all claims, the share that is true: what accepting everything would give


@dataclass(frozen=True)
class ProbedClaim:
    """A dreamed claim of success that was probed in the real environment: by its actions there, or by a new episode of the policy."""

    accepted: bool  # whether the policy was paid for it
    real_success: bool
    probability: float
    iteration: int


def accepted_false(tried: Sequence[ProbedClaim]) -> Rate:
    """The share of accepted and probed claims without a real success (a Hájek estimate)."""
    accepted = [claim for claim in tried if claim.accepted]
    return weighted_rate([not claim.real_success for claim in accepted], [1 / claim.probability for claim in accepted])


def real_success(tried: Sequence[ProbedClaim]) -> Rate:
    """The share of probed claims with a real success (a Hájek estimate): by rollouts, how often the policy really does what it claims."""
    return weighted_rate([claim.real_success for claim in tried], [1 / claim.probability for claim in tried])


def probe_rates(probes: Sequence[Probe]) -> ProbeRates:
    """Hájek estimates over the probes that the verifier was asked about, each with the verdict it got when it was chosen."""
    probes = [probe for probe in probes if probe.verdict]

    def rate(of: Sequence[Probe], hit: Sequence[bool]) -> Rate:
        return weighted_rate(hit, [1 / probe.probability for probe in of])

    false, true = ([probe for probe in probes if probe.real_success is is_true] for is_true in (False, True))
    accepted = [probe for probe in probes if probe.verdict == "passed"]
    return ProbeRates(
        rate(false, [probe.verdict == "passed" for probe in false]),
        rate(true, [probe.verdict == "passed" for probe in true]),
        rate(accepted, [not probe.real_success for probe in accepted]),
        rate(probes, [probe.real_success for probe in probes]),
    )


def claims_of(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The dreamed episodes that end with a claim of success and can be tried: also those that a verifier did not believe, but not those
    that the rules refused, of which it was not asked."""
    return [t for t in trajectories if t.source == "dream" and t.turns and t.task.source == "real" and claims(t) and not _ruled_out(t)]


def claims(episode: Trajectory) -> bool:
    """Whether the experience model called the end of a dreamed episode a success, before any guard, or a verifier that grants successes
    judged it as if it had."""
    last = episode.transitions[-1].as_predicted
    return last.terminated and (last.reward > 0 or last.info.reward_by == "verifier") and (episode.error is None or episode.masked)


def _ruled_out(claim: Trajectory) -> bool:
    """Whether the rules took the reward of a claim away: by the verdict they left, which is not that of a second opinion."""
    info = claim.transitions[-1].info
    refused = info.verdict is not None and not info.has_verdict("passed")
    return refused and info.reward_by == "rule" and not is_second_opinion(info.verdict)


class VerifierProbes:
    """Chooses claims to try in the real environment during RL, refits the verifier to what was found, and stops when it proves wrong."""

    def __init__(
        self,
        envs: Environments,
        agent: Agent,
        model: Any,
        verifier: LearnedVerifier,
        settings: LearnedVerifierConfig,
        loop: Loop,
    ) -> None:
        self.envs, self.agent, self.model, self.init_policy = envs, agent, model, loop.init_policy
        self.verifier, self.settings = verifier, settings
        self.context, self.name = envs.context, envs.name
        self.temperature = loop.block.learner.temperature  # of the phase's rollouts: the same policy acts in probes
        self.every = 0 if "probes" in self.context.skipped else settings.probes.every
        self.probes: list[Probe] = []
        self.tried: list[ProbedClaim] = []
        self.steps = 0  # real steps of probes
        self.failed_in_a_row = 0  # probes in which accepted claims proved false
        self.passed: bool | None = None  # whether the accepted claims of this iteration's probe held
        self.stop_reason = ""

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "failed_in_a_row": self.failed_in_a_row,
            "tried": json.dumps([asdict(claim) for claim in self.tried]),
            "probes": json.dumps([asdict(p) | {"episode": trajectory_to_json(p.episode, completions=False)} for p in self.probes]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the verifier that the probes give: the same probes always give the same."""
        self.steps, self.failed_in_a_row = state["steps"], state["failed_in_a_row"]
        self.tried = [ProbedClaim(**record) for record in json.loads(state["tried"])]
        records = json.loads(state["probes"])
        self.probes = [Probe(**{**record, "episode": trajectory_from_json(record["episode"])}) for record in records]
        if self.probes:
            self._refit()

    def observe(self, trajectories: Sequence[Trajectory], iteration: int) -> dict[str, Any]:
        """Count what the verifier did with an iteration's claims, and every `every` iterations try some of them, and refit."""
        self.passed = None
        claims = claims_of(trajectories)
        metrics: dict[str, Any] = {
            "claims": len(claims) / max(1, len(trajectories)),
            "claims_accepted": _share(claims, lambda t: t.success),
            "claims_masked": _share(claims, lambda t: t.masked),
        }
        if not self.every or iteration not in self.settings.probes.after(iteration):
            return metrics
        drawn = draw_probes(claims, self.verifier, self.settings.probes.episodes, seed=self.context.config.seed, iteration=iteration)
        chosen = self._affordable(drawn, iteration)
        if drawn and not chosen:
            self.stop_reason = (
                f"{self.steps:,} of {self.settings.probes.max_real_steps:,} real steps of probes are spent, and what is left is too little "
                "to try a claim (experience.verifier.probes.max_real_steps)"
            )
            return metrics
        probe = self._probe_by_rollout if self.settings.probes.by == "rollouts" else self._probe_by_replay
        new = probe(chosen, iteration)
        self.probes += new
        tried = [claim for claim in self.tried if claim.iteration == iteration]
        for name, rate in (("tried_accepted_false", accepted_false(tried)), ("tried_real_success", real_success(tried))):
            metrics[name] = rate.value if rate.n else None
        self._stop_if_false(tried)
        if not new:
            return metrics
        self._refit()
        metrics |= {f"probe_{name}": rate.value if rate.n else None for name, rate in vars(probe_rates(new)).items()}
        calibration = self.verifier.calibration
        return metrics | {"probes": len(self.probes), "verifier_threshold": calibration.accept_above, "verifier_alpha": calibration.alpha}

    @property
    def judged_with(self) -> str:
        """The checkpoint of the verifier as it is now: of its own for every refit, because workers may judge with the one before."""
        refits = len({probe.iteration for probe in self.probes})
        return f"verifier-{self.name}-{refits}" if refits else self.context.verifier_checkpoint

    def result(self) -> dict[str, Any]:
        """What the phase leaves of them."""
        calibration = self.verifier.calibration.to_json()
        rates = {name: asdict(rate) for name, rate in vars(probe_rates(self.probes)).items()}
        rates["tried_accepted_false"] = asdict(accepted_false(self.tried))
        return {"probes": len(self.probes), "probe_steps": self.steps, "calibration": calibration, "rates": rates}

    def _affordable(self, drawn: Sequence[tuple[Trajectory, float]], iteration: int) -> list[tuple[Trajectory, float]]:
        """As many claims as the real steps that are left are enough for if each is as long as the longest, with the probability of being
        taken. Where those are not all, they are taken at random: to take short ones would draw by length, which it does not know."""
        rollouts = self.settings.probes.by == "rollouts"
        longest = max((self.context.suite.max_steps if rollouts else len(episode.turns) for episode, _ in drawn), default=1)
        n = min(len(drawn), (self.settings.probes.max_real_steps - self.steps) // longest)
        taken = random.Random(f"affordable/{self.context.config.seed}/{iteration}").sample(range(len(drawn)), n)
        return [(episode, p * n / len(drawn)) for episode, p in (drawn[i] for i in sorted(taken))]

    def _probe_by_replay(self, chosen: Sequence[tuple[Trajectory, float]], iteration: int) -> list[Probe]:
        """The claims with what their actions really lead to. Of what was recalled the verifier is not asked: it gets no verdict."""
        probabilities = {episode.id: probability for episode, probability in chosen}
        pairs = replay_actions([episode for episode, _ in chosen], self.context.real_env())
        self._charge([twin for _, twin in pairs])
        verdicts = self.verifier.judge([(episode.task.instruction, episode.transitions) for episode, _ in pairs])
        probes = []
        for (episode, twin), verdict in zip(pairs, verdicts, strict=True):
            kind, p = verdict.kind if is_asked_about(episode) else "", probabilities[episode.id]
            probes.append(Probe(episode, twin.success, p, kind, iteration))
            self.tried.append(ProbedClaim(episode.success, twin.success, p, iteration))
        return probes

    def _probe_by_rollout(self, chosen: Sequence[tuple[Trajectory, float]], iteration: int) -> list[Probe]:
        """Real episodes of the policy on the claims' tasks, those that ended, each as the claim of a success with the verdict on it."""
        tasks, seed = [episode.task for episode, _ in chosen], rollout_seed(self.context.config.seed, 30_000 + iteration)
        suite = self.context.suite
        real = rollout(
            self.agent,
            self.context.real_env(),
            tasks,
            max_parallel=suite.max_parallel,
            seed=seed,
            max_steps=suite.max_steps,
            temperature=self.temperature,
            name=f"{self.name}/verifier-probe/{iteration}/0",
        )
        self._charge(real)
        pairs = [(t, claim, p) for t, (claim, p) in zip(real, chosen, strict=True) if t.error is None]
        self.tried += [ProbedClaim(claim.success, t.success, p, iteration) for t, claim, p in pairs]
        ended = [(t, p) for t, _, p in pairs if t.turns and t.transitions[-1].terminated]
        verdicts = self.verifier.judge([(t.task.instruction, t.transitions) for t, _ in ended])
        return [Probe(t, t.success, p, verdict.kind, iteration) for (t, p), verdict in zip(ended, verdicts, strict=True)]

    def _charge(self, real: Sequence[Trajectory]) -> None:
        """Count the steps of real episodes of probes, which join the replay buffer."""
        self.steps += sum(len(t.turns) for t in real)
        self.envs.remember(real)

    @cached_property
    def _prepared(self) -> PreparedLogs:
        context = self.context
        return prepare_once(context.verifier_cache, context.logs, context.suite.rules, seed=context.config.seed, read=self.verifier.read)

    @cached_property
    def _labels(self) -> list[Probe]:
        is_held_out = factory.verifier_inputs(self.context).is_held_out
        return labelled_claims(Path(self.settings.labels), is_held_out) if self.settings.labels else []

    def _refit(self) -> None:
        """The next verifier, from logs and all probes; the dream goes on with it."""
        self.verifier = fit_verifier(self._prepared, self.settings, probes=self.probes, labels=self._labels)
        self.verifier.save(self.context.checkpoint(self.judged_with))
        self.envs.load_verifier(self.judged_with)

    def _stop_if_false(self, tried: Sequence[ProbedClaim]) -> None:
        """Stop, and bring back the last good policy, when the claims that two probes in a row had accepted proved false. Each probe counts
        with its own claims: the first one's refit may have cured the verifier. One that accepted nothing says nothing.

        By rollouts it is the policy that acts anew, and how often it succeeds depends on how good it is: there, most claims of a weak
        policy that gets better do not come true. So accepted claims prove false there where, besides, it really succeeds less often than
        in the first probe (Newcombe's 95 % interval), or never.
        """
        false, real = accepted_false(tried), real_success(tried)
        if not false.n:
            return
        most = self.settings.probes.max_accepted_false
        bad, good = false.low > most, false.value <= most
        if self.settings.probes.by == "rollouts":
            first = real_success([claim for claim in self.tried if claim.iteration == self.tried[0].iteration])
            worse = difference(real, first)[2] < 0
            bad, good = bad and (worse or not real.value), real.value >= first.value and (first.value > 0 or good)
        self.failed_in_a_row = self.failed_in_a_row + 1 if bad else 0
        self.passed = False if bad else True if good else None  # too few claims to stop, but no proof of a good policy
        if self.failed_in_a_row >= 2:
            back = roll_back(self.context, self.model, self.name, self.init_policy)
            self.stop_reason = f"{false.value:.0%} of probed accepted claims have no real success, {back}"


def _share(of: Sequence[Trajectory], test: Callable[[Trajectory], bool]) -> float | None:
    return sum(map(test, of)) / len(of) if of else None
