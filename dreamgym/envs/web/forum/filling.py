"""Writes the forum's content into the database that Django is set up with. Rows are dated by day and minute before `content.NOW`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any

from django.contrib.auth import get_user_model
from djconfig.models import Config
from spirit.category.models import Category
from spirit.comment.like.models import CommentLike
from spirit.comment.models import Comment as CommentRow
from spirit.comment.poll.models import CommentPoll, CommentPollChoice, CommentPollVote
from spirit.topic.models import Topic as TopicRow
from spirit.topic.notification.models import TopicNotification
from spirit.topic.private.models import TopicPrivate
from spirit.user.models import UserProfile

from dreamgym.envs.web.forum.content import MEMBER, MODERATOR, NOW, SUBJECTS, Content, Message, Topic

OPTIONS = {"site_name": "Village forum", "topics_per_page": "12", "comments_per_page": "20"}


def write(made: Content) -> dict[str, Any]:
    """Write everything. Returns the user of each role."""
    for key, value in OPTIONS.items():
        Config.objects.create(key=key, value=value)
    private = Category.objects.create(pk=1, title="Private topics", is_private=True)
    categories = {title: Category.objects.create(title=title, sort=place) for place, title in enumerate(SUBJECTS)}
    people = get_user_model().objects
    users = [people.create_user(username=name, email=f"{name}@mail.example", password=MEMBER[1]) for name in made.users]
    moderator = people.create_user(username=MODERATOR[0], email=f"{MODERATOR[0]}@mail.example", password=MODERATOR[1])
    UserProfile.objects.update(is_verified=True, last_ip="127.0.0.1", last_seen=NOW - timedelta(days=1))
    UserProfile.objects.filter(user=moderator).update(is_moderator=True)
    people.update(date_joined=NOW - timedelta(days=1000))
    ages = count(len(made.topics), -1)
    for topic, age in zip(made.topics, ages, strict=False):
        _topic(topic, age, categories[topic.category], users)
    for message, age in zip(made.messages, count(len(made.messages), -1), strict=False):
        _message(message, age, private, users)
    return {"member": users[0], "moderator": moderator}


def _topic(topic: Topic, age: int, category: Any, users: Sequence[Any]) -> None:
    """A topic and all that is in it, `age` days old."""
    begun = NOW - timedelta(days=age)
    comments = len(topic.comments)
    row = TopicRow.objects.create(
        user=users[topic.author], category=category, title=topic.title, date=begun, last_active=begun + timedelta(minutes=comments),
        reindex_at=begun, is_closed=topic.closed, comment_count=comments,
    )  # fmt: skip
    rows = []
    for minute, comment in enumerate(topic.comments):
        html = f"<p>{comment.text}</p>\n" + ("<poll name=poll>\n" if topic.poll and not minute else "")
        date = begun + timedelta(minutes=minute)
        rows.append(
            CommentRow.objects.create(
                user=users[comment.writer], topic=row, comment=comment.text, comment_html=html, date=date, likes_count=len(comment.likes)
            )
        )
        CommentLike.objects.bulk_create([CommentLike(user=users[one], comment=rows[-1], date=date) for one in comment.likes])
    if topic.poll:
        poll = CommentPoll.objects.create(comment=rows[0], name="poll", created_at=begun)
        for number, (text, voters) in enumerate(zip(topic.poll.choices, topic.poll.votes, strict=True), 1):
            choice = CommentPollChoice.objects.create(poll=poll, number=number, description=text, vote_count=len(voters))
            CommentPollVote.objects.bulk_create([CommentPollVote(voter=users[one], choice=choice, created_at=begun) for one in voters])
    if topic.followed:
        TopicNotification.objects.create(user=users[0], topic=row, comment=rows[-1], date=begun, is_read=True, is_active=True)


def _message(message: Message, age: int, private: Any, users: Sequence[Any]) -> None:
    """A private topic with its first comment."""
    date = NOW - timedelta(days=age)
    sender = users[message.other if message.received else 0]
    row = TopicRow.objects.create(
        user=sender, category=private, title=message.title, date=date, last_active=date, reindex_at=date, comment_count=1
    )
    text = f"Let us meet in {message.place} at {message.hour} o'clock."
    CommentRow.objects.create(user=sender, topic=row, comment=text, comment_html=f"<p>{text}</p>\n", date=date)
    for user in (users[0], users[message.other]):
        TopicPrivate.objects.create(user=user, topic=row, date=date)
