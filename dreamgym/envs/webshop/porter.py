"""The Porter stemmer as Lucene applies it: M. F. Porter, "An algorithm for suffix stripping" (1980), with the two departures of the
author's own program ("bli" -> "ble" in step 2, and "logi" -> "log") and words of one or two letters left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

STEP_2 = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"), ("alli", "al"),
    ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al"),
    ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
)  # fmt: skip
STEP_3 = (("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""))
STEP_4 = tuple(
    (ending, "")
    for ending in (
        "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou", "ism", "ate", "iti", "ous",
        "ive", "ize",
    )
)  # fmt: skip


@lru_cache(maxsize=1 << 18)
def stem(word: str) -> str:
    """The stem of a lower-case word: "ponies" -> "poni", "relational" -> "relat"."""
    if len(word) <= 2:
        return word
    word = _plurals(word)
    word = _past(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, STEP_2, least=1)
    word = _replaced(word, STEP_3, least=1)
    word = _fourth(word)
    return _tidied(word)


def _is_consonant(word: str, i: int) -> bool:
    if word[i] in "aeiou":
        return False
    return word[i] != "y" or i == 0 or not _is_consonant(word, i - 1)


def _measure(stem_: str) -> int:
    """m in Porter's form [C](VC){m}[V]: how often a consonant follows a vowel."""
    kinds = [_is_consonant(stem_, i) for i in range(len(stem_))]
    return sum(now and not before for before, now in pairwise(kinds))


def _has_vowel(stem_: str) -> bool:
    return any(not _is_consonant(stem_, i) for i in range(len(stem_)))


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _is_consonant(word, len(word) - 1)


def _is_short(word: str) -> bool:
    """Ends in consonant, vowel, consonant, the last none of w, x, y: such words get an e back ("hop", "fil")."""
    n = len(word)
    return n > 2 and word[-1] not in "wxy" and _is_consonant(word, n - 1) and not _is_consonant(word, n - 2) and _is_consonant(word, n - 3)


def _plurals(word: str) -> str:
    if word.endswith("sses") or word.endswith("ies"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        if word.endswith(ending) and _has_vowel(word[: -len(ending)]):
            return _repaired(word[: -len(ending)])
    return word


def _repaired(word: str) -> str:
    """What "ed" or "ing" was taken from, as a word again."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _doubled(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _is_short(word) else word


def _replaced(word: str, rules: Sequence[tuple[str, str]], *, least: int) -> str:
    """The first ending of the rules that fits is replaced, if what is before it measures `least`; no other is tried."""
    for ending, instead in rules:
        if word.endswith(ending):
            start = word[: -len(ending)]
            return start + instead if _measure(start) >= least else word
    return word


def _fourth(word: str) -> str:
    for ending, _ in STEP_4:
        if word.endswith(ending):
            start = word[: -len(ending)] + (ending[0] if ending in ("sion", "tion") else "")
            return start if _measure(start) > 1 else word
    return word


def _tidied(word: str) -> str:
    """Step 5: a last e goes, and one l of two."""
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _is_short(word[:-1])):
            word = word[:-1]
    if word.endswith("l") and _doubled(word) and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word
