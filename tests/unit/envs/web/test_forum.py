"""The forum: its tasks and their checks, and its pages. What needs django-spirit is skipped without it."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from dreamgym.envs.base import SPLITS, in_split
from dreamgym.envs.web.forum.checks import CHECKED, WHO
from dreamgym.envs.web.forum.content import LATEST, content
from dreamgym.envs.web.forum.site import FORUM
from dreamgym.envs.web.forum.tasks import TEMPLATES, every_task
from dreamgym.envs.web.sites.server import HEADER, SiteServer
from dreamgym.envs.web.sites.tasks import SiteTask

TASKS = list(every_task(content(0), 0))


@pytest.fixture(scope="module")
def server() -> Iterator[SiteServer]:
    started = SiteServer(FORUM)
    yield started
    started.close()


def one(template: str) -> SiteTask:
    return next(task for task in TASKS if task.template == template)


def test_there_are_thirty_templates_and_hundreds_of_instances_each_worded_once():
    counts = Counter(task.template for task in TASKS)
    assert set(counts) == set(TEMPLATES) and len(counts) >= 30 and min(counts.values()) >= 20
    assert len({task.instruction for task in TASKS}) == len(TASKS) >= 2_000


def test_a_seed_names_content_and_tasks():
    assert list(every_task(content(0), 0)) == TASKS
    assert content(1) != content(0) and list(every_task(content(1), 1)) != TASKS


@pytest.mark.parametrize("seed", [0, 1])
def test_every_split_has_tasks_of_every_template_and_none_about_another_splits_content(seed: int):
    tasks = list(every_task(content(seed), seed))
    about = {split: {task.about for task in tasks if in_split(task.about, split)} for split in SPLITS}
    assert not (about["train"] & about["dev"] or about["train"] & about["test"] or about["dev"] & about["test"])
    for split in SPLITS:
        assert {task.template for task in tasks if in_split(task.about, split)} == set(TEMPLATES)


def test_topics_of_one_task_are_of_one_split_and_none_is_on_the_first_pages():
    latest = {topic.title for topic in content(0).topics[-LATEST:]}
    titles = {topic.title for topic in content(0).topics}
    for task in TASKS:
        named = {quoted for quoted in re.findall(r"'(.*?)'", task.instruction) if quoted in titles}
        assert not named & latest and all(title in task.about for title in named)


def test_what_a_question_asks_for_has_one_answer():
    for topic in content(0).topics:
        likes = sorted((len(comment.likes) for comment in topic.comments), reverse=True)
        assert likes[0] > likes[1]
        if topic.poll:
            votes = [len(one) for one in topic.poll.votes]
            assert votes.count(max(votes)) == votes.count(1) == 1


def test_an_empty_answer_solves_no_question():
    assert not any(task.solved(lambda *_: [], "") for task in TASKS if task.answered)


def test_who_names_all_topics_of_a_subject_has_not_said_which_one_holds_my_comment():
    own = [task for task in TASKS if task.template == "own_comment"]
    assert own and all(task.solved(lambda *_: [], " ".join(map(str, task.wanted))) for task in own)
    for task in own:
        subject = re.search("comments about (.*?) says", task.instruction)
        titles = [topic.title for topic in content(0).topics if subject and subject[1] in topic.title]
        assert task.solved(lambda *_: [], f"{' '.join(titles)} {task.wanted[1]}") is (len(titles) == 1)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("spirit") is None, reason="django-spirit is not installed: pip install 'dreamgym[web]'")
class TestRunning:
    def get(self, server: SiteServer, path: str, world: str, role: str = "member") -> httpx.Response:
        cookies = {"sessionid": server.sessions[role]}
        return httpx.get(f"http://{server.address}{path}", headers={HEADER: world}, cookies=cookies, timeout=60, follow_redirects=True)

    def test_pages_show_the_content_to_members_and_what_moderators_do_to_moderators(self, server: SiteServer):
        server.reset("a")
        topic = content(0).topics[3]
        assert topic.title in self.get(server, f"/search/?q={topic.title}", "a").text
        number = server.query("a", "SELECT id FROM spirit_topic_topic WHERE title = ?", topic.title)[0][0]
        seen = self.get(server, f"/topic/{number}/x/", "a").text
        assert all(comment.text in seen for comment in topic.comments) and "Delete topic" not in seen
        assert "Delete topic" in self.get(server, f"/topic/{number}/x/", "a", "moderator").text

    def test_a_search_finds_the_topics_that_others_name_and_what_the_episode_has_written(self, server: SiteServer):
        server.reset("a")
        title = content(0).topics[0].title
        found = self.get(server, f"/search/?q={title}", "a").text
        assert found.count("js-clickable-area-target") >= 4
        with sqlite3.connect(server.world("a")) as world:
            world.execute("UPDATE spirit_topic_topic SET title = 'Unheard-of matters' WHERE title = ?", (title,))
        assert "Unheard-of matters" in self.get(server, "/search/?q=unheard-of", "a").text

    def test_a_reset_forgets_and_worlds_do_not_see_each_other(self, server: SiteServer):
        server.reset("a")
        server.reset("b")
        task = one("rename")
        old, new = task.wanted
        with sqlite3.connect(server.world("a")) as world:
            world.execute("UPDATE spirit_topic_topic SET title = ? WHERE title = ?", (new, old))
        assert task.solved(partial(server.query, "a"), "") and not task.solved(partial(server.query, "b"), "")
        server.reset("a")
        assert not task.solved(partial(server.query, "a"), "")

    @pytest.mark.parametrize(
        ("template", "sql"),
        [
            ("rename", "UPDATE spirit_topic_topic SET title = :new || CASE id WHEN :which THEN '' ELSE id END WHERE id {of}"),
            ("watch", "INSERT INTO spirit_topic_notification_topicnotification "
             "(date, action, is_read, is_active, comment_id, topic_id, user_id) SELECT t.date, 0, 1, 1, "
             "(SELECT MAX(id) FROM spirit_comment_comment), t.id, (SELECT id FROM auth_user WHERE username = :who) "
             "FROM spirit_topic_topic t WHERE t.id {of} AND t.id NOT IN (SELECT topic_id FROM spirit_topic_notification_topicnotification "
             "WHERE user_id = (SELECT id FROM auth_user WHERE username = :who))"),
            ("unwatch", "UPDATE spirit_topic_notification_topicnotification SET is_active = 0 WHERE topic_id {of} AND "
             "user_id = (SELECT id FROM auth_user WHERE username = :who)"),
            ("invite", "INSERT OR IGNORE INTO spirit_topic_private_topicprivate (date, topic_id, user_id) SELECT p.date, p.topic_id, u.id "
             "FROM spirit_topic_private_topicprivate p JOIN auth_user u ON u.username = :new WHERE p.topic_id {of}"),
        ],
    )  # fmt: skip
    def test_who_does_the_same_to_other_topics_as_well_has_not_done_the_task(self, server: SiteServer, template: str, sql: str):
        task = one(template)
        for of, solved in (("= :which", True), ("IS NOT NULL", False)):
            server.reset("a")
            values = {"which": server.query("a", "SELECT id FROM spirit_topic_topic WHERE title = ?", task.wanted[0])[0][0], "who": WHO}
            with sqlite3.connect(server.world("a")) as world:
                world.execute(sql.format(of=of), values | {"new": task.wanted[-1]})
            assert task.solved(partial(server.query, "a"), "") is solved, of

    def test_a_page_is_the_same_whenever_it_is_asked_for(self, server: SiteServer):
        for path in ("/", "/user/", "/topic/private/"):
            server.reset("a")
            first = self.get(server, path, "a").text
            server.reset("a")
            hidden = r"csrf\w*[\"' :=]+(?:value=)?[\"']\w{64}"
            assert re.sub(hidden, "", self.get(server, path, "a").text) == re.sub(hidden, "", first)
            assert "Current time" not in first

    def test_nobody_changes_the_options_that_all_worlds_share(self, server: SiteServer):
        server.reset("a")
        assert self.get(server, "/st/admin/config/", "a", "moderator").status_code == 404

    def test_every_check_is_known(self, server: SiteServer):
        assert all(not check(partial(server.query, "main"), *one(template).wanted) for template, check in CHECKED.items())
