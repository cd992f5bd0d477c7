"""What a run found, as plain values: one entry per policy, what it cost along its ancestry, and several seeds as one."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dreamgym.evals.attribution import shares
from dreamgym.recipes import early_stops
from dreamgym.recipes.ablations import ablated
from dreamgym.recipes.arms import ARMS, Arm, ablation_arm
from dreamgym.runs.rundir import PROCESS, RunDir
from dreamgym.statistics import seed_mean, wilson

AUDITED = ("dream_success", "false_success", "false_failure", "accepted_false")
AUDITED_DREAMS = ("with_guard", "without_guard", "no_model")
"""The arms of an audit."""
AVERAGED = (
    "real_transitions_offline", "real_transitions_online", "real_transitions_probe", "dream_transitions", "real_seconds",
    "optimiser_steps", "seconds", *AUDITED,
)  # fmt: skip
"""The values of an entry of which `pool` gives the mean over seeds."""


def table(run: RunDir, rows: Iterable[str]) -> dict[str, Any]:
    """An entry per row, None for policies that the run does not have; the dream's also says what its audit found, None for what was not
    measured."""
    entries = {name: entry(run, name, ARMS[name]) for name in rows}
    if dream := entries.get("dream"):
        measured = run.data("audit")["with_guard"] if run.done("audit") else run.data("gap-dream") if run.done("gap-dream") else {}
        dream |= {name: measured[name]["value"] if name in measured and measured[name]["n"] else None for name in AUDITED}
    return entries


def ablation(run: RunDir, name: str, policy: str = "dream") -> dict[str, Any] | None:
    """The entry of a policy without one part of the method."""
    return entry(run, ablated(policy, name), ablation_arm(name, policy))


def about(run: RunDir, seeds: Sequence[int]) -> dict[str, Any]:
    """Which run it was: its seeds, the commits that worked on it, and the memory it took."""
    before = (run.summary() or {}).get("peak_rss_mb", 0.0)
    return {
        "seeds": list(seeds),
        "commit": ", ".join(run.data(PROCESS)["commits"]),
        "peak_rss_mb": max(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def entry(run: RunDir, policy: str, arm: Arm) -> dict[str, Any] | None:
    """One policy: success, what it cost in real and dreamed transitions over all phases that made it, and seconds.

    Phases that the run did not need are left out. None while the policy was not evaluated.
    """
    if not run.done(f"eval-{policy}"):
        return None
    evaluated = run.data(f"eval-{policy}")
    phases = {phase: run.data(phase) for phase in arm.phases if run.done(phase)}
    loops = [phase for phase in phases.values() if "iterations" in phase]
    in_reality = [phase for phase in phases.values() if "iterations" in phase or "real_steps_dev" in phase]
    return {
        "real_success": evaluated["greedy"]["value"],
        "ci95": [evaluated["greedy"]["low"], evaluated["greedy"]["high"]],
        "per_seed": [evaluated["greedy"]["value"]],
        "seed_ci95": None,
        "sampled": evaluated["sampled"],
        "episodes": evaluated["greedy"]["n"],
        "real_transitions_offline": run.data("logs")["transitions"],
        "real_transitions_online": sum(phase["real_steps"] for phase in loops),
        "real_transitions_probe": sum(phase.get("probe_steps", 0) + phase.get("real_steps_dev", 0) for phase in phases.values()),
        "dream_transitions": sum(phase["steps"] - phase["real_steps"] for phase in loops),
        "real_seconds": total([run.data("logs").get("real_seconds"), *(phase.get("real_seconds") for phase in in_reality)]),
        "optimiser_steps": sum(phase["optimiser_steps"] for phase in loops),
        "decided_by": shares(loops[-1]["decided_by"]) if loops else None,
        "seconds": sum(phase["seconds"] for phase in phases.values()),
        **({"verifier": _verifier(loops[-1]["verifier"])} if loops and "verifier" in loops[-1] else {}),
        **({"verifiers": evaluated["verifiers"]} if "verifiers" in evaluated else {}),
        **(early_stops.fields(loops[-1].get("stop_reason", ""), arm.init_policy) if loops else {}),
        **({"gap": _gap(run.data(f"gap-{policy}"))} if run.done(f"gap-{policy}") else {}),
    }


def _gap(record: Mapping[str, Any]) -> dict[str, Any]:
    """Success of a policy on the same training tasks in its dream and in the real environment, of one seed."""
    rates = {name: record.get(name, {"n": 0}) for name in ("dream_success", "real_success", "gap", "accepted_false")}
    tasks = record["gap"]["n"] + record["masked"] + record["failed_rollouts"]
    return {name: [rate["value"] if rate["n"] else None] for name, rate in rates.items()} | {
        "masked_share": [record["masked"] / max(1, tasks)]
    }


def _verifier(record: Mapping[str, Any]) -> dict[str, Any]:
    """The learned verifier that judged a dream: how it is calibrated, and what its probes found before it was fitted to them."""
    return {"status": record["calibration"]["status"], "probes": record["probes"], **record["rates"]}


def pool(by_seed: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """One policy's entries of several seeds as one: means, costs averaged, each seed's own value, and the t interval over seeds.

    `ci95` and the bounds of `sampled` pool the episodes and say nothing of other seeds: claims rest on `seed_ci95`, which one seed does not
    have. None when a seed has no such policy.
    """
    entries = [entry for entry in by_seed if entry is not None]
    if len(entries) < len(by_seed):
        return None
    n = sum(entry["episodes"] for entry in entries)
    wins = sum(round(entry["real_success"] * entry["episodes"]) for entry in entries)
    rate = wilson(wins, n)
    sampled = wilson(sum(round(e["sampled"]["value"] * e["sampled"]["n"]) for e in entries), sum(e["sampled"]["n"] for e in entries))
    greedy, drawn = [entry["real_success"] for entry in entries], [entry["sampled"]["value"] for entry in entries]
    return {
        "real_success": rate.value,
        "ci95": [rate.low, rate.high],
        "sampled": {"value": sampled.value, "low": sampled.low, "high": sampled.high, "n": sampled.n},
        "per_seed": greedy,
        "seed_ci95": seed_mean(greedy).interval,
        "per_seed_sampled": drawn,
        "seed_ci95_sampled": seed_mean(drawn).interval,
        "episodes": n,
        **{key: _mean([entry.get(key) for entry in entries]) for key in AVERAGED if key in entries[0]},
        "decided_by": _mean_shares([entry.get("decided_by") for entry in entries]),
        **early_stops.pooled(entries),
        **({"verifiers": _pooled([entry["verifiers"] for entry in entries])} if all("verifiers" in entry for entry in entries) else {}),
        **({"gap": _by_seed([entry["gap"] for entry in entries])} if all("gap" in entry for entry in entries) else {}),
    }


def _by_seed(measured: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[str, list[float | None]]:
    """Each measure's values, one a seed."""
    return {name: [value for seed in measured for value in seed[name]] for name in measured[0]}


