"""One episode's tabs in a context of their own: what they show, and what is done in them. Raises Playwright's errors.

Elements are marked and the tree is read by BrowserGym's own functions, so observations are those of BrowserGym 0.14, less the screenshot,
plus two properties of an element: `tag` and `hint` (see `page_text`).
"""

from __future__ import annotations

import pkgutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from dreamgym.envs.web.actions import WebAction
from dreamgym.envs.web.chromium import Browser, driver_ended
from dreamgym.envs.web.page_text import MAX_OPTION, clean, hint_words
from dreamgym.errors import EnvironmentFailure

TRIES = 4
"""How often a page is read that changes while it is read."""
MAX_ELEMENTS = 15_000
"""Of a page that is read. BrowserGym's marks take minutes where there are more: each makes the browser lay the page out again."""
CHANGING = (
    "has been closed", "Frame was detached", "Frame has been detached", "frameId is not found", "Execution context was destroyed",
    "Cannot read properties of undefined", "Cannot find context", "Unable to adopt element",
    "No node with given id", "because of a navigation", "no object with guid",
)  # fmt: skip
"""Parts of messages that say that a page changed while it was read, or closed itself. A dead browser says the last at every try."""
CHOOSE = """e => {
    const list = e.closest("select");
    e.selected = !list.multiple || !e.selected;
    list.dispatchEvent(new Event("change", {bubbles: true}));
}"""
"""Clicks an option of a list that stands in the page: a real click does nothing in a browser without a window."""
LABELS = """e => e.tagName === "SELECT" ? [...e.options].map(one => [one.label, one.getAttribute("aria-label") || ""]) : null"""
"""What the options of a list are called, by which the accessibility tree names them."""
WAITED_FOR = ("document", "xhr", "fetch", "ping")
"""Requests by which a page changes something or shows what has changed, as Playwright names their kinds. Event streams and sockets stay
open, and pictures and styles change nothing."""
REQUEST_S = 1.0
"""How long a step waits for what it asked for. What takes longer, such as a long poll, is not waited for by later steps."""
HINTS = ("class", "id", "title", "data-icon", "src")
ICONS = ("i", "svg", "img")
"""Tags of pictures. One inside an element says more of it than the element's own classes."""


