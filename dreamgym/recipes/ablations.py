"""What a run can be without: the parts of the method, by the settings that leave each of them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ablation:
    """What a run is without."""

    meaning: str
    changes: Mapping[str, Any]
    """Settings and the values that they get: of `experience`, of `guard`, or of the `curriculum` of the RL phase."""

    @property
    def refitting(self) -> dict[str, Any]:
        """The changes of what an experience model reads or writes, by setting of `experience`: they need one of their own."""
        kept = ("recall", "conditions", "verifier")
        return {key: value for key, value in self.block("experience").items() if not key.startswith(kept)}

    def block(self, name: str) -> dict[str, Any]:
        """The changes of one block."""
        return {key.partition(".")[2]: value for key, value in self.changes.items() if key.startswith(f"{name}.")}


ABLATIONS: Mapping[str, Ablation] = {
    "curriculum": Ablation(
        "real tasks drawn alike, no synthetic tasks", {"curriculum.strategy": "uniform", "curriculum.synthetic_share": 0.0}
    ),
    "task_generation": Ablation("no synthetic tasks", {"curriculum.synthetic_share": 0.0}),
    "replay": Ablation("no retrieved memories and no recall", {"experience.k": 0, "experience.recall": False}),
    "random_retrieval": Ablation("memories drawn at random, no recall", {"experience.retrieval": "random", "experience.recall": False}),
    "recall": Ablation("the model answers what memory has a precedent for", {"experience.recall": False}),
    "conditions": Ablation("no answer follows from a condition mined from the logs", {"experience.conditions": False}),
    "model": Ablation(
        "rules, memory and the history answer, nothing is generated; no synthetic tasks",
        {"experience.name": "no_model", "curriculum.synthetic_share": 0.0},
    ),
    "reasoning": Ablation("states without a reasoning trace", {"experience.reasoning": False}),
    "history": Ablation("no earlier steps are shown", {"experience.history": 0}),
    "verifier": Ablation("no second opinion on what the model claims", {"experience.verifier": None}),
    "probes": Ablation("the verifier stays as the logs made it", {"experience.verifier.probes.every": 0}),
    "guard": Ablation(
        "every prediction of the model is accepted",
        {
            **{f"guard.{rule}": False for rule in ("admissibility", "grounding", "mask_disputed", "mask_doubtful")},
            "experience.verifier": None,
        },
    ),
}
"""The ablations of the paper's Table 2 and Figure 4, with further ones: memories drawn at random, no recall, no model, no verifier,
none with probes, and no guard."""


def ablated(policy: str, ablation: str) -> str:
    """The name of a policy without one part of the method."""
    return f"{policy}-no-{ablation}"
