"""Django settings of the shop: django-oscar."""

from __future__ import annotations

from oscar import INSTALLED_APPS as OSCAR_APPS
from oscar.defaults import *  # noqa: F403 (the settings that oscar reads)

from dreamgym.envs.web.sites.settings import *  # noqa: F403

ROOT_URLCONF = "dreamgym.envs.web.shop.views"
INSTALLED_APPS = OSCAR_APPS
MIDDLEWARE = [
    *MIDDLEWARE,  # noqa: F405
    "django.contrib.flatpages.middleware.FlatpageFallbackMiddleware",
    "oscar.apps.basket.middleware.BasketMiddleware",
]
TEMPLATES = templates(  # noqa: F405
    "oscar.apps.search.context_processors.search_form",
    "oscar.apps.checkout.context_processors.checkout",
    "oscar.apps.communication.notifications.context_processors.notifications",
    "oscar.core.context_processors.metadata",
)
AUTHENTICATION_BACKENDS = ["oscar.apps.customer.auth_backends.EmailBackend", "django.contrib.auth.backends.ModelBackend"]

OSCAR_SHOP_NAME = "Example shop"
OSCAR_ALLOW_ANON_CHECKOUT = False
OSCAR_THUMBNAILER = "dreamgym.envs.web.shop.thumbnails.NoThumbnails"
OSCAR_PRODUCTS_PER_PAGE = 12
OSCAR_INITIAL_ORDER_STATUS = OSCAR_INITIAL_LINE_STATUS = "Pending"
OSCAR_ORDER_STATUS_PIPELINE = {
    "Pending": ("Processing", "Cancelled"),
    "Processing": ("Shipped", "Cancelled"),
    "Shipped": ("Complete",),
    "Complete": (),
    "Cancelled": (),
}
