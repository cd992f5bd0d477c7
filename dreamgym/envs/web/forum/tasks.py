"""Tasks in the forum: templates that are filled with its content.

Splits are by pairs of topics of one category, and by private topics: what a held-out task is about is in no other task. Wordings give no
path, and what must be found out differs from task to task: who has begun a topic, which category it is in, where a comment stands.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from dreamgym.envs.web.forum.checks import CHECKED, CLOSED, PINNED, REOPENED
from dreamgym.envs.web.forum.content import LATEST, PLACES, SUBJECTS, Comment, Content, Message, Topic
from dreamgym.envs.web.sites.tasks import SiteTask

REPLIES = (
    "Thank you, that helped.", "It works now.", "I will try that on Saturday.", "Can you say more?", "That was new to me.",
    "Same here, I am afraid.", "Please send a picture.", "I have one to spare.", "This is solved.", "Not in my case.",
)  # fmt: skip
TITLES = [
    f"{kind} {thing}"
    for kind, thing in product(
        ("Wanted:", "Looking for", "Who lends", "Offered:", "Lost and found:", "Thanks for"),
        ("a ladder", "old maps", "a spare key", "the shared van", "garden chairs", "a sewing kit", "empty jars", "a good book"),
    )
]
NOTES = ("off topic", "an advertisement", "says nothing", "seen before")
REASONS = ("spam", "other")
"""The reasons of a report, by the forum's number."""
ANSWERED = (
    "comment_count", "comment_writer", "most_liked", "first_answer", "poll_leader", "poll_voter", "author_topics", "more_comments",
    "own_comment", "meeting",
)  # fmt: skip
TEMPLATES = (*CHECKED, *ANSWERED)


def every_task(content: Content, seed: int) -> Iterator[SiteTask]:
    """All tasks about the content; the same seed gives the same tasks."""
    rng = random.Random(f"forum-tasks/{seed}")
    likes = sum(0 in comment.likes for topic in content.topics for comment in topic.comments)
    for place, topic in enumerate(content.topics[:-LATEST]):
        twin = content.topics[place ^ 1]
        maker = _Maker(content, " & ".join(sorted((topic.title, twin.title))))
        yield from _answers(maker, topic)
        yield from _comments(maker, topic, likes, rng)
        yield from _topics(maker, topic, rng)
        yield from _moderation(maker, topic, rng)
        if place % 2 == 0 and len(topic.comments) != len(twin.comments):
            more = max((topic, twin), key=lambda one: len(one.comments))
            asked = f"Which of the topics '{topic.title}' and '{twin.title}' has more comments, and how many, with the first?"
            yield maker.task("more_comments", asked, more.title, len(more.comments), others=({topic.title, twin.title} - {more.title}))
    for message in content.messages:
        yield from _messages(_Maker(content, f"message {message.title}"), message, rng)


class _Maker:
    """Makes tasks about one part of the content."""

    def __init__(self, content: Content, about: str) -> None:
        self.content, self.about = content, about

    def task(self, template: str, instruction: str, *wanted: object, role: str = "member", others: set[str] | None = None) -> SiteTask:
        """A task. An answer may hold none of `others`."""
        return SiteTask(template, instruction, self.about, role, wanted, CHECKED.get(template), tuple(sorted(others or ())))

    def name(self, user: int) -> str:
        return self.content.users[user]

    def named(self, template: str, instruction: str, user: int, *wanted: object) -> SiteTask:
        """A question whose answer names a user: it may name no other."""
        return self.task(template, instruction, self.name(user), *wanted, others=set(self.content.users) - {self.name(user)})


def _answers(maker: _Maker, topic: Topic) -> Iterator[SiteTask]:
    """Questions about one topic."""
    title, comments = topic.title, topic.comments
    asked = f"How many comments has the topic '{title}', with the first, and who wrote the last?"
    yield maker.named("comment_count", asked, comments[-1].writer, len(comments))
    spoken = next(one for one in comments[1:] if one.writer and not one.text.startswith("See"))
    asked = f"Who says in the topic '{title}': '{spoken.text}'? How many likes has that comment?"
    yield maker.named("comment_writer", asked, spoken.writer, len(spoken.likes))
    best = max(comments, key=lambda one: len(one.likes))
    yield maker.named("most_liked", f"Whose comment in the topic '{title}' has most likes, and how many?", best.writer, len(best.likes))
    second = comments[1]
    asked = f"Who was the first to answer in the topic '{title}', and how many likes has that answer?"
    yield maker.named("first_answer", asked, second.writer, len(second.likes))
    if topic.author:
        asked = f"Who has begun the topic '{title}', and how many topics has this user begun in all?"
        yield maker.named("author_topics", asked, topic.author, maker.content.begun(topic.author))
    if (own := _own(topic)) and not _repeated(maker.content, topic, own):
        asked = f"One of my comments about {_subject(topic)} says '{own.text}'. What is the title of its topic, and how many likes has it?"
        alike = {one.title for one in maker.content.topics if _subject(one) == _subject(topic)}
        yield maker.task("own_comment", asked, title, len(own.likes), others=alike - {title})
    if topic.poll:
        choices, counts = topic.poll.choices, [len(votes) for votes in topic.poll.votes]
        leader = choices[counts.index(max(counts))]
        asked = f"Which choice leads in the poll of the topic '{title}', and how many have voted in all?"
        yield maker.task("poll_leader", asked, leader, sum(counts), others=set(choices) - {leader})
        single = counts.index(1)
        asked = f"Who alone voted for '{choices[single]}' in the poll of the topic '{title}'?"
        yield maker.named("poll_voter", asked, topic.poll.votes[single][0])


