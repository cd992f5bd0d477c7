"""The shop: its tasks and their checkers, and its pages. What needs django-oscar is skipped without it."""

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
from dreamgym.envs.web.shop.checks import CHECKED
from dreamgym.envs.web.shop.content import FIRST_KINDS, STATUSES, VARIANTS, content, pounds
from dreamgym.envs.web.shop.site import SHOP
from dreamgym.envs.web.shop.tasks import TEMPLATES, every_task
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


@pytest.mark.parametrize("seed", [0, 1])
def test_every_split_has_tasks_of_every_template_and_none_about_another_splits_content(seed: int):
    tasks = list(every_task(content(seed), seed))
    about = {split: {task.about for task in tasks if in_split(task.about, split)} for split in SPLITS}
    assert not (about["train"] & about["dev"] or about["train"] & about["test"] or about["dev"] & about["test"])
    for split in SPLITS:
        assert {task.template for task in tasks if in_split(task.about, split)} == set(TEMPLATES)


def test_products_and_orders_of_a_task_are_of_one_kind_and_none_is_on_the_first_page():
    made = content(0)
    kinds = {f" {product.title.lower()}": product.kind for product in made.products}
    for order in made.orders:
        kinds |= dict.fromkeys((f" order {order.number}", f" {order.day.lower()}"), order.lines[0].product.kind)
        assert len({line.product.kind for line in order.lines}) == 1
    first = {product.kind for product in made.products[: FIRST_KINDS * VARIANTS]}
    for task in TASKS:
        named = {kind for name, kind in kinds.items() if name in f" {task.instruction.lower()}"}
        assert {f"every {kind}" for kind in named} <= {task.about} and task.about.removeprefix("every ") not in first


def test_what_a_question_asks_for_has_one_answer_and_no_price_needs_a_comma():
    made = content(0)
    for place in range(0, len(made.products), VARIANTS):
        variants = made.products[place : place + VARIANTS]
        assert len({one.kind for one in variants}) == 1
        assert len({one.price for one in variants}) == len({one.stock for one in variants}) == VARIANTS
    assert all(len({line.count for line in order.lines}) == len(order.lines) and order.total < 100_000 for order in made.orders)
    assert len({order.day for order in made.orders}) == len(made.orders)


def test_an_empty_answer_solves_no_question():
    assert not any(task.solved(lambda *_: [], "") for task in TASKS if task.answered)


def test_who_names_everyone_and_everything_beside_the_right_numbers_is_not_right():
    made = content(0)
    people = [part for customer in made.customers for part in customer]
    everything = " ".join([*people, *STATUSES, *(product.title for product in made.products)])
    numbers = [one for one in TASKS if one.answered and not one.others]
    assert {one.template for one in numbers} == {"upc_and_stock", "stock_both", "order_quantity", "price_change"}, "numbers alone decide"
    for task in TASKS:
        if task.answered and task.others:
            assert task.solved(lambda *_: [], " ".join(map(str, task.wanted)))
            assert not task.solved(lambda *_: [], f"{' '.join(map(str, task.wanted))} {everything}")


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
        latest = max(content(0).orders, key=lambda order: order.placed)
        assert str(latest.number) in self.get(server, "/dashboard/orders/", "a", "staff").text
        assert self.get(server, "/dashboard/orders/", "a").status_code == 403

    def test_a_search_finds_all_colours_of_a_product_in_the_shop_and_in_its_administration(self, server: SiteServer):
        server.reset("a")
        made = content(0).products
        pages = {"customer": "/search/?q={}", "staff": "/dashboard/catalogue/?title={}"}
        for product in made[:: VARIANTS * 4 + 1]:
            for role, path in pages.items():
                page = self.get(server, path.format(product.title.lower()), "a", role).text
                assert {one.title for one in made if one.title in page} == {one.title for one in made if one.kind == product.kind}
        page = self.get(server, f"/dashboard/catalogue/?upc={made[9].upc}", "a", "staff").text
        assert {one.title for one in made if one.title in page} == {made[9].title}

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

    @pytest.mark.parametrize(
        ("template", "sql"),
        [
            ("set_stock", "UPDATE partner_stockrecord SET num_in_stock = :new WHERE product_id {of}"),
            ("restock", "UPDATE partner_stockrecord SET num_in_stock = :new WHERE product_id {of}"),
            ("stock_ordered", "UPDATE partner_stockrecord SET num_in_stock = :new WHERE product_id {of}"),
            ("set_price", "UPDATE partner_stockrecord SET price = :new / 100.0 WHERE product_id {of}"),
            ("order_status", "UPDATE order_order SET status = :new WHERE number {of}"),
        ],
    )
    def test_who_changes_others_as_well_has_not_done_the_task(self, server: SiteServer, template: str, sql: str):
        task = one(template)
        wanted, new = task.wanted
        named = ":which" if template == "order_status" else "(SELECT id FROM catalogue_product WHERE title = :which)"
        for of, solved in ((f"= {named}", True), (f">= {named}", False), ("IS NOT NULL", False)):
            server.reset("a")
            with sqlite3.connect(server.world("a")) as world:
                world.execute(sql.format(of=of), {"new": new, "which": str(wanted)})
            assert task.solved(partial(server.query, "a"), "") is solved, of

    @pytest.mark.parametrize(
        ("template", "sql"),
        [
            ("rename", "UPDATE catalogue_product SET title = :new WHERE upc {of}"),
            ("order_note", "INSERT INTO order_ordernote (message, note_type, date_created, date_updated, order_id) "
             "SELECT :new, 'Info', date_placed, date_placed, id FROM order_order WHERE number {of}"),
        ],
    )  # fmt: skip
    def test_who_renames_or_notes_others_as_well_has_not_done_the_task(self, server: SiteServer, template: str, sql: str):
        task = one(template)
        which, new = map(str, task.wanted)
        for of, solved in (("= :which", True), (">= :which", False), ("IS NOT NULL", False)):
            server.reset("a")
            with sqlite3.connect(server.world("a")) as world:
                world.execute(sql.format(of=of), {"new": new, "which": which})
            assert task.solved(partial(server.query, "a"), "") is solved, of

    def test_no_task_is_done_before_it_begins(self, server: SiteServer):
        server.reset("a")
        query = partial(server.query, "a")
        assert {task.template for task in TASKS if not task.answered} == set(CHECKED)
        assert not [task.instruction for task in TASKS if not task.answered and task.solved(query, "")]
