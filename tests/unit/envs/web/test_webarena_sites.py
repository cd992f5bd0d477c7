"""What WebArena's tasks ask of its sites, on a server and on pages that imitate the originals' forms, interfaces and tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from web_pages import browser

from dreamgym.envs.web.chromium import in_browser_thread
from dreamgym.envs.web.session import WebSession
from dreamgym.envs.web.webarena import helpers
from dreamgym.errors import EnvironmentFailure, ServerError

FORM = "<form method=post action={action}><label>{user}<input name=user></label><label>Password<input name=password type=password></label>"
SITES = {
    "gitlab": ("/users/sign_in", "Username or email", "<button>Sign in</button>"),
    "shopping": ("/customer/account/login/", "Email", "<button>Sign In</button><p><label>Email newsletter<input name=news></label>"),
    "shopping_admin": ("/", "Username", "<button>Sign in</button>"),
}
"""By site: where its form is, how the field of the user's name is labelled, and what follows the fields."""
MEMBER = """<tr><td data-label='Account'><span class=gl-avatar-labeled-sublabel>@{name}</span></td>
<td class=col-max-role><span>{role}</span></td></tr>"""


class Imitation:
    """A server of the forms, and of the interface of the shop. `logged_in` are the accounts that were given with their passwords."""

    def __init__(self) -> None:
        self.logged_in, self.asked = list[tuple[str, str]](), list[dict[str, list[str]]]()
        self.accounts = dict(helpers.ACCOUNTS)  # that it comes with
        self.orders: list[dict[str, Any]] = [{"increment_id": "000000189"}]
        imitation = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if url.path.startswith("/rest/"):
                    return imitation.rest(self, url.path, parse_qs(url.query))
                site = next((name for name, (path, *_) in SITES.items() if url.path == path), None)
                if url.path == "/members":
                    rows = "".join(MEMBER.format(name=name, role=role) for name, role in (("byteblaze", "Owner"), ("guest", "Guest")))
                    return imitation.say(self, f"<table>{rows}</table>")
                if site is None:
                    return imitation.say(self, "<p>welcome")
                _, user, rest = SITES[site]
                imitation.say(self, FORM.format(action=f"/done/{site}", user=user) + rest + "</form>")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                if self.path.startswith("/rest/"):
                    given = json.loads(body)
                    known = (given["username"], given["password"]) == imitation.accounts["shopping_admin"]
                    return imitation.say(self, json.dumps("a token" if known else "no"), 200 if known else 401)
                fields, site = parse_qs(body), self.path.rsplit("/", 1)[1]
                account = (fields["user"][0], fields["password"][0])
                imitation.logged_in.append(account)
                _, user, rest = SITES[site]
                wrong = FORM.format(action=self.path, user=user) + rest
                imitation.say(self, "<p>welcome" if account == imitation.accounts[site] else wrong)

            def log_message(self, format: str, *arguments: object) -> None:
                """Requests are no news."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.site = f"127.0.0.1:{self.server.server_address[1]}"
        self.address = f"http://{self.site}"

    def rest(self, handler: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]) -> None:
        self.asked.append(query)
        if handler.headers["Authorization"] != "Bearer a token":
            return self.say(handler, "{}", 401)
        reviews = [{"nickname": "first", "ratings": [{"percent": 20}]}, {"nickname": "latest", "ratings": [{"percent": 80}]}]
        answers: dict[str, Any] = {
            "/rest/V1/products/B0/reviews": reviews,
            "/rest/V1/products/B1/reviews": [],
            "/rest/V1/orders": {"items": self.orders},
        }
        self.say(handler, json.dumps(answers[path]))

    @staticmethod
    def say(handler: BaseHTTPRequestHandler, text: str, status: int = 200) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", "text/html")
        handler.end_headers()
        handler.wfile.write(text.encode())


@pytest.fixture
def imitation() -> Iterator[Imitation]:
    found = Imitation()
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_reviews_and_the_latest_order_are_read_as_the_shops_administrator(imitation: Imitation):
    known = helpers.site_helpers({"shopping": imitation.address})
    assert known["shopping_get_sku_latest_review_author"]("B0") == "latest"
    assert known["shopping_get_sku_latest_review_rating"]("B0") == "80"
    assert known["shopping_get_sku_latest_review_author"]("B1") == known["shopping_get_sku_latest_review_rating"]("B1") == ""
    assert known["shopping_get_latest_order_url"]() == f"{imitation.address}/sales/order/view/order_id/189/"
    assert imitation.asked[-1] == {
        "searchCriteria[sortOrders][0][field]": ["created_at"],
        "searchCriteria[sortOrders][0][direction]": ["DESC"],
        "searchCriteria[pageSize]": ["1"],
    }


def test_a_shop_without_orders_and_one_that_does_not_answer_are_named(imitation: Imitation, monkeypatch: pytest.MonkeyPatch):
    imitation.orders = []
    with pytest.raises(ServerError, match=f"shop at {imitation.address} has no orders"):
        helpers.site_helpers({"shopping": imitation.address})["shopping_get_latest_order_url"]()
    monkeypatch.setitem(helpers.ACCOUNTS, "shopping_admin", ("admin", "changed"))
    with pytest.raises(ServerError, match="does not answer a helper of its evaluators: .*401"):
        helpers.site_helpers({"shopping": imitation.address})["shopping_get_sku_latest_review_author"]("B0")


@in_browser_thread
def in_page(imitation: Imitation, work: Any) -> Any:
    """What `work` gives for a new page that reaches the imitation only."""
    with closing(WebSession(browser(), [imitation.site], timeout_s=2, quiet_s=0.05)) as session:
        return work(session.page)


@pytest.mark.slow
@pytest.mark.parametrize("site", sorted(SITES))
def test_a_site_is_logged_in_to_by_its_own_form(site: str, imitation: Imitation):
    browser()
    in_page(imitation, lambda page: helpers.LOGINS[site](page, imitation.address))
    assert imitation.logged_in == [helpers.ACCOUNTS[site]]


@pytest.mark.slow
@pytest.mark.parametrize("site", sorted(SITES))
def test_an_account_that_a_site_does_not_take_is_named(site: str, imitation: Imitation, monkeypatch: pytest.MonkeyPatch):
    browser()
    monkeypatch.setitem(helpers.ACCOUNTS, site, (helpers.ACCOUNTS[site][0], "wrong"))
    with pytest.raises(EnvironmentFailure, match=f"The site '{site}' .* did not log"):
        in_page(imitation, lambda page: helpers.LOGINS[site](page, imitation.address))


@pytest.mark.slow
def test_the_role_of_a_member_is_read_from_gitlabs_table_and_is_empty_on_any_other_page(imitation: Imitation):
    browser()

    def roles(page: Any) -> list[str]:
        page.goto(f"{imitation.address}/members")
        found = [helpers.member_role(page, name) for name in ("byteblaze", "guest", "nobody")]
        page.goto(f"{imitation.address}/elsewhere")
        return [*found, helpers.member_role(page, "byteblaze")]

    assert in_page(imitation, roles) == ["Owner", "Guest", "", ""]
