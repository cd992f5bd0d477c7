"""What is known about shops without asking one: the state mapping, the action rules, the goal as text, and the scripted teacher.

`admissible` and `check` read only the instruction, the states and the history, so they work in a dream exactly as in the real shop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dreamgym.envs.webshop import wording
from dreamgym.envs.webshop.actions import parse
from dreamgym.envs.webshop.wording import Requirements
from dreamgym.errors import UsageError
from dreamgym.types import Action, Memory, Observation, Task, Transition, Verdict, View

DONE = "purchase done"
HOME = "shop home\n[search]"
BUTTON = re.compile(r"^\s*\[(clicked )?button\] (.*) \[(?:clicked )?button_\]$")
ELEMENT = re.compile(r"\[([^\[\]\n]+)\]")
RESULT = re.compile(r"^\[(b\w+)\] \$([\d.]+)(?: to \S+)? (.+)$", re.MULTILINE)  # ASIN, price, title
ITEM = re.compile(r"item \$([\d.]+)(?: to \S+)? (.+)")
OPTION_LINE = re.compile(r"^([^\[\]\n]+): (\[.+\])$", re.MULTILINE)
UNTITLED = re.compile(r"(button_\]\n)(?:\s*\n)?(?=\$[\d.]+(?: to \$[\d.]+)?\n|price: )")
CHOSEN_LINE = re.compile(r"^chosen (\[.+\])$", re.MULTILINE)
FILLER = frozenset(
    [
        "i",
        "am",
        "looking",
        "for",
        "a",
        "an",
        "the",
        "need",
        "find",
        "me",
        "would",
        "like",
        "want",
        "please",
        "some",
        "with",
        "and",
        "to",
        "buy",
    ]
)
INSTRUCTION = re.compile(
    r"^(?P<base>[a-z -]+?)(?: with (?P<options>[a-z]+: .+?))?(?:, and price lower than (?P<bound>\d+\.\d\d) dollars)?$"
)


@dataclass(frozen=True)
class Item:
    """What an item page shows."""

    title: str
    price: float
    offered: dict[str, tuple[str, ...]]
    chosen: dict[str, str]


@lru_cache(maxsize=65536)
def requirements(instruction: str) -> Requirements | None:
    """Read an instruction, or None when it is not worded as one: at least a quality and a noun, known shapes only."""
    match = INSTRUCTION.match(instruction)
    if not match:
        return None
    words = tuple(word for word in match["base"].split() if word not in FILLER)
    pairs = []
    for part in (match["options"] or "").split(", and ") if match["options"] else []:
        name, colon, value = part.partition(": ")
        if not colon or not re.fullmatch(r"[a-z ]+", name) or not re.fullmatch(r"[\w |.-]+", value):
            return None
        pairs.append((name, value))
    if len(words) < 2 or len(set(words)) < len(words) or len({name for name, _ in pairs}) < len(pairs):
        return None
    return Requirements(words, tuple(pairs), float(match["bound"]) if match["bound"] else None)


@lru_cache(maxsize=65536)
def read_item(state: str) -> Item | None:
    """The item page in a state's text, or None when it is another page."""
    head = ITEM.match(state)
    if not head:
        return None
    offered = {name: tuple(ELEMENT.findall(values)) for name, values in OPTION_LINE.findall(state)}
    marked = ELEMENT.findall(line[1]) if (line := CHOSEN_LINE.search(state)) else []
    chosen = {name: value for value in marked for name, values in offered.items() if value in values}
    try:
        return Item(head[2], float(head[1]), offered, chosen)
    except ValueError:
        return None


