"""Masked dreams of an RL phase, in words: the policy is not paid for what the guard masks, be it a real success or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MOST_MASKED = 0.03
"""The share of masked rollouts, or of masked claims of success, above which real successes go without reward."""


def warning(phase: str, lines: Iterable[Mapping[str, Any]]) -> str:
    """A message that many dreams of a phase were masked, from the lines of metrics.jsonl: means over iterations. "" for at most
    `MOST_MASKED` of the rollouts and of the claims."""
    latest = {line["iteration"]: line for line in lines if line["phase"] == phase}  # a resumed run wrote some twice
    means = {name: _mean([line.get(name) for line in latest.values()]) for name in ("masked_share", "claims_masked")}
    named = {"masked_share": "of the rollouts (masked_share)", "claims_masked": "of the claims of success (claims_masked)"}
    if not any(value is not None and value > MOST_MASKED for value in means.values()):
        return ""
    shares = " and ".join(f"{value:.0%} {named[name]}" for name, value in means.items() if value is not None)
    return (
        f"The guard masked {shares} in '{phase}', means over its iterations. Above {MOST_MASKED:.0%} real successes are not rewarded: see "
        "the verifier (experience.verifier) and the guard, and masked_share and false_failure_at_most of dreamgym fidelity."
    )


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there; None without any."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None
