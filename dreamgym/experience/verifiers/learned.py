"""A verifier that is fitted to the run's logs, and refitted to probes while a policy is trained against it (`experience.learned_verifier`).

[experience]
verifier = {name = "learned", alpha = 0.05, probes = {episodes = 32, max_real_steps = 2000}}
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dreamgym import config
from dreamgym.errors import InvariantError, UsageError
from dreamgym.experience.learned_verifier.calibration import CalibrationConfig
from dreamgym.experience.learned_verifier.hidden_states import Features, reader, require_backbone
from dreamgym.experience.learned_verifier.labels import labelled_claims
from dreamgym.experience.learned_verifier.verifier import LearnedVerifier, fit_verifier, prepare_once
from dreamgym.experience.verifiers import VerifierInputs
from dreamgym.llm.backbone_settings import BackboneConfig

ON_DISAGREEMENT = "zero"  # what it is not sure of it masks itself


class ProbesConfig(config.Config):
    """Claims of success that are tried in the real environment during RL. They are charged as real steps of probes."""

    every: int = Field(default=4, ge=0)
    """Iterations between probes, each followed by a refit and a calibration; 0: the verifier stays as the logs made it."""
    episodes: int = Field(default=32, ge=1)
    """Claims tried each time, about."""
    by: Literal["actions", "rollouts"] = "actions"
    """How a claim is tried: its actions are repeated in the real environment, or the policy acts there anew on the claim's task and the
    real episode is judged. Rollouts are for worlds that hide what the dream had to invent: there the same actions mean something else."""
    max_real_steps: int = Field(default=2000, ge=1)
    """Real steps of all probes of an RL phase, which stops where too few are left to try a claim: from there on nothing would check
    what the dream says."""
    max_accepted_false: float = Field(default=0.5, gt=0, le=1)
    """Share of false ones among accepted claims; where its lower 95 % bound is above this twice in a row, the phase stops, and the last
    policy before that comes back. By rollouts only where the policy, besides, really succeeds less often than in the first probe, or
    never: there a claim of a weak policy rarely comes true."""

    def after(self, iterations: int) -> range:
        """The iterations of a phase, from 1 to `iterations`, after which claims are tried. By rollouts the first is the first probe, of the
        policy as it was, which the others are compared with."""
        return range(1 if self.by == "rollouts" else self.every, iterations + 1, self.every) if self.every else range(0)


class LearnedVerifierConfig(CalibrationConfig):
    """Settings of the plug-in."""

    features: Features = "hashed"
    """The features with which the verifier reads claims: hashed words, a frozen `backbone`, or "both" beside each other."""
    backbone: BackboneConfig | None = None
    """The pretrained model that it reads with; not set: the experience model's. It is loaded without adapters and markers."""
    probes: ProbesConfig = ProbesConfig()
    labels: str = ""
    """A finished run whose claims of success a person has judged with `dreamgym label`: they join the logs as probes do."""


Config = LearnedVerifierConfig


def check(backbone: BackboneConfig | None, /, **settings: Any) -> None:
    """UsageError for features of a pretrained model where none is named."""
    verifier_config = config.build(LearnedVerifierConfig, settings, prefix="experience.verifier.")
    require_backbone(verifier_config.features, verifier_config.backbone or backbone)


def fit(inputs: VerifierInputs, **settings: Any) -> dict[str, Any]:
    """Fit to the logs alone and write into `inputs.checkpoint`; returns how it is calibrated, and what the logs could not give."""
    verifier_config = config.build(LearnedVerifierConfig, settings, prefix="experience.verifier.")
    if inputs.checkpoint is None:
        raise InvariantError("The verifier 'learned' is fitted into a folder, and none was given.")
    labels = labelled_claims(Path(verifier_config.labels), inputs.is_held_out) if verifier_config.labels else []
    read = reader(verifier_config.features, verifier_config.backbone or inputs.backbone, inputs.cache)
    verifier = fit_verifier(
        prepare_once(inputs.cache, inputs.logs, inputs.rules, seed=inputs.seed, read=read), verifier_config, labels=labels
    )
    verifier.save(inputs.checkpoint)
    record = {
        "true_positive_rate": asdict(verifier.true_positive_rate),
        "most_novel": verifier.most_novel,
        "labels": len(labels),
        "messages": list(verifier.messages),
    }
    return verifier.calibration.to_json() | record


def make(inputs: VerifierInputs, **settings: Any) -> LearnedVerifier:
    """The verifier that `fit` wrote into `inputs.checkpoint`. UsageError where there is none."""
    verifier_config = config.build(LearnedVerifierConfig, settings, prefix="experience.verifier.")
    if inputs.checkpoint is None or not inputs.checkpoint.is_dir():
        raise UsageError(
            f"The verifier 'learned' has not been fitted: there is no '{inputs.checkpoint}'. Give the command that made the run again."
        )
    return LearnedVerifier.load(
        inputs.checkpoint, reader(verifier_config.features, verifier_config.backbone or inputs.backbone, inputs.cache)
    )
