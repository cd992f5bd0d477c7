"""Predictions of held-out recorded steps in words: the experience model beside the control without a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dreamgym.errors import counted
from dreamgym.statistics import Rate

ADVICE = (
    "What RL learns from such states may be wrong. Record more episodes, or fit longer (experience.training.epochs), in a new run "
    "directory; until the model is ahead, do not choose a policy by its success in this dream."
)


def sentence(measured: Mapping[str, Any]) -> str:
    """Both shares of exact next states, of what the phase `fidelity` measured; its reason where it measured nothing."""
    if not measured.get("held_out"):
        return str(measured.get("reason") or "No held-out recorded step was predicted.")
    model, control = _rates(measured)
    text = f"Of {model.n} next states in held-out recorded episodes {_percent(model)} are exactly right"
    return f"{text}, and {_percent(control)} without a model, from memories and conditions alone." if control else f"{text}."


def warning(measured: Mapping[str, Any]) -> str:
    """What it means that the control is ahead; "" where it is not."""
    model, control = _rates(measured) if measured.get("held_out") else (None, None)
    if not model or not control or control.value <= model.value:
        return ""
    over = measured["held_out"]["with_guard"].get("over_no_model") or {}
    figures = f"{_percent(control)} to {_percent(model)} of held-out next states exactly right"
    if over.get("high") is not None and over["high"] < 0:
        return f"The experience model is worse than none: the control without a model is ahead with {figures}. {ADVICE}"
    return (
        f"The control without a model is ahead of the experience model with {figures}. The interval of the difference includes 0, so "
        f"that either may be better: that the model adds anything is not established. {ADVICE}"
    )


def unpaid(measured: Mapping[str, Any]) -> str:
    """What it means that the guard takes the reward from most real successes; "" where it does not."""
    sides = measured.get("held_out") or {}
    guarded, bare = (((sides.get(kind) or {}).get("confusion") or {}).get("success") for kind in ("with_guard", "without_guard"))
    if not guarded or not bare:
        return ""
    n, masked = sum(guarded.values()), guarded["left out"]
    taken, lost = bare["success"] - guarded["success"], n - guarded["success"]
    if 2 * lost <= n or 2 * taken <= n:
        return ""
    return (
        f"Of {counted(n, 'real success', 'real successes')} in held-out episodes the dream pays for {guarded['success']}: {masked} are "
        f"masked and {lost - masked} are called no success. Without the guard it pays for {bare['success']}. RL in this dream learns "
        "little from what is right on new tasks. The cause is the guard or the verifier (experience.verifier); with a learned one, record "
        "more successes and failures on more tasks."
    )


def _rates(measured: Mapping[str, Any]) -> tuple[Rate, Rate | None]:
    model, control = measured["held_out"]["with_guard"], (measured.get("no_model") or {}).get("with_guard")
    return Rate(**model["state_exact_valid"]), Rate(**control["state_exact_valid"]) if control else None


def _percent(rate: Rate) -> str:
    return f"{100 * rate.value:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"
