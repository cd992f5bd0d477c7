"""The shop itself: WebShop's pages, buttons and action grammar in `text` and `text_rich` observation modes.

Behaviour follows princeton-nlp/WebShop (MIT): five kinds of page, `search[...]` everywhere, `click[...]` on what is shown, an
invalid action changes nothing. The reward appears once, with the purchase.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dreamgym.envs.webshop.products import Product
from dreamgym.envs.webshop.reward import Purchase, reward
from dreamgym.envs.webshop.search import Index
from dreamgym.errors import UsageError
from dreamgym.types import Action, Task

ACTION = re.compile(r"(.+)\[(.+)\]")
SUB_PAGES = ("Description", "Features", "Reviews")
BACK, NEXT, PREV, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
Mode = Literal["text", "text_rich"]


@dataclass(frozen=True)
class Node:
    """A piece of a page: plain text, a button, a product link or an option value."""

    text: str
    kind: Literal["text", "button", "product", "option"] = "text"
    clicked: bool = False


@dataclass
class Session:
    """Where one shopper is."""

    task: Task
    page: str = "index"
    words: tuple[str, ...] = ()
    number: int = 1
    product: Product | None = None
    options: dict[str, str] = field(default_factory=dict)
    visited: set[str] = field(default_factory=set)
    purchase: Purchase | None = None


def parse(action: Action) -> tuple[str, str | None]:
    """`click[Buy Now]` -> ("click", "buy now"); greedy, so the last '[' splits; no match -> (the whole string, None)."""
    match = ACTION.match(action)
    return (match.group(1), match.group(2).lower()) if match else (action, None)


class WebShop:
    """One shopper in a catalogue (the `Env` protocol). Raw observations are dicts: text, mode and available actions.

    `outcome` is the paper's reward: 1 for a purchase that meets the whole goal, else 0; off, it is WebShop's score in [0, 1].
    """

    name = "webshop"

    def __init__(
        self, products: Sequence[Product], index: Index, *, per_page: int = 10, mode: Mode = "text_rich", outcome: bool = True
    ) -> None:
        self.products, self.index, self.per_page, self.mode, self.outcome = products, index, per_page, mode, outcome
        self.by_asin = {product.asin.lower(): product for product in products}
        self.session: Session | None = None

    def accepts(self, task: Task) -> bool:
        """A real shop needs a goal record to score a purchase; an invented task has none."""
        return task.goal is not None

    def reset(self, task: Task) -> dict[str, Any]:
        """Open the shop for a task; UsageError for a task without a goal."""
        if not self.accepts(task):
            raise UsageError(f"Task '{task.id}' has no goal record, so the real shop cannot score it. Practise invented tasks in a dream.")
        self.session = Session(task)
        return self._raw()

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        """Raw observation, reward and whether a purchase was made. An invalid action changes nothing."""
        session = self._session()
        name, argument = parse(action)
        before = session.purchase
        if name == "search" and argument:
            session.page, session.words, session.number = "results", tuple(argument.split(" ")), 1
            session.product, session.options = None, {}
        elif name == "click" and argument in self._clickables() and argument != "search":
            self._click(session, argument)
        bought = session.purchase if session.purchase is not before else None
        score = bought.score if bought else 0.0
        return self._raw(), float(score >= 1.0) if self.outcome else score, bought is not None

    def _click(self, session: Session, target: str) -> None:
        if target == BACK.lower():
            self.session = Session(session.task)
        elif target == BUY.lower() and session.product:
            session.purchase = reward(session.product, session.task.goal or {}, session.options)
            session.page = "done"
        elif target == PREV.lower():
            self._previous(session)
        elif target == NEXT.lower():
            session.number += 1
        elif session.page == "results":
            session.product, session.page = self.by_asin[target], "item"
            session.visited.add(target)
        elif target in {name.lower() for name in SUB_PAGES}:
            session.page = target
        elif session.product:
            for name, values in session.product.options.items():
                if target in values:
                    session.options[name] = target

    @staticmethod
    def _previous(session: Session) -> None:
        if session.page == "results":
            session.number -= 1
        elif session.page == "item":
            session.page, session.product, session.options = "results", None, {}
        else:
            session.page = "item"

    def _session(self) -> Session:
        if self.session is None:
            raise UsageError("step() before reset(): open the shop with a task first.")
        return self.session

    def _nodes(self) -> list[Node]:
        session = self._session()
        if session.page == "done":
            score = session.purchase.score if session.purchase else 0.0
            return [Node("Thank you for shopping with us!"), Node("Your score (min 0.0, max 1.0)"), Node(str(score))]
        if session.page == "index":
            return [Node("WebShop"), Node("Instruction: "), Node(session.task.instruction), Node("Search", "button")]
        head = [Node("Instruction:"), Node(session.task.instruction), Node(BACK, "button")]
        if session.page == "results":
            return head + self._results(session)
        product = session.product
        assert product is not None, "an item page without a product"
        if session.page == "item":
            return head + self._item(session, product)
        return [*head, Node(PREV, "button"), *self._sub_page(session.page, product)]

    def _results(self, session: Session) -> list[Node]:
        found = self.index.search(session.words)
        nodes = [Node(f"Page {session.number} (Total results: {len(found)})")]
        nodes += [Node(PREV, "button")] if session.number > 1 else []
        nodes.append(Node(NEXT, "button"))
        start = (session.number - 1) * self.per_page
        for position in found[start : start + self.per_page]:
            product = self.products[position]
            nodes.append(Node(product.asin, "product", product.asin.lower() in session.visited))
            nodes += [Node(product.title), Node(product.price_text)]
        return nodes

    def _item(self, session: Session, product: Product) -> list[Node]:
        nodes = [Node(PREV, "button")]
        for name, values in product.options.items():
            nodes.append(Node(name))
            shown = json.dumps(session.options)
            nodes += [Node(value, "option", f'"{value}"' in shown) for value in values]
        nodes += [Node(product.title), Node(f"Price: {product.price_text}"), Node("Rating: N.A.")]
        return nodes + [Node(name, "button") for name in (*SUB_PAGES, BUY)]

    @staticmethod
    def _sub_page(page: str, product: Product) -> list[Node]:
        if page == "description":
            return [Node(product.description)] if product.description else []
        return [Node(" " + bullet) for bullet in product.bullets] if page == "features" else []

    def _clickables(self) -> list[str]:
        nodes = self._nodes()
        ordered = [n for kind in ("button", "product", "option") for n in nodes if n.kind == kind]
        return list(dict.fromkeys(node.text.lower() for node in ordered))

    def _raw(self) -> dict[str, Any]:
        nodes = self._nodes()
        text = " [SEP] ".join(node.text.strip() for node in nodes) if self.mode == "text" else rich(nodes)
        search_bar = self._session().page == "index"
        return {"text": text, "mode": self.mode, "available": {"has_search_bar": search_bar, "clickables": self._clickables()}}


def rich(nodes: Sequence[Node]) -> str:
    """The `text_rich` rendering: a line a node, buttons marked, clicked options announced at the front (latest first)."""
    lines: list[str] = []
    announced: list[str] = []
    for node in nodes:
        marks = ("[clicked button]", "[clicked button_]") if node.clicked else ("[button]", "[button_]")
        if node.kind == "text":
            lines.append(node.text)
        elif node.kind == "button":
            lines.append(f"[button] {node.text} [button_]")
        elif node.kind == "product":
            lines.append(f"\n{marks[0]} {node.text} {marks[1]}")
        else:
            lines.append(f"  {marks[0]} {node.text} {marks[1]}")
            if node.clicked:
                announced.insert(0, f"You have clicked {node.text}.")
    return "".join(line + "\n" for line in [*announced, *lines])
