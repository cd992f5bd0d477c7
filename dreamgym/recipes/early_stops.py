"""RL phases that ended early, in words, and whose policy is then an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TO_START = "rolled back to the policy it started from"
TO_GOOD = "rolled back to the last good policy"


def kept_policy(stop_reason: str, init_policy: str) -> str:
    """Which policy a phase that stopped for this reason left: `init_policy`, "its last good policy", or "" for the one it trained last."""
    return init_policy if TO_START in stop_reason else "its last good policy" if TO_GOOD in stop_reason else ""


def fields(stop_reason: str, init_policy: str) -> dict[str, Any]:
    """What a policy's entry in a summary says of an early end, one a seed; nothing where there was none."""
    return {"stop_reasons": [stop_reason], "kept_policies": [kept_policy(stop_reason, init_policy)]} if stop_reason else {}


def pooled(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of several seeds' entries as one, with "" for a seed that did not stop early."""
    if not any("stop_reasons" in entry for entry in entries):
        return {}
    return {name: [one for entry in entries for one in entry.get(name, [""])] for name in ("stop_reasons", "kept_policies")}


def mark(entry: Mapping[str, Any]) -> str:
    """What stands behind the name of a policy that was put back, such as " = warm_start"; with several seeds how many were put back."""
    kept = entry.get("kept_policies", [])
    back = [one for one in kept if one]
    if len(kept) == 1:
        return f" = {back[0]}" if back else ""
    return f", {len(back)} of {len(kept)} seeds rolled back" if back else ""


def lines(entries: Mapping[str, Mapping[str, Any] | None]) -> Iterator[str]:
    """A line for each policy, and each of its seeds, whose RL stopped early."""
    for name, entry in entries.items():
        reasons = (entry or {}).get("stop_reasons", [])
        for i, (reason, kept) in enumerate(zip(reasons, (entry or {}).get("kept_policies", []), strict=True), 1):
            if reason:
                yield sentence(name if len(reasons) == 1 else f"{name}, seed {i} of {len(reasons)}", reason, kept)


def sentence(who: str, reason: str, kept: str) -> str:
    """That a phase stopped early, and whose its row is."""
    return f"{who}: RL stopped early, {reason}." + (
        f" Its row is that of {kept}, not of a policy that RL trained to the end." if kept else ""
    )
