"""`dreamgym fidelity`: how far a run's dreams may be trusted."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from dreamgym.cli._show import AUDIT, KINDS, Json, Run, rate, show_audit, show_decided, table
from dreamgym.evals import next_actions
from dreamgym.evals.gap import gap_phase, gap_sentence
from dreamgym.evals.held_out import unpaid
from dreamgym.evals.recorded_actions import sentence

HELD_OUT = (
    "state_exact_valid", "state_exact_generated", "state_exact_knowable", "state_exact_invalid", "state_exact_invalid_logged", "element_f1",
    "false_success",     "false_failure", "false_failure_at_most", "masked_share", "accepted_false", "false_end", "unknown_elements",
)  # fmt: skip
UNMEASURED = dict.fromkeys(
    ("experience", "held_out", "held_out_no_model", "reason", "recorded_replay", "uncertified", "next_actions", "near_misses")
)
"""Keys of `--json` beside those of the dreams: null where a run cannot measure them, or has not."""


def fidelity(
    run: Run,
    held_out: Annotated[
        int | None,
        typer.Option(min=2, max=1_000_000, help="Also predict every step of this many fresh real episodes on held-out tasks."),
    ] = None,
    replays: Annotated[
        int | None,
        typer.Option(min=2, max=1_000_000, help="Audit with this many fresh dreams an arm, in the place of the run's own audit."),
    ] = None,
    split: Annotated[str, typer.Option(help="Whose tasks the held-out episodes are of: dev, or test for a final figure.")] = "dev",
    policy: Annotated[
        str, typer.Option(help="Whose real episodes are held out: a policy of the run, such as dream; by default the scripted ones'.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Measure the experience model of a run: paired replay under the trained policy, and held-out real transitions."""
    from dreamgym.envs.base import check_split
    from dreamgym.errors import RunDirError, UsageError
    from dreamgym.recipes.settings import require_policy
    from dreamgym.runs.files import reading
    from dreamgym.runs.rundir import PHASES, RunDir, unfinished

    check_split(split)
    folder = RunDir.view(run)
    if policy:
        require_policy(run, policy)
    without_env = folder.done("logs") and not folder.data("logs").get("has_env", True)
    if without_env and replays is not None:
        raise UsageError(f"--replays repeats dreams in the real environment, and '{run}' has logs alone.")
    forced = _held_out(run, held_out, split, policy)
    if without_env:
        return _without_env(folder, forced, as_json, held_out or 0)
    if not folder.done("audit") and not gap_phase(folder.finished()) and forced["held_out"] is None:
        if folder.summary():
            raise RunDirError(
                f"'{run}' has no audit: it never dreamed, or its eval.paired_replays and eval.gap_tasks are 0. Give a run with RL in a "
                "dream, or --held-out."
            )
        raise unfinished(run, "has no audit yet")
    from dreamgym.recipes.replayed_dreams import dream_measures  # after the refusals, which need no torch

    audit = _audit(folder, replays)
    with reading(folder.path / PHASES):
        found = dream_measures(folder, audit)
        if as_json:
            return print(json.dumps(UNMEASURED | found | forced))
        if audit is not None:
            _print(audit)
        if found["gap"]:
            print(gap_sentence(found["gap"]))
        if forced["held_out"] is None:
            print("Predictions of held-out real transitions: not measured yet. `--held-out 400` measures them in minutes.")
        else:
            show_held_out(forced)


def _audit(folder: Any, replays: int | None) -> dict[str, Any] | None:
    """The run's own audit, or one with so many dreams, made now or kept from an earlier call. None where the run replays no dream."""
    if replays is not None:
        from dreamgym.recipes import replayed_dreams

        return replayed_dreams.replays(folder.path, replays)
    return dict(folder.data("audit")) if folder.done("audit") else None


def _without_env(folder: Any, forced: dict[str, Any], as_json: bool, asked: int) -> None:
    """A run from logs alone: predictions of recorded episodes that it held out, of as many as asked for, and what nothing certifies."""
    phases = ("recorded_replay", "uncertified", "next_actions")
    replay, uncertified, compared = (folder.data(phase) if folder.done(phase) else {} for phase in phases)
    if forced["held_out"] is None and folder.done("fidelity"):
        found = folder.data("fidelity")
        forced = {"held_out": found["held_out"], "held_out_no_model": found.get("no_model"), "reason": found.get("reason", "")}
    if as_json:
        from dreamgym.recipes.replayed_dreams import dream_measures

        alone = {
            "recorded_replay": replay or None,
            "uncertified": uncertified or None,
            "next_actions": compared or None,
            "near_misses": "left out: they need an environment",
        }
        return print(json.dumps(UNMEASURED | dream_measures(folder, None) | forced | alone))
    if forced["held_out"] is None:
        print(forced.get("reason") or "Predictions of held-out recorded episodes: not measured yet. `--held-out 400` measures them.")
    else:
        show_held_out(forced)
        if (n := forced["held_out"]["episodes"]) < asked:
            print(f"--held-out asks for {asked:,} episodes, and the run held out {n:,} of the split.")
        print("There is no environment: near misses are left out, and no dream is replayed.")
    if replay:
        print(sentence(replay))
    show_uncertified(uncertified)
    for line in next_actions.sentences(compared) if compared else ():
        print(line)


