"""Django settings of the forum: django-spirit."""

from __future__ import annotations

from dreamgym.envs.web.sites.settings import *  # noqa: F403

ROOT_URLCONF = "dreamgym.envs.web.forum.views"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "spirit.core",
    "spirit.admin",
    "spirit.search",
    "spirit.user",
    "spirit.user.admin",
    "spirit.user.auth",
    "spirit.category",
    "spirit.category.admin",
    "spirit.topic",
    "spirit.topic.admin",
    "spirit.topic.favorite",
    "spirit.topic.moderate",
    "spirit.topic.notification",
    "spirit.topic.private",
    "spirit.topic.unread",
    "spirit.comment",
    "spirit.comment.bookmark",
    "spirit.comment.flag",
    "spirit.comment.flag.admin",
    "spirit.comment.history",
    "spirit.comment.like",
    "spirit.comment.poll",
    "djconfig",
    "haystack",
]
MIDDLEWARE = [
    *MIDDLEWARE,  # noqa: F405
    "django.middleware.common.CommonMiddleware",
    "spirit.user.middleware.TimezoneMiddleware",
    "spirit.user.middleware.ActiveUserMiddleware",
    "djconfig.middleware.DjConfigMiddleware",
]
TEMPLATES = templates(  # noqa: F405
    "django.template.context_processors.static",
    "django.template.context_processors.tz",
    "djconfig.context_processors.config",
)
AUTHENTICATION_BACKENDS = ["spirit.user.auth.backends.UsernameAuthBackend"]
LOGIN_URL, LOGIN_REDIRECT_URL, LOGOUT_REDIRECT_URL = "spirit:user:auth:login", "spirit:user:update", "spirit:index"

ST_SITE_URL = "http://127.0.0.1/"
ST_RATELIMIT_ENABLE = False  # what limits it lies in a cache that all worlds share
ST_RATELIMIT_SKIP_TIMEOUT_CHECK = True
ST_RATELIMIT_CACHE = "default"
ST_UPLOAD_IMAGE_ENABLED = False
