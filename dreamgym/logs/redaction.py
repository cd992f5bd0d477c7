"""Keys, tokens and e-mail addresses in logs, replaced by placeholders. A secret keeps its placeholder throughout an episode, so that an
argument that was copied from a result still equals it. Patterns find what has a known form; they cannot find every secret."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dreamgym.logs.records import Call, LoggedEpisode, Message, Result

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
PLACEHOLDER = re.compile(r"redacted-(?:e-mail|key|secret|token)-\d+")
NAMES = ("passw", "secret", "key", "token")
HINTS = ("sk", "pk", "rk", "gh", "glpat", "hf_", "xox", "AKIA", "ASIA", "AIza", "eyJ", "github_pat_")


class Redactor:
    """Redacts one episode after another, and counts by kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._known: dict[str, str] = {}
        self._named_ids: dict[str, str] = {}

    def episode(self, episode: LoggedEpisode) -> LoggedEpisode:
        """The episode without secrets in its messages, its instruction and the ids of it and its task."""
        self._known = self._named_ids  # one placeholder in all episodes, so that ids stay apart
        name, task = self.text(episode.id), self.text(episode.task)
        self._known = {}
        messages = tuple(map(self._message, episode.messages))
        return replace(episode, id=name, task=task, messages=messages, instruction=self.text(episode.instruction))

    def restored(self, value: Any) -> Any:
        """A JSON value with the secrets of the latest episode in place of their placeholders."""
        if isinstance(value, str):
            secrets = {placeholder: secret for secret, placeholder in self._known.items()}
            return PLACEHOLDER.sub(lambda found: secrets.get(found[0], found[0]), value)
        if isinstance(value, Mapping):
            return {key: self.restored(one) for key, one in value.items()}
        return [self.restored(one) for one in value] if isinstance(value, list) else value

    def text(self, text: str) -> str:
        if "PRIVATE KEY" in text:
            text = PEM.sub(lambda found: self._placeholder("key", found[0]), text)
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
        before, placeholder = found[0].removesuffix(value), self._placeholder("secret", value)
        if found["bare"] and found["key"] and not before.endswith(("'", '"')):  # a number in JSON, where a placeholder is a string
            placeholder = f"{found['key']}{placeholder}{found['key']}"
        return before + placeholder

    def _message(self, message: Message) -> Message:
        calls = tuple(Call(call.id, call.name, self._value(call.arguments)) for call in message.calls)
        results = tuple(Result(result.call_id, self.text(result.text)) for result in message.results)
        return replace(message, text=self.text(message.text), calls=calls, results=results)

    def _value(self, value: Any, name: str = "") -> Any:
        if isinstance(value, str | int | float) and not isinstance(value, bool) and SECRET_NAME.fullmatch(name) and len(str(value)) >= 6:
            return self._placeholder("secret", str(value))
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self._value(one, key) for key, one in value.items()}
        return [self._value(one) for one in value] if isinstance(value, list) else value

    def _placeholder(self, kind: str, secret: str) -> str:
        if (found := PLACEHOLDER.match(secret)) and (found[0] == secret or kind != "secret"):
            return secret  # a pattern may take in a placeholder with what stands behind it; a named value is redacted whole
        self.counts[kind] += 1
        return self._known.setdefault(secret, f"redacted-{kind}-{len(self._known) + 1}")
