"""The arms of an experiment: policies by the phases that make them, and the row that each has in tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from dreamgym.recipes.ablations import ABLATIONS, ablated

RolloutSource = Literal["dream", "real", "mixed"]
"""Where rollouts are played: in the experience model, in the real environment, or some groups in each."""


@dataclass(frozen=True)
class Arm:
    """A policy that an experiment compares."""

    label: str
    meaning: str
    phases: tuple[str, ...]
    """The phases that make it, in order; the last one has its name."""
    init_policy: str = ""
    """The policy that its RL phase starts from; "" where it has none."""
    source: RolloutSource = "real"
    """Where its RL phase plays."""


ARMS: Mapping[str, Arm] = {
    "warm_start": Arm("Warm start", "imitates the successful logs", ("experience", "warm_start")),
    "sft": Arm("SFT", "the same logs for longer; of its epochs the best on development tasks", ("experience", "sft")),
    "dpo": Arm("DPO", "SFT, then preferences between logged successes and failures", ("experience", "sft", "dpo")),
    "dream": Arm(
        "Dream", "RL inside the experience model, from the warm start", ("experience", "warm_start", "dream"), "warm_start", "dream"
    ),
    "s2r": Arm(
        "Dream, then real (S2R)",
        "the dream's policy, then RL in the real environment",
        ("experience", "warm_start", "dream", "s2r"),
        "dream",
    ),
    "real_only": Arm(
        "Real only", "RL in the real environment, from the warm start", ("experience", "warm_start", "real_only"), "warm_start"
    ),
    "real_equal": Arm(
        "Real only, the dream's budget",
        "RL in the real environment from the warm start, with the dream's transitions and optimiser steps",
        ("experience", "warm_start", "real_equal"),
        "warm_start",
    ),
    "mixed": Arm("Mixed", "RL in both at once, from the warm start", ("experience", "warm_start", "mixed"), "warm_start", "mixed"),
}
RL_ARMS = tuple(name for name, arm in ARMS.items() if arm.init_policy)
"""The arms that the RL loop makes, in the order of a run."""
DREAM_ARMS = tuple(name for name in RL_ARMS if ARMS[name].source != "real")
"""The arms whose RL plays in the dream, whole or in part."""
OFFLINE_ARMS = ("sft", "dpo")
"""The arms that logs alone make, besides the warm start."""
MODES = {"dream": "dream", "real": "real_only", "s2r": "s2r", "mixed": "mixed"}
"""The arm of each mode of training."""


def ablation_arm(ablation: str, policy: str = "dream") -> Arm:
    """The arm of `ablated(policy, ablation)`."""
    whole, name = _whole(policy), ablated(policy, ablation)
    own = (f"experience-no-{ablation}",) if ABLATIONS[ablation].refitting else ()
    label = f"{whole.label}, without {ablation.replace('_', ' ')}"
    return replace(whole, label=label, meaning=ABLATIONS[ablation].meaning, phases=(*whole.phases[:-1], *own, name))


def base_arm(name: str) -> str:
    """The name in `ARMS` that a policy is a variant of: `dream` for `grpo-dream` and `dream-no-model`; "" for a phase that makes none."""
    whole, _, part = name.partition("-no-")
    algorithm, _, mode = whole.rpartition("-")
    if part and part not in ABLATIONS:
        return ""
    if whole in ARMS:
        return whole
    return MODES.get(mode, "") if algorithm and not name.startswith(("eval-", "gap-")) else ""


def arm_of(name: str) -> Arm:
    """The arm of a policy: of `ARMS`, an algorithm and a mode such as `grpo-s2r`, or one of them without one part of the method."""
    whole, _, part = name.partition("-no-")
    return ablation_arm(part, whole) if part else _whole(whole)


def _whole(name: str) -> Arm:
    if name in ARMS:
        return ARMS[name]
    algorithm, _, mode = name.rpartition("-")
    base = ARMS[MODES[mode]]
    label = f"{'GiGPO' if algorithm == 'gigpo' else algorithm.upper()}, {base.label.lower().replace('s2r', 'S2R')}"
    init_policy = f"{algorithm}-dream" if mode == "s2r" else base.init_policy
    phases = ("experience", "warm_start", *([init_policy] if mode == "s2r" else []), name)
    return Arm(label, base.meaning, phases, init_policy, base.source)
