"""Django settings of the shop: django-oscar on SQLite, on loopback. The variable `DREAMGYM_SHOP` names its folder.

It is a shop for training, and none to sell with: passwords are hashed quickly, and keys are no secrets.
"""

from __future__ import annotations

import os
from pathlib import Path

from oscar import INSTALLED_APPS as OSCAR_APPS
from oscar.defaults import *  # noqa: F403 (the settings that oscar reads)

FOLDER = Path(os.environ["DREAMGYM_SHOP"])
SECRET_KEY = "practice-only"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "dreamgym.envs.web.shop.views"
INSTALLED_APPS = OSCAR_APPS
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
        "OPTIONS": {"init_command": "PRAGMA synchronous = OFF"},  # nothing in it is worth a wait for the disk
    }
}


class _Tables(dict[str, None]):
    """Every application's tables are made as they are now, and not by the hundred migrations that led there."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> None:
        return None


MIGRATION_MODULES = _Tables()
MIDDLEWARE = [
    "dreamgym.envs.web.shop.middleware.ChooseWorld",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.contrib.flatpages.middleware.FlatpageFallbackMiddleware",
    "oscar.apps.basket.middleware.BasketMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.contrib.auth.context_processors.auth",
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.messages.context_processors.messages",
                "oscar.apps.search.context_processors.search_form",
                "oscar.apps.checkout.context_processors.checkout",
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
            ]
        },
    }
]
AUTHENTICATION_BACKENDS = ["oscar.apps.customer.auth_backends.EmailBackend", "django.contrib.auth.backends.ModelBackend"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
HAYSTACK_CONNECTIONS = {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}}
HAYSTACK_SIGNAL_PROCESSOR = "haystack.signals.BaseSignalProcessor"
EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}  # a cache would outlive a reset
LOGGING = {"version": 1, "disable_existing_loggers": False}

OSCAR_SHOP_NAME = "Practice shop"
OSCAR_ALLOW_ANON_CHECKOUT = False
OSCAR_THUMBNAILER = "dreamgym.envs.web.shop.middleware.NoThumbnails"
OSCAR_PRODUCTS_PER_PAGE = 12
OSCAR_INITIAL_ORDER_STATUS = OSCAR_INITIAL_LINE_STATUS = "Pending"
OSCAR_ORDER_STATUS_PIPELINE = {
    "Pending": ("Processing", "Cancelled"),
    "Processing": ("Shipped", "Cancelled"),
    "Shipped": ("Complete",),
    "Complete": (),
    "Cancelled": (),
}
