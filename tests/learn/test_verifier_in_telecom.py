"""The learned verifier in tau2's telecom: claims by other policies than those of the logs, judged with and without probes.

The world is the real one, so only the verifier can be wrong: every claim that an episode succeeded is one that a dream might make.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dreamgym.experience.learned_verifier.calibration import CalibrationConfig
from dreamgym.experience.learned_verifier.cases import scored_episodes
from dreamgym.experience.learned_verifier.verifier import LearnedVerifier, Probe, draw_probes, fit_verifier, prepare
from dreamgym.logs.demonstrations import collect
from dreamgym.types import Trajectory

pytestmark = pytest.mark.slow


def accepted(verifier: LearnedVerifier, claims: Sequence[Trajectory], *, true: bool) -> float:
    verdicts = verifier.judge([(t.task.instruction, t.transitions) for t in claims])
    return float(np.mean([verdict.passed for verdict, t in zip(verdicts, claims, strict=True) if t.success is true]))


def test_claims_of_policies_that_no_log_shows_are_accepted_at_the_rate_that_probes_certify():
    """Logs of agents that forget some repairs (40 and 47 % succeed); claims of agents that forget most or act at random (1 %), and of the
    expert, on other tasks than those of the probes. With two rounds of probes seeds 0 and 1 accept 1.7 and 3.6 % of the false claims and
    98.8 % of the true ones. Probes that confirm most claims of a good policy refute too few to certify anything."""
    pytest.importorskip("tau2")
    from dreamgym.envs import telecom

    suite, config = telecom.make(), CalibrationConfig()
    for seed in (0, 1):
        logs = prepare(collect(suite, 400, seed=seed, tasks=200, mix={"forgetful": 0.8, "wrong_tool": 0.2}), suite.rules, seed=seed)
        weak = scored_episodes(collect(suite, 960, seed=seed + 100, tasks=80, mix={"random": 0.25, "careless": 0.75}))
        expert = scored_episodes(collect(suite, 160, seed=seed + 100, tasks=80, mix={"expert": 1.0}))
        tasks = sorted({t.task.id for t in weak})
        probed = [t for t in weak if t.task.id in tasks[::2]]
        others = [t for t in (*weak, *expert) if t.task.id in tasks[1::2]]
        verifier = fit_verifier(logs, config)
        assert "uncertified" in verifier.calibration.status and accepted(verifier, others, true=False) < 0.05
        probes: list[Probe] = []
        for iteration in (0, 1):
            drawn = draw_probes(probed, verifier, 60, seed=seed, iteration=iteration)
            probes += [Probe(t, t.success, probability, iteration=iteration) for t, probability in drawn]
            verifier = fit_verifier(logs, config, probes=probes)
        assert verifier.calibration.status.startswith("certified")
        assert accepted(verifier, others, true=False) < 0.08 and accepted(verifier, others, true=True) > 0.8
