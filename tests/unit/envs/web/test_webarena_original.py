"""Our evaluators beside the original's code, on all tasks of WebArena-Lite and on WebArena's 812, for right, wrong and near answers.

Runs where `libwebarena` is installed: `make test-peers PEERS=webarena`. Stubbed, the same on both sides: the judge (a language model), the
sites (pages and helper functions answer from a table), and NLTK's sentence splitter, whose data is a download, by ours; its word tokenizer
is the original's. Not compared: what a site's real pages hold.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import random
import sys
import types
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from dreamgym.envs.web.webarena import evaluators, helpers
from dreamgym.envs.web.webarena.tasks import WebArenaTask, read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("webarena") is None, reason="libwebarena is not installed: make test-peers PEERS=webarena"),
]
STUBBED = ("openai", "tiktoken", "aiolimiter", "text_generation", "evaluate", "nltk", "nltk.tokenize")
"""Packages of the original's that only its judge and its agents use, and NLTK. Each is stubbed where it is not installed."""
ADDRESSES = {
    name: f"http://{name.lower()}.test" for name in ("REDDIT", "GITLAB", "SHOPPING", "SHOPPING_ADMIN", "WIKIPEDIA", "MAP", "HOMEPAGE")
}


def judged(answer: str, reference: str, question: str) -> float:
    """The judge on both sides: whether the answer holds the first word of the reference."""
    return float(reference.split()[0].lower() in answer.lower()) if reference.split() else 0.0


class OurJudge:
    def same(self, answer: str, reference: str, question: str) -> bool:
        return bool(judged(answer, reference, question))

    same_reason = same


class Page:
    """A page that answers every script alike, or fails at it."""

    def __init__(self, url: str, shown: str | None) -> None:
        self.url, self.shown = url, shown
        self.context = types.SimpleNamespace(new_page=lambda: Page(url, shown))

    def goto(self, url: str) -> None:
        self.url = url

    def content(self) -> str:
        return self.shown or ""

    def close(self) -> None:
        pass

    def evaluate(self, script: str) -> Any:
        if self.shown is None:
            raise ValueError("no such element")
        return self.shown


@cache
def original(lite: bool) -> Any:
    """The original's module of evaluators."""
    for name in STUBBED:
        try:
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError
        except (ModuleNotFoundError, ValueError):
            sys.modules.setdefault(name, mock.MagicMock())
    for name, address in ADDRESSES.items():
        mock.patch.dict("os.environ", {name: address, f"WA_{name}": address}).start()
    if lite:
        path = next(one for one in metadata.files("browsergym-webarenalite") or () if one.name == "evaluators.py")
        package = types.ModuleType("lite_original")  # its own __init__ registers tasks with BrowserGym, and downloads
        package.__path__ = [str(Path(str(path.locate())).parent)]
        sys.modules["lite_original"] = package
        module = importlib.import_module("lite_original.evaluators")
    else:
        module = importlib.import_module("webarena.evaluation_harness.evaluators")
    from nltk.tokenize import NLTKWordTokenizer

    tokenizer = NLTKWordTokenizer()
    module.word_tokenize = lambda text: [token for one in evaluators.sentences(text) for token in tokenizer.tokenize(one)]
    module.llm_fuzzy_match = module.llm_ua_match = judged
    module.shopping_get_latest_order_url = lambda: "http://shopping.test/order/1"
    for name in ("author", "rating"):
        setattr(module, f"shopping_get_sku_latest_review_{name}", lambda sku: f"of {sku}")
    module.time = types.SimpleNamespace(sleep=lambda seconds: None)
    return module


OUR_HELPERS = {
    "shopping_get_latest_order_url": lambda: "http://shopping.test/order/1",
    "shopping_get_sku_latest_review_author": lambda sku: f"of {sku}",
    "shopping_get_sku_latest_review_rating": lambda sku: f"of {sku}",
    "reddit_get_post_url": helpers.reddit_post_url,
    "gitlab_get_project_memeber_role": helpers.member_role,
}


def data(lite: bool) -> Path:
    package, file = ("browsergym-webarenalite", "test_webarena_lite.raw.json") if lite else ("libwebarena", "test.raw.json")
    return Path(str(next(one for one in metadata.files(package) or () if one.name == file).locate()))


@cache
def malformed(lite: bool) -> frozenset[int]:
    """The tasks that our reader leaves out."""
    return frozenset(read(data(lite))[1])


