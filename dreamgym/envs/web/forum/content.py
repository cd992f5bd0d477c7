"""What the forum holds, drawn from a seed: topics in eight categories with comments, likes and polls, users, and private messages.

Plain records, so that tasks can be made without Django; `filling` writes them into the database.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from typing import Any

SUBJECTS = {
    "Gardening": ("tomato seedlings", "rose bushes", "compost heap", "apple tree", "herb bed", "lawn edges"),
    "Cooking": ("sourdough bread", "lentil stew", "pickled onions", "rice pudding", "plum jam", "pea soup"),
    "Cycling": ("gravel bike", "rear brake", "tour panniers", "saddle height", "winter tyres", "bottom bracket"),
    "Music": ("classical guitar", "church choir", "brass band", "piano lessons", "record player", "song book"),
    "Photography": ("night portraits", "film scanner", "macro lens", "darkroom timer", "tripod head", "photo album"),
    "Travel": ("night train", "island ferry", "mountain hut", "city museum", "coastal path", "camp site"),
    "Woodwork": ("oak bench", "dovetail joint", "hand plane", "walnut shelf", "tool chest", "picture frame"),
    "Computers": ("backup disk", "home server", "old laptop", "mail filter", "network cable", "text editor"),
}
"""Categories, and what their topics are about."""
QUESTIONS = (
    "Advice on the {}", "Trouble with the {}", "Notes on the {}", "What to do about the {}", "Price of the {}", "Help choosing the {}",
    "Photos of the {}", "Plans for the {}", "Moving the {}", "Second thoughts on the {}",
)  # fmt: skip
FIRST_NAMES = ("ada", "ben", "cleo", "dev", "edda", "finn", "gwen", "hugo", "ines", "jon", "kira", "luis", "mona", "nils", "olga", "piet")
LAST_NAMES = ("abbot", "brandt", "castro", "dahl", "evans", "fisher", "grant", "hale", "ito", "jansen", "keller", "lopez")
OPENINGS = ("I would", "Nobody should", "My neighbour used to", "You could always", "We never", "Better not", "People here", "In spring I")
VERBS = ("measure it twice", "ask in a shop", "wait for dry weather", "start with a small one", "borrow one first", "write down each step")
ENDINGS = (
    "and keep the receipt", "before the summer", "if the price is right", "with a friend", "even on Sundays", "to save some time",
    "without any hurry", "as the manual says",
)  # fmt: skip
SENTENCES = [" ".join(parts) + "." for parts in product(OPENINGS, VERBS, ENDINGS)]
"""What comments say; none twice in a topic."""
PLACES = ("York", "Leeds", "Bath", "Ely", "Wells", "Truro", "Derby", "Ripon", "Dover", "Kendal", "Ludlow", "Whitby")
CHOICES = ("Repair it", "Buy a new one", "Sell it", "Leave it alone", "Ask a friend", "Wait a year", "Give it away", "Build one")
MATTERS = ("The meeting", "A parcel", "Your question", "The key", "A favour", "The car", "Saturday", "The workshop", "Dinner", "A book")
MEMBER, MODERATOR = ("robin", "member-1"), ("morgan", "moderator-1")
"""(user name, password) of the two accounts that tasks are done with."""
TOPICS, USERS, MESSAGES = 144, 30, 60
CITED = 3
"""Other topics that a topic's comments name."""
LATEST = 24
"""So many topics, the last ones, fill the first pages; no task is about them."""
NOW = datetime(2026, 1, 15, 12, tzinfo=UTC)
"""The time of the forum: everything in it is older, and what an episode adds is later."""


@dataclass(frozen=True, slots=True)
class Comment:
    """One comment. Users are numbers: 0 is the member that tasks are done as."""

    writer: int
    text: str
    likes: tuple[int, ...]
    """Who likes it."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A poll in a topic's first comment."""

    choices: tuple[str, ...]
    votes: tuple[tuple[int, ...], ...]
    """Who voted for each choice. The member has not voted."""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. The first comment is the one that opens it."""

    title: str
    category: str
    comments: tuple[Comment, ...]
    poll: Poll | None
    closed: bool
    followed: bool
    """Whether the member is told of new comments."""

    @property
    def author(self) -> int:
        """Who began it."""
        return self.comments[0].writer


@dataclass(frozen=True, slots=True)
class Message:
    """One private topic of the member and another user, who has sent it where `received`."""

    title: str
    other: int
    received: bool
    place: str
    hour: int


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that a seed names."""

    users: tuple[str, ...]
    """User names; the first is the member's."""
    topics: tuple[Topic, ...]
    """Oldest first."""
    messages: tuple[Message, ...]

    def begun(self, user: int) -> int:
        """How many topics a user has begun."""
        return sum(topic.author == user for topic in self.topics)


