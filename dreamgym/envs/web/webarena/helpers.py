"""What WebArena's tasks ask of the sites themselves: logins, and the helper functions that evaluators name.

Accounts, forms and interfaces are those of the original's images. They are tested on pages and servers that imitate them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from dreamgym.envs.web.webarena.evaluators import Helper, Page
from dreamgym.errors import EnvironmentFailure, ServerError

ACCOUNTS = {
    "reddit": ("MarvelsGrantMan136", "test1234"),
    "gitlab": ("byteblaze", "hello1234"),
    "shopping": ("emma.lopez@gmail.com", "Password.123"),
    "shopping_admin": ("admin", "admin1234"),
}
"""(user, password) that the images come with."""
FOR_MEMBERS = {"reddit": "/submit", "gitlab": "/-/profile", "shopping": "/wishlist/", "shopping_admin": ""}
"""The path of a page that shows a form to log in by to whoever is not logged in."""
PASSWORD = "input[type=password]:visible"
ROLE = """(name) => {
    const accounts = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
    return document.querySelectorAll("td.col-max-role span")[accounts.findIndex((one) => one.outerText === "@" + name)].outerText;
}"""


def _login(site: str, path: str, user: str, button: str, *, first: str = "", exact: bool = False) -> Callable[[Any, str], None]:
    """A function (page, address of the site) that logs in by the form and closes the page. EnvironmentFailure where the form stays."""

    def login(page: Any, address: str) -> None:
        from playwright.sync_api import TimeoutError

        page.goto(f"{address}{path}")
        if first:
            page.get_by_role("link", name=first).click()
        page.get_by_label(user, exact=exact).fill(ACCOUNTS[site][0])
        page.get_by_label("Password", exact=exact).fill(ACCOUNTS[site][1])
        page.get_by_role("button", name=button).click()
        page.wait_for_load_state("domcontentloaded")
        try:
            page.locator(PASSWORD).first.wait_for(state="hidden")
        except TimeoutError as error:
            raise EnvironmentFailure(
                f"The site '{site}' at {address} did not log '{ACCOUNTS[site][0]}' in: its form still asks for a password. Is it the "
                "original's image, in its first state?"
            ) from error
        page.close()

    return login


LOGINS: Mapping[str, Callable[[Any, str], None]] = {
    "reddit": _login("reddit", "", "Username", "Log in", first="Log in"),
    "gitlab": _login("gitlab", "/users/sign_in", "Username or email", "Sign in"),
    "shopping": _login("shopping", "/customer/account/login/", "Email", "Sign In", exact=True),
    "shopping_admin": _login("shopping_admin", "", "Username", "Sign in"),
}


def login_expired(page: Any, site: str, address: str) -> bool:
    """Whether the site asks for a password where it would show a page to whoever is logged in. Closes the page."""
    page.goto(f"{address}{FOR_MEMBERS[site]}", wait_until="domcontentloaded")
    asked = page.locator(PASSWORD).count() > 0
    page.close()
    return bool(asked)


def site_helpers(addresses: Mapping[str, str]) -> dict[str, Helper]:
    """The helper functions by their names in the tasks."""
    shop = addresses["shopping"]

    def reviews(sku: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = _get(shop, f"/rest/V1/products/{sku}/reviews", {})
        return found

    def latest_order_url() -> str:
        newest = {
            "searchCriteria[sortOrders][0][field]": "created_at",
            "searchCriteria[sortOrders][0][direction]": "DESC",
            "searchCriteria[pageSize]": "1",
        }
        orders = _get(shop, "/rest/V1/orders", newest)["items"]
        if not orders:
            raise ServerError(f"WebArena's shop at {shop} has no orders, and an evaluator asks for the latest.")
        return f"{shop}/sales/order/view/order_id/{int(orders[0]['increment_id'])}/"

    def review_author(sku: str) -> str:
        return str(reviews(sku)[-1]["nickname"]) if reviews(sku) else ""

    def review_rating(sku: str) -> str:
        return str(reviews(sku)[-1]["ratings"][0]["percent"]) if reviews(sku) else ""

    return {
        "shopping_get_latest_order_url": latest_order_url,
        "shopping_get_sku_latest_review_author": review_author,
        "shopping_get_sku_latest_review_rating": review_rating,
        "reddit_get_post_url": reddit_post_url,
        "gitlab_get_project_memeber_role": member_role,  # the original's spelling
    }


def reddit_post_url(url: str) -> str:
    """The address of the post that an address belongs to: /f/FORUM/ID/ of /f/FORUM/ID/...; any other address as it is."""
    parts = urlsplit(url)
    path = parts.path.split("/")
    return url if len(path) < 4 or path[1] != "f" else f"{parts.scheme}://{parts.netloc}/f/{path[2]}/{path[3]}/"


def member_role(page: Page, name: str) -> str:
    """The role of a member on a GitLab page of members; "" where it is not shown."""
    try:
        return str(page.evaluate(f"({ROLE})({json.dumps(name)})"))
    except Exception:  # the wrong page, as in the original
        return ""


def _get(shop: str, path: str, parameters: Mapping[str, str]) -> Any:
    """What the shop's interface answers to its administrator. ServerError where it does not."""
    user, password = ACCOUNTS["shopping_admin"]
    try:
        token = httpx.post(f"{shop}/rest/default/V1/integration/admin/token", json={"username": user, "password": password}, timeout=30)
        token.raise_for_status()
        answer = httpx.get(f"{shop}{path}", params=parameters, headers={"Authorization": f"Bearer {token.json()}"}, timeout=30)
        answer.raise_for_status()
        return answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise ServerError(f"WebArena's shop at {shop} does not answer a helper of its evaluators: {error}") from error
