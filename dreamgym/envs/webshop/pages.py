"""A page as a list of text nodes, and the two ways the original prints it: `text` and `text_rich`.

Nodes are what the original's HTML parser leaves of its templates: an empty text is no node, white space with a line break none either,
and other white space is one blank.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dreamgym.envs.webshop.products import Product

SUB_PAGES = ("Description", "Features", "Reviews")
BACK, NEXT, PREV, BUY = "Back to Search", "Next >", "< Prev", "Buy Now"
Mode = Literal["text", "text_rich"]
BLANKS = " \n\t\f\r"


@dataclass(frozen=True, slots=True)
class Node:
    """A piece of a page: plain text, a button, a product link or an option value."""

    text: str
    kind: Literal["text", "button", "product", "option"] = "text"
    clicked: bool = False


def index(instruction: str) -> list[Node]:
    """Where an episode starts."""
    return tidy([Node("WebShop"), Node("Instruction: "), Node(instruction), Node("Search", "button")])


def results(instruction: str, number: int, total: int, shown: Sequence[Product], visited: Iterable[str]) -> list[Node]:
    """One page of search results; `visited` are the ASINs opened since the last index page, in lower case."""
    nodes = [*_head(instruction), Node(f"Page {number} (Total results: {total})")]
    nodes += [Node(PREV, "button")] if number > 1 else []
    nodes.append(Node(NEXT, "button"))
    for product in shown:
        nodes += [Node(product.asin, "product", product.asin.lower() in visited), Node(product.title), Node(product.price_text)]
    return tidy(nodes)


def item(instruction: str, product: Product, url: str) -> list[Node]:
    """A product. An option shows as clicked when its value stands in double quotes in the page's address, as in the original."""
    nodes = [*_head(instruction), Node(PREV, "button")]
    for name, values in product.options.items():
        nodes.append(Node(name))
        nodes += [Node(value, "option", f'"{value}"' in url) for value in values]
    nodes += [Node(product.title), Node(f"Price: {product.price_text}"), Node("Rating: N.A.")]
    return tidy([*nodes, *(Node(name, "button") for name in (*SUB_PAGES, BUY))])


def sub_page(instruction: str, product: Product, name: str) -> list[Node]:
    """Description, Features, or Reviews (always empty: the original never loads them)."""
    texts: list[str] = []
    if name == "Description":
        texts = [product.description]
    elif name == "Features":
        texts = [" " + bullet for bullet in product.bullets]
    return tidy([*_head(instruction), Node(PREV, "button"), *map(Node, texts)])


def done(product: Product, options: Mapping[str, str], score: float) -> list[Node]:
    """What follows a purchase."""
    shown = json.dumps(dict(options), sort_keys=True)
    for sign in "<>&'":
        shown = shown.replace(sign, f"\\u{ord(sign):04x}")
    none = "None"
    texts = [
        "Thank you for shopping with us!", "Your code: ", none, " (Paste it in your MTurk interface.)", "Purchased", "asin", product.asin,
        "options", shown, "attrs", none, "category", none, "query", none, "product category", none, "Target", "asin", "options", "attrs",
        "price upper", "instuction text", "category", "product category", "query", "Goal ", none, "Reward",
        "Your score (min 0.0, max 1.0)", str(score), "Reward Details ", none,
    ]  # fmt: skip
    return tidy(map(Node, texts))


def tidy(nodes: Iterable[Node]) -> list[Node]:
    """The nodes that the original's parser keeps, as it keeps them."""
    kept = []
    for node in nodes:
        if node.text.strip(BLANKS):
            kept.append(node)
        elif node.text and "\n" not in node.text:
            kept.append(Node(" ", node.kind, node.clicked))
    return kept


def clickables(nodes: Sequence[Node], product: Product | None = None) -> dict[str, Node | str]:
    """What can be clicked, in the original's order (buttons, products, options), each with its node or the name of its option.

    A later entry of the same text takes the place of the earlier one but not its position, as in the original's dict.
    """
    found: dict[str, Node | str] = {node.text.lower(): node for kind in ("button", "product") for node in nodes if node.kind == kind}
    for name, values in product.options.items() if product else ():
        found.update(dict.fromkeys(values, name))
    return found


def plain(nodes: Sequence[Node]) -> str:
    """The `text` rendering, which shows no sign of chosen options."""
    return " [SEP] ".join(node.text.strip() for node in nodes)


def rich(nodes: Sequence[Node]) -> str:
    """The `text_rich` rendering: a line a node, buttons marked, clicked options announced at the front (latest in page order first)."""
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
                announced.append(f"You have clicked {node.text}.")
    return "".join(line + "\n" for line in [*reversed(announced), *lines])


def _head(instruction: str) -> list[Node]:
    return [Node("Instruction:"), Node(instruction), Node(BACK, "button")]
