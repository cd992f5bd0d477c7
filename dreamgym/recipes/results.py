"""What a run found, as plain values: one entry per policy, what it cost along its ancestry, and several seeds as one."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.evals.success import wilson
from dreamgym.runlog import PROCESS, RunDir

MADE_OF: Mapping[str, tuple[str, ...]] = {
    "warm": ("experience", "warm"),
    "sft": ("experience", "sft"),
    "dream": ("experience", "warm", "dream"),
    "s2r": ("experience", "warm", "dream", "s2r"),
    "real_only": ("experience", "warm", "real_only"),
    "mixed": ("experience", "warm", "mixed"),
}
"""Policies, and the phases that make them."""


def table(run: RunDir, rows: Sequence[str]) -> dict[str, Any]:
    """An entry per row, None for policies that the run does not have; the dream's also says what its audit found."""
    found: dict[str, Any] = {}
    for name in rows:
        policy = "warm" if name == "warm_start" else name
        found[name] = row(run, policy, MADE_OF[policy])
    if found.get("dream") and run.done("audit"):
        watched = run.data("audit")["with_guard"]
        found["dream"] |= {name: watched[name]["value"] for name in ("dream_success", "false_success", "false_failure")}
    return found


def ablation(run: RunDir, name: str, full: str = "dream") -> dict[str, Any] | None:
    """The policy of the loop `full` without one part of the method."""
    return row(run, f"{full}-no-{name}", ("experience", "warm", f"experience-no-{name}", f"{full}-no-{name}"))


def about(run: RunDir, seeds: Sequence[int]) -> dict[str, Any]:
    """Which run it was: its seeds, the commits that worked on it, and the memory it took."""
    before = (run.summary() or {}).get("peak_rss_mb", 0.0)
    return {
        "seeds": list(seeds),
        "commit": ", ".join(run.data(PROCESS)["commits"]),
        "peak_rss_mb": max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def row(run: RunDir, policy: str, made_of: Sequence[str]) -> dict[str, Any] | None:
    """One policy: success, what it cost in real and dreamed transitions over all phases that made it, and seconds.

    Phases that the run did not need are left out. None while the policy was not evaluated.
    """
    if not run.done(f"eval-{policy}"):
        return None
    judged = run.data(f"eval-{policy}")
    phases = {phase: run.data(phase) for phase in made_of if run.done(phase)}
    real = {name: _real_steps(name, phase) for name, phase in phases.items()}
    loops = {name: phase["steps"] for name, phase in phases.items() if "iterations" in phase}
    return {
        "real_success": judged["greedy"]["value"],
        "ci95": [judged["greedy"]["low"], judged["greedy"]["high"]],
        "sampled": judged["sampled"],
        "episodes": judged["greedy"]["n"],
        "real_transitions_offline": run.data("logs")["transitions"],
        "real_transitions_online": sum(real.values()),
        "real_transitions_probe": sum(phase.get("probe_steps", 0) + phase.get("real_steps_dev", 0) for phase in phases.values()),
        "dream_transitions": sum(steps - real[name] for name, steps in loops.items()),
        "seconds": sum(phase["seconds"] for phase in phases.values()),
    }


def _real_steps(name: str, phase: Mapping[str, Any]) -> int:
    """Real training steps of a phase. Runs made before loops counted them had loops of one world only."""
    if "iterations" not in phase:
        return 0
    steps: int = phase.get("real_steps", 0 if name.startswith("dream") else phase["steps"])
    return steps


def pool(found: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """One policy's entries of several seeds as one: episodes pooled, costs averaged, each seed's own value beside them.

    None when a seed has no such policy.
    """
    entries = [entry for entry in found if entry is not None]
    if len(entries) < len(found):
        return None
    n = sum(entry["episodes"] for entry in entries)
    wins = sum(round(entry["real_success"] * entry["episodes"]) for entry in entries)
    rate = wilson(wins, n)
    sampled = wilson(sum(round(e["sampled"]["value"] * e["sampled"]["n"]) for e in entries), sum(e["sampled"]["n"] for e in entries))
    averaged = [key for key in entries[0] if key.startswith(("real_trans", "dream_trans", "seconds", "dream_success", "false_"))]
    return {
        "real_success": rate.value,
        "ci95": [rate.low, rate.high],
        "sampled": {"value": sampled.value, "low": sampled.low, "high": sampled.high, "n": sampled.n},
        "per_seed": [entry["real_success"] for entry in entries],
        "per_seed_sampled": [entry["sampled"]["value"] for entry in entries],
        "episodes": n,
        **{key: sum(entry[key] for entry in entries) / len(entries) for key in averaged},
    }
