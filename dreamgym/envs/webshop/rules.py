"""What is known about shops without asking one: the state mapping, the action rules, the goal as text, and the scripted teacher.

`admissible` and `check` read only the instruction, the states and the history, so they work in a dream exactly as in the real shop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from dreamgym.envs.base import TextRules
from dreamgym.envs.webshop import wording
from dreamgym.envs.webshop.actions import parse
from dreamgym.envs.webshop.item_index import SearchComposer
from dreamgym.envs.webshop.states import DONE, HOME, Item, elements, read_item, rows, since_opening
from dreamgym.envs.webshop.wording import Evidence, Requirements
from dreamgym.errors import UsageError
from dreamgym.protocols import ReplayBuffer
from dreamgym.types import Action, Memory, Observation, Task, Transition, Verdict, View

BUTTON = re.compile(r"^\s*\[(clicked )?button\] (.*) \[(?:clicked )?button_\]$")
RESULTS_PAGE = re.compile(r"page (-?\d+) \(total results: \d+\)")
UNTITLED = re.compile(r"(button_\]\n)(?:\s*\n)?(?=\$[\d.]+(?: to \$[\d.]+)?\n|price: )")
PAGE_BUTTONS = ("description", "features", "reviews", "buy now", "< prev", "back to search")
UNNAMED = "unnamed"
"""Stands for the name of an option that has none."""
YES_OR_NO = {True: "yes", False: "no", None: "maybe"}
FILLER = frozenset(
    ["i", "am", "looking", "for", "a", "an", "the", "need", "find", "me", "would", "like", "want", "please", "some", "with", "and", "to",
     "buy"]
)  # fmt: skip
INSTRUCTION = re.compile(
    r"^(?P<base>[a-z -]+?)(?: with (?P<options>[a-z]+: .+?))?(?:, and price lower than (?P<bound>\d+\.\d\d) dollars)?$"
)


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


class ShopRules(TextRules):
    """The `TextRules` of shops that look like WebShop.

    `wide` reads any sentence by its content words, for the original's instructions; otherwise only the wording of generated tasks is read.
    """

    name = "webshop"
    token_patterns = (r"(?<!search)\[[^\[\]\n]{1,200}\]", r" ?\$\d{1,12}(?:\.\d{1,12})?")
    """What a tokenizer should keep in one piece: a clickable element, and a price."""
    about = (
        "This is a web shop. Buy the product that the task describes, with the options it names, for less than the price it names. "
        "Searching leads to a page of results; opening a result leads to the product's page, where options are chosen and the product is "
        "bought. Everything that can be clicked on the present page stands in square brackets. Buying ends the episode."
    )
    action_format = (
        "Think briefly if it helps, then end your reply with one line that holds one action: Action: search[words], where the page offers "
        "a search, or Action: click[element], where element is what stands in square brackets on the page, letter by letter."
    )

    def __init__(self, *, wide: bool = False, compose_results: bool = False) -> None:
        self.wide, self.compose_results = wide, compose_results
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

    def action_kind(self, observation: Observation, action: Action) -> str:
        """search, open item, option, purchase, or other (the page's own buttons)."""
        name, argument = parse(action)
        if name == "search" and argument:
            return "search"
        if argument == "buy now":
            return "purchase"
        if argument in {row.asin for row in rows(observation.text)}:
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
            return self._explain_purchase(task.instruction, history, transition)
        shown = {row.asin: f"{row.price} {row.title}" for row in rows(state)}
        if argument in shown:
            return f"open [{argument}] {shown[argument]}, so its page."
        if argument == "back to search":
            return "back, so home."
        if argument in ("next >", "< prev", "description", "features", "reviews"):
            return f"go [{argument}]."
        return _choice(argument)

    def check_success(self, instruction: str, history: Sequence[Transition], claim: Transition) -> Verdict:
        """Whether a claimed success stands on what the state shows. It never turns a failure into a success.

        Of a price range the upper end must be within the bound: what the shop charges is drawn from the range and shown nowhere.
        """
        reasons = self._against(instruction, history, claim)
        undecided = reasons and reasons == self._range_over_bound(instruction, claim)
        return Verdict("undecided" if undecided else "refused" if reasons else "passed", tuple(reasons))

    def contradictions(self, history: Sequence[Transition], claim: Transition) -> list[str]:
        """What no shop does on the way to a purchase: list the product as another than its page shows, or answer one search in two ways."""
        opening, page = _opening(history), claim.state.text.partition("\n")[0]
        if opening is None:
            return []
        _, asin = parse(opening.action)
        lines = [row for row in rows(opening.state.text) if row.asin == asin]
        others = [row for row in lines if f"item {row.price} {row.title}" != page]
        found = [f"[{asin}] was listed as {row.price} {row.title}" for row in others]
        return found + [f"search[{words}] was answered in two ways" for words in _answered_otherwise(history)]

    def composer(self, replay: ReplayBuffer) -> SearchComposer | None:
        """Results of searches that no log holds, from the products in `replay`, where `compose_results` is on. Stems are compared in shops
        of the original's kind."""
        return SearchComposer(replay, stemmed=self.wide) if self.compose_results else None

    def noop_reason(self, observation: Observation, history: Sequence[Transition], action: Action) -> str:
        """An option that is chosen can be clicked again, and stays chosen.

        A page may mark values that nobody chose: one that was searched for in quotes, or is called as an option is in which something
        was chosen. So the clicked one must be the only one marked of every option that has it, and no value be called as those are.
        """
        name, argument = parse(action)
        item = read_item(observation.text) if name == "click" else None
        if item is None or argument not in item.marked:
            return ""
        having = {option: values for option, values in item.offered.items() if argument in values}
        alone = all(value == argument for values in having.values() for value in values if value in item.marked)
        named = any(option in values for option in having for values in item.offered.values())
        return _choice(argument) if having and alone and not named else ""

    def _range_over_bound(self, instruction: str, claim: Transition) -> list[str]:
        """The reason against a success that is only possible: a price range with the bound within it."""
        wanted, item = self.read(instruction), read_item(claim.state.text)
        if wanted is None or item is None or wording.within(item.prices, wanted.bound) is not None:
            return []
        return wording.too_dear(item.prices, wanted.bound)

    def _against(self, instruction: str, history: Sequence[Transition], claim: Transition) -> list[str]:
        """What stands against a claimed success."""
        if parse(claim.action) != ("click", "buy now"):
            return ["success without a purchase"]
        if not claim.terminated:
            return ["a purchase without an end"]
        wanted, item = self.read(instruction), read_item(claim.state.text)
        if wanted is None:
            return ["the instruction cannot be read"]
        if item is None:
            return ["no item page to buy from"]
        evidence = _evidence(item, history)
        return wording.missing(wanted, evidence) if self.wide else _missing(wanted, item, evidence)

    def _explain_purchase(self, instruction: str, history: Sequence[Transition], purchase: Transition) -> str:
        """What was bought, whether it is what was asked for, one fact after the other, and how it ended.

        Facts about a sentence in anybody's words rest on what `check` looks at; those about a generated one on the item page alone.
        """
        end = "success" if purchase.succeeded else "failure"
        wanted, item = self.read(instruction), read_item(purchase.state.text)
        if wanted is None or item is None:
            return f"buy, {end}."
        if self.wide:
            evidence = _evidence(item, history)
            met, chosen = wording.met(wanted, evidence), [value for _, value in evidence.chosen]
        else:
            met, chosen = _met(wanted, item), list(item.chosen.values())
        facts = [f"{asked} {YES_OR_NO[answer]}" for asked, answer in met]
        if wanted.bound is not None:
            facts.append(f"{item.price} under {wanted.bound:g} {YES_OR_NO[wording.within(item.prices, wanted.bound)]}")
        bought = f"{item.price} {item.title} {''.join(f'[{value}]' for value in chosen)}".strip()
        return f"buy {bought}. {', '.join(facts)}, {end}."

    def memory_text(self, memory: Memory) -> str:
        """A memory as the experience model reads it: the action and what the page then held, without the constant buttons."""
        content = re.sub(r"\n\[(next >|< prev|description)\].*$", "", memory.next_state)
        return f"{memory.action}\n{content}"

    def well_formed(self, instruction: str) -> bool:
        """Whether an instruction reads as one: known wording, one to five requirements beside the noun; as many as it likes when `wide`."""
        wanted = self.read(instruction)
        return wanted is not None and wanted.count - 1 >= 1 and (self.wide or wanted.count - 1 <= 5)

    def task_key(self, instruction: str) -> str:
        """The requirements, in one order."""
        wanted = self.read(instruction)
        if wanted is None:
            return super().task_key(instruction)
        return repr((sorted(wanted.words), sorted(wanted.options), wanted.bound))

    def feasible(self, instruction: str, memories: Iterable[Memory]) -> bool | None:
        """True when some item page in real memory meets every requirement, None when none was seen that does."""
        wanted = self.read(instruction)
        if wanted is None:
            return False
        meets = _could_meet_widely if self.wide else _could_meet
        return True if any(meets(wanted, item) for m in memories if (item := read_item(m.next_state))) else None


def _choice(value: str | None) -> str:
    return f"choose [{value}], so it is chosen."


@lru_cache(maxsize=65536)
def _view(state: str) -> View:
    names = {str(i): row.asin for i, row in enumerate(rows(state), start=1)}
    text = state
    for short, name in names.items():
        text = text.replace(f"[{name}]", f"[{short}]", 1)
    return View(text, names)


def _opening(history: Sequence[Transition]) -> Transition | None:
    """The step that opened the item whose pages are visited; None where the history does not reach back to it."""
    before = len(history) - len(since_opening(history)) - 1
    return history[before] if before >= 0 else None


def _answered_otherwise(history: Sequence[Transition]) -> list[str]:
    """Searches of which the history shows one page of results in two ways."""
    shown: dict[tuple[str, str], str] = {}
    words, found = "", []
    for step in history:
        name, argument = parse(step.action)
        words = argument or "" if name == "search" else words
        page = step.next_state.text
        if page.startswith("results ") and shown.setdefault((words, page.partition("\n")[0]), page) != page:
            found.append(words)
    return list(dict.fromkeys(found))


def _evidence(item: Item, history: Sequence[Transition]) -> Evidence:
    """What the item's pages show, and what was clicked on them since the item was opened."""
    visit = since_opening(history)
    read = [t.next_state.text for t in visit if t.next_state.text.startswith("details ")]
    return Evidence(
        prose=" ".join([item.title, *read]),
        prices=item.prices,
        offered=tuple(value for values in item.offered.values() for value in values),
        chosen=tuple(_chosen(item, visit)),
        clicked=frozenset(parse(t.action)[1] for t in visit),
    )


def _chosen(item: Item, visit: Sequence[Transition]) -> list[tuple[str, str]]:
    """Options as the page marks them, and last clicks on values that the original cannot mark: those that JSON writes differently."""
    pairs = dict(item.chosen)
    for name, values in item.offered.items():
        last = next((argument for t in visit if (argument := parse(t.action)[1]) in values), None)
        if last is not None and json.dumps(last) != f'"{last}"':
            pairs[name] = last
    return list(pairs.items())


def _missing(wanted: Requirements, item: Item, evidence: Evidence) -> list[str]:
    """What an instruction asks for and the page, with what was clicked on it, does not show.

    A page that says `chosen [red]` is not enough: a dream may copy that line from somebody else's visit. The click must be in the history.
    """
    text = evidence.prose.split()
    reasons = [f"no evidence for '{word}'" for word in wanted.words if word not in text]
    reasons += [f"{name} is not {value}" for name, value in wanted.options if item.chosen.get(name) != value]
    marked = [value for name, value in wanted.options if item.chosen.get(name) == value]
    reasons += [f"nobody clicked {value}" for value in marked if value not in evidence.clicked]
    return reasons + wording.too_dear(item.prices, wanted.bound)


def _met(wanted: Requirements, item: Item) -> list[tuple[str, bool]]:
    """Every word and option of a generated instruction, with whether the item page shows it."""
    words = item.title.split()
    return [(word, word in words) for word in wanted.words] + [
        (f"[{value}]", item.chosen.get(name) == value) for name, value in wanted.options
    ]


def _could_meet(wanted: Requirements, item: Item) -> bool:
    words = item.title.split()
    return (
        all(word in words for word in wanted.words)
        and all(value in item.offered.get(name, ()) for name, value in wanted.options)
        and wording.within(item.prices, wanted.bound) is True
    )


def _could_meet_widely(wanted: Requirements, item: Item) -> bool:
    """Whether some choice of options leaves nothing missing."""
    offered = tuple((name, value) for name, values in item.offered.items() for value in values)
    values = tuple(value for _, value in offered)
    best = Evidence(item.title, item.prices, offered=values, chosen=offered, clicked=frozenset(values))
    return not wording.missing(wanted, best, share=1.0)


class Line(NamedTuple):
    """A line of the rich text: what it says, and whether it is a button and marked as clicked."""

    text: str
    is_button: bool = False
    clicked: bool = False


@lru_cache(maxsize=65536)
def _abstract(text: str) -> str:
    text = UNTITLED.sub(r"\1untitled\n", text.lower())  # the original's data holds products without a title
    lines = [line for line in text.split("\n") if line.strip()]
    if lines[0].startswith("thank you"):
        return DONE
    if lines[0] == "webshop":
        return HOME
    lines = [line for line in lines if not line.startswith("you have clicked ")][2:]  # drops the two instruction lines
    page = [_line(line) for line in lines]
    if "buy now" in (line.text for line in page if line.is_button):
        return _abstract_item(page)
    prose = [line.text for line in page if not line.is_button]
    if number := next((match[1] for text in prose if (match := RESULTS_PAGE.fullmatch(text))), None):
        return _abstract_results(page, number)
    return f"details {' '.join(prose) or 'nothing'}\n[< prev][back to search]"


def _abstract_results(page: Sequence[Line], number: str) -> str:
    """Every product is a button with its ASIN, then a line with its title and one with its price."""
    controls = ("next >", "< prev", "back to search")
    buttons = [line.text for line in page if line.is_button]
    listed = [
        f"[{line.text}] {_whole(page[i + 2].text)} {page[i + 1].text}"
        for i, line in enumerate(page)
        if line.is_button and line.text not in controls
    ]
    return "\n".join([f"results {number}", *listed, "".join(f"[{name}]" for name in controls if name in buttons)])


def _abstract_item(page: Sequence[Line]) -> str:
    """Options stand first, every name before its values; then come title, price and rating, and the page's own buttons.

    Values that no name precedes are kept under `UNNAMED`; after another option's they cannot be told from those, in the original either.
    """
    title_at, price_at, _ = [i for i, line in enumerate(page) if not line.is_button][-3:]
    options: list[str] = []
    chosen = ""
    for line in page[:title_at]:
        if not line.is_button:
            options.append(f"{line.text}: ")
        elif line.text not in PAGE_BUTTONS:
            options = options or [f"{UNNAMED}: "]
            options[-1] += f"[{line.text}]"
            chosen += f"[{line.text}]" if line.clicked else ""
    price = _whole(page[price_at].text.removeprefix("price: "))
    marked = [f"chosen {chosen}"] if chosen else []
    buttons = "".join(f"[{name}]" for name in PAGE_BUTTONS)
    return "\n".join([f"item {price} {page[title_at].text}", *options, *marked, buttons])


def _line(text: str) -> Line:
    match = BUTTON.match(text)
    return Line(match[2], True, bool(match[1])) if match else Line(_prose(text))


def _prose(line: str) -> str:
    """Text that is not for clicking, without the brackets that would say it is."""
    return line.strip().replace("[", "(").replace("]", ")")


def _whole(price: str) -> str:
    """`$24.0` -> `$24`: the shop prints floats, and a zero that never varies says nothing."""
    return re.sub(r"\.0\b", "", price)