def host_port(url: str) -> str:
    """The "host:port" of an address, an IPv6 host in brackets. ValueError for what is no address of HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"'{url:.200}' is no address of HTTP")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or {'http': 80, 'https': 443}[parts.scheme]}"


class Refused(Exception):
    """An action that a page cannot take: nothing changes."""


class WebSession:
    """The tabs of one episode. `page` is the active one."""

    def __init__(self, browser: Browser, sites: Sequence[str], *, timeout_s: float, quiet_s: float, **options: Any) -> None:
        """`sites`: what is reachable, as "host:port". `timeout_s`: of a navigation or an action. `options`: of Playwright's context."""
        self.sites, self.quiet_s, self.timeout_s = tuple(sites), quiet_s, timeout_s
        self._kept: dict[Any, _Inspected] = {}
        self._requests: dict[Any, Any] = {}  # those that have no answer yet, each with its frame
        self._long = set[Any]()  # those of them that a step has waited for in vain
        self.context = browser.context(sites, **options)
        self.context.set_default_timeout(1e3 * timeout_s)
        self.context.on("request", self._asked)
        self.context.on("response", self._opening)
        self.context.on("requestfinished", self._answered)
        self.context.on("requestfailed", self._answered)
        self.context.on("page", self._opened)
        self.context.on("dialog", lambda dialog: dialog.accept())
        self.page: Any = self.context.new_page()
        self._context_id = self._inspected(self.page).send("Target.getTargetInfo")["targetInfo"].get("browserContextId")

    def close(self) -> None:
        """Give the context back; one that is gone already is no error."""
        with suppress(Exception):
            if self.alive:
                self.context.close()

    def wait_for_requests(self, longest_s: float) -> None:
        """Wait until the pages have an answer to all that they have asked for by now, at most so long."""
        from playwright.sync_api import Error

        with suppress(Error):  # of a page that is gone, as what reads it next will find
            self.page.wait_for_timeout(0)  # what has happened by now is told
            asked = self._unanswered()  # and not for what a page that asks again and again will ask for
            self._await_requests(lambda: self._unanswered() & asked, longest_s)

    def observe(self, *, ready: bool = False) -> dict[str, Any]:
        """What the active tab shows, as BrowserGym's observation. `ready`: nothing has been done since the page was ready."""
        from browsergym.core import observation
        from playwright.sync_api import Error

        if not ready:
            self._wait_until_quiet()
        for attempt in range(TRIES):
            page = self.page
            try:
                inspected = self._inspected(page)
                if (count := page.evaluate("document.getElementsByTagName('*').length")) > MAX_ELEMENTS:
                    raise EnvironmentFailure(f"The page has {count:,} elements, and one of more than {MAX_ELEMENTS:,} is not read.")
                _mark(page.main_frame, "")
                dom = observation.extract_dom_snapshot(inspected, include_dom_rects=False, include_paint_order=False)
                tree = observation.extract_merged_axtree(inspected)
                _unmark(page)
                if page not in (pages := self.context.pages):  # by itself, or with a browser that is found dead at the next try
                    raise Error("The page has been closed while it was read.")
                return {
                    "url": page.url,
                    "open_pages_urls": tuple(one.url for one in pages),
                    "open_pages_titles": tuple(one.title() for one in pages) if len(pages) > 1 else (_title(tree),),
                    "active_page_index": (pages.index(page),),
                    "axtree_object": tree,
                    "extra_element_properties": element_properties(dom),
                }
            except Error as error:
                if attempt == TRIES - 1 or not any(part in str(error) for part in CHANGING):
                    raise
                with suppress(Error):
                    _unmark(page)
                time.sleep(0.2)
                self._wait_until_quiet()
        raise AssertionError("the last attempt returns or raises")

    def evaluate(self, script: str) -> Any:
        """What a script gives in the active tab, asked again while the page is being replaced by another."""
        from playwright.sync_api import Error

        for _ in range(TRIES - 1):
            try:
                return self.page.evaluate(script)
            except Error as error:
                if not any(part in str(error) for part in CHANGING):
                    raise
            self._wait_until_quiet()
        return self.page.evaluate(script)

    def perform(self, action: WebAction, bid: str = "") -> None:
        """Do one action. `bid` is the browser's id of the element. Refused where the page does not take it."""
        from playwright.sync_api import Error, TimeoutError

        try:
            self._perform(action, bid)
        except TimeoutError as error:
            raise Refused(f"no effect within {self.timeout_s:g} s") from error
        except (Error, ValueError) as error:
            if not self.alive:
                raise
            raise Refused((str(error).splitlines() or [""])[0][:200]) from error

    @property
    def alive(self) -> bool:
        """Whether the browser still answers for this context."""
        browser = self.context.browser
        return bool(browser and not driver_ended(browser) and browser.is_connected())

    def visit(self, url: str) -> None:
        """Open an address in the active tab."""
        self.page.goto(url, wait_until="domcontentloaded")

    def open(self, url: str) -> None:
        """Open the page that an episode begins with. EnvironmentFailure for one that the site does not give, or not in time."""
        from playwright.sync_api import TimeoutError

        try:
            answer = self.page.goto(url, wait_until="domcontentloaded")
        except TimeoutError as error:
            late = f"within {self.timeout_s:g} s (env.options.timeout_s)"
            raise EnvironmentFailure(f"The site does not answer {late} for {url:.200}, where an episode begins. Does it run?") from error
        if answer is not None and answer.status >= 400:
            raise EnvironmentFailure(f"The site answers {answer.status} for {url:.200}, where an episode begins. Does it run as it should?")

    def allowed(self, url: str) -> bool:
        """Whether an address is one of the task's sites."""
        with suppress(ValueError):
            return host_port(url) in self.sites
        return False

    def _perform(self, action: WebAction, bid: str) -> None:
        page, text = self.page, action.text
        match action.name:
            case "click":
                element = self._element(bid)
                if element.evaluate("e => e.tagName") == "OPTION":
                    element.evaluate(CHOOSE)
                else:
                    element.click()
            case "hover":
                self._element(bid).hover()
            case "type":
                element = self._element(bid)
                element.fill(text)
                if action.enter:
                    element.press("Enter")
            case "select":
                element = self._element(bid)
                element.select_option(index=[_place(element.evaluate(LABELS), text)])  # Playwright takes a bare 0 for none
            case "press":
                page.keyboard.press(text)
            case "scroll":
                page.evaluate(f"window.scrollBy(0, {'-' if text == 'up' else ''}window.innerHeight * 0.8)")
            case "goto":
                if not self.allowed(text):
                    raise Refused(f"{text[:100]} is none of the task's sites")
                self.visit(text)
            case "go_back":
                page.go_back(wait_until="domcontentloaded")
            case "go_forward":
                page.go_forward(wait_until="domcontentloaded")
            case "new_tab":
                self.page = self.context.new_page()
            case "tab_focus":
                pages = self.context.pages
                if not 0 <= (action.element or 0) < len(pages):
                    raise Refused(f"there is no tab {action.element}")
                self.page = pages[action.element or 0]
                self.page.bring_to_front()
            case "close_tab":
                page.close()
                self.page = self.context.pages[-1] if self.context.pages else self.context.new_page()
            case _:
                raise Refused(f"{action.name} is nothing that a page does")

    def _inspected(self, page: Any) -> _Inspected:
        if page not in self._kept:
            self._kept = {one: kept for one, kept in self._kept.items() if not one.is_closed()}
            self._kept[page] = _Inspected(self.context.new_cdp_session(page))
        return self._kept[page]

    def _element(self, bid: str) -> Any:
        from browsergym.core.action.utils import get_elem_by_bid

        return get_elem_by_bid(self.page, bid)

    def _opened(self, page: Any) -> None:
        """A page that opens a tab makes it the active one."""
        self.page = page

    def _asked(self, request: Any) -> None:
        from playwright.sync_api import Error

        if request.resource_type in WAITED_FOR:
            frame = None
            with suppress(Error):  # what opens a tab is asked for before there is a page
                frame = request.frame
            self._requests[request] = frame

    def _answered(self, request: Any) -> None:
        self._requests.pop(request, None)

    def _opening(self, response: Any) -> None:
        """A document begins. Of what the one before it in its frame had asked for, Playwright tells nothing any more."""
        opened = response.request
        if (frame := self._requests.get(opened)) is not None and opened.is_navigation_request():
            self._requests = {one: where for one, where in self._requests.items() if where is not frame or one is opened}

    def _unanswered(self) -> set[Any]:
        """The requests without an answer. Of those of a page that is closed, Playwright tells nothing any more."""
        gone = [one for one, frame in self._requests.items() if frame is not None and (frame.is_detached() or frame.page.is_closed())]
        for request in gone:
            del self._requests[request]
        return set(self._requests)

    def _await_requests(self, unanswered: Callable[[], set[Any]], longest_s: float) -> None:
        """Wait until there is an answer to each, and until scripts have had the time to ask for more. Playwright tells what has happened
        only while it is asked for something itself."""
        late = time.monotonic() + longest_s
        while unanswered():
            while unanswered() and time.monotonic() < late:
                self.page.wait_for_timeout(10)
            if time.monotonic() >= late:
                return
            self.page.wait_for_timeout(1e3 * self.quiet_s)

    def _wait_until_quiet(self) -> None:
        """Let the page's own scripts run, and wait for what is loading and for what it has asked for."""
        from playwright.sync_api import Error

        with suppress(Error):  # of a tab that closes itself meanwhile
            self.page.wait_for_timeout(1e3 * self.quiet_s)
        if self.page.is_closed():
            self.page = self.context.pages[-1] if self.context.pages else self.context.new_page()
        self._await_tabs()
        with suppress(Error):
            self._await_requests(lambda: self._unanswered() - self._long, REQUEST_S)
        self._long = self._unanswered()
        for frame in self.page.frames:
            with suppress(Error):
                if frame.url:
                    frame.wait_for_load_state("domcontentloaded")

    def _await_tabs(self) -> None:
        """Wait for a tab that the browser has opened and Playwright has not told of yet: on a busy machine that takes a while."""
        from playwright.sync_api import Error

        with suppress(Error):  # a page that is gone, as what reads it next will find
            found = self._inspected(self.page).send("Target.getTargets")["targetInfos"]
            tabs = sum(one["type"] == "page" and one.get("browserContextId") == self._context_id for one in found)
            late = time.monotonic() + self.timeout_s
            while len(self.context.pages) < tabs and time.monotonic() < late:
                self.page.wait_for_timeout(20)


