"""The rows of every table: policies by the phases that make them, and ablations by the settings that they change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

World = Literal["dream", "real", "mixed"]
"""Where a loop collects: in the experience model, in the real environment, or some groups in each."""


@dataclass(frozen=True)
class Row:
    """A policy."""

    label: str
    meaning: str
    made_of: tuple[str, ...]
    """The phases that make it, in order; the last one has its name."""
    start: str = ""
    """The policy that its RL phase starts from; "" where it has none."""
    world: World = "real"
    """Where its RL phase plays."""


ROWS: Mapping[str, Row] = {
    "warm_start": Row("Warm start", "imitates the successful logs, briefly", ("experience", "warm_start")),
    "sft": Row("SFT", "the same logs for longer; of its epochs the best on development tasks", ("experience", "sft")),
    "dpo": Row("DPO", "SFT, then preferences between logged successes and failures", ("experience", "sft", "dpo")),
    "dream": Row(
        "Dream", "RL inside the experience model, from the warm start", ("experience", "warm_start", "dream"), "warm_start", "dream"
    ),
    "s2r": Row(
        "Dream, then real (S2R)",
        "the dream's policy, then RL in the real environment",
        ("experience", "warm_start", "dream", "s2r"),
        "dream",
    ),
    "real_only": Row(
        "Real only", "RL in the real environment, from the warm start", ("experience", "warm_start", "real_only"), "warm_start"
    ),
    "real_equal": Row(
        "Real only, the dream's budget",
        "RL in the real environment from the warm start, with the dream's transitions and optimiser steps",
        ("experience", "warm_start", "real_equal"),
        "warm_start",
    ),
    "mixed": Row("Mixed", "RL in both at once, from the warm start", ("experience", "warm_start", "mixed"), "warm_start", "mixed"),
}
LOOPS = tuple(name for name, row in ROWS.items() if row.start)
"""The rows that the RL loop makes, in the order of a run."""
DREAMT = tuple(name for name in LOOPS if ROWS[name].world != "real")
"""Those whose RL plays in the dream, whole or in part."""
OFFLINE = ("sft", "dpo")
"""The rows that logs alone make, besides the warm start."""
MODES = {"dream": "dream", "real": "real_only", "s2r": "s2r", "mixed": "mixed"}
"""The row of each mode of training."""


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
"""As in the paper's Table 2 and Figure 4, with further controls: memories drawn at random, no recall, no model, no verifier, none with
probes, and no guard."""


def ablated(policy: str, ablation: str) -> str:
    """The name of a policy without one part of the method."""
    return f"{policy}-no-{ablation}"


def ablation_row(ablation: str, policy: str = "dream") -> Row:
    """The row of `ablated(policy, ablation)`."""
    whole, name = arm(policy), ablated(policy, ablation)
    own = (f"experience-no-{ablation}",) if ABLATIONS[ablation].refitting else ()
    label = f"{whole.label}, without {ablation.replace('_', ' ')}"
    return replace(whole, label=label, meaning=ABLATIONS[ablation].meaning, made_of=(*whole.made_of[:-1], *own, name))


def base_of(name: str) -> str:
    """The row of `ROWS` that a policy is a variant of: `dream` for `grpo-dream` and `dream-no-model`; "" for a phase that makes none."""
    whole, _, part = name.partition("-no-")
    algorithm, _, mode = whole.rpartition("-")
    if part and part not in ABLATIONS:
        return ""
    if whole in ROWS:
        return whole
    return MODES.get(mode, "") if algorithm and not name.startswith("eval-") else ""


def row_of(name: str) -> Row:
    """The row of a policy: of `ROWS`, an arm of a comparison, or one of them without one part of the method."""
    whole, _, part = name.partition("-no-")
    return ablation_row(part, whole) if part else arm(whole)


def arm(name: str) -> Row:
    """The row of an arm of a comparison: a row of `ROWS`, or an algorithm and a mode, such as `grpo-s2r`."""
    if name in ROWS:
        return ROWS[name]
    algorithm, _, mode = name.rpartition("-")
    row = ROWS[MODES[mode]]
    label = f"{'GiGPO' if algorithm == 'gigpo' else algorithm.upper()}, {row.label.lower().replace('s2r', 'S2R')}"
    start = f"{algorithm}-dream" if mode == "s2r" else row.start
    made_of = ("experience", "warm_start", *([start] if mode == "s2r" else []), name)
    return Row(label, row.meaning, made_of, start, row.world)
