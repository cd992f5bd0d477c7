"""What a run found, as plain values: one entry per policy, what it cost along its ancestry, and several seeds as one."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.evals.success import wilson
from dreamgym.runlog import RunDir

ROWS = {"warm_start": "warm", "sft": "sft", "dream": "dream", "s2r": "s2r", "real_only": "real_only"}
"""Rows of the quickstart's table and the policies they are of."""
ANCESTRY: Mapping[str, tuple[str, ...]] = {"warm": (), "sft": (), "s2r": ("dream", "s2r")}
"""The loops that made a policy, where that is not the loop of its own name alone."""


def table(run: RunDir) -> dict[str, Any]:
    """An entry per row, None for policies that the run does not have; the dream's also says what its audit found."""
    rows: dict[str, Any] = {name: row(run, policy) for name, policy in ROWS.items()}
    if rows["dream"] and run.done("audit"):
        watched = run.data("audit")["with_guard"]
        rows["dream"] |= {name: watched[name]["value"] for name in ("dream_success", "false_success", "false_failure")}
    return rows


def about(run: RunDir, seeds: Sequence[int]) -> dict[str, Any]:
    """Which run it was: its seeds, the commits that worked on it, and the memory it took."""
    before = (run.summary() or {}).get("peak_rss_mb", 0.0)
    return {
        "seeds": list(seeds),
        "commit": ", ".join(run.data("process")["commits"]),
        "peak_rss_mb": max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def row(run: RunDir, policy: str, loops: Sequence[str] | None = None) -> dict[str, Any] | None:
    """One policy: success, what it cost in real and dreamed transitions along its whole ancestry, and seconds.

    `loops`: the calls of the loop that made it, first to last; by default those of `ANCESTRY`.
    """
    if not run.done(f"eval-{policy}"):
        return None
    judged = run.data(f"eval-{policy}")
    made_by = {loop: run.data(loop) for loop in (ANCESTRY.get(policy, (policy,)) if loops is None else loops)}
    own = [f"experience-{policy.removeprefix('dream-')}"] if policy.startswith("dream-no-") else []
    fitted = ["experience", "sft" if policy == "sft" else "warm", *filter(run.done, own)]
    probes = sum(loop["probe_steps"] for loop in made_by.values()) + (run.data("sft")["real_steps_dev"] if policy == "sft" else 0)
    real = {name: _real_steps(name, loop) for name, loop in made_by.items()}
    return {
        "real_success": judged["greedy"]["value"],
        "ci95": [judged["greedy"]["low"], judged["greedy"]["high"]],
        "sampled": judged["sampled"],
        "episodes": judged["greedy"]["n"],
        "real_transitions_offline": run.data("logs")["transitions"],
        "real_transitions_online": sum(real.values()),
        "real_transitions_probe": probes,
        "dream_transitions": sum(loop["steps"] - real[name] for name, loop in made_by.items()),
        "seconds": sum(run.data(phase)["seconds"] for phase in fitted) + sum(loop["seconds"] for loop in made_by.values()),
    }


def _real_steps(name: str, loop: Mapping[str, Any]) -> int:
    """Real training steps of a loop. Runs made before they were counted had loops of one world only."""
    steps: int = loop.get("real_steps", 0 if name.startswith("dream") else loop["steps"])
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
