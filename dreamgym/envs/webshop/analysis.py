"""Text to terms as the original's index makes them: Lucene's English analyser.

Word breaks of Unicode Annex 29 as in Lucene's StandardTokenizer (an emoji is a word, '_' joins, "a.b" and "1,000" stay whole), then a
possessive 's is removed, letters are lower-cased, stop words dropped, and Porter's stemmer applied. Hebrew's rules for quotes are left out.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache

from dreamgym.envs.webshop.listing import STOP
from dreamgym.envs.webshop.porter import stem

LONGEST = 255
"""Longer words are cut into pieces of this many letters."""
APOSTROPHES = "'\u2019\uff07"
MID_LETTER = ":\u00b7\u02d7\u0387\u05f4\u2027\ufe13\ufe55\uff1a"
MID_NUMBER = ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
MID_BOTH = ".'\u2018\u2019\u2024\ufe52\uff07\uff0e"
PICTOGRAPHS = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9-\u21aa\u231a-\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2"
    "\u25aa-\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d\u2721"
    "\u2728\u2733-\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf\u2934-\u2935"
    "\u2b05-\u2b07\u2b1b-\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f"
    "\U0001f16c-\U0001f171\U0001f17e-\U0001f17f\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a"
    "\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f"
    "\U0001f680-\U0001f6ff\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f"
    "\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001faff\U0001fc00-\U0001fffd"
)
IDEOGRAPHS = "\u2e80-\u2e99\u2e9b-\u2ef3\u2f00-\u2fd5\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9"
IDEOGRAPHS += "\U00020000-\U0003134a"
HIRAGANA = "\u3041-\u3096\u309d-\u309f"
KATAKANA = "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u32d0-\u32fe\u3300-\u3357\uff66-\uff9d"
SOUTH_EAST = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ecd\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d7\u17dc\u17dd"
)
JOINERS = "_\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f"


def analyse(text: str) -> list[str]:
    """The terms of a text, in order: "The Runner's shoes" -> ["runner", "shoe"]."""
    return [term for word in words(text) if (term := _term(word))]


def words(text: str) -> Iterator[str]:
    """The words of a text as they are written."""
    pattern = _ascii() if text.isascii() else _unicode()
    for match in pattern.finditer(text):
        word = match.group()
        for start in range(0, len(word), LONGEST):
            yield word[start : start + LONGEST]


@lru_cache(maxsize=1 << 18)
def _term(word: str) -> str:
    if len(word) >= 2 and word[-1] in "sS" and word[-2] in APOSTROPHES:
        word = word[:-2]
    word = word.lower()
    return "" if word in STOP else stem(word)


@lru_cache(maxsize=1)
def _ascii() -> re.Pattern[str]:
    return re.compile(_word_pattern("A-Za-z", "0-9", "", ":.'", ",;.'", "_", ""))


@lru_cache(maxsize=1)
def _unicode() -> re.Pattern[str]:
    """The pattern over all of Unicode; its letter classes come from the character database, once."""
    special = re.compile(f"[{IDEOGRAPHS}{HIRAGANA}{KATAKANA}{SOUTH_EAST}]")
    digits = _class(lambda c: unicodedata.category(c) == "Nd")
    letters = _class(lambda c: (c.isalpha() or unicodedata.category(c) == "Nl" or c in "\u24c2") and not special.match(c))
    extenders = _class(lambda c: unicodedata.category(c) in ("Mn", "Mc", "Me", "Cf") and c != "\u200b" and not special.match(c))
    joined = f"[{extenders}]*"
    picture = f"[{PICTOGRAPHS}]{joined}[\U0001f3fb-\U0001f3ff]?{joined}"  # with a skin tone; {joined} takes the joiner of a sequence
    emoji = f"{picture}(?:(?<=\u200d){picture})*|[0-9#*]\ufe0f?\u20e3{joined}|[\U0001f1e6-\U0001f1ff]{{2}}"
    word = _word_pattern(letters, digits, KATAKANA, MID_LETTER + MID_BOTH, MID_NUMBER + MID_BOTH, JOINERS, joined)
    return re.compile(f"{emoji}|{word}|(?:[{SOUTH_EAST}]{joined})+|[{IDEOGRAPHS}]{joined}|[{HIRAGANA}]{joined}")


def _word_pattern(letters: str, digits: str, katakana: str, mid_letter: str, mid_number: str, joiners: str, extend: str) -> str:
    """Annex 29's rules WB5 to WB13b as one pattern over character classes; `extend` follows any character (WB4)."""

    def one(characters: str) -> str:
        return f"(?:[{characters}]{extend})" if extend else f"[{characters}]"

    join = one(joiners)
    number = f"{one(digits)}+(?:(?:{one(mid_number)}|{join}+){one(digits)}+)*"
    letter = f"{one(letters)}+(?:(?:{one(mid_letter)}|{join}+){one(letters)}+)*"
    run = f"(?:{number}|{letter})+"
    if katakana:
        run = f"(?:{one(katakana)}+(?:{join}+{one(katakana)}+)*|{run})"
    return f"{join}*{run}(?:{join}+{run})*{join}*"


def _class(belongs: Callable[[str], bool]) -> str:
    """The inside of a character class with everything that `belongs`."""
    ranges: list[tuple[int, int]] = []
    for code in range(sys.maxunicode + 1):
        if 0x20000 <= code < 0xE0000 or code >= 0xE0200:  # ideographs, which have their class, and private use
            continue
        if belongs(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1] = (ranges[-1][0], code)
            else:
                ranges.append((code, code))
    return "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