@lru_cache(maxsize=4)
def content(seed: int) -> Content:
    """The content that a seed names."""
    rng = random.Random(f"forum/{seed}")
    names = [f"{first}_{last}" for first in FIRST_NAMES for last in LAST_NAMES]
    users = (MEMBER[0], *rng.sample(names, USERS))
    titles = _titles(rng)
    cited = _citations(rng)
    topics = tuple(_topic(place, titles[place], [titles[one][0] for one in cited[place]], rng) for place in range(TOPICS))
    matters = [f"{matter}, {place}" for matter in MATTERS for place in PLACES]
    messages = tuple(
        Message(title, rng.randrange(1, USERS + 1), place % 3 != 2, rng.choice(PLACES), rng.randint(7, 20))
        for place, title in enumerate(rng.sample(matters, MESSAGES))
    )
    return Content(users, topics, messages)


def fill(seed: int) -> dict[str, Any]:
    """Write the content into the database that Django is set up with. Returns the user of each role."""
    from dreamgym.envs.web.forum.filling import write

    return write(content(seed))


def _titles(rng: random.Random) -> list[tuple[str, str]]:
    """(title, category) of each topic: categories take turns, and neighbours of an even place are of one category."""
    free = {}
    for category, subjects in SUBJECTS.items():
        free[category] = [form.format(one) for form in QUESTIONS for one in subjects]
        rng.shuffle(free[category])
    turns = list(SUBJECTS)
    categories = (turns[place // 2 % len(turns)] for place in range(TOPICS))
    return [(free[category].pop(), category) for category in categories]


def _citations(rng: random.Random) -> list[list[int]]:
    """The topics that each topic's comments name: each is named by three others, so that a search for its title finds four."""
    order = rng.sample(range(TOPICS), TOPICS)
    steps = rng.sample(range(1, TOPICS), CITED)
    found: list[list[int]] = [[] for _ in range(TOPICS)]
    for at, place in enumerate(order):
        found[place] = [order[(at + step) % TOPICS] for step in steps]
    return found


def _topic(place: int, titled: tuple[str, str], cited: Sequence[str], rng: random.Random) -> Topic:
    """A topic with three to six comments after the first, and one for each title that it names."""
    others = range(1, USERS + 1)
    writers = [rng.choice(others) for _ in range(rng.randint(4, 7))]
    if place % 4 == 0:  # the member has begun it
        writers[0] = 0
    if place % 4 == 2:  # the member has a comment in it
        writers[rng.randrange(1, len(writers))] = 0
    counts = rng.sample(range(8), len(writers))
    liked = rng.choice([at for at, writer in enumerate(writers) if writer and at and counts[at]] or [-1])
    comments = []
    for at, (writer, text) in enumerate(zip(writers, rng.sample(SENTENCES, len(writers)), strict=True)):
        likes = rng.sample([one for one in others if one != writer], counts[at] - (at == liked))
        comments.append(Comment(writer, text, (0, *likes) if at == liked else tuple(likes)))
    tail = [*comments[1:], *(Comment(rng.choice(others), f"See also: {title}.", ()) for title in cited)]
    rng.shuffle(tail)
    poll = _poll(rng) if place % 2 else None
    return Topic(*titled, (comments[0], *tail), poll, closed=place % 6 == 3, followed=place % 8 in (1, 6))


def _poll(rng: random.Random) -> Poll:
    """Three or four choices with different numbers of votes, one of which is 1."""
    choices = rng.sample(CHOICES, rng.randint(3, 4))
    counts = [1, *rng.sample(range(2, 8), len(choices) - 1)]
    rng.shuffle(counts)
    voters = iter(rng.sample(range(1, USERS + 1), sum(counts)))
    return Poll(tuple(choices), tuple(tuple(next(voters) for _ in range(count)) for count in counts))
