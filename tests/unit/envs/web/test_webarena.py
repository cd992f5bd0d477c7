"""WebArena-Lite without its sites: tasks, evaluators, logins and resets. Beside the original's code: `test_webarena_original`."""

from __future__ import annotations

import json
import re
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from web_pages import browser

from dreamgym import plugins
from dreamgym.envs.web.env import OpenSessions, WebEnv
from dreamgym.envs.web.page_text import DONE
from dreamgym.envs.web.rules import WebRules
from dreamgym.envs.web.webarena import WebArenaLite, evaluators, helpers, reset_sites, tasks
from dreamgym.envs.web.webarena.benchmark import VARIABLES, VISIT_S
from dreamgym.envs.web.webarena.evaluators import PAGE_S
from dreamgym.envs.web.webarena.tasks import WebArenaTask
from dreamgym.errors import EnvironmentFailure, MissingExtra, ServerError, UsageError
from dreamgym.types import Task


def record(number: int = 1, **evaluation: Any) -> dict[str, Any]:
    found = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "blue"}, "reference_url": "", "program_html": []}
    return {
        "task_id": number, "sites": ["reddit"], "start_url": "__REDDIT__/f/books", "intent": f"Which  colour {number}?",
        "intent_template_id": 7, "eval": {**found, **evaluation},
    }  # fmt: skip


def task(**evaluation: Any) -> WebArenaTask:
    return WebArenaTask(1, ("reddit",), "Which colour?", "", record(1, **evaluation)["eval"], 7)


def file_of(folder: Path, *records: Any) -> Path:
    path = folder / "tasks.json"
    path.write_text(json.dumps(records))
    return path


class FakePage:
    """A page that answers scripts from a table."""

    def __init__(self, url: str = "http://site/f/books/12/title", content: str = "", scripts: dict[str, Any] | None = None) -> None:
        self.url, self._content, self.scripts, self.visited = url, content, scripts or {}, list[str]()

    def goto(self, url: str) -> None:
        self.visited.append(url)

    def content(self) -> str:
        return self._content

    def evaluate(self, script: str) -> Any:
        return self.scripts[script]


class FakeJudge:
    """Takes answers that share a word with the reference."""

    def same(self, answer: str, reference: str, question: str) -> bool:
        return bool(set(answer.split()) & set(reference.lower().split()))

    same_reason = same


def test_tasks_are_read_from_a_file_and_from_a_wheel(tmp_path: Path):
    path = file_of(tmp_path, record(1), record(2))
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(path, f"browsergym/webarenalite/{tasks.FILE}")
    assert tasks.read(path) == tasks.read(wheel)
    found, malformed = tasks.read(path)
    assert [one.intent for one in found] == ["Which colour 1?", "Which colour 2?"] and not malformed


def test_a_malformed_task_is_counted_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    bare = record(349, reference_answers={"must_include": "yjlou"})
    suite = WebArenaLite(file_of(tmp_path, record(1), bare, record(3, eval_types=["guess"])))
    assert set(suite.malformed) == {349, 3} and [one.id for one in suite.all_tasks()] == ["webarena/1"]
    assert "349 is malformed" in caplog.text and "a list of texts is expected" in caplog.text


def target(**change: Any) -> list[Any]:
    return [{"url": "last", "locator": "", "required_contents": {"must_include": ["x"]}, **change}]