class ShopDomain:
    """The `Domain` of shops that look like WebShop.

    `wide` reads any sentence by its content words, for the original's instructions; otherwise only the wording of generated tasks is read.
    """

    name = "webshop"
    atoms = (r"(?<!search)\[[^\[\]\n]+\]", r" ?\$\d+(?:\.\d+)?")
    """What a tokenizer should keep in one piece: a clickable element, and a price."""
    about = (
        "This is a web shop. Buy the product that the task describes, with the options it names, for less than the price it names. "
        "Searching leads to a page of results; opening a result leads to the product's page, where options are chosen and the product is "
        "bought. Everything that can be clicked on the present page stands in square brackets. Buying ends the episode."
    )
    manual = (
        "Think briefly if it helps, then end your reply with one line that holds one action: Action: search[words], where the page offers "
        "a search, or Action: click[element], where element is what stands in square brackets on the page, letter by letter."
    )

    def __init__(self, *, wide: bool = False) -> None:
        self.wide = wide
        self.read = wording.read if wide else requirements

    def abstract(self, raw: dict[str, Any]) -> Observation:
        """The state mapping: the rich text as a short lower-case list of facts and `[elements]`."""
        if raw["mode"] != "text_rich":
            raise UsageError(f"The state mapping reads text_rich observations, got '{raw['mode']}'. Make the shop with mode='text_rich'.")
        return Observation(_abstract(raw["text"]))

    def canonical(self, action: Action) -> Action:
        """One spelling for actions the shop cannot tell apart."""
        name, argument = parse(action)
        return f"{name}[{argument}]" if argument is not None else action

    def view(self, observation: Observation) -> View:
        """Results by their place on the page, `[1]` to `[10]`, instead of by ASIN: an agent should choose by what a line says."""
        return _view(observation.text)

    def admissible(self, observation: Observation, history: Sequence[Transition], action: Action) -> bool | None:
        """Whether the action names something that can be done here: a search, or an element of the page."""
        if observation.text == DONE:
            return False
        name, argument = parse(action)
        if name == "search":
            return bool(argument)
        return name == "click" and argument in elements(observation.text) and argument != "search"

    def kind(self, observation: Observation, action: Action) -> str:
        """search, open item, option, purchase, or other (the page's own buttons)."""
        name, argument = parse(action)
        if name == "search" and argument:
            return "search"
        if argument == "buy now":
            return "purchase"
        if argument in {asin for asin, _, _ in RESULT.findall(observation.text)}:
            return "open item"
        item = read_item(observation.text)
        return "option" if item and any(argument in values for values in item.offered.values()) else "other"

    def explain(self, task: Task, history: Sequence[Transition], transition: Transition) -> str:
        """The scripted teacher's reasoning trace: what the action meant, what it rests on, and what follows."""
        name, argument = parse(transition.action)
        state = transition.state.text
        if not self.admissible(transition.state, history, transition.action):
            return "no such element, so nothing changes."
        if name == "search":
            return f"search {argument}, so results."
        if argument == "buy now":
            return _explain_purchase(self.read(task.instruction), state, transition.terminated and transition.reward >= 1.0)
        shown = {asin: f"${price} {title}" for asin, price, title in RESULT.findall(state)}
        if argument in shown:
            return f"open [{argument}] {shown[argument]}, so its page."
        if argument == "back to search":
            return "back, so home."
        if argument in ("next >", "< prev", "description", "features", "reviews"):
            return f"go [{argument}]."
        return f"choose [{argument}], so it is chosen."

    def check(self, instruction: str, history: Sequence[Transition], claim: Transition) -> Verdict:
        """Whether a claimed success stands on what the state shows. It never turns a failure into a success."""
        if parse(claim.action) != ("click", "buy now"):
            return Verdict(False, ("success without a purchase",))
        if not claim.terminated:
            return Verdict(False, ("a purchase without an end",))
        wanted, item = self.read(instruction), read_item(claim.state.text)
        if wanted is None:
            return Verdict(False, ("the instruction cannot be read",))
        if item is None:
            return Verdict(False, ("no item page to buy from",))
        visit = _since_opening(history)
        clicked = {parse(t.action)[1] for t in visit}
        seen = " ".join(t.next_state.text for t in visit if t.next_state.text.startswith("details "))
        if self.wide:
            values = [value for values in item.offered.values() for value in values]
            reasons = wording.missing(
                wanted, shown=f"{item.title} {seen}", price=item.price, offered=values, chosen=_chosen(item, visit), clicked=clicked
            )
            return Verdict(not reasons, tuple(reasons))
        return _missing(wanted, item, clicked, seen)

    def brief(self, memory: Memory) -> str:
        """A memory as the experience model reads it: the action and what the page then held, without the constant buttons."""
        content = re.sub(r"\n\[(next >|< prev|description)\].*$", "", memory.next_state)
        return f"{memory.action}\n{content}"

    def well_formed(self, instruction: str) -> bool:
        """Whether an instruction reads as one: known wording, one to five requirements beside the noun; as many as it likes when `wide`."""
        wanted = self.read(instruction)
        return wanted is not None and wanted.count - 1 >= 1 and (self.wide or wanted.count - 1 <= 5)

    def feasible(self, instruction: str, memories: Iterable[Memory]) -> bool | None:
        """True when some item page in real memory meets every requirement, None when none was seen that does."""
        wanted = self.read(instruction)
        if wanted is None:
            return False
        meets = _could_meet_widely if self.wide else _could_meet
        return True if any(meets(wanted, item) for m in memories if (item := read_item(m.next_state))) else None


