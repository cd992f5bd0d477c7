"""What RL gained: paired differences over seeds, beside the ceiling and the control without a model.

The baseline of a gain is converged imitation, which is never below the warm start on development tasks, or the warm start where there is
none. Each difference is taken on the same held-out tasks, seed by seed, with a t interval. Fewer than `CLAIM_SEEDS` seeds decide nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.recipes.arms import arm_of
from dreamgym.statistics import CLAIM_SEEDS, SeedMean, paired_difference

Entry = Mapping[str, Any]


def gains(rows: Mapping[str, Entry | None], control: Entry | None = None, dream: Entry | None = None) -> dict[str, Any]:
    """The gain of every RL policy over the baseline, and of `dream` (by default the first dream of the rows) over `control`, the same dream
    without a model.

    `rows` are entries of `summary.table` or `summary.pool` by policy. The best gain of RL in the real environment alone is the ceiling.
    Empty where there is no baseline.
    """
    baseline = next((name for name in ("sft", "warm_start") if rows.get(name)), None)
    if baseline is None:
        return {}
    base = rows[baseline]
    assert base is not None
    result: dict[str, Any] = {"over": baseline, "policies": {}}
    for name, entry in rows.items():
        if entry and arm_of(name).init_policy:
            result["policies"][name] = _difference(entry, base)
    greedy = {name: gain["greedy"]["mean"] for name, gain in result["policies"].items()}
    kinds = {name: arm_of(name) for name in greedy}
    reached = max((greedy[name] for name, arm in kinds.items() if arm.source == "real" and arm.init_policy == "warm_start"), default=0.0)
    dreams = [name for name, arm in kinds.items() if arm.source == "dream"]
    if reached > 0:
        result["share_of_ceiling"] = {name: greedy[name] / reached for name in dreams}
    dream = dream or (rows.get(dreams[0]) if dreams else None)
    if dream and control:
        result["dream_over_no_model"] = _difference(dream, control)
    return result


def gains_by_run(rows: Mapping[str, Entry], ablations: Mapping[str, Entry]) -> dict[str, Any]:
    """`gains` of a comparison, whose ablations have the ablated arm as "" among them; by run where names are "<run>/<policy>"."""
    by_run: dict[str, dict[str, Any]] = {}
    for run in dict.fromkeys(name.rpartition("/")[0] for name in rows):
        own, less = _of(run, rows), _of(run, ablations)
        by_run[run] = gains(own, less.get("model"), less.get(""))
    return by_run.get("") or {run: report for run, report in by_run.items() if report}


def _of(run: str, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """The entries of a run, by policy or ablation."""
    parted = [(name.rpartition("/"), entry) for name, entry in entries.items()]
    return {name: entry for (whose, _, name), entry in parted if whose == run}


def lines(report: Mapping[str, Any]) -> list[str]:
    """The gains as people read them, a line each."""
    if not report:
        return []
    if not isinstance(report.get("over"), str):  # by run
        return [f"{run}: {line}" for run, one in report.items() for line in lines(one)]
    texts = [_line(f"{name} over {report['over']}", gain) for name, gain in report["policies"].items()]
    texts += [f"{name}: {share:.0%} of the ceiling's greedy gain" for name, share in report.get("share_of_ceiling", {}).items()]
    if "dream_over_no_model" in report:
        texts.append(_line("dream over the dream without a model", report["dream_over_no_model"]))
    return texts


def _difference(entry: Entry, other: Entry) -> dict[str, Any]:
    greedy = paired_difference(entry["per_seed"], other["per_seed"])
    sampled = paired_difference(_sampled(entry), _sampled(other))
    return {"greedy": _json(greedy), "sampled": _json(sampled)}


def _sampled(entry: Entry) -> Sequence[float]:
    return entry.get("per_seed_sampled") or [entry["sampled"]["value"]]


def _json(mean: SeedMean) -> dict[str, Any]:
    decided = mean.seeds >= CLAIM_SEEDS and mean.low is not None and mean.high is not None
    claim = "not decided"
    if decided and mean.low is not None and mean.high is not None:
        claim = "above 0" if mean.low > 0 else "below 0" if mean.high < 0 else claim
    return {"mean": mean.mean, "low": mean.low, "high": mean.high, "seeds": mean.seeds, "claim": claim}


def _line(what: str, gain: Mapping[str, Any]) -> str:
    return f"{what}: " + ", ".join(f"{decoding} {_points(gain[decoding])}" for decoding in ("greedy", "sampled"))


def _points(mean: Mapping[str, Any]) -> str:
    interval = "" if mean["low"] is None else f" [{100 * mean['low']:+.1f}, {100 * mean['high']:+.1f}]"
    why = f", {mean['seeds']} of {CLAIM_SEEDS} seeds" if mean["seeds"] < CLAIM_SEEDS else ""
    return f"{100 * mean['mean']:+.1f} points{interval} ({mean['claim']}{why})"