NESTED = {
    "eval_types": [{"eval_types": "string_match"}, {"eval_types": [["string_match"]]}, {"eval_types": None}],
    "reference_answers": [{"reference_answers": []}, {"reference_answers": ["blue"]}, {"reference_answers": None}],
    "reference_answers.must_include": [{"reference_answers": {"must_include": [1, 2]}}, {"reference_answers": {"must_include": None}}],
    "reference_answers.exact_match": [{"reference_answers": {"exact_match": 5}}],
    "reference_answers.exactly": [{"reference_answers": {"exactly": "blue"}}],
    "reference_answers.fuzzy_match": [{"reference_answers": {"fuzzy_match": "teal"}}],
    "reference_url": [{"eval_types": ["url_match"], "reference_url": 5}, {"eval_types": ["url_match"]}],
    "url_note": [{"eval_types": ["url_match"], "reference_url": "http://s", "url_note": "EXACT"}],
    "program_html": [{"eval_types": ["program_html"], "program_html": one} for one in (None, [], {}, "x")],
    "program_html[0]": [{"eval_types": ["program_html"], "program_html": ["x"]}],
    "program_html[0].url": [{"eval_types": ["program_html"], "program_html": target(url=None)}],
    "program_html[0].locator": [{"eval_types": ["program_html"], "program_html": target(locator=one)} for one in (None, "window.x")],
    "program_html[0].prep_actions": [{"eval_types": ["program_html"], "program_html": target(prep_actions="x")}],
    "program_html[0].required_contents": [{"eval_types": ["program_html"], "program_html": target(required_contents=None)}],
    "program_html[1].url": [{"eval_types": ["program_html"], "program_html": [*target(), {"locator": "", "required_contents": {}}]}],
    "program_html[0].required_contents.must_include": [
        {"eval_types": ["program_html"], "program_html": target(required_contents={"must_include": [7]})}
    ],
}


