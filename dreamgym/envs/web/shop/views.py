"""The shop's addresses: django-oscar's, with lists of products that are read from the database.

Oscar asks a search index for them. An index would be the same in every world, whatever an episode has changed. Its administration searches
titles for a phrase; here both find a product by the words of its title and of its description.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.apps import apps
from django.conf import settings
from django.conf.urls.i18n import i18n_patterns  # noqa: F401 (so that Django finds this module a whole URL configuration)
from django.db.models import Q, QuerySet
from django.shortcuts import get_object_or_404
from django.urls import include, path, re_path
from django.views.generic import ListView
from oscar.core.loading import get_class, get_model

Product, Category = get_model("catalogue", "Product"), get_model("catalogue", "Category")
MAX_WORDS = 10


def matching(products: QuerySet[Any], words: list[str]) -> QuerySet[Any]:
    """The products whose title or description holds each of the words."""
    for word in words[:MAX_WORDS]:
        products = products.filter(Q(title__icontains=word) | Q(description__icontains=word))
    return products


class ProductList(ListView):
    """All products, those of a category, or those that a search finds."""

    template_name = "oscar/catalogue/browse.html"
    paginate_by = settings.OSCAR_PRODUCTS_PER_PAGE

    @property
    def words(self) -> list[str]:
        return str(self.request.GET.get("q", "")).split()

    @property
    def category(self) -> Any:
        return get_object_or_404(Category, pk=self.kwargs["pk"]) if "pk" in self.kwargs else None

    def get_queryset(self) -> QuerySet[Any]:
        found = matching(Product.objects.browsable().base_queryset().order_by("pk"), self.words)
        return found.filter(categories=self.category) if self.category else found

    def get_context_data(self, **more: Any) -> dict[str, Any]:
        context = super().get_context_data(**more)
        searched = f"Products matching '{' '.join(self.words)}'" if self.words else "All products"
        return {
            **context,
            "products": [SimpleNamespace(object=product) for product in context["object_list"]],
            "category": self.category,
            "summary": self.category.name if self.category else searched,
        }


class StaffProductList(get_class("dashboard.catalogue.views", "ProductListView")):  # type: ignore[misc]
    """The administration's list of products, with the shop's search."""

    def apply_search(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        self.form = self.form_class(self.request.GET)
        asked = self.form.cleaned_data if self.form.is_valid() else {}
        return matching(queryset.filter(upc__contains=asked.get("upc", "")), asked.get("title", "").split()).distinct()


apps.get_app_config("catalogue_dashboard").product_list_view = StaffProductList

urlpatterns = [
    path("catalogue/", ProductList.as_view()),
    path("search/", ProductList.as_view()),
    re_path(r"^catalogue/category/(?P<category_slug>[\w-]+(?:/[\w-]+)*)_(?P<pk>\d+)/$", ProductList.as_view()),
    path("i18n/", include("django.conf.urls.i18n")),
    path("", include(apps.get_app_config("oscar").urls[0])),
]
