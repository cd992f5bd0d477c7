"""The shop as a site: django-oscar with two accounts, and its benchmark."""

from __future__ import annotations

from dreamgym.envs.web.shop.content import CUSTOMER, STAFF, content
from dreamgym.envs.web.shop.experts import SCRIPTS
from dreamgym.envs.web.shop.tasks import every_task
from dreamgym.envs.web.sites.benchmark import SiteBenchmark
from dreamgym.envs.web.sites.site import Account, Site

SHOP = Site(
    name="shop",
    package="dreamgym.envs.web.shop",
    module="oscar",
    distribution="django-oscar",
    accounts={
        "customer": Account(*CUSTOMER, start="/catalogue/", about="The shop"),
        "staff": Account(*STAFF, start="/dashboard/reports/", about="Its administration"),
    },
)


def shop(seed: int = 0) -> SiteBenchmark:
    """The benchmark of the shop. `seed` names the content, and the tasks with it."""
    return SiteBenchmark(SHOP, seed, every_task(content(seed), seed), SCRIPTS)
