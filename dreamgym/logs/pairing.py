"""Which result answers which call. Ids may come again in every turn, or be missing, and so may results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dreamgym.logs.records import Account, Message, Result

UNASKED = "results without a call"
Place = tuple[int, int]
"""The number of a message, and that of the call or the result in it."""


@dataclass(frozen=True)
class _Waiting:
    """A call without a result so far."""

    place: Place
    name: str  # "" where it has no usable one: then a result of any name may be its


def paired(messages: Sequence[Message], account: Account) -> list[Message]:
    """The messages, with an id of its own for every call, which its result gives too. Left out are calls that are refused with what they
    returned, and further results that answer no call: both results are counted."""
    answers, kept = _answers(messages), list[Message]()
    for i, message in enumerate(messages):
        calls = tuple(replace(call, id=_id((i, j))) for j, call in enumerate(message.calls) if not call.refused)
        asked = [(result, answers.get((i, j))) for j, result in enumerate(message.results)]
        results = tuple(
            replace(result, call_id=_id(place)) for result, place in asked if place and not messages[place[0]].calls[place[1]].refused
        )
        account.drop(UNASKED, len(message.results) - len(results))
        kept.append(replace(message, calls=calls, results=results))
    return kept


def _id(place: Place) -> str:
    return f"{place[0]}.{place[1]}"


def _answers(messages: Sequence[Message]) -> dict[Place, Place]:
    """By the place of a result, that of the call which it answers. Results of one id between two turns of the agent answer open calls of
    that id before them: those of the fewest latest turns that have as many, in their order."""
    answers, waiting, block = dict[Place, Place](), defaultdict[str, list[_Waiting]](list), list[tuple[Place, Result]]()
    for i, message in enumerate(messages):
        if message.calls:
            answers |= _assigned(block, waiting)
            block.clear()
        for j, call in enumerate(message.calls):
            waiting[call.id].append(_Waiting((i, j), call.name))
        block += [((i, j), result) for j, result in enumerate(message.results)]
    return answers | _assigned(block, waiting)


def _assigned(block: Iterable[tuple[Place, Result]], waiting: dict[str, list[_Waiting]]) -> dict[Place, Place]:
    """The answers that a block of results gives; the calls that they answer wait no longer. Without an id, the names of tools agree where a
    result has one."""
    answers, alike = dict[Place, Place](), defaultdict[tuple[str, str], list[Place]](list)
    for place, result in block:
        alike[result.call_id, "" if result.call_id else result.name].append(place)
    for (call_id, name), places in alike.items():
        fitting = [call for call in waiting[call_id] if not name or call.name in ("", name)]
        if not fitting:
            continue
        earliest = fitting[max(0, len(fitting) - len(places))].place[0]  # the turn from which on there are enough
        fitting = [call for call in fitting if call.place[0] >= earliest]
        for place, call in zip(places, fitting, strict=False):  # more results than calls answer none
            answers[place] = call.place
            waiting[call_id].remove(call)
    return answers