def show_uncertified(found: dict[str, Any]) -> None:
    """The table of dream success that nothing real confirms."""
    if found:
        rows = [[name, rate(one["uncertified_dream_success"]), f"{one['masked']:,}"] for name, one in found.items()]
        table("Dream success, uncertified: no environment confirms it", ["policy", "uncertified dream success", "masked"], rows)


def _print(audit: dict[str, Any]) -> None:
    bound = audit["with_guard"]["bound"]
    show_audit(audit)
    show_support(audit["with_guard"])
    print(
        f"Dream and real success of this policy differ by at most {bound['success_gap']:.1%} (95 % upper bound of the diverged share).\n"
        f"Theorem 1 of the paper, gamma {bound['gamma']}: {bound['theorem']:,.0f}"
        + (", which says nothing about success in [0, 1]." if "theorem" in bound["vacuous"] else ".")
    )


def show_support(guarded: dict[str, Any]) -> None:
    """The table of dreams by whether the replay buffer supports all of their actions."""
    sides = [guarded["in_support"], guarded["out_of_support"]]
    table(
        "The same with guard: dreams in support have a real precedent of every action",
        ["", "in support", "out of support"],
        [[name.replace("_", " "), *(rate(side.get(name)) for side in sides)] for name in ("share", *AUDIT)],
    )


def show_held_out(found: dict[str, Any]) -> None:
    """The table of teacher-forced predictions, with the control without a model beside it."""
    title = "Predicted from true histories: {transitions:,} transitions of {episodes:,} held-out episodes of the split {split}"
    title += ", {near_misses:,} near misses" if "near_misses" in found["held_out"] else ", recorded; no near misses"
    columns = ["", "with guard", "without guard", "no model, with guard", "no model, without guard"]
    sides = [found[name][kind] for name in ("held_out", "held_out_no_model") for kind in KINDS]
    rows = [[name.replace("_", " "), *(rate(side.get(name)) for side in sides)] for name in HELD_OUT]
    for group in ("by_action", "by_miss"):
        rows += [[f"  {kind}", *(rate(side[group][kind]) for side in sides)] for kind in sides[0][group]]
    table(title.format(**found["held_out"]), columns, rows)
    if warning := unpaid(found):
        print(f"warning: {warning}")
    show_decided(found["held_out"]["with_guard"]["decided_by"])
    show_agreement({title: side for title, side in zip(columns[1:], sides, strict=True) if "agreement" in side})


def show_agreement(sides: dict[str, dict[str, Any]]) -> None:
    """How long dreams stay right: shares by step, and the safe horizon, which `experience.horizon` can cut dreams to."""
    for title, side in sides.items():
        shares = ", ".join(f"{share:.0%}" for share in side["agreement"][:8])
        print(f"Episodes right up to each step, {title}: {shares}; nine in ten are right up to step {side['safe_horizon']}.")


def _held_out(run: Any, n: int | None, split: str, policy: str) -> dict[str, Any]:
    """What was measured on held-out transitions, measured now when it is asked for."""
    from dreamgym.errors import UsageError
    from dreamgym.recipes import fidelity as recipe

    if policy and n is None:
        raise UsageError("--policy goes with --held-out: say how many of its episodes.")
    if split != recipe.SPLIT and n is None:
        raise UsageError(f"--split goes with --held-out: say how many episodes of '{split}' to predict.")
    found = recipe.latest(run) if n is None else recipe.held_out(run, n, split=split, policy=policy)
    return _named(found) if found else {"held_out": None, "held_out_no_model": None}


def _named(found: dict[str, Any]) -> dict[str, Any]:
    """The measures under the names that programs read: the control's are `held_out_no_model`, because `no_model` is that of the audit."""
    return {("held_out_no_model" if name == "no_model" else name): value for name, value in found.items()}
