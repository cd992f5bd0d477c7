"""Dreams of a run's trained policy, replayed in the real environment: fresh ones, and the measures under the names that programs read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from dreamgym.errors import RunDirError
from dreamgym.evals.attribution import shares
from dreamgym.evals.gap import gap_phase
from dreamgym.recipes import factory
from dreamgym.recipes.context import open_context
from dreamgym.recipes.fidelity import SEED
from dreamgym.recipes.phases.audit import after, replay_arms, trained_on
from dreamgym.recipes.tables import AUDITED_DREAMS
from dreamgym.runs.files import read_jsonl, write_atomic
from dreamgym.runs.rundir import RunDir


def replays(path: Path, n: int) -> dict[str, Any]:
    """The audit of a run with `n` fresh dreams an arm, on training tasks. Kept in `fidelity/replays-<n>.json` arm by arm, so that
    an interrupted audit goes on."""
    run, kept = RunDir.view(path), path / "fidelity" / f"replays-{n}.json"
    if not run.done("audit"):
        raise RunDirError(f"'{path}' has no audit, which names the policy to replay. Give a finished run with RL in a dream.")
    name = run.data("audit")["policy"]
    context = after(run, open_context(path), name)
    used = {"policy": name, "experience": context.experience_checkpoint, "verifier": context.verifier_checkpoint}
    found = read_jsonl(kept)[0] if kept.exists() else {}
    if {key: found.get(key) for key in used} != used:
        found = {}  # refreshed since
    with factory.start_workers(context.config.effective_env, context.suite) as workers:
        context = replace(context, workers=workers)
        tasks = trained_on(run, context, name, n)
        for kind, measured, _ in replay_arms(context, name, tasks, seed=SEED, done=found):
            found |= used | {kind: measured}
            write_atomic(kept, json.dumps(found, allow_nan=False) + "\n")
    return found


def dream_measures(run: RunDir, audit: dict[str, Any] | None) -> dict[str, Any]:
    """What a run knows of its trained policy's dreams: `audit_measures`, with the gap and what decided the steps of its first RL in the
    dream."""
    loops = [run.data(name).get("decided_by") for name in run.finished()]
    dreamed = next((shares(found) for found in loops if found and any(found["states"].values())), None)
    gap = gap_phase(run.finished())
    return audit_measures(audit, run.data(gap) if gap else None, dreamed)


def audit_measures(
    audit: dict[str, Any] | None, gap: dict[str, Any] | None = None, decided_by: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Paired replay with the guard, without it and of the control (`audit`), and the gap, under the names that programs read. None for what
    was not measured. `decided_by` is taken where no dream was replayed."""
    if audit is None:
        return dict.fromkeys((*AUDITED_DREAMS, "reward_error", "transition_error", "bound")) | {"decided_by": decided_by, "gap": gap}
    bound = audit["with_guard"]["bound"]
    errors = {name: bound[name] for name in ("reward_error", "transition_error")}
    replayed = {kind: _replayed(audit[kind]) if kind in audit else None for kind in AUDITED_DREAMS}
    return replayed | errors | {"bound": bound, "decided_by": audit["with_guard"]["decided_by"], "gap": gap}


def _replayed(found: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: found[name] for name in ("dream_success", "real_success", "state_exact", "state_exact_valid", "state_exact_invalid")},
        **{name: found[name] for name in ("false_success", "false_failure", "accepted_false", "raw_false_success", "premature_failure")},
        **{name: found[name] for name in ("state_exact_generated", "unreadable", "masked", "gap", "decided_by")},
        "terminals": {"real_failures": found["false_success"]["n"], "real_successes": found["false_failure"]["n"]},
        "consistency_ratio": found["consistency"],
        "first_divergence_step": found["first_divergence"],
        **{name: found[name] for name in ("masked_share", "false_failure_at_most", "in_support", "out_of_support")},
    }
