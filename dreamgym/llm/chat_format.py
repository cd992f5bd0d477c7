"""Chat templates, applied once: the tokens around what a model samples, taken from its tokenizer's own template.

    conversation = opening(system, user) + sampled + turn(text) + sampled + turn(text) + ...

Rendering a growing conversation again at every turn would encode sampled text anew, and some templates change what was said before: ids
that the model never sampled would be trained. So the template is taken apart at the start, with marks in the place of the messages, and
afterwards only its fixed parts are used. What is sampled stays as it was sampled, its end token included.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from dreamgym.errors import UsageError
from dreamgym.runs.files import without_lone_surrogates

log = logging.getLogger(__name__)

ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|end_of_text|>", "<|endoftext|>")
"""Special tokens by which known instruct models end a turn, beside the template's own and the tokenizer's eos."""

RARE = "\U0010fffd"
"""A letter that no tokenizer knows: what becomes of it is its unknown token, unless it writes letters as bytes."""

SYSTEM, USERS, REPLIES = "dgsystemdg", ("dguseradg", "dguserbdg", "dguserdgc"), ("dgreplyadg", "dgreplybdg")


class Unstable(Exception):
    """The template does not put the messages one after the other."""


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The fixed parts of a template, in one of its forms: with a system message, or without."""

    opening: tuple[str, ...]  # the text before, between and after the system message and the first user message
    turn: tuple[str, str]  # the text between a reply and the user's message (the end of the reply included), and after it
    rewrites: bool  # whether a longer conversation does not begin as the shorter one did


