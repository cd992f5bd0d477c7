"""The example shop: its tasks and their checkers, and its pages. What needs django-oscar is skipped without it."""

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
from dreamgym.envs.web.shop.content import content, pounds
from dreamgym.envs.web.shop.site import SHOP
from dreamgym.envs.web.shop.tasks import CHECKED, TEMPLATES, every_task
from dreamgym.envs.web.sites.server import HEADER, SiteServer
from dreamgym.envs.web.sites.tasks import SiteTask

TASKS = list(every_task(content(0), 0))
with_oscar = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("oscar") is None, reason="django-oscar is not installed: pip install 'dreamgym[web]'"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[SiteServer]:
    started = SiteServer(SHOP)
    yield started
    started.close()


def one(template: str) -> SiteTask:
    return next(task for task in TASKS if task.template == template)


def test_there_are_twenty_templates_and_hundreds_of_instances_each_worded_once():
    counts = Counter(task.template for task in TASKS)
    assert set(counts) == set(TEMPLATES) and len(counts) >= 20 and min(counts.values()) >= 30
    assert len({task.instruction for task in TASKS}) == len(TASKS) >= 1_000


def test_a_seed_names_content_and_tasks():
    assert list(every_task(content(0), 0)) == TASKS
    assert content(1) != content(0) and list(every_task(content(1), 1)) != TASKS


def test_every_split_has_tasks_of_every_template_and_none_about_another_splits_content():
    about = {split: {task.about for task in TASKS if in_split(task.about, split)} for split in SPLITS}
    assert not (about["train"] & about["dev"] or about["train"] & about["test"] or about["dev"] & about["test"])
    for split in SPLITS:
        assert {task.template for task in TASKS if in_split(task.about, split)} == set(TEMPLATES)


def test_products_of_one_task_are_of_one_split():
    for task in TASKS:
        if task.template in ("basket_two", "basket_cheaper"):
            assert all(title in task.about for title, _ in task.wanted)


def test_an_empty_answer_solves_no_question():
    assert not any(task.solved(lambda *_: [], "") for task in TASKS if task.answered)


class TestRunning:
    pytestmark = with_oscar

    def get(self, server: SiteServer, path: str, world: str, role: str = "customer") -> httpx.Response:
        return httpx.get(
            f"http://{server.address}{path}", headers={HEADER: world}, cookies={"sessionid": server.sessions[role]}, timeout=60
        )

    def test_pages_show_the_content_to_customers_and_staff(self, server: SiteServer):
        server.reset("a")
        product = content(0).products[0]
        assert f"£{pounds(product.price)}" in self.get(server, f"/search/?q={product.title}", "a").text
        assert "100001" in self.get(server, "/dashboard/orders/", "a", "staff").text
        assert self.get(server, "/dashboard/orders/", "a").status_code == 403

    def test_the_staff_sees_how_many_orders_each_customer_has(self, server: SiteServer):
        server.reset("a")
        page = self.get(server, "/dashboard/users/", "a", "staff").text
        rows = [re.sub(r"<[^>]*>|\s+", " ", row) for row in page.split("<tr")]
        for place, (name, email) in enumerate(content(0).customers):
            count = sum(order.customer == place for order in content(0).orders)
            assert re.search(rf"{email}.* {name} .* {count} ", next(row for row in rows if email in row))

    def test_worlds_do_not_see_each_other_and_a_reset_forgets(self, server: SiteServer):
        server.reset("a")
        server.reset("b")
        task = one("set_stock")
        title, amount = task.wanted
        with sqlite3.connect(server.world("a")) as world:
            world.execute(
                "UPDATE partner_stockrecord SET num_in_stock = ? WHERE product_id = (SELECT id FROM catalogue_product WHERE title = ?)",
                (amount, title),
            )
        assert task.solved(partial(server.query, "a"), "") and not task.solved(partial(server.query, "b"), "")
        slug, key = server.query("a", "SELECT slug, id FROM catalogue_product WHERE title = ?", title)[0]
        assert f"({amount} available)" in self.get(server, f"/catalogue/{slug}_{key}/", "a").text
        server.reset("a")
        assert f"({amount} available)" not in self.get(server, f"/catalogue/{slug}_{key}/", "a").text

    def test_every_checker_is_known(self, server: SiteServer):
        assert all(not checker(partial(server.query, "main"), *one(template).wanted) for template, checker in CHECKED.items())
