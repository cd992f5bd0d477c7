"""Verifiers side by side on the same claims: dreams of the trained policy in which everything is accepted, and what really follows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from dreamgym.experience.learned_verifier.cases import scored_episodes
from dreamgym.experience.verifiers import text_check, verdicts_of
from dreamgym.protocols import Verifier
from dreamgym.recipes import factory
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.verifier import claims
from dreamgym.statistics import wilson
from dreamgym.types import Trajectory


def verifiers_json(context: RunContext, pairs: Sequence[tuple[Trajectory, Trajectory]]) -> dict[str, Any]:
    """Rates by verifier: the share of false claims that it accepts, of true claims that it keeps, of accepted claims that are false, and of
    all claims that it masks. `pairs` are dreams without a guard and their real replays; empty where no verifier was fitted."""
    first = context.checkpoint("verifier")
    if not first.is_dir():
        return {}
    granting = context.config.experience.verifier is not None and context.config.experience.verifier.grants  # it judges every end
    return _rates(context, [(d, real.success) for d, real in pairs if claims(d) or (granting and d.transitions[-1].terminated)])


def real_episodes_json(context: RunContext, episodes: Sequence[Trajectory]) -> dict[str, Any]:
    """The same rates where every end of a real episode is taken for a claim of success. Episodes that were cut off claim nothing."""
    return _rates(context, [(episode, episode.success) for episode in scored_episodes(episodes)])


def _rates(context: RunContext, claimed: Sequence[tuple[Trajectory, bool]]) -> dict[str, Any]:
    """The rates by verifier on pairs (episode that ends with a claim of success, whether the claim is true). No verdict (None) passes."""
    true = [success for _, success in claimed]
    cases = [(t.task.instruction, t.transitions[:-1], replace(t.transitions[-1], reward=1.0)) for t, _ in claimed]
    by_verifier = {"accept_all": rates_json(["passed"] * len(claimed), true)}
    for name, verifier in _verifiers(context).items():
        by_verifier[name] = rates_json(["passed" if verdict is None else verdict.kind for verdict in verdicts_of(verifier, cases)], true)
    return by_verifier


def rates_json(verdict_kinds: Sequence[str], true: Sequence[bool]) -> dict[str, Any]:
    """Rates of verdicts, by their kinds, on claims that are true or not."""
    counts = Counter((verdict_kind == "passed", real) for verdict_kind, real in zip(verdict_kinds, true, strict=True))
    false, real, accepted = ((sum(n for key, n in counts.items() if key[i] is value)) for i, value in ((1, False), (1, True), (0, True)))
    return {
        "false_success": asdict(wilson(counts[True, False], false)),
        "true_positive_rate": asdict(wilson(counts[True, True], real)),
        "accepted_false": asdict(wilson(counts[True, False], accepted)),
        "masked": asdict(wilson(sum(verdict_kind == "masked" for verdict_kind in verdict_kinds), len(verdict_kinds))),
    }


def _verifiers(context: RunContext) -> dict[str, Verifier]:
    """The verifier as the logs alone made it, as the last probes left it, and the hand-written check where the suite has one."""
    verifiers = dict[str, Verifier]()
    for name, checkpoint in zip(("logs", "probes"), dict.fromkeys(["verifier", context.verifier_checkpoint]), strict=False):
        if verifier := factory.make_verifier(replace(context, verifier_checkpoint=checkpoint)):
            verifiers[name] = verifier
    check = text_check.make(factory.verifier_inputs(context))
    return verifiers | ({"text_check": check} if check.judges else {})
