"""The state mapping of a tool conversation: its calls so far, and the latest observations in full.

    (2 earlier calls)
    > get_customer_by_phone(phone_number="555-123-2002")
    > check_status_bar()
    Status Bar: Airplane Mode | 80%
    > get_details_by_id(id="L1002")
    {"line_id": "L1002", "status": "Active"}
    & get_data_usage(customer_id="C1001", line_id="L1002")
    {"data_used_gb": 8.7}
    < Is it solved?

`>` begins a turn, `&` is a further call of the same turn, `<` is what the user said after it. What a call returned stands below it. Once
`state_chars` are full, turns keep their calls and lose what they returned, the oldest first. The state after a turn follows from the state
before it and the turn alone (`extend`), so logs, a real environment and a dream have the same states. The instruction is not repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

from dreamgym.envs.tools.shortening import shorten_arguments, shorten_result, shorten_text
from dreamgym.errors import UsageError
from dreamgym.runs.files import without_lone_surrogates
from dreamgym.tool_calls import RESPOND, ToolCall
from dreamgym.types import Action, Observation

CALL, FURTHER, USER = "> ", "& ", "< "
START = "no calls yet"
EMPTY = "(empty)"
"""Stands for a call that returned nothing."""
ERROR = "Error"
"""How the result of a call begins that the environment refused."""
MARKED = re.compile(r"([>&<])\1* ")
"""How a returned line begins whose marker is written once more: so no two lines are shown alike."""
EARLIER = re.compile(r"\((\d{1,9}) earlier calls?\)")


@dataclass(frozen=True)
class Exchange:
    """One turn of the agent and what came back."""

    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]  # one a call, in order; "" for `respond`, which returns nothing
    user_text: str = ""  # what the user said next

    def __post_init__(self) -> None:
        if not self.calls or len(self.calls) != len(self.results):
            raise UsageError(
                f"An exchange has at least one call and one result a call, and this one has {len(self.calls)} calls and "
                f"{len(self.results)} results. Pair them by id, and give a message to the user the result ''."
            )


def no_call(action: Action, why: str) -> Exchange:
    """The turn of an agent that wrote something else than calls: it reaches no tool, and an error comes back."""
    return Exchange((ToolCall("invalid_call", action),), (f"{ERROR}: {why}",))


@dataclass(frozen=True)
class Limits:
    """How much of a conversation a state shows, in characters; a token has three or four."""

    state_chars: int = 2400  # beyond these, the oldest turns show their calls alone
    result_chars: int = 1000  # of what one call returned
    argument_chars: int = 160  # of one argument
    calls: int = 32  # calls that are shown; earlier ones are counted


def conversation_state(exchanges: Sequence[Exchange], limits: Limits | None = None) -> Observation:
    """The state after these exchanges, the oldest first."""
    return reduce(lambda state, exchange: extend(state, exchange, limits), exchanges, Observation(START))


def extend(state: Observation, exchange: Exchange, limits: Limits | None = None) -> Observation:
    """The state after one more exchange."""
    calls = call_lines(exchange.calls, limits)
    return append_turn(state, "\n".join([calls[0], returned(exchange, limits)]), limits)


def call_lines(calls: Sequence[ToolCall], limits: Limits | None = None) -> list[str]:
    """The calls of a turn as a state shows them, long arguments shortened."""
    most = (limits or Limits()).argument_chars
    return [without_lone_surrogates(f"{FURTHER if i else CALL}{shorten_arguments(call, most)}") for i, call in enumerate(calls)]


def returned(exchange: Exchange, limits: Limits | None = None) -> str:
    """What came back, as a state shows it: everything of the turn below its first call. Never empty."""
    limits = limits or Limits()
    lines = list[str]()
    for i, (line, call, result) in enumerate(zip(call_lines(exchange.calls, limits), exchange.calls, exchange.results, strict=True)):
        lines += [line] if i else []
        text = _plain(shorten_result(result, limits.result_chars))
        lines += [_escaped(one) for one in text] or ([] if call.name == RESPOND and exchange.user_text.strip() else [EMPTY])
    lines += [USER + " ".join(_plain(shorten_text(exchange.user_text, limits.result_chars)))] if exchange.user_text.strip() else []
    return "\n".join(lines)


def append_turn(state: Observation, turn: str, limits: Limits | None = None) -> Observation:
    """The state with one more turn, given as its lines."""
    limits = limits or Limits()
    earlier, turns = _read(state.text)
    turns.append(turn.split("\n"))
    size, shown = 0, list[list[str]]()
    for lines in reversed(turns):
        size += sum(len(line) + 1 for line in lines)
        fits = not shown or size <= limits.state_chars
        shown.insert(0, lines if fits else [line for line in lines if line.startswith((CALL, FURTHER))])
    excess = sum(_n_calls(lines) for lines in shown) - limits.calls
    while excess > 0 and len(shown) > 1:
        dropped = _n_calls(shown.pop(0))
        earlier, excess = earlier + dropped, excess - dropped
    head = [f"({earlier} earlier call{'s' if earlier > 1 else ''})"] if earlier else []
    return Observation("\n".join([*head, *(line for lines in shown for line in lines)]))


def latest_turn(state: Observation) -> str:
    """What the latest turn returned, as `returned` gave it; the whole text before the first call."""
    _, turns = _read(state.text)
    return "\n".join(turns[-1][1:]) if turns else state.text


@lru_cache(maxsize=4_096)
def without_calls(state: Observation) -> str:
    """What the tools and the user said, of the turns that a state shows, less errors: these repeat what the agent wrote."""
    _, turns = _read(state.text)
    lines = [line for turn in turns for line in turn if not line.startswith((CALL, FURTHER, ERROR))]
    return "\n".join(lines) if turns else state.text


def turns_shown(state: Observation) -> list[list[str]]:
    """The turns that a state shows, each as its lines, the oldest first. An earlier one may show its calls alone."""
    return _read(state.text)[1]


def _read(text: str) -> tuple[int, list[list[str]]]:
    """The number of calls that a state only counts, and the turns it shows."""
    lines = text.split("\n")
    found = EARLIER.fullmatch(lines[0])
    turns = list[list[str]]()
    for line in lines[1 if found else 0 :]:
        if line.startswith(CALL):
            turns.append([line])
        elif turns:
            turns[-1].append(line)
    return int(found[1]) if found else 0, turns


def _n_calls(lines: Sequence[str]) -> int:
    return sum(line.startswith((CALL, FURTHER)) for line in lines)


def _plain(text: str) -> list[str]:
    """The lines of a text without empty ones and trailing spaces."""
    text = without_lone_surrogates(text).replace("\r\n", "\n").replace("\r", "\n")
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def _escaped(line: str) -> str:
    """A returned line that cannot be taken for a call or the user's words: its marker once more, also where it stands several times."""
    return line[0] + line if MARKED.match(line) else line


def unescaped(line: str) -> str:
    """The line of a result that a state shows as this one."""
    return line[1:] if line[:1] == line[1:2] and MARKED.match(line) else line
