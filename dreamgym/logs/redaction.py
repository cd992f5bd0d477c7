"""Keys, tokens and e-mail addresses in logs, replaced by placeholders. A secret keeps its placeholder throughout an episode, so that an
argument that was copied from a result still equals it. Placeholders are numbered in the order of what an episode shows, turn by turn, and
by nothing that is left out of it: whoever reads the first turns of a conversation gets the same ones. Patterns find what has a known
form; they cannot find every secret. One that was found is replaced in whatever follows, too; an argument that is named like a secret
stays where the episode shows it before, since whoever acts can copy that and has no placeholder for it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dreamgym.envs.tools.conversation import Exchange, Limits
from dreamgym.envs.tools.shortening import shorten_result
from dreamgym.errors import UsageError
from dreamgym.tool_calls import ToolCall

EMAIL = re.compile(r"[A-Za-z0-9_%+-][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}")
KEY = re.compile(
    r"(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_]){0,3}[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|xox[abposr]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
)
BEARER = re.compile(r"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{12,}")
BASIC = re.compile(r"(?i)(authorization\\?[\"']?\s*[:=]\s*\\?[\"']?basic )([a-z0-9+/=_-]{6,})")
IN_URL = re.compile(r"(://[^\s:/@\"']{0,64}:)([^\s/\"'\\]+)(?=@)")
PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?")
SECRET = r"(?:password|passwd|secret|(?:secret|access|api|private)[_-]?(?:access[_-]?)?key|(?:access|auth)[_-]?token)"
VALUES = (
    r"(?P<quote>[\"'])(?P<quoted>(?:(?!(?P=quote))[^\\\n]|\\.){6,})(?=(?P=quote))",  # to the closing quote, which is not escaped
    r"\\(?P<inner>[\"'])(?P<nested>(?:(?!(?P=inner))[^\\\n]|\\\\(?:\\.|[^\\\n])){6,})(?=\\(?P=inner))",  # the same in JSON that is a string
    r"\\?[\"']?(?P<bare>(?:(?(key)[^\s\"',;\\{}\[\]]|[^\s\"',;\\])){6,})",  # to a space or comma; in JSON also to a bracket
)
TOKEN = "token"  # as a key of JSON alone: `next_token` is none that anybody keeps secret, and code has variables of that name
NAMED = re.compile(rf"(?i)(?:{SECRET}|(?<=[\"']){TOKEN}(?=\\?[\"']))(?P<key>\\?[\"'])?\s*[:=]\s*(?:{'|'.join(VALUES)})")
SECRET_NAME = re.compile(rf"(?i)(?:.*(?:[_-]|(?-i:(?=[A-Z]))))?{SECRET}|{TOKEN}")
PLACEHOLDER = re.compile(r"redacted-(e-mail|key|secret|token)-\d+")
WRITTEN = re.compile(r"redacted-(?:e-mail|key|secret|token)(?:-\d*)?")  # a placeholder as a policy writes it, also where it breaks off
NUMBER = re.compile(r"[\d.]+")
NAMES = ("passw", "secret", "key", "token")
HINTS = ("sk", "pk", "rk", "gh", "glpat", "hf_", "xox", "AKIA", "ASIA", "AIza", "eyJ", "github_pat_")


@dataclass
class _Placeholders:
    """By secret. None of them is one of `written`, which stood in the texts before and stand for themselves."""

    written: frozenset[str] = frozenset()
    by_secret: dict[str, str] = field(default_factory=dict)
    by_placeholder: dict[str, str] = field(default_factory=dict)

    def of(self, kind: str, secret: str) -> str:
        if secret not in self.by_secret:
            number = len(self.by_secret) + 1
            while (name := f"redacted-{kind}-{number}") in self.written or name in self.by_placeholder:
                number += 1
            self.by_secret[secret], self.by_placeholder[name] = name, secret
        return self.by_secret[secret]

    def known(self, text: str) -> str:
        """The text with the secrets so far replaced wherever they stand, also as JSON escapes them. Numbers stay: they may mean anything
        else, and in JSON a placeholder would be no value."""
        for secret in sorted((one for one in self.by_secret if not NUMBER.fullmatch(one)), key=len, reverse=True):
            for written in {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}:
                if written in text:
                    text = _alone(written).sub(self.by_secret[secret], text)
        return text


class Redactor:
    """Redacts one episode after another."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By kind, the placeholders in texts that `count` was given."""
        self._ids = _Placeholders()  # of all episodes, so that ids stay apart
        self._here = self._latest = _Placeholders()
        self._shown: list[str] = []  # the texts of the latest episode so far, without its secrets

    def name(self, text: str) -> str:
        """An id of an episode or of a task without secrets."""
        self._here = self._ids
        text = self.text(text)
        self._here = self._latest
        return text

    def begin(self, instruction: str, turns: Sequence[Exchange]) -> None:
        """A new episode with these texts. Placeholders that stand in them already stand for themselves."""
        self._here = self._latest = _Placeholders(frozenset(WRITTEN.findall(repr((instruction, turns)))))
        self._shown = []

    def conversation(self, instruction: str, turns: Sequence[Exchange]) -> tuple[str, list[Exchange]]:
        """A new episode without secrets."""
        self.begin(instruction, turns)
        self._shown.append(self.text(instruction))
        return self._shown[0], [self._exchange(turn) for turn in turns]

    def count(self, texts: Iterable[str]) -> None:
        """Count the placeholders of the latest episode, and of ids, in texts of it."""
        made = self._latest.by_placeholder.keys() | self._ids.by_placeholder.keys()
        self.counts.update(one[1] for text in texts for one in PLACEHOLDER.finditer(text) if one[0] in made)

    def restored(self, value: Any) -> Any:
        """A JSON value with the secrets of the latest episode in place of their placeholders. UsageError for a placeholder that stands for
        nothing there."""
        if isinstance(value, str):
            return WRITTEN.sub(lambda one: self._secret(one[0]), value)
        if isinstance(value, Mapping):
            return {self.restored(key): self.restored(one) for key, one in value.items()}
        return [self.restored(one) for one in value] if isinstance(value, list) else value

    def _secret(self, placeholder: str) -> str:
        if placeholder in self._latest.written:
            return placeholder
        if placeholder not in self._latest.by_placeholder:
            raise UsageError(f"'{placeholder}' stands for nothing in this conversation")
        return self._latest.by_placeholder[placeholder]

    def text(self, text: str) -> str:
        found = self._here.known(self._matched(text))
        return found if found == text else self.text(found)  # a placeholder may stand where a pattern looks for a secret

    def _matched(self, text: str) -> str:
        """The text with placeholders for what the patterns match."""
        if "PRIVATE KEY" in text:
            text = PEM.sub(lambda found: self._placeholder("key", _decoded(found[0], 2)), text)
        if any(hint in text for hint in HINTS):
            text = KEY.sub(lambda found: self._placeholder("key", found[0]), text)
        if "earer " in text:
            text = BEARER.sub(lambda found: self._placeholder("token", found[0]), text)
        if "asic " in text.lower():
            text = BASIC.sub(lambda found: found[1] + self._placeholder("token", found[2]), text)
        if "@" in text:
            text = IN_URL.sub(lambda found: found[1] + self._placeholder("secret", found[2]), text)
            text = EMAIL.sub(lambda found: self._placeholder("e-mail", found[0]), text)
        if any(name in (lower := text.lower()) for name in NAMES) and (":" in lower or "=" in lower):
            text = NAMED.sub(self._named, text)
        return text

    def _named(self, found: re.Match[str]) -> str:
        value = found["quoted"] or found["nested"] or found["bare"]
        secret = value if found["bare"] else _decoded(value, 2 if found["nested"] else 1)
        before, placeholder = found[0].removesuffix(value), self._placeholder("secret", secret)
        if found["bare"] and found["key"] and not before.endswith(("'", '"')):  # a number in JSON, where a placeholder is a string
            placeholder = f"{found['key']}{placeholder}{found['key']}"
        return before + placeholder

    def _exchange(self, turn: Exchange) -> Exchange:
        calls = tuple(ToolCall(call.name, self._value(call.arguments)) for call in turn.calls)
        shown = Exchange(calls, tuple(map(self.text, turn.results)), self.text(turn.user_text))
        self._shown += [*map(str, calls), *shown.results, shown.user_text]
        return shown

    def _value(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str | int | float) and not isinstance(value, bool) and SECRET_NAME.fullmatch(name) and len(str(value)) >= 6:
            return value if self._is_shown(str(value)) else self._placeholder("secret", str(value))
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self._value(one, key) for key, one in value.items()}
        return [self._value(one) for one in value] if isinstance(value, list) else value

    def _is_shown(self, secret: str) -> bool:
        """Whether the episode showed a secret before, which nothing has told to be one so far."""
        if secret in self._here.by_secret:
            return False
        alone, limit = _alone(secret), Limits().result_chars
        return any(secret in text and alone.search(shorten_result(text, limit)) for text in self._shown)

    def _placeholder(self, kind: str, secret: str) -> str:
        if (found := PLACEHOLDER.match(secret)) and (found[0] == secret or kind != "secret"):
            return secret  # a pattern may take in a placeholder with what stands behind it; a named value is redacted whole
        return self._here.of(kind, secret)


def _alone(secret: str) -> re.Pattern[str]:
    """A secret that is no part of a longer word, such as of an id or of a placeholder. A line may begin before it as JSON escapes it."""
    return re.compile(rf"(?:(?<![\w-])|(?<=\\[nrt])){re.escape(secret)}(?![\w-])")


def _decoded(text: str, times: int) -> str:
    """What a part of a JSON string stands for, or, with 2 `times`, of one in another: arguments have the secret without escapes. What is no
    JSON stays."""
    try:
        for _ in range(times):
            text = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        pass
    return text
