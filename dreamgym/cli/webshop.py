"""`dreamgym webshop`: the shop itself, for parity checks with the original and for building what it reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="WebShop itself: replay actions in it, score purchases, build its files.", no_args_is_help=True)

Items = Annotated[Path, typer.Option(help="The original's items_shuffle*.json.")]
Attributes = Annotated[Path, typer.Option(help="The items_ins_v2*.json that belongs to it.")]
Human = Annotated[Path | None, typer.Option(help="items_human_ins.json, for human goals.")]
Seed = Annotated[int, typer.Option(help="random.seed(N) before the original loads: prices of ranged products, then price bounds.")]
Corrected = Annotated[bool, typer.Option("--corrected", help="Score options by name and value, so that every goal can be met.")]
Tagger = Annotated[str, typer.Option(help="Who finds nouns for the title score: spacy, rule, or auto (spaCy if a model is installed).")]


@app.command()
def replay(
    items: Items,
    attributes: Attributes,
    human: Human = None,
    goals: Annotated[str, typer.Option(help="synthetic or human.")] = "synthetic",
    seed: Seed = 0,
    mode: Annotated[str, typer.Option(help="text or text_rich.")] = "text",
    actions: Annotated[Path | None, typer.Option(help='Lines {"goal": index, "actions": [...]}; standard input without it.')] = None,
    corrected: Corrected = False,
    tagger: Tagger = "auto",
) -> None:
    """Play scripted actions and print a JSON line of observations, rewards, dones and available actions for each script."""
    _begin(goals=goals, mode=mode, tagger=tagger)
    from dreamgym.envs.webshop import replay as player

    loaded = player.load(items, attributes, human=human, kind=goals, seed=seed)  # type: ignore[arg-type]
    scoring = player.scored(corrected=corrected, name=tagger)  # type: ignore[arg-type]
    with _lines(actions) as lines:
        for record in player.replay(loaded, lines, mode=mode, scoring=scoring, source=str(actions or "standard input")):  # type: ignore[arg-type]
            print(json.dumps(record), flush=True)


@app.command()
def reward(
    items: Items,
    attributes: Attributes,
    seed: Seed = 0,
    purchases: Annotated[
        Path | None, typer.Option(help='Lines {"goal": {...}, "asin": ..., "options": {...}, "price": ...}; standard input without it.')
    ] = None,
    corrected: Corrected = False,
    tagger: Tagger = "auto",
) -> None:
    """Score purchases and print a JSON line of the reward and the original's sub-scores for each."""
    _begin(tagger=tagger)
    from dreamgym.envs.webshop import files, products
    from dreamgym.envs.webshop import replay as player

    loaded = products.load(files.items(items), files.by_asin(attributes), seed=seed, file=items)
    scoring = player.scored(corrected=corrected, name=tagger)  # type: ignore[arg-type]
    with _lines(purchases) as lines:
        for record in player.rewards(loaded, lines, scoring=scoring, source=str(purchases or "standard input")):
            print(json.dumps(record), flush=True)


@app.command()
def build(
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    items: Annotated[Path | None, typer.Option(help="The original's items_shuffle*.json.")] = None,
    attributes: Annotated[Path | None, typer.Option(help="The items_ins_v2*.json that belongs to it.")] = None,
    size: Annotated[int | None, typer.Option(help="Generate a catalogue of this many products instead, 100 to 1,000,000.")] = None,
    seed: Annotated[int, typer.Option(help="Names the generated catalogue.")] = 0,
) -> None:
    """Build a catalogue and its search index once, so that it opens in moments (built = "FOLDER" in the configuration)."""
    _begin()
    from dreamgym.envs.webshop import lifelike, store
    from dreamgym.errors import UsageError, counted, explain_errors

    if (size is None) == (items is None) or (items is None) != (attributes is None):
        raise UsageError("Give either --items and --attributes, or --size.")
    for file in (items, attributes):
        if file:
            with explain_errors(file):
                file.open("rb").close()
    with explain_errors(out):  # a full disk names no file
        if size is not None:
            items, attributes = lifelike.write(out, size, seed)
        assert items and attributes, "checked above"
        print(f"{counted(store.build(items, attributes, out), 'product')}: {out}")


CHOICES = {"goals": ("synthetic", "human"), "mode": ("text", "text_rich"), "tagger": ("auto", "rule", "spacy")}


def _begin(**chosen: str) -> None:
    """Refuse choices that these commands do not know, and write the log to standard error."""
    import logging

    from dreamgym.errors import UsageError, nearest

    for name, value in chosen.items():
        if value not in CHOICES[name]:
            raise UsageError(f"--{name} '{value}' is none of {', '.join(CHOICES[name])}.{nearest(value, CHOICES[name])}")
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("dreamgym").setLevel(logging.INFO)


def _lines(path: Path | None) -> AbstractContextManager[Iterable[str]]:
    """The lines of a file, or of standard input."""
    return nullcontext(sys.stdin) if path is None else path.open(encoding="utf-8")