def _pooled(by_seed: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Rates of the verifiers that all seeds have, over the episodes of all seeds."""

    def pooled(rates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        n = sum(rate["n"] for rate in rates)
        return asdict(wilson(sum(round(rate["value"] * rate["n"]) for rate in rates), n))

    names = [name for name in by_seed[0] if all(name in seed_rates for seed_rates in by_seed)]
    return {name: {rate: pooled([seed_rates[name][rate] for seed_rates in by_seed]) for rate in by_seed[0][name]} for name in names}


def total(values: Sequence[float | None]) -> float | None:
    """The sum; None where a value is not known."""
    present = [value for value in values if value is not None]
    return sum(present) if len(present) == len(values) else None


def hours(entry: Mapping[str, Any]) -> str:
    """The time in the real environment as people read it; "-" where it was not measured."""
    seconds = entry.get("real_seconds")
    return "-" if seconds is None else f"{seconds / 3600:.2f}"


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where a seed does not have the value."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if len(present) == len(values) else None


def _mean_shares(by_seed: Sequence[Mapping[str, Any] | None]) -> dict[str, dict[str, float]] | None:
    """Shares of what decided the dreamed steps, averaged over seeds; None for a policy that never dreamed."""
    present = [seed_shares for seed_shares in by_seed if seed_shares]
    if not present:
        return None
    return {
        part: {
            by: sum(seed_shares[part].get(by, 0.0) for seed_shares in present) / len(present)  # runs of before may lack one
            for by in dict.fromkeys(by for seed_shares in present for by in seed_shares[part])
        }
        for part in present[0]
    }


def percent(entry: Mapping[str, Any], decoding: str) -> str:
    """Greedy or sampled success as people read it: the t interval over seeds, or that over episodes where there is one seed."""
    if decoding == "greedy":
        value, interval = entry["real_success"], entry.get("seed_ci95") or entry["ci95"]
    else:
        sampled = entry["sampled"]
        value, interval = sampled["value"], entry.get("seed_ci95_sampled") or [sampled["low"], sampled["high"]]
    low, high = (min(1.0, max(0.0, bound)) for bound in interval)
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def markdown(title: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table with its title, in Markdown."""
    table = [head, ["---"] * len(head), *lines]
    return "\n".join([f"{title}.", "", *(f"| {' | '.join(line)} |" for line in table), ""])


def intervals(seeds: Sequence[int]) -> str:
    """What the intervals of `percent` are over."""
    return "95 % t interval over seeds" if len(seeds) > 1 else "95 % interval over the episodes of one seed"
