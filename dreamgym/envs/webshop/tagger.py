"""Which words of a title are nouns: spaCy's tagger where a model of it is installed, as in the original, and a rule otherwise.

The reward's title score counts nouns that two titles share. spaCy's models are not on the package index, so most machines have the
rule only; scores of products of another query and category then differ from the original's in part. The log says which one is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from dreamgym.errors import MissingExtra

log = logging.getLogger(__name__)
TaggerName = Literal["auto", "rule", "spacy"]
MODELS = ("en_core_web_sm", "en_core_web_lg", "en_core_web_md")
"""In the order they are looked for; the original's head loads the small one."""
NOUNS = ("NOUN", "PROPN")
_ADJECTIVES = """
soft knitted silky fleecy ribbed sheer striped plaid floral plain fringed dotted quilted waterproof padded reversible slim hooded
vintage casual cropped foldable woven rigid roomy sporty wide wooden metallic ceramic wireless rustic modern upright compact bright
dimmable ergonomic swivel washable shaggy rugged solar portable loud mechanical silent round gentle durable lightweight premium stylish
everyday handmade sturdy elegant giftable seasonal new large small medium big long short natural organic classic heavy light
"""
ADJECTIVES = frozenset(_ADJECTIVES.split())
"""Known adjectives, those of the generated catalogue first."""
_CLOSED = """
a an and any are as at be but by for from if in into is it its no not of off on or our over per plus so such than that the their these
this to under up upon via we with without you your all both each every more most other some only very non one two three four five six
seven eight nine ten
"""
CLOSED = frozenset(_CLOSED.split())
"""Words that are never nouns. None is in a generated title."""


def nouns(title: str) -> list[str]:
    """The rule: lower-case words that are no known adjective and no function word, repeats kept."""
    return [word for word in re.findall(r"[a-z]+", title.lower()) if word not in ADJECTIVES and word not in CLOSED]


def tagger(name: TaggerName = "auto") -> Callable[[str], list[str]]:
    """The function from a title to its nouns. "auto" takes spaCy when a model is installed; MissingExtra when "spacy" finds none."""
    found = _installed() if name != "rule" else None
    if found is not None:
        log.info("title scores: nouns by spaCy's %s", found)
        return _spacy(found)
    if name == "spacy":
        raise MissingExtra(
            f"Tagger 'spacy' needs spaCy and one of its models {', '.join(MODELS)}. Install them with: pip install spacy, then "
            "python -m spacy download en_core_web_sm. Or choose tagger = 'rule'."
        )
    log.log(
        logging.INFO if name == "rule" else logging.WARNING,
        "title scores: nouns by the rule tagger%s",
        "" if name == "rule" else ", because no spaCy model is installed; scores of unlike products may differ from the original's",
    )
    return nouns


def _installed() -> str | None:
    if importlib.util.find_spec("spacy") is None:
        return None
    return next((model for model in MODELS if importlib.util.find_spec(model) is not None), None)


@lru_cache(maxsize=3)
def _spacy(model: str) -> Callable[[str], list[str]]:
    spacy: Any = importlib.import_module("spacy")
    pipeline = spacy.load(model)

    @lru_cache(maxsize=65536)
    def tag(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in pipeline(title) if token.pos_ in NOUNS)

    return lambda title: list(tag(title))
