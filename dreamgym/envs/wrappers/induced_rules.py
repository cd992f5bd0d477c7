"""A suite's rules as its logs show them: the state mapping, and what `envs.induction` found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count

from dreamgym.bracket_actions import ELEMENT
from dreamgym.envs.actions import parts
from dreamgym.envs.base import TextRules
from dreamgym.envs.consistency import CarryRule, RepeatRule, Shown, checks
from dreamgym.envs.induction import Rules, Source, sources
from dreamgym.envs.wrappers.without_rules import StateMapping
from dreamgym.types import Action, Observation, Transition, Verdict, View


def shown_by(rules: TextRules) -> Shown:
    """What the latest action showed, of a state, by the rules' `tool_results`."""

    def shown(state: Observation) -> str:
        results, user = rules.tool_results(state)
        return "\n".join((*results, user))

    return shown


class InducedRules(StateMapping):
    """The rules of a suite without hand-written ones, with induced rules on top. Of success they only judge ends that no log
    shows, and ways to it that contradict themselves."""

    def __init__(self, inner: TextRules, rules: Rules) -> None:
        super().__init__(inner)
        self.rules = rules
        for name in vars(TextRules):  # what follows from tools' schemas stays as it is
            if not name.startswith("_") and name not in vars(InducedRules):
                setattr(self, name, getattr(inner, name))
        self._arguments = {(rule.kind, rule.key): rule for rule in rules.arguments if rule.used and rule.source != "instruction"}
        self._asked = {
            (rule.kind, rule.key): rule for rule in rules.arguments if rule.used and rule.source == "instruction" and rule.identifier
        }
        self._values = {(rule.kind, rule.key): rule.values for rule in rules.values if rule.used}
        self._names = next((rule for rule in rules.names if rule.used), None)
        self._words = frozenset(self._names.words if self._names else ())
        self._noop = {rule.kind: rule for rule in rules.noop if rule.used}
        self._ends = rules.ends if rules.ends_complete and all(rule.used for rule in rules.ends) else ()

    def view(self, observation: Observation) -> View:
        """Names among the elements as numbers, where the logs show that actions choose them: `[b835] rug` is read as `[1] rug`."""
        return _numbered(observation.text, self._words, self._names.shown) if self._names else self.inner.view(observation)

    def admissible(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """False for an argument without a source or of a value that no log has, and for kinds that no log shows at work; True where each
        argument has a rule and a source. Of several calls in a turn all must be excluded: the others may be made all the same."""
        if self.inner.admissible(observation, history, action) is False:
            return False
        calls = [self._admissible(kind, arguments, observation, history) for kind, arguments in parts(action)]
        if calls and all(call is False for call in calls):
            return False
        return True if all(calls) else None

    def _admissible(self, kind: str, arguments: Mapping[str, str], observation: Observation, history: Sequence[Transition]) -> bool | None:
        """The same of one call."""
        if "*" in self._noop and kind not in self.rules.kinds:
            return False
        known = True
        for key, value in arguments.items():
            rule = self._arguments.get((kind, key))
            if rule and rule.source not in self._sources(value, "", observation, history if rule.source == "earlier" else ()):
                return False
            if value not in self._values.get((kind, key), (value,)):
                return False
            known = known and rule is not None
        return known or None

    def unfounded(self, instruction: str, observation: Observation, history: Sequence[Transition], action: Action) -> str:
        """For an identifier that neither the instruction nor any state so far shows, where all logged ones are from there."""
        if why := self.inner.unfounded(instruction, observation, history, action):
            return why
        reasons = [self._unfounded(kind, arguments, instruction, observation, history) for kind, arguments in parts(action)]
        return reasons[0] if reasons and all(reasons) else ""  # of several calls in a turn the others may be made all the same

    def _unfounded(
        self, kind: str, arguments: Mapping[str, str], instruction: str, observation: Observation, history: Sequence[Transition]
    ) -> str:
        for key, value in arguments.items():
            rule = self._asked.get((kind, key))
            if rule and not self._sources(value, instruction, observation, history):
                return f"No text so far names the {key} {value[:40]}, as in all but {rule.exceptions} of {rule.support} logged steps."
        return ""

    def noop_reason(self, observation: Observation, history: Sequence[Transition], action: Action) -> str:
        """For kinds of action that changed nothing in the logs."""
        if why := self.inner.noop_reason(observation, history, action):
            return why
        found = [self._noop.get(kind) for kind, _ in parts(action)]
        if not found or not all(found):
            return ""
        return f"{found[0].kind} changed nothing in {found[0].support} logged steps." if found[0] else ""

    def check_success(self, instruction: str, history: Sequence[Transition], claim: Transition) -> Verdict | None:
        """Refused for an end by an action that ends no logged episode, where the logs show all ends and each of these rules is used; None
        elsewhere."""
        if not self._ends or not claim.terminated:
            return None
        kinds = {kind for kind, _ in parts(claim.action)}
        known = (rule.action == claim.action if rule.whole else rule.action in kinds for rule in self._ends)
        return None if any(known) else Verdict("refused", (f"no logged episode ends by {claim.action[:80]}",))

    def contradictions(self, history: Sequence[Transition], claim: Transition) -> list[str]:
        """Where the way to a claimed success disagrees with what it showed before."""
        checked = self._checks((*history, claim), self.rules.repeats, self.rules.carries)
        return list(dict.fromkeys(why for _, agrees, why in checked if not agrees))

    def revisit_consistency(self, history: Sequence[Transition]) -> list[bool]:
        """For everything that the episode shows a second time, in the order of its steps: whether it agrees. What the tools' schemas judge,
        induced repeats do not judge once more."""
        judged = _by_step(self.inner, history)
        known = {i for i, _ in judged}
        judged += [(i, agrees) for i, agrees, _ in self._checks(history, self.rules.repeats, ()) if i not in known]
        judged += [(i, agrees) for i, agrees, _ in self._checks(history, (), self.rules.carries)]
        return [agrees for _, agrees in sorted(judged, key=lambda one: one[0])]

    def _checks(
        self, steps: Sequence[Transition], repeats: Sequence[RepeatRule], carries: Sequence[CarryRule]
    ) -> Iterator[tuple[int, bool, str]]:
        """`checks` of the steps that no rule answered, by their place among all."""
        places = [i for i, step in enumerate(steps) if step.info.decided_by != "rule"]
        for i, agrees, why in checks([steps[place] for place in places], repeats, carries, shown_by(self.inner)):
            yield places[i], agrees, why

    def _sources(self, value: str, instruction: str, observation: Observation, history: Sequence[Transition]) -> set[Source]:
        """Where a value stands in the instruction and in what the environment said."""
        earlier = (self.inner.without_actions(step.state) for step in history)
        return sources(value, instruction, self.inner.without_actions(observation), earlier)


def _by_step(rules: TextRules, history: Sequence[Transition]) -> list[tuple[int, bool]]:
    """`revisit_consistency` of these rules, each return with its step."""
    if not (agree := rules.revisit_consistency(history)):
        return []
    until = [len(rules.revisit_consistency(history[:n])) for n in range(len(history) + 1)]
    return [(i, agrees) for i in range(len(history)) for agrees in agree[until[i] : until[i + 1]]]


@lru_cache(maxsize=65536)
def _numbered(state: str, words: frozenset[str], shown: bool) -> View:
    """Elements that are neither words nor numbers, as numbers that no element of the state is."""
    listed = dict.fromkeys(ELEMENT.findall(state))
    free = (number for number in map(str, count(1)) if number not in listed)
    numbers = {name: next(free) for name in listed if name not in words and not name.isdigit()}

    def read(found: re.Match[str]) -> str:
        number = numbers.get(found[1])
        return found[0] if number is None else f"[{number}] {found[1]}" if shown else f"[{number}]"

    text = ELEMENT.sub(read, state)
    return View(text, {number: name for name, number in numbers.items()})