@lru_cache(maxsize=65536)
def elements(state: str) -> tuple[str, ...]:
    """What a state offers to click, in order."""
    return tuple(ELEMENT.findall(state))


@lru_cache(maxsize=65536)
def _view(state: str) -> View:
    names = {str(i): row[0] for i, row in enumerate(RESULT.findall(state), start=1)}
    text = state
    for short, name in names.items():
        text = text.replace(f"[{name}]", f"[{short}]", 1)
    return View(text, names)


def _since_opening(history: Sequence[Transition]) -> list[Transition]:
    """What was done on the item's pages since the item was opened: options are chosen there or nowhere."""
    visit: list[Transition] = []
    for transition in reversed(history):
        if not transition.state.text.startswith(("item ", "details ")):
            break
        visit.append(transition)
    return visit


def _chosen(item: Item, visit: Sequence[Transition]) -> list[tuple[str, str]]:
    """Options as the page marks them, and last clicks on values that the original cannot mark: those that JSON writes differently."""
    pairs = dict(item.chosen)
    for name, values in item.offered.items():
        last = next((argument for t in visit if (argument := parse(t.action)[1]) in values), None)
        if last is not None and json.dumps(last) != f'"{last}"':
            pairs[name] = last
    return list(pairs.items())


def _missing(wanted: Requirements, item: Item, clicked: Collection[str | None], seen: str) -> Verdict:
    """What an instruction asks for and the page, with what was clicked on it, does not show.

    A page that says `chosen [red]` is not enough: a dream may copy that line from somebody else's visit. The click must be in the history.
    """
    text = f"{item.title} {seen}".split()
    reasons = [f"no evidence for '{word}'" for word in wanted.words if word not in text]
    reasons += [f"{name} is not {value}" for name, value in wanted.options if item.chosen.get(name) != value]
    reasons += [f"nobody clicked {value}" for name, value in wanted.options if item.chosen.get(name) == value and value not in clicked]
    if wanted.bound is not None and item.price > wanted.bound:
        reasons.append(f"price {item.price} is above {wanted.bound}")
    return Verdict(not reasons, tuple(reasons))


def _could_meet(wanted: Requirements, item: Item) -> bool:
    words = item.title.split()
    return (
        all(word in words for word in wanted.words)
        and all(value in item.offered.get(name, ()) for name, value in wanted.options)
        and (wanted.bound is None or item.price <= wanted.bound)
    )


