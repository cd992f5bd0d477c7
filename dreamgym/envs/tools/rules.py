"""What is known about tool conversations from the tools' schemas alone: one spelling of calls, which of them cannot be made, and which
answers follow from earlier ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from dreamgym.envs.base import TextRules
from dreamgym.envs.near_misses import Miss
from dreamgym.envs.tools import near_misses
from dreamgym.envs.tools.conversation import (
    CALL,
    ERROR,
    FURTHER,
    USER,
    Exchange,
    Limits,
    append_turn,
    call_lines,
    conversation_state,
    extend,
    latest_turn,
    no_call,
    turns_shown,
    without_calls,
)
from dreamgym.envs.tools.schemas import Tool, fault
from dreamgym.envs.tools.shortening import shorten_arguments
from dreamgym.errors import UsageError
from dreamgym.tool_calls import RESPOND, ToolCall, action_of, calls_of
from dreamgym.types import Action, Memory, Observation, Trajectory, Transition, View

Shown = Literal["latest", "whole"]
Refusals = Literal["error", "unchanged"]


class ToolRules(TextRules):
    """Rules that hold for any tools. `shown` is what the policy reads of a state: what the latest turn returned, for a policy whose
    conversation holds the earlier turns, or the whole state, for one that sees the present state alone (`policy.window = 0`). `refusals`
    is what follows a call that cannot be made: an error comes back, as from any host of tools, or the state stays as it is.
    """

    encodes_deltas = True
    from_schemas = True
    # A field or an argument with the syntax around its name, so that a value stands right behind its name: an induction head, which looks
    # one token back, then copies it by name. A space may stand before each, and after a bracket (see `llm.tiny`).
    token_patterns = (
        r"""(?:"?, ?)?[\[{]{0,16}"[\p{L}\p{N}_]{1,64}": ?(?:\[?\{|\[?"?)""",
        r"""(?:"?, ?|\( ?)[\p{L}\p{N}_]{1,64}="?""",
        r"""", ?"|"?[\])}]{1,16}""",
        r" ?\p{L}[\p{L}\p{N}]{0,64}(?:_[\p{L}\p{N}]{1,64}){1,16}",
        r" ?\p{N}{1,16}(?:[-.:]\p{N}{1,16}){1,16}",
    )
    action_format = 'End your reply with one tool call on a line of its own, such as get_user(id="u1").'

    def __init__(
        self,
        name: str,
        tools: Sequence[Tool],
        *,
        shown: Shown = "latest",
        limits: Limits | None = None,
        about: str = "",
        refusals: Refusals = "error",
    ) -> None:
        self.name, self.shown, self.limits, self.refusals = name, shown, limits or Limits(), refusals
        self.schemas = {tool.name: tool for tool in tools}
        self.tools = [{"name": one.name, "description": one.description, "parameters": dict(one.parameters)} for one in tools]
        self.about = about or _about(tools)
        self.partially_observed = any(tool.reads_only for tool in tools)

    def abstract(self, raw: dict[str, Any]) -> Observation:
        """The state mapping of {"exchanges": [Exchange, ...]}, or of {"text": ...} where it was applied before."""
        return Observation(raw["text"]) if "text" in raw else conversation_state(raw["exchanges"], self.limits)

    def canonical(self, action: Action) -> Action:
        """The calls with their arguments sorted, as `tool_calls.action_of` writes them; a text that is no call as it is."""
        try:
            return action_of(calls_of(action))
        except UsageError:
            return action.strip()

    def view(self, observation: Observation) -> View:
        """What the latest turn returned, or the whole state."""
        return View(latest_turn(observation) if self.shown == "latest" else observation.text)

    def tool_results(self, observation: Observation) -> tuple[Sequence[str], str]:
        """What each call of the latest turn returned, and what the user said then."""
        turns = turns_shown(observation)
        if not turns:
            return (observation.text,), ""
        lines = latest_turn(observation).split("\n")
        user = lines.pop().removeprefix(USER) if lines[-1].startswith(USER) else ""
        return _texts("\n".join(lines), sum(line.startswith((CALL, FURTHER)) for line in turns[-1])), user

    def without_actions(self, observation: Observation) -> str:
        """What tools and user said."""
        return without_calls(observation)

    def admissible(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """False for a text that is no call, an unknown tool, and arguments that its schema excludes. Where errors come back, other calls of
        the turn are made all the same, so that all must be excluded."""
        calls = _calls(action)
        faults = [fault(self.schemas, call) for call in calls] if calls else [self.fault(action)]
        return False if (all(faults) if self.refusals == "error" else any(faults)) else None

    def refusal(self, observation: Observation, action: Action) -> Observation:
        """The state with a turn whose calls all came back as errors, or the same state (`refusals`)."""
        if self.refusals == "unchanged":
            return observation
        calls = _calls(action)
        if calls is None:
            return extend(observation, no_call(action, self.fault(action)), self.limits)
        results = tuple(f"{ERROR}: {fault(self.schemas, call) or 'the call was refused'}." for call in calls)
        return extend(observation, Exchange(calls, results), self.limits)

    def reads_only(self, action: Action) -> bool:
        """Whether the schemas declare it of every tool that is called."""
        calls = _calls(action)
        return calls is not None and all(call.name in self.schemas and self.schemas[call.name].reads_only for call in calls)

    def fault(self, action: Action) -> str:
        """Why an action cannot be made; "" where nothing speaks against it."""
        try:
            calls = calls_of(action)
        except UsageError as error:
            return str(error)
        return next((found for call in calls if (found := fault(self.schemas, call))), "")

    def near_misses(self, episodes: Sequence[Trajectory]) -> Mapping[str, Miss]:
        """Calls with another tool, argument, type or identifier."""
        return near_misses.near_misses(self.schemas, episodes)

    def invalid_action(self, action: Action, rng: random.Random) -> Action:
        """One of the calls, spoilt; a text that is no call as the base class does it."""
        calls = _calls(action)
        return str(near_misses.invalid_call(rng.choice(calls), rng)) if calls else super().invalid_action(action, rng)

    def refused(self, transition: Transition) -> bool:
        """Whether nothing changed, or all that came back are errors."""
        if transition.is_noop or transition.reward or transition.terminated:
            return transition.is_noop
        results, user = self.tool_results(transition.next_state)
        return not user and all(result.startswith(ERROR) for result in results)

    def reveals_new(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """Whether a call is made for the first time; False where all were answered, and only tools that read were called since. None for a
        call that was answered before a change, and without tools that are known to read."""
        calls = _calls(action)
        if not self.partially_observed or calls is None:
            return None
        made, answers = set[str](), dict[str, str]()
        for pairs in self._answers(history):
            made |= {call for call, _, _ in pairs}
            answers = self._known(answers, pairs)
        if all(str(call) in answers for call in calls):
            return False
        return True if any(str(call) not in made for call in calls) else None

    def revisit_consistency(self, history: Sequence[Transition]) -> list[bool]:
        """For each call that was answered before, with only tools that read in between: whether it had the same answer."""
        answers, same = dict[str, str](), list[bool]()
        for pairs in self._answers(history):
            same += [answers[call] == answer for call, answer, _ in pairs if call in answers]
            answers = self._known(answers, pairs)
        return same

    def encode_delta(self, transition: Transition) -> str:
        """What the calls returned."""
        text = latest_turn(transition.next_state)
        return text if self.apply_delta(transition.state, transition.action, text) == transition.next_state else transition.next_state.text

    def apply_delta(self, observation: Observation, action: Action, text: str) -> Observation | None:
        """The state after the calls returned this; None where there are other calls in it. A whole state, which begins with a call, is
        the next state."""
        calls = _calls(action) or (no_call(action, "").calls if self.refusals == "error" else None)
        if not text.strip() or calls is None:
            return None
        if text.startswith((CALL, "(")) and turns_shown(Observation(text)):
            return Observation(text)
        first, *further = call_lines(calls, self.limits)
        if [line for line in text.split("\n") if line.startswith((CALL, FURTHER))] != further:
            return None
        return append_turn(observation, f"{first}\n{text}", self.limits)

    def memory_text(self, memory: Memory) -> str:
        """The calls, long arguments shortened, and what they returned."""
        calls = _calls(memory.action) or ()
        shown = "\n".join(str(shorten_arguments(call, self.limits.argument_chars)) for call in calls) or memory.action
        return f"{shown}\n{latest_turn(Observation(memory.next_state))}"

    def _answers(self, history: Sequence[Transition]) -> Iterator[list[tuple[str, str, bool]]]:
        """For each step its calls, what each returned, and whether the tool only reads. What a rule refused reached no tool."""
        for step in history:
            calls = _calls(step.action)
            if calls is None or not step.is_answer:
                continue
            texts = _texts(latest_turn(step.next_state), len(calls))
            yield [
                (str(call), text, call.name in self.schemas and self.schemas[call.name].reads_only)
                for call, text in zip(calls, texts, strict=True)
            ]

    @staticmethod
    def _known(answers: dict[str, str], pairs: list[tuple[str, str, bool]]) -> dict[str, str]:
        """The answers that still hold after these."""
        changed = any(not reads for call, _, reads in pairs if not call.startswith(f"{RESPOND}("))
        return {} if changed else answers | {call: answer for call, answer, reads in pairs if reads}


def _texts(returned: str, n: int) -> list[str]:
    """What each of `n` calls returned."""
    texts: list[list[str]] = [[]]
    for line in returned.split("\n"):
        if line.startswith(FURTHER) and len(texts) < n:
            texts.append([])
        else:
            texts[-1].append(line)
    return ["\n".join(lines) for lines in texts] + [""] * (n - len(texts))


@lru_cache(maxsize=4_096)
def _calls(action: Action) -> tuple[ToolCall, ...] | None:
    try:
        return tuple(calls_of(action))
    except UsageError:
        return None


def _about(tools: Sequence[Tool]) -> str:
    """The tools in words, for instruct models."""
    lines = [f"- {tool.name}: {' '.join(tool.description.split())} {_parameters(tool.parameters)}".rstrip() for tool in tools]
    return "\n".join(["The agent works with these tools:", *lines])


def _parameters(schema: Mapping[str, Any]) -> str:
    known, required = schema.get("properties") or {}, schema.get("required") or ()
    types = {key: value.get("type", "any") if isinstance(value, Mapping) else "any" for key, value in known.items()}  # true: any value
    return json.dumps({key + ("" if key in required else "?"): kind for key, kind in types.items()}) if known else ""
