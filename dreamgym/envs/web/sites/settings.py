"""Django settings that every site has: SQLite, English, no cache, no mail. A site's own settings begin with these.

These are sites for training, and none for the public: passwords are hashed quickly, and keys are no secrets.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dreamgym.envs.web.sites.server import FOLDER as VARIABLE

FOLDER = Path(os.environ[VARIABLE])
SECRET_KEY = "training-only"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
SITE_ID = 1
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-gb"
LANGUAGES = [("en-gb", "English")]
STATIC_URL, MEDIA_URL, MEDIA_ROOT = "/static/", "/media/", str(FOLDER / "media")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(FOLDER / "template.sqlite3"),
        "CONN_MAX_AGE": 0,
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {
            "init_command": "PRAGMA synchronous = OFF",  # nothing in it is worth a wait for the disk
            "transaction_mode": "IMMEDIATE",  # what a page's scripts ask for waits; it would fail where it reads before it writes
            "timeout": 20,
        },
    }
}


MIDDLEWARE = [
    "dreamgym.envs.web.sites.worlds.ChooseWorld",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]


def templates(*processors: str) -> list[dict[str, Any]]:
    """`TEMPLATES` with a site's own context processors after those that every site has."""
    known = [
        "django.contrib.auth.context_processors.auth",
        "django.template.context_processors.request",
        "django.template.context_processors.i18n",
        "django.contrib.messages.context_processors.messages",
    ]
    backend = "django.template.backends.django.DjangoTemplates"
    return [{"BACKEND": backend, "APP_DIRS": True, "OPTIONS": {"context_processors": [*known, *processors]}}]


class _Tables(dict[str, None]):
    """Every application's tables are made as they are now, and not by the hundred migrations that led there."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> None:
        return None


MIGRATION_MODULES = _Tables()
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
HAYSTACK_SIGNAL_PROCESSOR = "haystack.signals.BaseSignalProcessor"
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}  # a cache would outlive a reset
LOGGING = {"version": 1, "disable_existing_loggers": False}