def _subject(topic: Topic) -> str:
    """What a topic is about, without saying its title."""
    return next(one for one in SUBJECTS[topic.category] if one in topic.title)


def _repeated(content: Content, topic: Topic, own: Comment) -> bool:
    """Whether the member says the same in another topic about the same."""
    others = (one for one in content.topics if one != topic and _subject(one) == _subject(topic))
    return any(found.text == own.text for one in others if (found := _own(one)))


def _own(topic: Topic) -> Comment | None:
    """The member's comment in a topic."""
    return next((one for one in topic.comments if one.writer == 0), None)


def _comments(maker: _Maker, topic: Topic, likes: int, rng: random.Random) -> Iterator[SiteTask]:
    """Things to do with comments. `likes`: of the member, in all."""
    title, reply = topic.title, rng.choice(REPLIES)
    spoken = [one for one in topic.comments if one.writer and not one.text.startswith("See")]
    if not topic.closed:
        yield maker.task("comment", f"Write the comment '{reply}' in the topic '{title}'.", title, reply)
    fresh = rng.choice([one for one in spoken if 0 not in one.likes])
    yield maker.task("like", f"Like the comment in the topic '{title}' that says '{fresh.text}'", title, fresh.text)
    for liked in (one for one in spoken if 0 in one.likes):
        asked = f"I no longer like the comment '{liked.text}' in the topic '{title}': take my like back."
        yield maker.task("unlike", asked, title, liked.text, likes - 1)
    bad, reason, note = rng.choice(spoken), rng.randrange(2), rng.choice(NOTES)
    asked = f"Report the comment '{bad.text}' in the topic '{title}' for the reason {REASONS[reason]}, with the text '{note}'."
    yield maker.task("report", asked, title, bad.text, reason, note)
    if own := _own(topic):
        asked = f"Change my comment in the topic '{title}' to '{reply}'"
        yield maker.task("edit_own", asked, title, maker.name(0), own.text, reply)
    other = rng.choice(spoken)
    asked = f"Replace the text of the comment '{other.text}' in the topic '{title}' by '{reply}'"
    yield maker.task("edit_other", asked, title, maker.name(other.writer), other.text, reply, role="moderator")
    removed = rng.choice(spoken)
    asked = f"Delete the comment '{removed.text}' in the topic '{title}', and nothing else."
    yield maker.task("delete_comment", asked, title, removed.text, role="moderator")


def _topics(maker: _Maker, topic: Topic, rng: random.Random) -> Iterator[SiteTask]:
    """Things to do with topics."""
    title, new, text = topic.title, rng.choice(TITLES), rng.choice(REPLIES)
    asked = f"Open a topic '{new}' with the text '{text}' in the category where the topic '{title}' is."
    yield maker.task("open_topic", asked, new, topic.category, text)
    if topic.author:
        asked = f"Send a private message with the title '{new}' and the text '{text}' to the user who has begun the topic '{title}'."
        yield maker.task("message", asked, maker.name(topic.author), new, text)
    else:
        yield maker.task("rename", f"Change the title of my topic '{title}' to '{new}'.", title, new)
    if topic.followed:
        yield maker.task("unwatch", f"I want no more notices of new comments in the topic '{title}'.", title, 0)
    else:
        yield maker.task("watch", f"Have me notified of new comments in the topic '{title}'.", title, 1)
    if topic.poll and not topic.closed:
        choice = rng.choice(topic.poll.choices)
        yield maker.task("vote", f"Vote for '{choice}' in the poll of the topic '{title}'.", title, choice)


def _moderation(maker: _Maker, topic: Topic, rng: random.Random) -> Iterator[SiteTask]:
    """What a moderator does to topics."""
    title = topic.title
    if topic.closed:
        yield maker.task("reopen", f"Open the closed topic '{title}' again.", title, REOPENED, role="moderator")
    else:
        yield maker.task("close", f"Close the topic '{title}' for new comments.", title, CLOSED, role="moderator")
    yield maker.task("pin", f"Pin the topic '{title}' to the top of its category.", title, PINNED, role="moderator")
    yield maker.task("delete", f"Delete the topic '{title}'.", title, role="moderator")
    category = rng.choice([one for one in SUBJECTS if one != topic.category])
    yield maker.task("move", f"Move the topic '{title}' to the category {category}.", title, category, role="moderator")


def _messages(maker: _Maker, message: Message, rng: random.Random) -> Iterator[SiteTask]:
    """Questions about a private topic, and things to do with it."""
    title, other, reply = message.title, maker.name(message.other), rng.choice(REPLIES)
    asked = f"Where and at what hour does the private message '{title}' want to meet?"
    yield maker.task("meeting", asked, message.place, message.hour, others=set(PLACES) - {message.place})
    if message.received:
        yield maker.task("answer_message", f"Answer the private message '{title}' with '{reply}'", title, reply)
        asked = f"Set the location in my profile to the place that the private message '{title}' names."
        yield maker.task("locate", asked, message.place)
    else:
        guest = rng.choice([name for name in maker.content.users[1:] if name != other])
        yield maker.task("invite", f"Invite {guest} to my private topic '{title}'.", title, maker.name(0), other, guest)
