"""The forum as a site: django-spirit with two accounts, and its benchmark."""

from __future__ import annotations

from dreamgym.envs.web.forum.content import MEMBER, MODERATOR, content
from dreamgym.envs.web.forum.experts import SCRIPTS
from dreamgym.envs.web.forum.tasks import every_task
from dreamgym.envs.web.sites.benchmark import SiteBenchmark
from dreamgym.envs.web.sites.site import Account, Site

FORUM = Site(
    name="forum",
    package="dreamgym.envs.web.forum",
    module="spirit",
    distribution="django-spirit",
    accounts={
        "member": Account(*MEMBER, start="/", about="The forum"),
        "moderator": Account(*MODERATOR, start="/", about="The same for a moderator"),
    },
)


def forum(seed: int = 0) -> SiteBenchmark:
    """The benchmark of the forum. `seed` names the content, and the tasks with it."""
    return SiteBenchmark(FORUM, seed, every_task(content(seed), seed), SCRIPTS)