class ChatFormat:
    """How one model's conversations are written.

    `end` is the token that ends a reply in the template, `stop` every token that may. `system_role` is False for templates that have no
    lasting place for a system message: it then leads the first user message. `rewrites_history` is True for templates that would render
    earlier turns in another way than they were sampled (without their thinking, for example); here they stay as sampled.
    """

    def __init__(self, tokenizer: Any, **variables: Any) -> None:
        """`variables` go to the template, such as enable_thinking=False or a fixed date_string. UsageError when there is no template, or
        none whose conversations can be continued."""
        self.tokenizer, self.variables = tokenizer, variables
        self.name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError(f"The tokenizer of '{self.name}' has no chat template. Use an instruct model as backbone.")
        self.special = {i: str(t) for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self.special |= {tokenizer.convert_tokens_to_ids(name): name for name in tokenizer.all_special_tokens}
        if tokenizer.unk_token_id in tokenizer.encode(RARE, add_special_tokens=False, split_special_tokens=True):
            self.special.pop(tokenizer.unk_token_id, None)  # a rare letter is not forged; where letters are bytes, the token is
        # `<tool_call>` and `<think>` are single tokens of some models without being special, and mean as much where the template has them
        template = str(tokenizer.chat_template)
        marks = {i: str(t) for i, t in tokenizer.added_tokens_decoder.items() if not t.special and str(t).strip() and str(t) in template}
        self.special |= marks
        self._marks = re.compile("|".join(map(re.escape, sorted(marks.values(), key=len, reverse=True)))) if marks else None
        try:
            plain = self._take_apart(system=False)
        except Unstable as error:
            raise UsageError(
                f"The chat template of '{self.name}' cannot be continued turn by turn: {error}. Use another template or another model."
            ) from error
        framed = self._framed(plain)
        self.system_role = framed is not None
        self._openings = (plain.opening, framed.opening if framed else plain.opening)
        self.rewrites_history = plain.rewrites or self._forgets_thinking()
        self.end, before, after = self._end_of(plain.turn)
        self._turn = (before, after)
        known = {name: i for i, name in self.special.items()}
        eos = tokenizer.eos_token_id
        ids = [self.end, *([] if eos is None else [eos]), *(known[name] for name in ENDS if name in known)]
        self.stop: tuple[int, ...] = tuple(dict.fromkeys(ids))
        self._stripped = self._stripping()
        self._turn_ids = lru_cache(maxsize=50_000)(self._encode_turn)
        self._check()
        if self.rewrites_history:
            log.info("The chat template of '%s' rewrites earlier turns; conversations keep them as they were sampled.", self.name)

    def opening(self, system: str | None, user: str) -> list[int]:
        """The beginning of a conversation up to where the model replies."""
        system, user = self.framed(system, user)
        texts = [self.shown("user", user)] if system is None else [self.shown("system", system), self.shown("user", user)]
        first, *rest = self._openings[system is not None]
        return self.encode_parts([first, *(part for pair in zip(texts, rest, strict=True) for part in pair)])

    def framed(self, system: str | None, user: str) -> tuple[str | None, str]:
        """The messages of an opening: the system message leads the user's where the template has no place for it."""
        return (system, user) if system is None or self.system_role else (None, f"{system}\n\n{user}")

    def turn(self, text: str) -> list[int]:
        """The ids between a reply, its end token included, and the next one, with the user's `text`."""
        return list(self._turn_ids(text))

    def follow(self, reply: Sequence[int], text: str) -> list[int]:
        """`turn` behind this reply, after the end token that a reply cut short lacks."""
        ended = bool(reply) and reply[-1] in self.stop
        return [*(() if ended else (self.end,)), *self.turn(text)]

    def encode(self, text: str) -> list[int]:
        """Ids of text alone, none of them special. Half characters become question marks."""
        text = without_lone_surrogates(text)
        # the tokenizer itself takes only special tokens for text, so the others are cut behind their first letter
        cuts = [0, *(found.start() + 1 for found in self._marks.finditer(text)), len(text)] if self._marks else [0, len(text)]
        ids = list[int]()
        for start, end in pairwise(cuts):
            ids += self.tokenizer.encode(text[start:end], add_special_tokens=False, split_special_tokens=True)
        return [i for i in ids if i not in self.special]

    def _encode_turn(self, text: str) -> tuple[int, ...]:
        # with the end token before it, which some tokenizers' first-word rules look at
        before, after = self._turn
        return tuple(self.encode_parts([self.special[self.end] + before, self.shown("user", text), after])[1:])

    def shown(self, role: str, text: str) -> str:
        """A message's text as the template shows it."""
        return text.strip() if role in self._stripped else text

    def encode_parts(self, parts: Sequence[str]) -> list[int]:
        """Ids of fixed parts (even places) and texts (odd places) as one string, as transformers encodes it.

        Where a text would bring special tokens of its own, those of the fixed parts are ids by themselves, and all between is text.
        Half characters become question marks.
        """
        parts = [without_lone_surrogates(part) for part in parts]
        whole = self.tokenizer.encode("".join(parts), add_special_tokens=False, split_special_tokens=False)
        cut = [self.split_special(part) if i % 2 == 0 else [part] for i, part in enumerate(parts)]
        wanted = [piece for i, prompt_parts in enumerate(cut) if i % 2 == 0 for piece in prompt_parts if isinstance(piece, int)]
        if [i for i in whole if i in self.special] == wanted:
            return list(whole)
        ids: list[int] = []
        letters = ""
        for piece in (piece for prompt_parts in cut for piece in prompt_parts):
            if isinstance(piece, int):
                ids += [*self.encode(letters), piece]
                letters = ""
            else:
                letters += piece
        return [*ids, *self.encode(letters)]

    def split_special(self, fixed: str) -> list[str | int]:
        """A fixed part as text and ids of special tokens."""
        known: dict[str, str | int] = {name: i for i, name in self.special.items()}
        longest_first = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
        return [known.get(piece, piece) for piece in re.split(f"({longest_first})", fixed) if piece]

    def render(self, messages: Sequence[Mapping[str, Any]], **more: Any) -> str:
        """The template's text of messages, up to the next reply. Raises what the template raises."""
        variables = {**self.variables, **more}
        text: str = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **variables)
        return text

    def _render(self, *messages: tuple[str, str]) -> str:
        return self.render([{"role": role, "content": content} for role, content in messages])

    def _messages(self, exchanges: int, *, system: bool) -> list[tuple[str, str]]:
        """Marks in the place of messages: `exchanges` users' messages with replies between them."""
        talk = [("user", USERS[0])]
        for i in range(1, exchanges):
            talk += [("assistant", REPLIES[i - 1]), ("user", USERS[i])]
        return [("system", SYSTEM), *talk] if system else talk

    def _take_apart(self, *, system: bool) -> _Fixed:
        """The fixed parts of the template, found in conversations of one, two and three messages of the user."""
        texts, found = [], []
        for exchanges in (1, 2, 3):
            messages = self._messages(exchanges, system=system)
            try:
                text = self._render(*messages)
            except Exception as error:  # a boundary: templates raise what they like
                raise Unstable(f"it refuses the roles {', '.join(role for role, _ in messages)} ({error})") from error
            texts.append(text)
            found.append(between(text, [mark for _, mark in messages]))
        turns = [(found[1][-2], found[1][-1]), (found[2][-2], found[2][-1]), (found[2][-4], found[2][-1])]
        if len(set(turns)) > 1:
            raise Unstable("what follows a reply differs from turn to turn")
        if system and any(parts[:2] != found[0][:2] for parts in found):
            raise Unstable("the system message moves")
        grown = texts[2].startswith(texts[1]) and texts[1].startswith(texts[0])
        lead = texts[1][len(texts[0]) : texts[1].index(REPLIES[0])] if grown else ""
        return _Fixed(tuple(found[0]), turns[0], rewrites=not grown or bool(lead.strip()))

    def _framed(self, plain: _Fixed) -> _Fixed | None:
        """The parts with a system message; None when the template has no place for one that stays."""
        try:
            found = self._take_apart(system=True)
        except Unstable:
            return None
        return found if found.turn == plain.turn else None

    def _forgets_thinking(self) -> bool:
        """Whether the template leaves the thinking out of replies that are past."""
        with_thinking = f"<think>\n{REPLIES[1]}\n</think>\n\n{REPLIES[0]}"
        return REPLIES[1] not in self._render(("user", USERS[0]), ("assistant", with_thinking), ("user", USERS[1]))

    def _end_of(self, turn: tuple[str, str]) -> tuple[int, str, str]:
        """(id of the token that ends a reply, the text between it and the user's message, the text behind that)."""
        prompt_parts = self.split_special(turn[0].lstrip())
        if not prompt_parts or not isinstance(prompt_parts[0], int):
            raise UsageError(
                f"The chat template of '{self.name}' ends a reply with {turn[0][:20]!r}, which is no special token: a sampled reply would "
                "have no end. Use another template or another model."
            )
        return prompt_parts[0], turn[0].lstrip().removeprefix(self.special[prompt_parts[0]]), turn[1]

    def _stripping(self) -> set[str]:
        """The roles whose messages the template strips. UsageError when it does anything else to them."""
        messages = self._messages(1, system=self.system_role)
        plain, found = self._render(*messages), set()
        for role, mark in messages:
            wide = f"\n {mark} \n"
            text = self._render(*((r, wide if r == role else content) for r, content in messages))
            if text == plain:
                found.add(role)
            elif text != plain.replace(mark, wide):
                raise UsageError(f"The chat template of '{self.name}' changes the text of messages. Use another template or another model.")
        return found

    def _check(self) -> None:
        """Our ids begin and end a conversation of the template. UsageError when they do not."""
        system = SYSTEM if self.system_role else None
        messages = self._messages(2, system=self.system_role)
        ids = self.tokenizer.encode(self._render(*messages), add_special_tokens=False, split_special_tokens=False)
        opening, closing = self.opening(system, USERS[0]), [self.end, *self.turn(USERS[1])]
        if ids[-len(closing) :] != closing or (not self.rewrites_history and ids[: len(opening)] != opening):
            raise UsageError(
                f"The tokenizer of '{self.name}' joins letters across the borders of messages, so that its conversations cannot be "
                "continued token by token. Use another model."
            )


def between(text: str, marks: Sequence[str]) -> list[str]:
    """The text before, between and after the marks. Unstable unless each is there once, in this order."""
    parts = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found or mark in text:
            raise Unstable(f"of the messages {', '.join(marks)} it does not show each once and in order")
        parts.append(before)
    return [*parts, text]