def _could_meet_widely(wanted: Requirements, item: Item) -> bool:
    """Whether some choice of options leaves nothing missing."""
    offered = [(name, value) for name, values in item.offered.items() for value in values]
    values = [value for _, value in offered]
    return not wording.missing(wanted, shown=item.title, price=item.price, offered=values, chosen=offered, clicked=values, share=1.0)


def _explain_purchase(wanted: Requirements | None, state: str, success: bool) -> str:
    item = read_item(state)
    if wanted is None or item is None:
        return f"buy, {'success' if success else 'failure'}."
    words = item.title.split()
    facts = [f"{word} {'yes' if word in words else 'no'}" for word in wanted.words]
    facts += [f"[{value}] {'yes' if item.chosen.get(name) == value else 'no'}" for name, value in wanted.options]
    if wanted.bound is not None:
        facts.append(f"${item.price:g} under {wanted.bound:g} {'yes' if item.price <= wanted.bound else 'no'}")
    bought = f"${item.price:g} {item.title} {''.join(f'[{value}]' for value in item.chosen.values())}".strip()
    return f"buy {bought}. {', '.join(facts)}, {'success' if success else 'failure'}."


@lru_cache(maxsize=65536)
def _abstract(text: str) -> str:
    text = UNTITLED.sub(r"\1untitled\n", text.lower())  # the original's data holds products without a title
    lines = [line for line in text.split("\n") if line.strip()]
    if lines[0].startswith("thank you"):
        return DONE
    if lines[0] == "webshop":
        return HOME
    lines = [line for line in lines if not line.startswith("you have clicked ")][2:]  # drops the two instruction lines
    nodes = [(match[2], True, bool(match[1])) if (match := BUTTON.match(line)) else (_prose(line), False, False) for line in lines]
    labels = [text for text, is_button, _ in nodes if is_button]
    if "buy now" in labels:
        return _abstract_item(nodes)
    if page := next((text for text, is_button, _ in nodes if not is_button and text.startswith("page ")), None):
        return _abstract_results(nodes, page.split()[1])
    body = " ".join(text for text, is_button, _ in nodes if not is_button) or "nothing"
    return f"details {body}\n[< prev][back to search]"


def _abstract_results(nodes: Sequence[tuple[str, bool, bool]], number: str) -> str:
    controls = ("back to search", "next >", "< prev")
    rows, buttons = [], []
    for i, (text, is_button, _) in enumerate(nodes):
        if is_button and text in controls:
            buttons.append(text)
        elif is_button:
            rows.append(f"[{text}] {_whole(nodes[i + 2][0])} {nodes[i + 1][0]}")
    listed = [f"[{name}]" for name in ("next >", "< prev", "back to search") if name in buttons]
    return "\n".join([f"results {number}", *rows, "".join(listed)])


def _prose(line: str) -> str:
    """Text that is not for clicking, without the brackets that would say it is."""
    return line.strip().replace("[", "(").replace("]", ")")


def _whole(price: str) -> str:
    """`$24.0` -> `$24`: the shop prints floats, and a zero that never varies says nothing."""
    return re.sub(r"\.0\b", "", price)


def _abstract_item(nodes: Sequence[tuple[str, bool, bool]]) -> str:
    fixed = ("back to search", "< prev", "description", "features", "reviews", "buy now")
    plain = [text for text, is_button, _ in nodes if not is_button]
    names, title, price = plain[:-3], plain[-3], plain[-2].removeprefix("price: ")
    options: list[str] = []
    chosen = ""
    for text, is_button, clicked in nodes:
        if is_button and text not in fixed:
            options[-1] += f"[{text}]"
            chosen += f"[{text}]" if clicked else ""
        elif not is_button and text in names and len(options) < len(names):
            options.append(f"{text}: ")
    listed = [*options, *([f"chosen {chosen}"] if chosen else [])]
    buttons = "[description][features][reviews][buy now][< prev][back to search]"
    return "\n".join([f"item {_whole(price)} {title}", *listed, buttons])
