"""Verifiers: a kind of plug-in. A verifier gives a second opinion on what the rules of the guard let pass (`guard.SecondOpinion`).

A verifier is a module of this folder, or any module by its dotted path, and `experience.verifier = {name = "..."}` selects it. It has

    make(inputs, **settings) -> protocols.Verifier    `inputs` are `VerifierInputs`
    Config                      optional: a `config.Config` of the settings, checked when a configuration is read
    ON_DISAGREEMENT             optional: the default of `on_disagreement`; "mask" where it has none
    check(backbone, **settings) optional: refuses settings that cannot be with this `experience.backbone`, which may be None, when a
                                configuration is read
    fit(inputs, **settings)     optional: fits it to the logs, before anybody dreams, and writes into the folder `inputs.checkpoint`; the
                                JSON object that it returns is kept with the run

A verifier with a `usage` (`usage.Usage`) is accounted for beside the experience model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dreamgym.envs.base import TextRules
from dreamgym.errors import UsageError, counted
from dreamgym.llm.backbone_settings import BackboneConfig
from dreamgym.protocols import Verifier
from dreamgym.types import Task, Trajectory, Transition, Verdict


@dataclass(frozen=True)
class VerifierInputs:
    """What a run gives its verifier."""

    rules: TextRules
    logs: Sequence[Trajectory] = ()
    seed: int = 0
    checkpoint: Path | None = None  # the folder for its weights, if it has any
    cache: dict[Any, Any] = field(default_factory=dict)  # what the verifiers of a run keep for each other, such as features of its logs
    backbone: BackboneConfig | None = None  # the pretrained model that the experience model is fitted from
    is_held_out: Callable[[Task], bool] = lambda task: False  # whether a task is one that the run's policies will be judged by


def verdicts_of(verifier: Verifier, cases: Sequence[tuple[str, Sequence[Transition], Transition]]) -> list[Verdict | None]:
    """What a verifier says of the cases, one verdict each; None where it has no opinion. UsageError for anything else that it returns."""
    if not cases:
        return []
    returned, name = verifier.verify(cases), type(verifier).__name__
    expected = "Expected a list with a types.Verdict, or None for no opinion, for every case."
    if not isinstance(returned, Sequence) or len(returned) != len(cases):
        what = counted(len(returned), "verdict") if isinstance(returned, Sequence) else type(returned).__name__
        raise UsageError(f"verify() of the verifier {name} returned {what} for {counted(len(cases), 'case')}. {expected}")
    wrong = [one for one in returned if one is not None and not isinstance(one, Verdict)]
    if wrong:
        raise UsageError(f"verify() of the verifier {name} returned {wrong[0]!r:.100} as a verdict. {expected}")
    return list(returned)
