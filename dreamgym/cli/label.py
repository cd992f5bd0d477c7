"""`dreamgym label`: a person judges dreamed episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dreamgym.cli._show import Run, rate

ANSWERS = {"r": "right", "w": "wrong", "s": "skip", "q": "quit"}


def label(
    run: Run,
    n: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="About how many episodes are drawn; a larger draw contains a smaller one.")
    ] = 40,
    export: Annotated[Path | None, typer.Option(help="Write the episodes as JSON lines to be filled in, instead of asking here.")] = None,
    read: Annotated[Path | None, typer.Option("--import", help="Read such a file with its answers.")] = None,
) -> None:
    """Judge dreamed episodes by hand: is what the dream claims right? The answers estimate how often claimed successes are false."""
    from dreamgym.errors import UsageError, counted
    from dreamgym.runs.rundir import RunDir

    if export and read:
        raise UsageError("Give --export or --import, not both.")
    RunDir.view(run)
    from dreamgym.recipes import label as recipe

    if export:
        print(f"{counted(recipe.export(run, export, n), 'episode')} to be answered: {export}")
        return
    if read:
        recipe.store(run, *recipe.read_answers(run, read, n))
    else:
        shown, done = recipe.candidates(run, n), recipe.labels(run)
        for one in shown:
            if one.episode.id not in done:
                answer = _ask(one)
                if answer == "quit":
                    break
                recipe.store(run, shown, {one.episode.id: answer})
    found = recipe.labelled(run)
    if found:
        print(f"answers: {found['answers']}; false among claimed successes: {rate(found['false_success_among_accepted'])}")
        if found["pending"]:
            print(f"{found['pending']:,} of them count once all of their larger draw is answered.")
    else:
        print("No answer yet." + (f" Fill in `answer` (right, wrong or skip) in '{read}'." if read else ""))


def _ask(one: Any) -> Any:
    print(f"\ntask: {one.episode.task.instruction}\n  | " + one.episode.transitions[0].state.text.replace("\n", "\n  | "))
    for step in one.episode.transitions:
        print(f"> {step.action}\n  | " + step.next_state.text.replace("\n", "\n  | "))
    print(f"the dream claims: {one.claim}")
    while True:
        try:
            typed = input("right, wrong, skip or quit? ").strip().lower()
        except EOFError:
            return "quit"
        if typed[:1] in ANSWERS and ANSWERS[typed[:1]].startswith(typed):
            return ANSWERS[typed[:1]]
