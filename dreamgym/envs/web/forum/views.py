"""The forum's addresses: django-spirit's, with a search that reads the database, dates in days, and no page for its options.

Spirit searches an index, which would be the same in every world. It writes how long ago something was, so a page would differ from one
minute to the next. Its options are kept by the process, so one world would change them for all. And it does not say that a report was sent.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.humanize.templatetags import humanize
from django.db.models import Exists, OuterRef, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import include, path, re_path
from djconfig import config
from spirit.comment.flag import views as flag_views
from spirit.comment.models import Comment
from spirit.core.conf import settings
from spirit.core.templatetags import spirit_tags
from spirit.core.utils.paginator import yt_paginate
from spirit.search.forms import AdvancedSearchForm
from spirit.topic.models import Topic
from spirit.user import views as user_views
from spirit.user.forms import UserProfileForm

from dreamgym.envs.web.forum.content import NOW

MAX_WORDS = 10


def day(value: datetime) -> str:
    """The day of what the forum held at first; `today` for what was added."""
    return "today" if value >= NOW else f"{value.day} {value:%b %Y}"


spirit_tags.register.filter("shortnaturaltime", day)
humanize.naturaltime = day


@login_required
def search(request: HttpRequest) -> HttpResponse:
    """Topics whose title or one of whose comments holds all words that are searched for; the one with the latest comment first."""
    query = " ".join(str(request.GET.get("q", "")).split())
    found: Any = []
    if query:
        found = yt_paginate(_matching(query.split()), per_page=config.topics_per_page, page_number=request.GET.get("page", 1))
    page = [{"pk": one.pk, "fields": _fields(one)} for one in found]
    return render(request, "spirit/search/search.html", {"query": query, "page": page, "form": AdvancedSearchForm()})


def _matching(words: list[str]) -> Any:
    title, text = Q(), Q()
    for word in words[:MAX_WORDS]:
        title &= Q(title__icontains=word)
        text &= Q(comment__icontains=word)
    comments = Comment.objects.filter(text, topic=OuterRef("pk"), is_removed=False)
    public = Topic.objects.visible().exclude(category_id=settings.ST_TOPIC_PRIVATE_CATEGORY_PK)
    return public.filter(title | Q(Exists(comments))).select_related("category").order_by("-last_active", "-pk")


def _fields(topic: Any) -> dict[str, Any]:
    shown = {name: getattr(topic, name) for name in ("title", "slug", "comment_count", "last_active")}
    return {**shown, "main_category_name": topic.main_category.title}


class ProfileForm(UserProfileForm):
    """A member's preferences, without the time of day."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.fields["timezone"].help_text = ""


user_views.UserProfileForm = ProfileForm


def report(request: HttpRequest, comment_id: int) -> HttpResponse:
    """Spirit's form for the report of a comment, which says that it was sent."""
    answer: HttpResponse = flag_views.create(request, comment_id)
    if answer.status_code == 302:
        messages.info(request, "The comment has been reported.")
    return answer


def none(request: HttpRequest) -> HttpResponse:
    """What is no page of this forum."""
    return render(request, "404.html", status=404)


urlpatterns = [
    path("search/", search),
    path("comment/flag/<int:comment_id>/create/", report),
    re_path(r"^st/admin/config/", none),
    path("", include("spirit.urls")),
]