class _Inspected:
    """A page as BrowserGym's functions see it that ask for a DevTools session and give it back: all get one, which is kept.

    Opening and closing a session for each of them takes longer than what is asked in it.
    """

    def __init__(self, session: Any) -> None:
        self.context, self.session = self, session

    def new_cdp_session(self, page: Any) -> _Inspected:
        return self

    def send(self, method: str, arguments: dict[str, Any] | None = None) -> Any:
        return self.session.send(method, arguments or {})

    def detach(self) -> None:
        """The session is kept."""


@cache
def _script(name: str) -> str:
    """A script of BrowserGym."""
    from browsergym.core import observation

    data = pkgutil.get_data(observation.__name__, f"javascript/{name}.js")
    assert data
    return data.decode("utf-8")


def _mark(frame: Any, prefix: str) -> None:
    """Have BrowserGym's script mark the elements of a frame and of those inside it.

    In place of BrowserGym's loop over frames, which waits for ever for one that was blocked: it has no address and answers nothing.
    """
    frame.evaluate(_script("frame_mark_elements"), [prefix, "bid", "standard_html"])
    for child in frame.child_frames:
        if child.url and not child.is_detached():
            element = child.frame_element()
            sandbox = element.get_attribute("sandbox")
            bid = element.get_attribute("bid")
            if bid and (sandbox is None or "allow-scripts" in sandbox.split()) and element.content_frame() == child:
                _mark(child, bid)


