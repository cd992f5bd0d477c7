"""How each kind of forum task is checked by the rows of its world. What an episode adds is dated from `content.NOW` on."""

from __future__ import annotations

from dreamgym.envs.web.forum.content import MEMBER, NOW
from dreamgym.envs.web.sites.tasks import Check, Query

SINCE, WHO = NOW.strftime("%Y-%m-%d %H:%M:%S"), MEMBER[0]
COMMENT = "FROM spirit_comment_comment c JOIN spirit_topic_topic t ON t.id = c.topic_id JOIN auth_user u ON u.id = c.user_id"
LIKE = (
    "FROM spirit_comment_like_commentlike l JOIN spirit_comment_comment c ON c.id = l.comment_id JOIN spirit_topic_topic t ON "
    "t.id = c.topic_id JOIN auth_user u ON u.id = l.user_id"
)
TAKES_PART = "FROM spirit_topic_private_topicprivate p JOIN spirit_topic_topic t ON t.id = p.topic_id JOIN auth_user u ON u.id = p.user_id"
CLOSED, REOPENED, PINNED, MOVED = 2, 3, 4, 1
"""What a moderator has done, as the forum notes it in a topic (`Comment.action`)."""


def _commented(query: Query, title: str, text: str) -> bool:
    """The member has added one comment, that of the topic. A private topic is one, too."""
    rows = query(f"SELECT t.title, c.comment {COMMENT} WHERE u.username = ? AND c.date >= ?", WHO, SINCE)
    return [(topic, comment.strip()) for topic, comment in rows] == [(title, text)]


def _opened(query: Query, title: str, category: str, text: str) -> bool:
    sql = f"SELECT t.title, g.title, c.comment {COMMENT} JOIN spirit_category_category g ON g.id = t.category_id WHERE t.date >= ?"
    return [(*row[:2], row[2].strip()) for row in query(sql, SINCE)] == [(title, category, text)]


def _liked(query: Query, title: str, text: str) -> bool:
    rows = query(f"SELECT t.title, c.comment {LIKE} WHERE u.username = ? AND l.date >= ?", WHO, SINCE)
    return rows == [(title, text)]


def _unliked(query: Query, title: str, text: str, left: int) -> bool:
    """The like is gone, and `left` others of the member are not."""
    rows = query(f"SELECT t.title, c.comment {LIKE} WHERE u.username = ?", WHO)
    return (title, text) not in rows and len(rows) == left


def _sent(query: Query, name: str, title: str, text: str) -> bool:
    """One private topic has been begun, with one other user."""
    sql = (
        f"SELECT u.username, t.title, c.comment {TAKES_PART} JOIN spirit_comment_comment c ON c.topic_id = t.id "
        "WHERE t.date >= ? AND u.username <> ?"
    )
    return [(*row[:2], row[2].strip()) for row in query(sql, SINCE, WHO)] == [(name, title, text)]


def _voted(query: Query, title: str, choice: str) -> bool:
    sql = (
        "SELECT t.title, h.description FROM spirit_comment_poll_commentpollvote v JOIN spirit_comment_poll_commentpollchoice h ON "
        "h.id = v.choice_id JOIN spirit_comment_poll_commentpoll p ON p.id = h.poll_id JOIN spirit_comment_comment c ON "
        "c.id = p.comment_id JOIN spirit_topic_topic t ON t.id = c.topic_id JOIN auth_user u ON u.id = v.voter_id "
        "WHERE u.username = ? AND v.is_removed = 0"
    )
    return query(sql, WHO) == [(title, choice)]


def _edited(query: Query, title: str, writer: str, old: str, text: str) -> bool:
    """One comment has been changed, that of the writer which said `old`."""
    rows = query(f"SELECT t.title, u.username, c.comment {COMMENT} WHERE c.modified_count > 0")
    held = query(f"SELECT c.comment {COMMENT} WHERE t.title = ?", title)
    return [(*row[:2], row[2].strip()) for row in rows] == [(title, writer, text)] and (old,) not in held


def _renamed(query: Query, old: str, new: str) -> bool:
    """The title of the topic has changed, and of no other."""
    sql = "SELECT b.title, t.title FROM spirit_topic_topic t JOIN template.spirit_topic_topic b ON b.id = t.id WHERE t.title <> b.title"
    return query(sql) == [(old, new)]


def _reported(query: Query, title: str, text: str, reason: int, note: str) -> bool:
    sql = (
        "SELECT t.title, c.comment, f.reason, f.body FROM spirit_comment_flag_flag f JOIN spirit_comment_comment c ON "
        "c.id = f.comment_id JOIN spirit_topic_topic t ON t.id = c.topic_id"
    )
    return [(*row[:3], row[3].strip()) for row in query(sql)] == [(title, text, reason, note)]


def _watched(query: Query, title: str, active: int) -> bool:
    """The member has begun or ceased to watch the topic, and no other."""
    sql = (
        "SELECT t.title, n.is_active FROM spirit_topic_notification_topicnotification n JOIN spirit_topic_topic t ON t.id = n.topic_id "
        "JOIN auth_user u ON u.id = n.user_id LEFT JOIN template.spirit_topic_notification_topicnotification b ON b.id = n.id "
        "WHERE u.username = ? AND n.is_active IS NOT b.is_active"
    )
    return query(sql, WHO) == [(title, active)]


def _invited(query: Query, title: str, *names: str) -> bool:
    """These take part in the private topic, and nobody else, and nobody new in another."""
    new = f"SELECT DISTINCT t.title {TAKES_PART} LEFT JOIN template.spirit_topic_private_topicprivate b ON b.id = p.id WHERE b.id IS NULL"
    present = query(f"SELECT u.username {TAKES_PART} WHERE t.title = ?", title)
    return sorted(present) == sorted((name,) for name in names) and query(new) == [(title,)]


def _located(query: Query, place: str) -> bool:
    sql = "SELECT p.location FROM spirit_user_userprofile p JOIN auth_user u ON u.id = p.user_id WHERE u.username = ?"
    return query(sql, WHO) == [(place,)]


def _noted(query: Query, title: str, action: int) -> bool:
    """A moderator has done this to the topic, and nothing that is noted to any."""
    return query(f"SELECT t.title, c.action {COMMENT} WHERE c.action <> 0") == [(title, action)]


def _deleted(query: Query, title: str) -> bool:
    return query("SELECT title FROM spirit_topic_topic WHERE is_removed = 1") == [(title,)]


def _deleted_comment(query: Query, title: str, text: str) -> bool:
    return query(f"SELECT t.title, c.comment {COMMENT} WHERE c.is_removed = 1") == [(title, text)]


def _moved(query: Query, title: str, category: str) -> bool:
    sql = "SELECT g.title FROM spirit_topic_topic t JOIN spirit_category_category g ON g.id = t.category_id WHERE t.title = ?"
    return query(sql, title) == [(category,)] and _noted(query, title, MOVED)


CHECKED: dict[str, Check] = {
    "comment": _commented, "answer_message": _commented, "open_topic": _opened, "like": _liked, "unlike": _unliked, "message": _sent,
    "vote": _voted, "edit_own": _edited, "edit_other": _edited, "rename": _renamed, "report": _reported, "watch": _watched,
    "unwatch": _watched, "invite": _invited, "locate": _located, "close": _noted, "reopen": _noted, "pin": _noted, "delete": _deleted,
    "delete_comment": _deleted_comment, "move": _moved,
}  # fmt: skip
"""The check of each template that is not answered."""