@pytest.mark.parametrize(("key", "evaluation"), [(key, one) for key, several in NESTED.items() for one in several])
def test_a_task_whose_evaluation_is_written_wrongly_is_left_out_and_named_with_its_file_and_key(
    key: str, evaluation: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = file_of(tmp_path, record(1), record(12, **evaluation))
    suite = WebArenaLite(path, judge="test_webarena:FakeJudge")
    assert [one.id for one in suite.all_tasks()] == ["webarena/1"]
    assert f"WebArena task 12 is malformed and left out: its {key} " in caplog.text and str(path) in caplog.text


def test_keys_that_another_evaluator_reads_may_be_missing(tmp_path: Path):
    bare = record(1)
    bare["eval"] = {"eval_types": ["program_html"], "program_html": target()}
    assert [one.id for one in tasks.read(file_of(tmp_path, bare))[0]] == [1]


UNREAD = [{"program_html": one} for one in (["x"], [{"url": "last"}], [{"required_contents": None}], 5)]
UNREAD += [{"program_html": target(required_contents={"fuzzy_match": ["x"]})}]
UNREAD += [{"eval_types": ["url_match"], "reference_url": "http://s", "reference_answers": one} for one in (5, {"fuzzy_match": ["x"]})]


@pytest.mark.parametrize("unread", UNREAD)
def test_what_no_evaluator_of_a_task_reads_needs_no_judge_and_may_be_written_wrongly(unread: dict[str, Any], tmp_path: Path):
    suite = WebArenaLite(file_of(tmp_path, record(1, **unread)))
    assert [one.id for one in suite.all_tasks()] == ["webarena/1"] and not suite.malformed and not suite.unjudged


def test_tasks_that_share_a_number_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    suite = WebArenaLite(file_of(tmp_path, record(1), {**record(2), "old_task_id": 1}, record(3)))
    assert [one.id for one in suite.all_tasks()] == ["webarena/3"]
    assert "WebArena task 1 is malformed and left out: its number is that of 2 tasks" in caplog.text


def test_a_score_has_the_time_that_its_visits_may_take_beside_the_limit_of_a_step(tmp_path: Path):
    def limit(*urls: str) -> float:
        visited = [page for url in urls for page in target(url=url)]
        file = file_of(tmp_path, record(1), record(2, eval_types=["program_html"], program_html=visited))
        return plugins.make("envs", "web", benchmark="webarena_lite", tasks_file=str(file), step_limit_s=60.0).env().step_limit_s

    assert limit("last") == 60.0
    assert limit("last", "__REDDIT__/f/one", "__REDDIT__/f/two") == 60.0 + 2 * (VISIT_S + PAGE_S)


def test_tasks_for_a_judge_are_left_out_where_there_is_none(tmp_path: Path):
    path = file_of(tmp_path, record(1), record(2, reference_answers={"fuzzy_match": ["teal"]}))
    assert len(list(WebArenaLite(path).all_tasks())) == 1
    assert len(list(WebArenaLite(path, judge="test_webarena:FakeJudge").all_tasks())) == 2


@pytest.mark.parametrize(
    ("change", "error"),
    [({"intent": None}, "no 'intent' that is a str"), ({"sites": ["myspace"]}, "unknown site 'myspace'"), ({"eval": []}, "no 'eval'"),
     ({"sites": [["reddit"]]}, "unknown site"), ({"old_task_id": None}, "the 'old_task_id' null. Expected a whole number"),
     ({"intent_template_id": "7"}, "the 'intent_template_id' \"7\"")],
)  # fmt: skip
def test_a_record_with_missing_keys_is_named(tmp_path: Path, change: dict[str, Any], error: str):
    with pytest.raises(UsageError, match=f"Task 2 .*{error}"):
        tasks.read(file_of(tmp_path, record(1), {**record(2), **change}))


def test_a_file_of_something_else_is_named(tmp_path: Path):
    (tmp_path / "tasks.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        tasks.read(tmp_path / "tasks.json")
    (tmp_path / "tasks.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no list of tasks"):
        tasks.read(tmp_path / "tasks.json")


def test_missing_data_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise tasks.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(tasks.metadata, "files", missing)
    with pytest.raises(MissingExtra, match="pip install --no-deps browsergym-webarenalite"):
        tasks.read()


def test_missing_and_wrong_addresses_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    suite = WebArenaLite(file_of(tmp_path, record(1)))
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "http://127.0.0.1:7770")
    monkeypatch.delenv("WA_REDDIT")
    monkeypatch.delenv("WA_MAP")
    with pytest.raises(UsageError, match="Not set: WA_REDDIT, WA_MAP"):
        suite.sites(next(iter(suite.all_tasks())))
    monkeypatch.setenv("WA_REDDIT", "http://127.0.0.1:7770")
    monkeypatch.setenv("WA_MAP", "127.0.0.1:3000")
    with pytest.raises(UsageError, match="WA_MAP = '127.0.0.1:3000' is no address"):
        suite.sites(next(iter(suite.all_tasks())))
    monkeypatch.setenv("WA_MAP", "https://map.example")
    assert suite.sites(next(iter(suite.all_tasks()))) == ["127.0.0.1:7770", "map.example:443"]


@pytest.mark.parametrize("address", ["http://127.0.0.1:99x9", "http://127.0.0.1:99999", "http://[::1", "http://"])
def test_an_address_with_no_port_or_host_that_can_be_is_named(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "http://[::1]:7770")
    assert WebArenaLite(file_of(tmp_path, record(1))).sites(Task("x", "x", "web")) == ["[::1]:7770"]
    monkeypatch.setenv("WA_REDDIT", address)
    with pytest.raises(UsageError, match="WA_REDDIT = .* is no address"):
        WebArenaLite(file_of(tmp_path, record(1))).check()


class FormSite:
    """A site with a form to log in by. `asked` are the paths that were asked for."""

    PAGES: ClassVar[dict[str, str]] = {
        "/": "<a href=/login>Log in</a>",
        "/login": "<form action=/done><label>Username<input name=u></label><label>Password<input name=p type=password></label>"
        "<button>Log in</button></form>",
        "/f/books": "<title>Books</title><p>books",
    }

    def __init__(self, **pages: str) -> None:
        """`pages`: other texts, by path without its first slash; a number is a status, `after 3 s: ` says how late it is."""
        asked, self.pages = list[str](), pages
        self.asked = asked

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                asked.append(path)
                text = pages.get(path[1:], FormSite.PAGES.get(path, "<p>done"))
                if late := re.match(r"after (\d+) s: ", text):
                    time.sleep(int(late[1]))
                self.send_response(int(text) if text.isdigit() else 200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *arguments: object) -> None:
                """Requests are no news."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.mark.slow
def test_a_login_is_made_once_and_again_where_the_site_asks_for_it_and_the_episode_begins_in_the_first_tab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    site = FormSite()
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, site.address)
    suite = WebArenaLite(file_of(tmp_path, record(1)))
    (one,) = suite.all_tasks()
    env = WebEnv(suite, OpenSessions(browser(), 4), WebRules(), timeout_s=5, quiet_s=0.05, step_limit_s=60)
    try:
        login = ["/", "/login", "/done"]
        for asked in ([*login, "/f/books"], ["/submit", "/f/books"]):
            site.asked.clear()
            raw = env.reset(one)
            assert [path for path in site.asked if path != "/favicon.ico"] == asked
            assert WebRules().abstract(raw).text == "page: Books\nbooks"
        site.asked.clear()
        site.pages["submit"] = FormSite.PAGES["/login"]  # as sites do where a login has expired, or somebody has logged out
        raw = env.reset(one)
        assert [path for path in site.asked if path != "/favicon.ico"] == ["/submit", *login, "/f/books"]
        assert WebRules().abstract(raw).text == "page: Books\nbooks"
    finally:
        env.close()
        site.server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(("options", "open_at_once"), [({}, 4), ({"max_open": 7}, 7)])
def test_four_episodes_share_the_sites_side_by_side_where_nothing_else_is_set(tmp_path: Path, options: dict[str, int], open_at_once: int):
    browser()
    suite = plugins.make("envs", "web", benchmark="webarena_lite", tasks_file=str(file_of(tmp_path, record(1))), **options)
    assert suite.max_parallel == suite.sessions.limit == open_at_once


def test_a_shop_without_orders_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(helpers, "_get", lambda *_: {"items": []})
    with pytest.raises(ServerError, match="http://shop has no orders"):
        helpers.site_helpers({"shopping": "http://shop"})["shopping_get_latest_order_url"]()


class Failing:
    """A judge that somebody else wrote."""

    def same(self, answer: str, reference: str, question: str) -> bool:
        raise ZeroDivisionError("the judge's page has been closed")

    same_reason = same


@pytest.fixture
def at_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[WebEnv, Task]]]:
    """Begins the environment of one task at a site of these pages."""
    left = list[Callable[[], None]]()

    def begin(task: dict[str, Any], *, judge: str = "", horizon: int | None = None, **pages: str) -> tuple[WebEnv, Task]:
        site = FormSite(**pages)
        for variable in VARIABLES.values():
            monkeypatch.setenv(variable, site.address)
        suite = WebArenaLite(file_of(tmp_path, task), judge)
        (one,) = suite.all_tasks()
        sessions = OpenSessions(browser(), 4)
        env = WebEnv(suite, sessions, WebRules(), timeout_s=2, quiet_s=0.05, step_limit_s=60, horizon=horizon)
        left.extend([env.close, site.server.shutdown])
        return env, one

    yield begin
    for end in left:
        end()


@pytest.mark.slow
def test_a_judge_that_fails_fails_its_episode_and_names_the_task(at_site: Callable[..., tuple[WebEnv, Task]]):
    env, one = at_site(record(1, reference_answers={"fuzzy_match": ["teal"]}), judge="test_webarena:Failing")
    env.reset(one)
    with pytest.raises(EnvironmentFailure, match="Task 'webarena/1' cannot be scored: ZeroDivisionError: the judge's page has been closed"):
        env.step("stop [teal]")
    env.reset(one)


@pytest.mark.slow
def test_a_site_that_no_longer_answers_its_evaluator_fails_the_episode(at_site: Callable[..., tuple[WebEnv, Task]]):
    page = {"url": "http://127.0.0.1:1/", "locator": "", "required_contents": {"must_include": ["x"]}}
    env, one = at_site(record(1, eval_types=["program_html"], program_html=[page]))
    env.reset(one)
    with pytest.raises(EnvironmentFailure, match="Task 'webarena/1' cannot be scored: .*127.0.0.1:1"):
        env.step("stop []")


@pytest.mark.slow
def test_a_task_with_several_start_pages_begins_in_the_first_of_its_tabs(at_site: Callable[..., tuple[WebEnv, Task]]):
    env, one = at_site(record(1) | {"start_url": "__REDDIT__/one |AND| __REDDIT__/two"}, one="<p>the first", two="<p>the second")
    raw = env.reset(one)
    assert len(raw["open_pages_urls"]) == 2 and raw["url"].endswith("/one") and list(raw["active_page_index"]) == [0]


@pytest.mark.slow
def test_a_login_whose_form_stays_is_named(at_site: Callable[..., tuple[WebEnv, Task]]):
    env, one = at_site(record(1), done=f"<p>Wrong password.{FormSite.PAGES['/login']}")
    with pytest.raises(EnvironmentFailure, match="'reddit' at http://127.* did not log 'MarvelsGrantMan136' in"):
        env.reset(one)


@pytest.mark.slow
def test_a_start_page_that_the_site_refuses_is_named(at_site: Callable[..., tuple[WebEnv, Task]]):
    env, one = at_site(record(1), **{"f/books": "500"})
    with pytest.raises(EnvironmentFailure, match="answers 500 for http://127.*/f/books, where an episode begins"):
        env.reset(one)


@pytest.mark.slow
@pytest.mark.parametrize("last", ["press [a]", "click [99]", "no action", "stop [x]"])
def test_an_episode_that_reaches_the_last_step_is_scored_without_an_answer(last: str, at_site: Callable[..., tuple[WebEnv, Task]]):
    env, one = at_site(record(1, eval_types=["url_match"], reference_url="__REDDIT__/f/books"), horizon=3)
    for _ in range(2):
        env.reset(one)
        assert env.step("press [a]")[1:] == (0.0, False)
        assert env.step("nothing of the kind")[1:] == (0.0, False)
        raw, *scored = env.step(last)
        assert scored == [1.0, True] and WebRules().abstract(raw).text == DONE


@pytest.mark.parametrize(
    ("wanted", "answer", "score"),
    [
        ({"exact_match": "Blue"}, " 'blue' ", 1.0), ({"exact_match": "blue"}, "bluer", 0.0),
        ({"must_include": ["red", "blue"]}, "Blue and red", 1.0), ({"must_include": ["red", "blue"]}, "blue", 0.0),
        ({"must_include": ["0"]}, "10 orders", 0.0), ({"must_include": ["0"]}, "There are 0.", 1.0),
        ({"must_include": ["1", "0"]}, "10", 1.0), ({"fuzzy_match": "N/A"}, "N/A", 1.0),
        *(({"must_include": ["5"]}, one, 1.0) for one in ("5", "(5)", "$5", "**5**", "5%", "#5", "5, 6", "It is 5. Not 6.", '"5"', "5?")),
        *(({"must_include": ["5"]}, one, 0.0) for one in ("~5", "5+", "5-star", "count:5", "total=5", "-5", "£5", "€5", "5°", "5/10")),
        ({"fuzzy_match": ["dark teal"]}, "teal", 1.0), ({"fuzzy_match": ["dark teal"]}, "red", 0.0),
    ],
)  # fmt: skip
def test_answers(wanted: dict[str, Any], answer: str, score: float):
    assert evaluators.string_match(task(reference_answers=wanted), answer, FakeJudge()) == score


def test_a_task_for_a_judge_needs_one():
    with pytest.raises(UsageError, match=r"env\.options\.judge"):
        evaluators.string_match(task(reference_answers={"fuzzy_match": ["x"]}), "x", None)


@pytest.mark.parametrize(
    ("url", "score"),
    [("http://s/a/b?sort=price&page=2", 1.0), ("http://s/a/b/?sort=name", 0.0), ("http://s/a", 0.0), ("http://s/c?sort=price", 1.0)],
)
def test_addresses(url: str, score: float):
    assert evaluators.url_match(task(reference_url="http://s/a/b?sort=price |OR| http://s/c"), url) == score


def html(url: str, locator: str, wanted: dict[str, Any]) -> WebArenaTask:
    return task(eval_types=["program_html"], program_html=[{"url": url, "locator": locator, "required_contents": wanted}])


@pytest.mark.parametrize("title", ["title", "it's", 'a"b', "it's,'b'"])
def test_contents_of_pages_are_looked_for_in_a_tab_of_their_own_whatever_the_agents_address_holds(title: str):
    page, fresh = FakePage(f"http://site/f/books/12/{title}"), FakePage(scripts={"() => document.title": "A Book"})
    one, waited = html("func:reddit_get_post_url('__last_url__')", "document.title", {"must_include": ["book |OR| film"]}), list[float]()
    known = {"reddit_get_post_url": helpers.reddit_post_url}
    found = evaluators.score(one, "", page, judge=None, helpers=known, fresh=fresh, wait=waited.append)
    assert found == 1.0 and not page.visited and fresh.visited == ["http://site/f/books/12/"] and waited == [evaluators.PAGE_S]


@pytest.mark.slow
def test_a_page_that_is_visited_may_be_slow_and_is_read_when_its_scripts_have_run(at_site: Callable[..., tuple[WebEnv, Task]]):
    page = {"url": "__REDDIT__/slow", "locator": "document.body.innerText", "required_contents": {"exact_match": "here"}}
    late = "after 3 s: <body>not yet<script>setTimeout(() => document.body.textContent = 'here', 1000)</script>"
    env, one = at_site(record(1, eval_types=["program_html"], program_html=[page]), slow=late)
    env.reset(one)
    assert env.step("stop []")[1:] == (1.0, True), f"beyond the agent's own limit of {env.timeout_s} s"


@pytest.mark.parametrize(
    ("locator", "wanted", "score"),
    [
        ("", {"must_include": ["whole"]}, 1.0), ("document.missing", {"must_include": [""]}, 1.0),
        ("document.missing", {"exact_match": "x"}, 0.0), ("lambda: 1", {"exact_match": "x"}, 0.0),
        ("func:gitlab_get_project_memeber_role(__page__, 'ann')", {"exact_match": ""}, 1.0),
    ],
)  # fmt: skip
def test_contents(locator: str, wanted: dict[str, Any], score: float):
    page = FakePage(content="the whole page")
    known = {"gitlab_get_project_memeber_role": helpers.member_role}
    assert evaluators.program_html(html("last", locator, wanted), page, judge=None, helpers=known, lite=True) == score


@pytest.mark.parametrize("call", ["func:__import__('os')", "func:reddit_get_post_url(open('x'))", "func:reddit_get_post_url"])
def test_a_task_file_cannot_run_code(call: str):
    with pytest.raises(UsageError, match="Task 1 calls"):
        known = {"reddit_get_post_url": helpers.reddit_post_url}
        evaluators.program_html(html(call, "", {"must_include": [""]}), FakePage(), judge=None, helpers=known, lite=True)


def test_a_reset_of_all_sites_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    answers = iter([(200, ""), (200, "busy"), (200, "Ready for duty!")])
    asked = list[str]()

    def get(url: str) -> tuple[int, str]:
        asked.append(url)
        return next(answers)

    with pytest.raises(UsageError, match="WA_FULL_RESET is not set"):
        reset_sites(get=get)
    monkeypatch.setenv("WA_FULL_RESET", "http://h:7565/")
    reset_sites(get=get, wait=lambda seconds: None)
    assert asked == ["http://h:7565/reset", "http://h:7565/status", "http://h:7565/status"]
    with pytest.raises(ServerError, match="answered 500"):
        reset_sites(get=lambda url: (500, "broken"))


def test_a_synthetic_task_cannot_be_scored(tmp_path: Path):
    suite = WebArenaLite(file_of(tmp_path, record(1)))
    assert not suite.accepts(Task("x", "Which colour?", "web")) and suite.accepts(next(iter(suite.all_tasks())))
