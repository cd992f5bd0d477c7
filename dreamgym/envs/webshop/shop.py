"""The shop itself: WebShop's pages, buttons and action grammar in `text` and `text_rich` observation modes.

Behaviour follows princeton-nlp/WebShop (MIT): five kinds of page, `search[...]` everywhere, `click[...]` on what is shown, an
invalid action changes nothing. The reward appears once, with the purchase. Where the original would crash (`<a>` and `<c>` searches of
something it does not know, `<r>` with fewer than 50 products), this shop shows what there is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dreamgym.envs.webshop import pages
from dreamgym.envs.webshop.actions import parse
from dreamgym.envs.webshop.pages import BACK, BUY, NEXT, PREV, SUB_PAGES, Mode, Node
from dreamgym.envs.webshop.products import Product
from dreamgym.envs.webshop.reward import EXACT, Purchase, Scoring, reward
from dreamgym.envs.webshop.search import LIMIT
from dreamgym.errors import UsageError
from dreamgym.types import Action, Task

ADDRESS = "http://127.0.0.1:3000"
PAGE_NAMES = ("search_results", "item_page", "item_sub_page", "done")
"""The original finds out where it is by looking for these in the address, keywords and options included, in this order."""
SUB_PAGE = {name.lower(): name for name in SUB_PAGES}


class Search(Protocol):
    """A search engine over the catalogue: positions of products, best first."""

    def search(self, words: Sequence[str]) -> list[int]: ...


@dataclass
class Session:
    """Where one shopper is."""

    task: Task
    page: str = "index"
    words: tuple[str, ...] = ()
    number: int = 1
    found: list[int] = field(default_factory=list)
    product: Product | None = None
    options: dict[str, str] = field(default_factory=dict)
    visited: set[str] = field(default_factory=set)
    purchase: Purchase | None = None


class WebShop:
    """One shopper in a catalogue (the `Env` protocol). Raw observations are dicts: text, mode and available actions.

    `outcome` is the paper's reward: 1 for a purchase that meets the whole goal, else 0; off, it is WebShop's score in [0, 1].
    `scoring` is how a purchase is compared with its goal. `rng` draws the random results of `search[<r>]`; without one every episode
    has its own, named by its task.
    """

    name = "webshop"

    def __init__(
        self,
        products: Sequence[Product],
        index: Search,
        *,
        per_page: int = 10,
        mode: Mode = "text_rich",
        outcome: bool = True,
        scoring: Scoring = EXACT,
        rng: random.Random | None = None,
        by_asin: Mapping[str, Product] | None = None,
    ) -> None:
        self.products, self.index, self.per_page, self.mode, self.outcome = products, index, per_page, mode, outcome
        self.scoring, self.rng = scoring, rng
        self.by_asin: Mapping[str, Product] = {product.asin.lower(): product for product in products} if by_asin is None else by_asin
        self.session: Session | None = None
        self._random = rng

    def accepts(self, task: Task) -> bool:
        """A real shop needs a goal record to score a purchase; a synthetic task has none."""
        return task.goal is not None

    def reset(self, task: Task) -> dict[str, Any]:
        """Open the shop for a task; UsageError for a task without a goal."""
        if not self.accepts(task):
            raise UsageError(f"Task '{task.id}' has no goal record, so the real shop cannot score it. Use synthetic tasks in a dream.")
        self.session = Session(task)
        self._random = self.rng
        self._look()
        return self._raw()

    def step(self, action: Action) -> tuple[dict[str, Any], float, bool]:
        """Raw observation, reward and whether a purchase was made. An invalid action changes nothing."""
        session = self._session()
        name, argument = parse(action)
        before = session.purchase
        if name == "search" and argument:
            self._show_results(session, tuple(argument.split(" ")), 1)
            self._look()
        elif name == "click" and argument in self._targets and argument != "search":
            self._click(session, argument)
            self._look()
        bought = session.purchase if session.purchase is not before else None
        score = bought.score if bought else 0.0
        return self._raw(), float(score >= 1.0) if self.outcome else score, bought is not None

    def _click(self, session: Session, target: str) -> None:
        """The original's order of cases: names of buttons come before what was really clicked."""
        if target == BUY.lower() and session.product:
            session.purchase = reward(session.product, session.task.goal or {}, session.options, scoring=self.scoring)
            session.page = "done"
            return
        if target == BACK.lower():
            self.session = Session(session.task)
            return
        here = next((name for name in PAGE_NAMES if name in self._address(session)), "") if target in (NEXT.lower(), PREV.lower()) else ""
        if here == "search_results":
            self._show_results(session, session.words, session.number + (1 if target == NEXT.lower() else -1))
        elif target == PREV.lower() and here == "item_sub_page":
            session.page = "item"
        elif target == PREV.lower() and here == "item_page":
            self._show_results(session, session.words, session.number)
        elif target in SUB_PAGE:
            session.page = target
        else:
            self._open_or_choose(session, target)

    def _open_or_choose(self, session: Session, target: str) -> None:
        clicked = self._targets[target]
        session.page = "item"
        if isinstance(clicked, str):
            session.options[clicked] = target
        elif clicked.kind == "product":
            session.product = self.by_asin[target]
            session.visited.add(target)

    def _show_results(self, session: Session, words: tuple[str, ...], number: int) -> None:
        session.page, session.words, session.number = "results", words, number
        session.product, session.options = None, {}
        session.found = self._find(session, words)

    def _find(self, session: Session, words: tuple[str, ...]) -> list[int]:
        """Positions of the results: a search, or everything of a category, query or attribute, or a random draw on every page turn."""
        if words[0] == "<r>":
            self._random = self._random or random.Random(f"results/{session.task.id}")
            return self._random.sample(range(len(self.products)), min(LIMIT, len(self.products)))
        rest = " ".join(words[1:]).strip()
        if words[0] == "<a>":
            return [i for i, product in enumerate(self.products) if rest in product.attributes]
        if words[0] == "<c>":
            return [i for i, product in enumerate(self.products) if words[1:] and product.category == words[1].strip()]
        if words[0] == "<q>":
            return [i for i, product in enumerate(self.products) if product.query == rest]
        return self.index.search(words)

    def _address(self, session: Session) -> str:
        """The page's address in the original, which decides what '< Prev' means and which options show as clicked."""
        words = "+".join(session.words)
        if session.page == "index":
            return ADDRESS
        if session.page == "results":
            return f"{ADDRESS}/search_results/{words}/{session.number}"
        asin = session.product.asin if session.product else ""
        if session.page == "item":
            return f"{ADDRESS}/item_page/{asin}/{words}/{session.number}/{json.dumps(session.options)}"
        if session.page == "done":
            return f"{ADDRESS}/done/{asin}/{session.options}"
        return f"{ADDRESS}/item_sub_page/{asin}/{words}/{session.number}/{SUB_PAGE[session.page]}/{session.options}"

    def _session(self) -> Session:
        if self.session is None:
            raise UsageError("step() before reset(): open the shop with a task first.")
        return self.session

    def _nodes(self) -> list[Node]:
        session = self._session()
        product, instruction = session.product, session.task.instruction
        if session.page == "index":
            return pages.index(instruction)
        if session.page == "results":
            start = (session.number - 1) * self.per_page
            shown = [self.products[position] for position in session.found[start : session.number * self.per_page]]
            return pages.results(instruction, session.number, len(session.found), shown, session.visited)
        assert product is not None, f"a page '{session.page}' without a product"
        if session.page == "done":
            return pages.done(product, session.options, session.purchase.score if session.purchase else 0.0)
        if session.page == "item":
            return pages.item(instruction, product, self._address(session))
        return pages.sub_page(instruction, product, SUB_PAGE[session.page])

    def _look(self) -> None:
        """Read the page once, after it has changed."""
        session = self._session()
        nodes = self._nodes()
        self._targets = pages.clickables(nodes, session.product if session.page == "item" else None)
        self._text = pages.plain(nodes) if self.mode == "text" else pages.rich(nodes)

    def _raw(self) -> dict[str, Any]:
        available = {"has_search_bar": self._session().page == "index", "clickables": list(self._targets)}
        return {"text": self._text, "mode": self.mode, "available": available}