def _unmark(page: Any) -> None:
    """Take back what the marks wrote into attributes that are read aloud; the `bid` stays."""
    from playwright.sync_api import Error

    for frame in page.frames:
        if frame.url:
            with suppress(Error):  # a frame that is gone, or in which no script may run
                frame.evaluate(_script("frame_unmark_elements"))


def _place(labels: Sequence[Sequence[str]] | None, text: str) -> int:
    """Which of the options of a list a text names, as a page or as a state writes them. Refused where none is called so.

    States replace signs in options and cut long ones, so the page's own texts cannot be looked for by what a state shows.
    """
    for called in (str.strip, lambda label: clean(label, MAX_OPTION)):
        for place, names in enumerate(labels or ()):
            if text in map(called, names):
                return place
    raise Refused(f"the list has no option '{text[:100]}'" if labels is not None else "the element is no list of options")


def _title(tree: Mapping[str, Any]) -> str:
    """The title of a page is the name of its tree."""
    return str((tree["nodes"][0].get("name") or {}).get("value") or "") if tree["nodes"] else ""


def element_properties(dom: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of every marked element in a DOM snapshot: BrowserGym's `visibility`, `clickable` and `set_of_marks`, and `tag` and `hint`."""
    strings: Sequence[str] = dom["strings"]
    found: dict[str, dict[str, Any]] = {}
    for document in dom["documents"]:
        nodes = document["nodes"]
        clickable = set(nodes["isClickable"]["index"])
        attributes = [{strings[pairs[at]]: strings[pairs[at + 1]] for at in range(0, len(pairs), 2)} for pairs in nodes["attributes"]]
        tags = [strings[name].lower() for name in nodes["nodeName"]]
        icons = {nodes["parentIndex"][place]: _hints(attributes[place]) for place, tag in enumerate(tags) if tag in ICONS}
        for place, values in enumerate(attributes):
            if bid := values.get("bid"):
                ratio = values.get("browsergym_visibility_ratio")
                found[bid] = {
                    "visibility": float(ratio) if ratio else None,
                    "clickable": place in clickable,
                    "set_of_marks": values.get("browsergym_set_of_marks") == "1",
                    "tag": tags[place],
                    "hint": hint_words(*icons.get(place, ()), *_hints(values)),
                }
    return found


def _hints(values: Mapping[str, str]) -> list[str]:
    """The attributes of an element that name what it shows; of an address, the file."""
    return [values[name].rsplit("/", 1)[-1].rsplit(".", 1)[0] for name in HINTS if name in values]
