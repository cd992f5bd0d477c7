"""The expert's script for each template of the forum (see `sites.experts`)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dreamgym.envs.web.actions import WebAction
from dreamgym.envs.web.forum.content import SUBJECTS
from dreamgym.envs.web.forum.page import NEXT, comments, fill, first, on, saying, to_message, to_profile, to_topic
from dreamgym.envs.web.sites.experts import Page, Script, answer
from dreamgym.envs.web.sites.tasks import SiteTask

STOP = WebAction("stop")


def _topic_of(task: SiteTask) -> str:
    """The topic that a task names."""
    return first(re.findall(r"topic '(.*?)'", task.instruction.replace(f"topic '{task.wanted[0]}' with the text", "")))


def _question(task: SiteTask, page: Page) -> WebAction | None:
    """Answers that stand on the page of one topic."""
    if step := to_topic(page, _topic_of(task)):
        return step
    shown = comments(page)
    if not shown:
        return None
    if task.template == "comment_count":
        return answer(shown[-1].writer, len(shown))
    if task.template == "comment_writer":
        found = saying(page, first(re.findall(r": '(.*?)'", task.instruction)))
    elif task.template == "most_liked":
        found = max(shown, key=lambda one: one.likes)
    else:
        found = shown[1]
    return answer(found.writer, found.likes) if found else None


def _author_topics(task: SiteTask, page: Page) -> WebAction | None:
    """From a topic to the user who has begun it, and to the list of this user's topics."""
    if listed := re.match(r"(\w+) topics - ", page.title):
        return answer(listed[1], len([line for line in page.lines if re.match(r"^\[\d+\] clickable '\d+ ", line)]))
    if re.match(r"\w+ comments - ", page.title):
        return page.click("Topics", "link")
    if step := to_topic(page, _topic_of(task)):
        return step
    shown = comments(page)
    return page.click(shown[0].writer, "link") if shown else None


def _more_comments(task: SiteTask, page: Page) -> WebAction | None:
    """The results of two searches show both counts."""
    one, other = re.findall(r"'(.*?)'", task.instruction)[:2]
    if page.find(other, "link") or on(page, other):
        return answer(*task.wanted)
    if page.find(one, "link"):
        box = page.find("Search:", "searchbox")
        return WebAction("type", box.number, other, enter=True) if box else page.click("search header tabs", "link")
    return to_topic(page, one)


def _own_comment(task: SiteTask, page: Page) -> WebAction | None:
    """In the list of the member's comments, then on the topic's page."""
    text = first(re.findall(r"says '(.*?)'", task.instruction))
    about = first(re.findall(r"about (.*?) says", task.instruction))
    if page.title.startswith("robin comments"):
        found = [one for one in comments(page) if one.text == text and about in one.lines[0]]
        return found[0].click("") if found else page.click(NEXT, "link")
    own = next((one for one in comments(page) if one.writer == "robin" and one.text == text), None)
    if own and about in page.title and "all topics" not in page.title:
        return answer(page.lines[0].removeprefix("page: ").rpartition(" - ")[0], own.likes)
    return to_profile(page)


def _poll(task: SiteTask, page: Page) -> WebAction | None:
    """Which choice leads, or who voted for one."""
    if page.title.startswith("voters for "):
        return answer(first(re.findall(r"# Voters for [^\n]*\n\[\d+\] link '(\w+)'", page.text)))
    if step := to_topic(page, _topic_of(task)):
        return step
    results = re.findall(r"^(.*), (\d+)%", page.text, re.MULTILINE)
    if not results:
        return page.click("Show results", "link")
    if task.template == "poll_leader":
        return answer(max(results, key=lambda one: int(one[1]))[0], first(re.findall(r"^Votes: (\d+)\.", page.text, re.MULTILINE)))
    choice = first(re.findall(r"voted for '(.*?)'", task.instruction))
    link = re.search(rf"^{re.escape(choice)}, \d+% \| \[(\d+)\]", page.text, re.MULTILINE)
    return WebAction("click", int(link[1])) if link else None


def _meeting(task: SiteTask, page: Page) -> WebAction | None:
    if step := to_message(page, first(re.findall(r"message '(.*?)'", task.instruction))):
        return step
    found = re.search(r"meet in (\w+) at (\d+) o'clock", page.text)
    return answer(*found.groups()) if found else None


def _comment(task: SiteTask, page: Page) -> WebAction | None:
    """A new comment, in a topic or a private one."""
    title, text = task.wanted
    step = to_message(page, title) if task.template == "answer_message" else to_topic(page, title)
    if step:
        return step
    return STOP if saying(page, text) else fill(page, "Publish", ("Write comment...", text))


def _like(task: SiteTask, page: Page) -> WebAction | None:
    if step := to_topic(page, task.wanted[0]):
        return step
    found = saying(page, task.wanted[1])
    if not found:
        return None
    return found.click("like (" if task.template == "like" else "remove like (") or STOP


