"""Facts of household objects: which go where, and what can be done with them.

Facts of ALFRED as `alfworld.gen.constants` holds them (`VAL_RECEPTACLE_OBJECTS`, `VAL_ACTION_OBJECTS`; alfworld 0.4.2, MIT licence), in the
spelling of the printed text. They are the same in every game, so a rule that reads text may lean on them as on grammar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAME = re.compile(r"[a-z]+ \d+")
"""An object or a place in the text: `mug 1`, `countertop 2`."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CONTENTS: Mapping[str, str] = {
    "coffeemachine": "mug",
    "microwave": "apple bowl bread cup egg glassbottle mug plate potato tomato",
    "stoveburner": "kettle pan pot",
    "fridge": "apple bowl bread cup egg glassbottle lettuce mug pan plate pot potato tomato winebottle",
    "sofa armchair ottoman": "basketball book box cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol",
    "dresser": (
        "alarmclock basketball book bowl box candle cd cellphone cloth creditcard cup glassbottle keychain laptop mug newspaper "
        "pen pencil plate remotecontrol spraybottle statue tennisracket tissuebox toiletpaper toiletpaperroll vase watch "
        "wateringcan winebottle"
    ),
    "laundryhamper": "cloth",
    "desk": (
        "alarmclock basketball book bowl box candle cd cellphone cloth creditcard cup glassbottle keychain laptop mug newspaper "
        "pen pencil plate remotecontrol soapbottle spraybottle statue tennisracket tissuebox toiletpaper toiletpaperroll vase "
        "watch wateringcan winebottle"
    ),
    "bed": "baseballbat basketball book cellphone laptop newspaper pillow tennisracket",
    "toilet": (
        "candle cloth dishsponge handtowel newspaper papertowel soapbar soapbottle spraybottle tissuebox toiletpaper toiletpaperroll"
    ),
    "toiletpaperhanger": "toiletpaper toiletpaperroll",
    "towelholder": "towel",
    "handtowelholder": "handtowel",
    "cart": (
        "candle cloth dishsponge handtowel mug papertowel plunger soapbar soapbottle spraybottle statue tissuebox toiletpaper "
        "toiletpaperroll vase"
    ),
    "bathtubbasin": "cloth dishsponge handtowel soapbar",
    "sinkbasin": (
        "apple bowl butterknife cloth cup dishsponge egg fork glassbottle handtowel kettle knife ladle lettuce mug pan plate "
        "pot potato soapbar spatula spoon tomato"
    ),
    "cabinet": (
        "book bowl box candle cd cloth cup dishsponge glassbottle handtowel kettle ladle mug newspaper pan peppershaker plate "
        "plunger pot saltshaker soapbar soapbottle spraybottle tissuebox toiletpaper toiletpaperroll vase wateringcan "
        "winebottle"
    ),
    "countertop diningtable coffeetable sidetable": (
        "alarmclock apple baseballbat basketball book bowl box bread butterknife candle cd cellphone cloth creditcard cup "
        "dishsponge egg fork glassbottle handtowel kettle keychain knife ladle laptop lettuce mug newspaper pan papertowel pen "
        "pencil peppershaker plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle statue "
        "tennisracket tissuebox toiletpaper toiletpaperroll tomato vase watch wateringcan winebottle"
    ),
    "shelf": (
        "alarmclock book bowl box candle cd cellphone cloth creditcard cup dishsponge glassbottle handtowel kettle keychain mug "
        "newspaper papertowel pen pencil peppershaker plate pot remotecontrol saltshaker soapbar soapbottle spraybottle statue "
        "tissuebox toiletpaper toiletpaperroll vase watch wateringcan winebottle"
    ),
    "drawer": (
        "book butterknife candle cd cellphone cloth creditcard dishsponge fork handtowel keychain knife ladle newspaper pen "
        "pencil peppershaker remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle tissuebox toiletpaper "
        "toiletpaperroll watch wateringcan"
    ),
    "garbagecan": (
        "apple bread cd cloth dishsponge egg handtowel lettuce newspaper papertowel pen pencil potato soapbar soapbottle "
        "spraybottle tissuebox toiletpaper toiletpaperroll tomato winebottle"
    ),
    "safe": "cd cellphone creditcard keychain statue vase watch",
    "tvstand": "tissuebox",
    "toaster": "",
}
HOLDS: Mapping[str, frozenset[str]] = {place: _words(things) for places, things in _CONTENTS.items() for place in places.split()}
"""Kind of place -> the kinds of things that may be put there."""

QUALITIES: Mapping[str, frozenset[str]] = {
    "clean": _words(
        "apple bowl butterknife cloth cup dishsponge egg fork kettle knife ladle lettuce mug pan plate pot potato soapbar spatula spoon "
        "tomato"
    ),
    "hot": _words("apple bread cup egg mug plate potato tomato"),
    "cool": _words("apple bowl bread cup egg lettuce mug pan plate pot potato tomato winebottle"),
    "sliced": _words("apple bread egg lettuce potato tomato"),
}
"""Quality -> the kinds of things that can take it on."""

TREATMENTS: Mapping[str, tuple[str, frozenset[str]]] = {
    "clean": ("clean", frozenset({"sinkbasin", "sink"})),
    "heat": ("hot", frozenset({"microwave"})),
    "cool": ("cool", frozenset({"fridge"})),
    "slice": ("sliced", frozenset({"knife", "butterknife"})),
}
"""Verb -> the quality it gives, and the kinds of places (of tools, for `slice`) that it needs."""

LAMPS = frozenset({"desklamp", "floorlamp"})
FIXED = LAMPS | _words("houseplant television window mirror curtains sink bathtub showerglass showerdoor painting poster")
"""What is seen and cannot be taken."""


def kind(name: str) -> str:
    """`mug 1` -> `mug`."""
    return name.rpartition(" ")[0] or name


def in_order(name: str) -> tuple[str, int]:
    """A sorting key: `shelf 2` before `shelf 10`."""
    word, _, number = name.rpartition(" ")
    return word, int(number) if number.isdecimal() else 0