def records(lite: bool) -> list[dict[str, Any]]:
    text = data(lite).read_text("utf-8")
    for name, address in sorted(ADDRESSES.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(f"__{name}__", address)
    found: list[dict[str, Any]] = json.loads(text)
    return found


def answers(record: dict[str, Any]) -> Iterator[str]:
    """Right, wrong and near answers to a task."""
    wanted = record["eval"]["reference_answers"] or {}
    parts = [part for value in wanted.values() for part in ([value] if isinstance(value, str) else value)]
    whole = ", ".join(parts)
    yield from ("", "N/A", "n/a", "42", whole, whole.upper(), f"'{whole}'", f'"{whole}"', f"  {whole}\n", f"The answer is {whole}.")
    yield from (
        f"{whole}0",
        f"1{whole}",
        whole[:-1],
        whole[1:],
        whole.replace(",", ""),
        whole.replace(" ", ""),
        f"({whole})",
        f"{whole},5",
        f"${whole}",
    )
    around = ("~{}", "{}+", "{}-star", "count:{}", "total={}", "-{}", "£{}", "€{}", "{}°", "**{}**", "{}%", "{} of 9. Then more.", "`{}`")
    yield from (form.format(whole) for form in around)
    yield from parts
    yield " and ".join(parts[:-1])


def urls(record: dict[str, Any]) -> Iterator[str]:
    references = (record["eval"]["reference_url"] or "http://shopping.test").split(" |OR| ")
    for one in references:
        yield from (one, f"{one}/", f"{one}?x=1", one.split("?")[0], one[:-1], one.replace("test", "other"), f"{one}&page=2")
    yield from ("about:blank", "http://reddit.test/f/books/12/title", "http://reddit.test/f/books")


def shown(record: dict[str, Any]) -> Iterator[str | None]:
    yield from (None, "", "Developer", "of B0")
    for target in record["eval"]["program_html"] or ():
        wanted = target["required_contents"]
        (value,) = wanted.values()
        parts = [value] if isinstance(value, str) else value
        yield from (
            " ".join(parts),
            parts[0],
            parts[0].upper(),
            parts[0][:-1],
            f"<p>{parts[0]}</p> &amp; more",
            parts[0].split(" |OR| ")[-1],
        )


def theirs(lite: bool, kind: str, file: Path, answer: str, page: Page) -> float | str:
    module = original(lite)
    evaluator = {"string_match": module.StringEvaluator, "url_match": module.URLEvaluator, "program_html": module.HTMLContentEvaluator}[
        kind
    ]()
    call = getattr(type(evaluator).__call__, "__wrapped__", type(evaluator).__call__)  # beartype accepts no page but Playwright's
    try:
        return float(call(evaluator, [{}, {"answer": answer}], file, page, None))
    except AssertionError:
        return "malformed"


def ours(lite: bool, kind: str, record: dict[str, Any], answer: str, page: Page) -> float | str:
    if record.get("old_task_id", record["task_id"]) in malformed(lite):
        return "malformed"
    task = WebArenaTask(record["task_id"], tuple(record["sites"]), record["intent"], "", {**record["eval"], "eval_types": [kind]}, 0)
    return evaluators.score(task, answer, page, judge=OurJudge(), helpers=OUR_HELPERS, lite=lite, wait=lambda seconds: None)


@pytest.mark.parametrize("lite", [True, False])
def test_every_score_is_the_originals(lite: bool, tmp_path: Path):
    file, compared, different = tmp_path / "task.json", {"string_match": 0, "url_match": 0, "program_html": 0}, []
    for record in records(lite):
        file.write_text(json.dumps(record))
        for kind in record["eval"]["eval_types"]:
            cases: list[tuple[str, str, str | None]] = []
            if kind == "string_match":
                cases = [(answer, "http://x", "") for answer in answers(record)]
            elif kind == "url_match":
                cases = [("", url, "") for url in urls(record)]
            else:
                cases = [
                    ("", url, text) for text in shown(record) for url in ("http://reddit.test/f/books/12/title", "http://shopping.test/a")
                ]
            for answer, url, text in cases:
                compared[kind] += 1
                found = ours(lite, kind, record, answer, Page(url, text)), theirs(lite, kind, file, answer, Page(url, text))
                if found[0] != found[1]:
                    different.append((record["task_id"], kind, answer, url, text, found))
    print(f"lite={lite}: compared {compared}, different {len(different)}")
    assert not different, different[:5]
    assert all(compared.values())


def test_the_tokens_of_a_sentence_are_those_of_the_originals_tokenizer():
    from nltk.tokenize import NLTKWordTokenizer

    rng, tokenizer = random.Random(0), NLTKWordTokenizer()
    parts = [
        "5",
        "a",
        " ",
        ". ",
        "\n",
        *".,:;'\"`()[]{}<>*-–—~+=£€$%#@&?!°•“”‘’«»/_",
        "n't",
        "'s",
        "'ll",
        "cannot",
        "d'ye",
        "gonna",
        "'tis",
        "wanna",
    ]
    for _ in range(20_000):
        sentence = "".join(rng.choice(parts) for _ in range(rng.randint(1, 8)))
        assert evaluators.words(sentence) == tokenizer.tokenize(sentence), sentence


def test_all_165_tasks_are_read_and_349_is_the_only_malformed_one():
    tasks, faults = read()
    assert len(tasks) == 164 and faults.keys() == {349}
    assert sum(task.judged for task in tasks) == 40


def test_none_of_the_812_tasks_is_malformed():
    tasks, faults = read(data(lite=False))
    assert len(tasks) == 812 and not faults
