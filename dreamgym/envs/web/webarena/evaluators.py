"""WebArena's evaluators: of an answer (string_match), of an address (url_match), and of pages (program_html). 1.0 or 0.0.

They give the scores of the original's code, with the changes that VisualAgentBench made for WebArena-Lite where `lite` is set; a test
compares them on all tasks. What a language model has to judge goes to a `Judge`. Three things differ in how they get there:

- Helper functions are looked up by name and never evaluated as code. An address with a quote in it is an argument like any other, where the
  original fails.
- A page is visited in a tab of its own and not in the agent's. As there, it is read `PAGE_S` seconds after it has loaded.
- The tokens among which an answer of one character is looked for are those of NLTK's word tokenizer. Sentences, which it is given one by
  one, end at `.`, `!` or `?` before a space here; the original asks NLTK's trained splitter, which leaves abbreviations whole.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import parse_qs, urlparse

from dreamgym.envs.web.webarena.tasks import WebArenaTask
from dreamgym.errors import UsageError

PAGE_S = 3.0
"""How long the scripts of a page that is visited may run before it is read."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_TREEBANK = [
    (re.compile(pattern), split)
    for pattern, split in (
        # quotes that open
        (r"([«“‘„]|`+)", r" \1 "),
        (r'^"', "``"),
        (r"(``)", r" \1 "),
        (r"""([ (\[{<])("|'')""", r"\1 `` "),
        (r"(?i)'(?!re|ve|ll|m|t|s|d|n)(?=\w\b)", "' "),
        # punctuation; a full stop only at the end, a colon or a comma not before a digit
        (r"""([^.])(\.)([\])}>"'»”’ ]*)\s*$""", r"\1 \2 \3 "),
        (r"([:,])([^\d])", r" \1 \2"),
        (r"([:,])$", r" \1 "),
        (r"(\.{2,}|[;@#$%&])", r" \1 "),
        (r"""([^.])(\.)([\])}>"']*)\s*$""", r"\1 \2\3 "),
        (r"([?!])", r" \1 "),
        (r"([^'])' ", r"\1 ' "),
        (r"(\*|[][(){}<>]|--)", r" \1 "),
        (r"^|$", " "),
        # quotes that close, and contractions
        (r"([»”’]|'')", r" \1 "),
        (r'"', " '' "),
        (r"\s+", " "),
        (r"(?i)([^' ])('[smd]|') ", r"\1 \2 "),
        (r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", r"\1 \2 "),
        (r"(?i)\b(can)(not)\b", r" \1 \2 "),
        (r"(?i)\b(d)('ye)\b", r" \1 \2 "),
        (r"(?i)\b(gim|lem)(me)\b", r" \1 \2 "),
        (r"(?i)\b(gon|got)(na|ta)\b", r" \1 \2 "),
        (r"(?i)\b(more)('n)\b", r" \1 \2 "),
        (r"(?i)\b(wan)(na)(?=\s)", r" \1 \2 "),
        (r"(?i) ('t)(is)\b", r" \1 \2 "),
        (r"(?i) ('t)(was)\b", r" \1 \2 "),
    )
]
"""How NLTK's word tokenizer (3.9), after the Penn Treebank, sets tokens apart: each pattern in turn."""
_FUNCTION = re.compile(r"^func:\s*(\w+)\((.*)\)\s*$", re.DOTALL)
_ARGUMENT = re.compile(r"""\s*(?:'([^']*)'|"([^"]*)"|(__page__))\s*(?:,|$)""")


class Judge(Protocol):
    """Decides what no program can."""

    def same(self, answer: str, reference: str, question: str) -> bool:
        """Whether the answer means what the reference says."""
        ...

    def same_reason(self, answer: str, reference: str, question: str) -> bool:
        """Whether the answer says why the task cannot be done, as the reference does."""
        ...


class Page(Protocol):
    """What the evaluators use of a Playwright page."""

    @property
    def url(self) -> str: ...
    def goto(self, url: str) -> Any: ...
    def content(self) -> str: ...
    def evaluate(self, expression: str) -> Any: ...


Helper = Callable[..., str]
"""A helper function of a site, such as `shopping_get_latest_order_url`. Where the task says `__page__` it gets the page."""


