"""`dreamgym fidelity`: how far a run's dreams may be trusted."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from dreamgym.cli._show import AUDIT, Json, Run, rate, table

HELD_OUT = (
    "state_exact_valid", "state_exact_knowable", "state_exact_invalid", "state_exact_invalid_logged", "element_f1", "false_success",
    "false_failure", "false_end", "invented_items",
)  # fmt: skip
KINDS = ("with_guard", "without_guard")


def fidelity(
    run: Run,
    held_out: Annotated[
        int | None, typer.Option(min=2, help="Also predict every step of so many fresh real episodes on held-out tasks; kept in the run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """How far the run's dreams may be trusted: paired replay under the trained policy, and real transitions it has never seen."""
    from dreamgym.errors import RunDirError
    from dreamgym.runlog import RunDir

    folder = RunDir.view(run)
    if not folder.done("audit") and folder.summary():
        raise RunDirError(f"'{run}' has no audit: it never dreamed, or its eval.paired is 0. Give a run that practised in a dream.")
    if not folder.done("audit"):
        raise RunDirError(f"'{run}' has no audit yet: the run is not finished. Give the command that made it again: it resumes.")
    audit = folder.data("audit")
    if "bound" not in audit["with_guard"]:
        raise RunDirError(f"The audit of '{run}' was made by an older version, without bounds. Make the run anew in another directory.")
    bound = audit["with_guard"]["bound"]
    forced = _held_out(run, held_out)
    if as_json:
        from dreamgym.recipes.fidelity import audited

        print(json.dumps(audited(audit) | forced))
        return
    table(
        "Dreams replayed in the real environment",
        ["", "with guard", "without guard"],
        [[name.replace("_", " "), *(rate(audit[kind].get(name)) for kind in KINDS)] for name in AUDIT],
    )
    if "precedented" in audit["with_guard"]:  # older audits lack it
        show_grounds(audit["with_guard"])
    print(
        f"Dream and real success of this policy differ by at most {bound['gap']:.1%} (95 % upper end of the share of episodes that part).\n"
        f"Theorem 1 of the paper, gamma {bound['gamma']}: {bound['theorem']:,.0f}"
        + (", which says nothing about success in [0, 1]." if "theorem" in bound["vacuous"] else ".")
    )
    if forced["held_out"] is None:
        print("Predictions of held-out real transitions: not measured yet; --held-out 400 does it, in minutes.")
    else:
        show_held_out(forced)


def show_grounds(guarded: dict[str, Any]) -> None:
    """The table of dreams by what they rest on."""
    sides = [guarded["precedented"], guarded["guessing"]]
    table(
        "The same with guard, by what the dreams rest on: a real memory of every action, or a guess somewhere",
        ["", "precedented", "guessing"],
        [[name.replace("_", " "), *(rate(side.get(name)) for side in sides)] for name in ("share", *AUDIT)],
    )


def show_held_out(found: dict[str, Any]) -> None:
    """The table of teacher-forced predictions, with the exact-match memory of the logs beside the model."""
    title = "Predicted from true histories: {transitions:,} transitions of {episodes:,} held-out episodes, {near_misses:,} near misses"
    columns = ["", "with guard", "without guard", "lookup, with guard", "lookup, without guard"]
    sides = [found[name][kind] for name in ("held_out", "lookup_baseline") for kind in KINDS]
    rows = [[name.replace("_", " "), *(rate(side.get(name)) for side in sides)] for name in HELD_OUT]  # older files lack some
    for group in ("by_action", "by_miss"):
        rows += [[f"  {kind}", *(rate(side[group][kind]) for side in sides)] for kind in sides[0][group]]
    table(title.format(**found["held_out"]), columns, rows)


def _held_out(run: Any, n: int | None) -> dict[str, Any]:
    """What was measured on held-out transitions, measured now when it is asked for."""
    from dreamgym.recipes import fidelity as recipe

    found = recipe.latest(run) if n is None else recipe.held_out(run, n)
    return found or {"held_out": None, "lookup_baseline": None}