def _report(task: SiteTask, page: Page) -> WebAction | None:
    title, text, reason, note = task.wanted
    if page.line("has been reported"):
        return STOP
    if page.title.startswith("report - "):
        return fill(page, "Report", ("Reason:", ("Spam", "Other")[reason]), ("Body:", note))
    if step := to_topic(page, title):
        return step
    found = saying(page, text)
    return found.click("report") if found else None


def _edit(task: SiteTask, page: Page) -> WebAction | None:
    """Another text for a comment."""
    title, _, old, text = task.wanted
    if page.title.startswith("edit comment"):
        return fill(page, "Publish", ("Comment:", text))
    if step := to_topic(page, title):
        return step
    found = saying(page, old)
    return found.click("edit") if found else STOP


def _topic_form(task: SiteTask, page: Page) -> WebAction | None:
    """Another title or category for a topic."""
    title, new = task.wanted
    if page.title.startswith("update topic"):
        return fill(page, "Update", ("Title:" if task.template == "rename" else "Category:", new))
    if on(page, new) or (on(page, title) and page.find(new, "link")):
        return STOP
    return to_topic(page, title) or page.click("edit", "link")


def _watch(task: SiteTask, page: Page) -> WebAction | None:
    if step := to_topic(page, task.wanted[0]):
        return step
    return page.click("Notify Me" if task.template == "watch" else "Unnotify Me", "button") or STOP


def _vote(task: SiteTask, page: Page) -> WebAction | None:
    title, choice = task.wanted
    if step := to_topic(page, title):
        return step
    found = page.find(choice, "radio")
    if not found:  # the results, which stand there once the vote is given
        return STOP
    return page.click("Vote", "button") if "checked" in found.flags else WebAction("click", found.number)


def _open_topic(task: SiteTask, page: Page) -> WebAction | None:
    """From a topic to its category, where a new one is begun."""
    new, _, text = task.wanted
    if on(page, new):
        return STOP
    if page.title.startswith("publish topic"):
        return fill(page, "Publish", ("Title:", new), ("Comment:", text))
    if any(on(page, category) for category in SUBJECTS):
        return page.click("Create Topic", "link")
    if step := to_topic(page, _topic_of(task)):
        return step
    main = page.find("Main", "link")
    return WebAction("click", main.number + 1) if main else None


def _message(task: SiteTask, page: Page) -> WebAction | None:
    """From a topic to the user who has begun it, and to a private message."""
    _, new, text = task.wanted
    if on(page, new):
        return STOP
    if page.title.startswith("publish a private topic"):
        return fill(page, "Publish", ("Title:", new), ("Comment:", text))
    if page.find("Private Message", "link"):
        return page.click("Private Message", "link")
    if step := to_topic(page, first(re.findall(r"begun the topic '(.*?)'", task.instruction))):
        return step
    shown = comments(page)
    return page.click(shown[0].writer, "link") if shown else None


def _invite(task: SiteTask, page: Page) -> WebAction | None:
    """The list of those who take part says whether the guest does."""
    title, _, other, guest = task.wanted
    if step := to_message(page, title):
        return step
    if not page.find(other, "link"):
        return page.click("Participants", "link")
    return STOP if page.find(guest, "link") else fill(page, "Invite", ("Invite user:", guest))


def _locate(task: SiteTask, page: Page) -> WebAction | None:
    """From a private message, which names the place, to the member's preferences."""
    if page.line("has been updated"):
        return STOP
    if page.title.startswith("preferences"):
        return fill(page, "Save", ("Location:", task.wanted[0]))
    if page.title.startswith("robin "):
        return page.click("Preferences", "link")
    return to_message(page, first(re.findall(r"message '(.*?)'", task.instruction))) or to_profile(page)


MODERATE = {"close": "Close topic", "reopen": "Open topic", "pin": "Pin topic", "delete": "Delete topic"}
"""The entry of the moderators' menu for a template."""


def _moderate(task: SiteTask, page: Page) -> WebAction | None:
    if page.line("the topic has been"):
        return STOP
    return to_topic(page, task.wanted[0]) or page.click(MODERATE[task.template], "link") or page.click("Moderate", "link")


def _delete_comment(task: SiteTask, page: Page) -> WebAction | None:
    if page.title.startswith("moderate comment"):
        return page.click("Apply", "button")
    if step := to_topic(page, task.wanted[0]):
        return step
    found = saying(page, task.wanted[1])
    return found.click("delete") if found else STOP


SCRIPTS: Mapping[str, Script] = {
    "comment_count": _question, "comment_writer": _question, "most_liked": _question, "first_answer": _question,
    "author_topics": _author_topics, "more_comments": _more_comments, "own_comment": _own_comment, "poll_leader": _poll,
    "poll_voter": _poll, "meeting": _meeting, "comment": _comment, "answer_message": _comment, "like": _like, "unlike": _like,
    "report": _report, "edit_own": _edit, "edit_other": _edit, "rename": _topic_form, "move": _topic_form, "watch": _watch,
    "unwatch": _watch, "vote": _vote, "open_topic": _open_topic, "message": _message, "invite": _invite, "locate": _locate,
    "delete_comment": _delete_comment, **dict.fromkeys(MODERATE, _moderate),
}  # fmt: skip
"""The expert of every template."""