def score(
    task: WebArenaTask,
    answer: str,
    page: Page,
    *,
    judge: Judge | None,
    helpers: Mapping[str, Helper],
    lite: bool = True,
    fresh: Page | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> float:
    """The product of all evaluators of a task. `answer` is what the agent stopped with, `page` its active tab; `fresh` is where other
    pages are visited (default: in `page`), and `wait` passes so many seconds after a visit. UsageError where a judge is needed and there is
    none, or for a helper that is not known."""
    result = 1.0
    for kind in task.eval["eval_types"]:
        if kind == "string_match":
            result *= string_match(task, answer, judge)
        elif kind == "url_match":
            result *= url_match(task, page.url)
        else:
            result *= program_html(task, page, judge=judge, helpers=helpers, lite=lite, fresh=fresh, wait=wait)
    return result


def clean(answer: str) -> str:
    """Without space and quotes around it, in lower case."""
    answer = answer.strip()
    for quote in ("'", '"'):
        if answer.startswith(quote) and answer.endswith(quote):
            return answer[1:-1].lower()
    return answer.lower()


def tokens(text: str) -> list[str]:
    """Words, numbers and signs of a text, by the Penn Treebank's rules: `5-star`, `+5` and `£5` are one token, `$5` and `5%` are two."""
    return [token for sentence in sentences(text) for token in words(sentence)]


def sentences(text: str) -> list[str]:
    """The sentences of a text."""
    return _SENTENCE.split(text)


def words(sentence: str) -> list[str]:
    """The tokens of a sentence."""
    for pattern, split in _TREEBANK:
        sentence = pattern.sub(split, sentence)
    return sentence.split()


def includes(reference: str, answer: str, *, alone: bool = False) -> bool:
    """Whether the answer contains the reference; `alone` where one character must be a token of its own, so that 10 contains no 0."""
    wanted, given = clean(reference), clean(answer)
    if alone and len(wanted) == 1 and not wanted.isspace():
        return wanted in tokens(given)
    return wanted in given


def string_match(task: WebArenaTask, answer: str, judge: Judge | None) -> float:
    """Whether the answer is right: exact, by what it must include, or by a judge."""
    given, result = clean(answer), True
    for approach, wanted in (task.eval["reference_answers"] or {}).items():
        if approach == "exact_match":
            result &= clean(given) == clean(wanted)
        elif approach == "must_include":
            result &= all([includes(one, given, alone=len(wanted) == 1) for one in wanted])
        elif approach == "fuzzy_match" and wanted == "N/A":
            # as in the original, the judge's word replaces what was decided before it
            if not (result and clean(given) == clean(wanted)):
                result = _judge(judge, task).same_reason(given, task.eval.get("string_note") or "", task.intent)
        elif approach == "fuzzy_match":
            result &= all([_judge(judge, task).same(given, one, task.intent) for one in wanted])
    return float(result)


def url_match(task: WebArenaTask, url: str) -> float:
    """Whether the address contains one of the reference addresses, and for each of their parameters one of its values."""
    rule = task.eval.get("url_note") or "GOLD in PRED"
    if rule != "GOLD in PRED":
        raise UsageError(f"Task {task.id} matches addresses by the unknown rule '{rule}'.")
    base, query = _address(url)
    references = [_address(one) for one in task.eval["reference_url"].split(" |OR| ")]
    wanted: dict[str, set[str]] = {}
    for _, parameters in references:
        for key, values in parameters.items():
            wanted.setdefault(key, set()).update(values)
    return float(
        any(reference in base for reference, _ in references)
        and all(any(value in query.get(key, ()) for value in values) for key, values in wanted.items())
    )


def program_html(
    task: WebArenaTask,
    page: Page,
    *,
    judge: Judge | None,
    helpers: Mapping[str, Helper],
    lite: bool,
    fresh: Page | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> float:
    """Whether every page that the task names shows what it must."""
    result = True
    for target in task.eval["program_html"]:
        url, shown_in = target["url"], page
        if url.startswith("func"):
            url = _call(url, helpers, page, task, last_url=page.url)
        if url != "last":
            shown_in = fresh or page
            shown_in.goto(url)
            wait(PAGE_S)
        shown = _select(target, shown_in, helpers, task, lite)
        if shown is None:
            return 0.0
        shown = shown if lite else html.unescape(shown)
        wanted = target["required_contents"]
        if "exact_match" in wanted:
            result &= clean(shown) == clean(wanted["exact_match"])
        elif "must_include" in wanted:
            result &= all([any(includes(one, shown) for one in content.split(" |OR| ")) for content in wanted["must_include"]])
        elif "fuzzy_match" in wanted and lite:
            result &= _judge(judge, task).same(shown, ", ".join(wanted["fuzzy_match"]), task.intent)
        else:
            raise UsageError(f"Task {task.id} requires contents by the unknown rule '{', '.join(wanted)}'.")
    return float(result)


def _select(target: Mapping[str, Any], page: Page, helpers: Mapping[str, Helper], task: WebArenaTask, lite: bool) -> str | None:
    """What a target looks at; "" where the page does not have it, None where that decides."""
    locator: str = target["locator"]
    if not locator.strip():
        return page.content()
    if locator.startswith(("document.", "[...document.")):
        with suppress(Exception):  # as in the original: a script that fails has prepared nothing
            for action in target.get("prep_actions", ()):
                page.evaluate(f"() => {action}")
        with suppress(Exception):  # the wrong page
            return str(page.evaluate(f"() => {locator}")) or ""
        return ""
    if lite and locator.startswith("lambda:"):
        with suppress(Exception):
            return page.evaluate(locator.lstrip("lambda:")) or None  # noqa: B005 (the original's)
        return None
    if locator.startswith("func:"):
        return _call(locator, helpers, page, task)
    raise UsageError(f"Task {task.id} has the unknown locator '{locator:.60}'.")


def _call(text: str, helpers: Mapping[str, Helper], page: Page, task: WebArenaTask, *, last_url: str = "__last_url__") -> str:
    """The result of a helper that a task names with its arguments, in which `__last_url__` stands for `last_url`."""
    match = _FUNCTION.match(text)
    helper = helpers.get(match[1]) if match else None
    if match is None or helper is None:
        raise UsageError(f"Task {task.id} calls the unknown helper '{text:.60}'. Known: {', '.join(helpers)}.")
    found, rest = list[Any](), match[2].strip()
    while rest:
        argument = _ARGUMENT.match(rest)
        if not argument:
            raise UsageError(f"Task {task.id} calls '{match[1]}' with arguments that are no texts: {rest:.60}")
        value = argument[1] if argument[1] is not None else argument[2]
        found.append(page if argument[3] else value.replace("__last_url__", last_url))
        rest = rest[argument.end() :]
    return helper(*found)


def _judge(judge: Judge | None, task: WebArenaTask) -> Judge:
    if judge is None:
        raise UsageError(f"Task {task.id} needs a judge, and there is none. Name one: env.options.judge = 'module:function'.")
    return judge


def _address(url: str) -> tuple[str, dict[str, list[str]]]:
    """(host and path, parameters) of an address."""
    parts = urlparse(url.rstrip("/"))
    return parts.netloc + parts.path, parse_qs(parts.query)
