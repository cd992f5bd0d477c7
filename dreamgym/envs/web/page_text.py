"""The state mapping of the web: an accessibility tree to numbered elements with their texts, the same for every site.

A line is a block of the page: a list item, a table row, an article, or whatever lies between two blocks. Its parts are separated by ` | `,
so nothing is merged across items. Elements that can be acted on have numbers in document order. Square brackets in a page's own texts
become round ones and `|` becomes `/`: whatever stands in square brackets is an element. A page that is longer than `max_tokens` is cut to
what lies in the viewport, and then from its end; lines say how much is missing, and what is not shown has no number that works. An item
that alone is longer, such as a whole article, stands on several lines.

The tree is that of Chromium as BrowserGym records it (`axtree_object`, `extra_element_properties`), so recorded observations are mapped by
the same function. Of elements without a name, Chromium says nothing but their place; `hint`, the words of their `class` or `id`, names
icons, and a text before them names fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

DONE = "the task has ended."
"""The state after the end of an episode."""
ACTIONABLE = frozenset((
    "link", "button", "textbox", "searchbox", "combobox", "listbox", "option", "checkbox", "radio", "switch", "slider", "spinbutton",
    "tab", "menuitem", "menuitemcheckbox", "menuitemradio", "treeitem", "DisclosureTriangle", "ColorWell", "Date", "DateTime",
    "InputTime",
))  # fmt: skip
TYPED_IN = ("textbox", "searchbox", "combobox", "spinbutton", "date", "datetime", "inputtime")
"""Roles that are typed into, as states write them. Chromium calls fields of a local time, a month or a week `DateTime`."""
ITEMS = frozenset(
    ("listitem", "row", "article", "treeitem", "DescriptionListTerm", "DescriptionListDetail", "term", "definition", "option")
)
INLINE_ROLES = frozenset(("strong", "emphasis", "mark", "code", "subscript", "superscript", "time", "Abbr", "insertion", "deletion"))
INLINE_TAGS = frozenset(
    ("span", "b", "i", "em", "strong", "small", "label", "abbr", "font", "u", "s", "sub", "sup", "code", "time", "bdi", "q", "cite", "mark")
)
UNSEEN = frozenset(("InlineTextBox", "LineBreak", "ListMarker"))
CONTAINERS = frozenset(("StaticText", "RootWebArea", "Iframe", "main", "document", "form", "table", "LabelText", "list"))
"""Roles that listen for clicks on behalf of what they hold."""
OPAQUE = frozenset(("textbox", "searchbox", "spinbutton", "slider", "checkbox", "radio", "switch"))
"""Elements that nothing else is inside of."""
FLAGS = ("disabled", "readonly", "checked", "pressed", "selected", "expanded", "required", "invalid", "focused")
ALWAYS_MARKED = ("td", "li", "iframe", "video")
"""Tags that BrowserGym puts among its marks whether or not a click does anything."""
MAX_NAME = 160
"""Characters of a name or of one text; what is longer ends in `...`."""
MAX_CLICKABLE = 200
"""Characters of the text inside a plain element that listens for clicks; one with more is a container, and gets no number."""
MAX_CONTAINER = 80
"""The same where other elements are inside, such as the icons of a row that opens something."""
MAX_OPTIONS = 12
"""Options of a list that are shown; the others are counted."""
MAX_OPTION = 60
"""Characters of an option of a list."""
MAX_NODES = 60_000
"""Nodes of a tree that are read."""
_WORDS = re.compile(r"[A-Za-z]{1,5}|\d|[^\sA-Za-z\d]")
_PLAIN = re.compile(r"[\s\u0000-\u001f\u007f\u200b-\u200f\u2028-\u202e\u2060\ufeff\ufffc]+")
_GLYPHS = re.compile(r"[\ue000-\uf8ff\ud800-\udfff]")
_OURS = str.maketrans("[]|", "()/")
"""What states are written with, and what stands for it in a page's texts."""
_HINT_NOISE = frozenset((
    "icon", "icons", "fa", "fas", "far", "fab", "fal", "bi", "btn", "button", "glyphicon", "glyph", "img", "image", "svg", "span",
    "div", "link", "col", "row", "item", "items", "wrap", "wrapper", "inner", "outer", "active", "ui", "js", "small", "large", "lg",
    "sm", "md", "xs",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageText:
    """A state as text, and the browser's id (`bid`) of every number in it."""

    text: str
    bids: Mapping[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Line:
    parts: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the parts, to drop a text that says what the part before it says
    numbers: list[int | None] = field(default_factory=list)  # of the parts, where they are elements
    visible: list[bool] = field(default_factory=list)  # of the parts, whether they are in the viewport
    blocks: list[int] = field(default_factory=list)  # places of the parts that begin a block of the page

    @property
    def seen(self) -> bool:
        return any(self.visible)

    @property
    def text(self) -> str:
        return " | ".join(self.parts)

    def split(self, room: int) -> list[_Line]:
        """The line as it is, or, where `room` tokens do not hold it, its blocks, and the parts of a block that is too long as well."""
        if len(self.parts) < 2 or rough_tokens(self.text) <= room:
            return [self]
        cuts = [place for place in self.blocks if place < len(self.parts)] or range(1, len(self.parts))
        return [piece for start, end in pairwise((0, *cuts, len(self.parts))) for piece in self._piece(start, end).split(room)]

    def _piece(self, start: int, end: int) -> _Line:
        return _Line(self.parts[start:end], self.names[start:end], self.numbers[start:end], self.visible[start:end])


def page_text(raw: Mapping[str, Any], *, max_tokens: int = 1500) -> PageText:
    """The state that an observation shows. Pure and deterministic; `raw` needs `axtree_object`, everything else may be missing."""
    if raw.get("ended"):
        return PageText(DONE)
    reader = _Reader(raw)
    reader.read()
    head = _head(raw)
    lines = [line for line in reader.lines if line.parts]
    kept, notes = _fitted(lines, max_tokens - rough_tokens(head) - 24)
    body = [*notes[:1], *(line.text for line in kept), *notes[1:]]
    shown = {number for line in kept for number in line.numbers if number is not None}
    return PageText("\n".join([head, *(one for one in body if one)]), {n: bid for n, bid in reader.bids.items() if n in shown})


def rough_tokens(text: str) -> int:
    """An estimate of the tokens of a text from above: pieces of up to five letters, single digits and signs, and an eighth more, since
    SmolLM2 has up to 11 % more of them on pages of the shop and the forum."""
    return -(-9 * len(_WORDS.findall(text)) // 8)


def clean(text: object, limit: int = MAX_NAME) -> str:
    """A page's own text on one line, without square brackets, invisible characters and the glyphs of icon fonts."""
    plain = _PLAIN.sub(" ", _GLYPHS.sub("", str(text))).strip().translate(_OURS)
    return plain if len(plain) <= limit else f"{plain[: limit - 3].rstrip()}..."


def hint_words(*attributes: str) -> str:
    """What the values of `class`, `id` and the like say of an element without a name: at most three words."""
    found: list[str] = []
    for word in re.split(r"[^A-Za-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", " ".join(attributes))):
        if len(word) > 2 and (low := word.lower()) not in _HINT_NOISE and low not in found:
            found.append(low)
    return " ".join(found[:3])


def _head(raw: Mapping[str, Any]) -> str:
    titles = [clean(one, 80) or "untitled" for one in raw.get("open_pages_titles") or ()]
    (active,) = raw.get("active_page_index", (0,)) if len(titles) > 1 else (0,)
    title = titles[int(active)] if titles and int(active) < len(titles) else clean(raw.get("title") or "untitled", 80)
    if len(titles) < 2:
        return f"page: {title}"
    tabs = ", ".join(f"{place} '{one}'" for place, one in enumerate(titles[:8]))
    return f"page: {title}\ntabs: {tabs}; active: {int(active)}"


def _fitted(lines: list[_Line], room: int) -> tuple[list[_Line], tuple[str, str]]:
    """The lines that `room` tokens hold, and what to say before and after them."""
    # A line that is too long by itself would go whole, with all that follows it, and no scrolling would bring it back.
    lines = [piece for line in lines for piece in line.split(room)]
    cost = {id(line): rough_tokens(line.text) for line in lines}
    above = below = 0
    kept = lines
    if sum(cost.values()) > room and any(line.seen for line in lines):
        first = next(place for place, line in enumerate(lines) if line.seen)
        last = max(place for place, line in enumerate(lines) if line.seen)
        above, below = first, len(lines) - 1 - last
        kept = lines[first : last + 1]
    total, short = 0, list[_Line]()
    for line in kept:
        total += cost[id(line)]
        if total > room:
            break
        short.append(line)
    below += len(kept) - len(short)
    return short, (f"({above} lines above: scroll up)" if above else "", f"({below} lines below: scroll down)" if below else "")


class _Reader:
    """One pass over a tree."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        nodes: Sequence[Mapping[str, Any]] = raw["axtree_object"]["nodes"][:MAX_NODES]
        self.nodes = {str(node["nodeId"]): node for node in nodes}
        self.root = str(nodes[0]["nodeId"]) if nodes else ""
        self.properties: Mapping[str, Mapping[str, Any]] = raw.get("extra_element_properties") or {}
        self.bids: dict[int, str] = {}
        self.lines: list[_Line] = [_Line()]
        self._glued = False  # whether a text may join the one before it
        self._rows = 0  # table rows around the node that is read
        self._link = ("", "")  # name and address of the link that is the last part of its line
        self._last_text = ""
        self._order = list(self._postorder())
        self._inside = self._actionable_inside()

    def read(self) -> None:
        """Fill `lines` and `bids`."""
        # Each entry: (node id, whether it is being left, item depth, texts are covered by an element's name, bid of the nearest element)
        stack: list[tuple[str, bool, int, bool, str]] = [(self.root, False, 0, False, "")] if self.root else []
        met: set[str] = set()
        while stack:
            name, leaving, depth, covered, near = stack.pop()
            node = self.nodes[name]
            if leaving:
                self._boundary(node, depth)
                self._rows -= _role(node) == "row"
                continue
            if name in met:
                continue
            met.add(name)
            role = _role(node)
            if role in UNSEEN:
                continue
            near = str(node.get("browsergym_id") or near)
            if node.get("ignored"):
                stack += [(child, False, depth, covered, near) for child in self._children(node)[::-1]]
                continue
            self._boundary(node, depth)
            inner = depth + (role in ITEMS)
            if self._is_element(name, node, covered):
                covers = self._element(name, node, role, near)
                if role in OPAQUE or (role == "combobox" and covers):
                    continue
                covered = covered or covers
            elif role == "StaticText":
                if not covered:
                    self._text(clean(_value(node, "name")), near)
                continue
            elif role in ("image", "img", "graphics-document") and not covered:
                self._image(node, near)
            elif role == "heading" and not covered and name not in self._inside:
                self._part(f"# {clean(_value(node, 'name')) or 'untitled'}", clean(_value(node, "name")), near)
                covered = True
            stack.append((name, True, depth, covered, near))
            self._rows += role == "row"
            stack += [(child, False, inner, covered, near) for child in self._children(node)[::-1]]

    # Structure

    def _children(self, node: Mapping[str, Any]) -> list[str]:
        return [str(child) for child in node.get("childIds") or () if str(child) in self.nodes]

    def _postorder(self) -> Iterator[str]:
        """Every node below the root once, children first."""
        stack, met = [(self.root, False)] if self.root else [], set[str]()
        while stack:
            name, leaving = stack.pop()
            if leaving:
                yield name
            elif name not in met:
                met.add(name)
                stack.append((name, True))
                stack += [(child, False) for child in self._children(self.nodes[name])]

    def _actionable_inside(self) -> set[str]:
        """Nodes with an element somewhere below them."""
        found: set[str] = set()
        acts: set[str] = set()
        for name in self._order:
            node = self.nodes[name]
            if any(child in found or child in acts for child in self._children(node)):
                found.add(name)
            if not node.get("ignored") and (_role(node) in ACTIONABLE or self._marked(node)) and node.get("browsergym_id"):
                acts.add(name)
        return found

    def _marked(self, node: Mapping[str, Any], mark: str = "clickable") -> bool:
        """Whether a plain element listens for clicks (`clickable`) or looks as if it did (`set_of_marks`)."""
        known = self.properties.get(str(node.get("browsergym_id") or ""))
        if not known or not known.get(mark) or _role(node) in CONTAINERS or known.get("tag") in ("body", "label"):
            return False
        return mark == "clickable" or known.get("tag") not in ALWAYS_MARKED

    def _is_element(self, name: str, node: Mapping[str, Any], covered: bool) -> bool:
        """Whether a node gets a number: by its role, or because it listens for clicks and is no container."""
        if not node.get("browsergym_id"):
            return False
        role = _role(node)
        if role == "option" and self._closed(name):
            return False
        if role in ACTIONABLE:
            return True
        looks = not covered and name not in self._inside and self._marked(node, "set_of_marks")
        room = MAX_CONTAINER if name in self._inside else MAX_CLICKABLE
        return (looks or self._marked(node)) and len(self._inner_text(name, room + 1)) <= room

    def _closed(self, name: str) -> bool:
        """Whether an option is part of a list that the browser shows outside of the page."""
        parent = str(self.nodes[name].get("parentId") or "")
        for _ in range(4):
            node = self.nodes.get(parent)
            if node is None or _role(node) == "listbox":
                return False
            if _role(node) in ("combobox", "MenuListPopup"):
                return True
            parent = str(node.get("parentId") or "")
        return False

    def _inner_text(self, name: str, limit: int) -> str:
        """The texts below a node, without those of elements inside it."""
        found, length, stack = list[str](), 0, [name]
        while stack and length <= limit:
            node = self.nodes[stack.pop()]
            role = _role(node)
            if role == "StaticText" or (role in ("image", "img") and not node.get("ignored")):
                found.append(clean(_value(node, "name")))
                length += len(found[-1])
            elif role not in UNSEEN and (role not in ACTIONABLE or node.get("ignored") or node is self.nodes[name]):
                stack += self._children(node)[::-1]
        return " ".join(filter(None, found))

    def _boundary(self, node: Mapping[str, Any], depth: int) -> None:
        """What the edge of a node means for the line: nothing for formatting, a part's end inside an item, else a line's end."""
        role = _role(node)
        tag = str(self.properties.get(str(node.get("browsergym_id") or ""), {}).get("tag") or "")
        if role in INLINE_ROLES or role in ("StaticText", "none") or (role == "generic" and tag in INLINE_TAGS - {"span", "label"}):
            return
        self._glued = False
        inline = role in ACTIONABLE or role in ("image", "img", "LabelText") or tag in INLINE_TAGS
        line = self.lines[-1]
        if not line.parts:
            return
        if role in ITEMS or (depth == 0 and not inline):
            self.lines.append(_Line())
        elif not inline and line.blocks[-1:] != [len(line.parts)]:
            line.blocks.append(len(line.parts))

    # Content

    def _part(self, text: str, name: str, bid: str, number: int | None = None) -> bool:
        """Add a part to the line. Returns whether it was added: what only repeats the element or picture before it is not.

        The cells of a row are columns: each stays, whatever it holds.
        """
        line = self.lines[-1]
        repeats = number is None and name and not self._rows and line.names[-1:] == [name]
        if repeats and (line.numbers[-1] is not None or line.parts[-1].startswith("image '")):
            return False
        self._link = ("", "")
        line.parts.append(text)
        line.names.append(name)
        line.numbers.append(number)
        seen = self.properties.get(bid, {}).get("visibility")
        line.visible.append(seen is None or float(seen) >= 0.5)
        return True

    def _text(self, text: str, near: str) -> None:
        if not text:
            return
        self._last_text = text
        line = self.lines[-1]
        if self._glued and line.parts and len(line.parts[-1]) + len(text) < MAX_NAME * 3:
            line.parts[-1] = line.names[-1] = f"{line.parts[-1]} {text}"
            self._glued = True
        else:
            self._glued = self._part(text, text, near)

    def _image(self, node: Mapping[str, Any], near: str) -> None:
        name = clean(_value(node, "name"))
        if name:
            self._part(f"image '{name}'", name, near)

    def _element(self, name: str, node: Mapping[str, Any], role: str, bid: str) -> bool:
        """Number an element. Returns whether its name covers the texts inside it."""
        shown = role.lower() if role in ACTIONABLE else "image" if role in ("image", "img") else "clickable"
        own = clean(_value(node, "name")) or ("" if role in OPAQUE else self._inner_text(name, MAX_NAME))
        link = (own, _address(node)) if role == "link" else ("", "")
        if all(link) and link == self._link and self.lines[-1].parts and not self._rows:
            return True  # the picture and the title of an item, with one address and nothing between them
        label = f" '{clean(own)}'" if own else self._surroundings(node, bid, role)
        number = len(self.bids) + 1
        self.bids[number] = str(node["browsergym_id"])
        value = clean(_value(node, "value")) if role.lower() in (*TYPED_IN, "slider") else ""
        flags = [flag for flag in FLAGS if _flag(node, flag)]
        options = self._options(name) if role in ("combobox", "listbox") else ""
        text = f"[{number}] {shown}{label}" + (f" = '{value}'" if value else "") + (f" ({', '.join(flags)})" if flags else "") + options
        self._part(text, own, bid, number)
        self._link, self._glued = link, False
        return role not in ("combobox", "listbox") or bool(options)

    def _surroundings(self, node: Mapping[str, Any], bid: str, role: str) -> str:
        """What stands for a missing name: the description, the words of `class` and `id`, or the text before the element."""
        known = self.properties.get(bid, {})
        words = clean(_value(node, "description")) or clean(known.get("hint") or "")
        if words and role not in TYPED_IN:
            return f" '{words}'"
        if self._last_text:
            return f" near '{clean(self._last_text, 60)}'"
        return f" '{words}'" if words else ""

    def _options(self, name: str) -> str:
        """The choices of a list that the browser shows outside of the page."""
        found, stack = list[str](), [name]
        while stack:
            node = self.nodes[stack.pop()]
            if _role(node) in ("option", "menuitem") and not node.get("ignored"):
                if self._closed(str(node["nodeId"])):
                    found.append(clean(_value(node, "name"), MAX_OPTION))
            else:
                stack += self._children(node)[::-1]
        if not found:
            return ""
        more = f", {len(found) - MAX_OPTIONS} more" if len(found) > MAX_OPTIONS else ""
        return f" of: {', '.join(map(quoted, found[:MAX_OPTIONS]))}{more}"


def quoted(text: str) -> str:
    """A text in single quotes, as names are written."""
    return f"'{text}'"


def _role(node: Mapping[str, Any]) -> str:
    return str((node.get("role") or {}).get("value") or "")


def _value(node: Mapping[str, Any], key: str) -> str:
    found = (node.get(key) or {}).get("value")
    return "" if found is None else str(found)


def _address(node: Mapping[str, Any]) -> str:
    """Where a link leads; "" where the tree does not say, or where a script decides."""
    found = next((_value(one, "value") for one in node.get("properties") or () if one.get("name") == "url"), "")
    return "" if found.endswith("#") or found.startswith("javascript:") else found


def _flag(node: Mapping[str, Any], flag: str) -> bool:
    for one in node.get("properties") or ():
        if one.get("name") == flag:
            return str((one.get("value") or {}).get("value")).lower() in ("true", "mixed", "grammar", "spelling")
    return False
