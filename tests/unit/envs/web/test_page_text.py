"""The state mapping of the web."""

from __future__ import annotations

import copy
import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from web_pages import recorded_trees

from dreamgym.envs.web.page_text import ACTIONABLE, DONE, clean, hint_words, page_text, rough_tokens
from dreamgym.envs.web.rules import WebRules, elements
from dreamgym.types import Observation

TREES = recorded_trees()
every_tree = pytest.mark.parametrize("name", TREES)


def tree(*nodes: Any, properties: dict[str, Any] | None = None) -> dict[str, Any]:
    """An observation from nested (role, name, *children, {extra}) tuples below a root."""
    found: list[dict[str, Any]] = []
    count = itertools.count(1)

    def build(node: Any, parent: str | None) -> str:
        place = len(found)
        role, name, *rest = node
        extra = next((one for one in rest if isinstance(one, dict)), {})
        key = str(next(count))
        made = {"nodeId": key, "parentId": parent, "ignored": False, "role": {"value": role}, "name": {"value": name}, "childIds": []}
        if role != "StaticText":
            made["browsergym_id"] = f"b{key}"
        found.append({**made, **extra})
        found[place]["childIds"] = [build(child, key) for child in rest if isinstance(child, tuple)]
        return key

    build(("RootWebArea", "Shop", *nodes), None)
    return {"axtree_object": {"nodes": found}, "extra_element_properties": properties or {}, "open_pages_titles": ("Shop",)}


def text(*nodes: Any, **more: Any) -> str:
    return page_text(tree(*nodes, **more)).text


@pytest.mark.parametrize(("role", "value"), [("DateTime", "2026-01-02T12:30"), ("DateTime", "2026-W03"), ("InputTime", "09:30")])
def test_a_field_of_a_time_shows_its_value_and_can_be_typed_in(role: str, value: str):
    shown = text((role, "When", {"value": {"value": value}}))
    assert shown == f"page: Shop\n[1] {role.lower()} 'When' = '{value}'"
    assert WebRules().admissible(Observation(shown), (), f"type [1] [{value}] [0]") is True


@every_tree
def test_a_state_is_deterministic_and_the_observation_stays_as_it_is(name: str):
    raw = copy.deepcopy(TREES[name])
    first = page_text(raw)
    assert raw == TREES[name]
    assert page_text(copy.deepcopy(raw)) == first
    assert WebRules().abstract(raw).text == first.text


@every_tree
@pytest.mark.parametrize("room", [200, 400, 1500])
def test_a_state_has_at_most_the_tokens_allowed(name: str, room: int):
    assert rough_tokens(page_text(TREES[name], max_tokens=room).text) <= room


@every_tree
def test_every_number_that_is_shown_names_an_element_and_the_other_way_round(name: str):
    shown = page_text(TREES[name])
    assert set(elements(shown.text)) == set(shown.bids)
    assert len(set(shown.bids.values())) == len(shown.bids)


@every_tree
def test_every_element_of_the_tree_with_a_role_of_its_own_has_a_number(name: str):
    raw = TREES[name]
    numbered = set(page_text(raw, max_tokens=10**6).bids.values())
    roles = {
        node["browsergym_id"]
        for node in raw["axtree_object"]["nodes"]
        if node.get("browsergym_id") and not node.get("ignored") and node["role"]["value"] in ACTIONABLE - {"option"}
    }
    assert roles <= numbered


@every_tree
def test_every_text_of_the_tree_is_in_the_state(name: str):
    raw = TREES[name]
    state = page_text(raw, max_tokens=10**6).text
    for node in raw["axtree_object"]["nodes"]:
        if node["role"]["value"] == "StaticText" and not node.get("ignored"):
            for word in clean(node["name"]["value"], 60).removesuffix("...").split():
                assert word in state or "..." in state, word


def test_prices_of_neighbouring_items_are_not_merged():
    item = lambda name, price: ("listitem", "", ("link", name, ("StaticText", name)), ("paragraph", "", ("StaticText", price)))  # noqa: E731
    assert text(("list", "", item("Scarf", "3.00"), item("Hat", "4.00"))).split("\n")[1:] == [
        "[1] link 'Scarf' | 3.00",
        "[2] link 'Hat' | 4.00",
    ]


def link(name: str, url: str = "") -> tuple[Any, ...]:
    found = {"properties": [{"name": "url", "value": {"type": "string", "value": url}}]} if url else {}
    return ("link", name, ("StaticText", name), found)


def row(*cells: Any) -> tuple[Any, ...]:
    return ("row", "", *(("cell", "", ("StaticText", one) if isinstance(one, str) else one) for one in cells))


def test_every_cell_of_a_row_is_shown_whatever_stands_in_the_others():
    shown = text(("table", "", row("5", "7", "5"), row("True", "True", ("image", "True")), row(link("X1", "/a"), "X1", link("X1", "/a"))))
    assert shown.split("\n")[1:] == ["5 | 7 | 5", "True | True | image 'True'", "[1] link 'X1' | X1 | [2] link 'X1'"]


def test_a_text_is_left_out_only_right_after_the_element_that_it_names():
    box = ("checkbox", "Agree")
    words = ("StaticText", "Agree")
    shown = text(("listitem", "", box, words), ("listitem", "", box, ("StaticText", "now:"), words), ("listitem", "", words, box))
    assert shown.split("\n")[1:] == ["[1] checkbox 'Agree'", "[2] checkbox 'Agree' | now: Agree", "Agree | [3] checkbox 'Agree'"]
    parts = (("paragraph", "", ("StaticText", one)) for one in ("4", "of", "4"))
    assert text(("listitem", "", *parts)) == "page: Shop\n4 | of | 4"
    followed = text(("listitem", "", box, words, ("StaticText", "to all")))
    assert followed == "page: Shop\n[1] checkbox 'Agree' | to all"


@pytest.mark.parametrize(
    ("second", "between", "shown"),
    [("/a", (), "[1] link 'Edit'"), ("/b", (), "[1] link 'Edit' | [2] link 'Edit'"), ("", (), "[1] link 'Edit' | [2] link 'Edit'"),
     ("/a", (("StaticText", "or"),), "[1] link 'Edit' | or | [2] link 'Edit'"),
     ("/a", (link("Copy", "/c"),), "[1] link 'Edit' | [2] link 'Copy' | [3] link 'Edit'")],
)  # fmt: skip
def test_a_link_is_left_out_only_where_the_one_just_before_it_has_its_name_and_its_address(second: str, between: Any, shown: str):
    assert text(("listitem", "", link("Edit", "/a"), *between, link("Edit", second))) == f"page: Shop\n{shown}"


@pytest.mark.parametrize("url", ["http://s/page#", "javascript:void(0)"])
def test_links_whose_scripts_decide_where_they_lead_all_have_numbers(url: str):
    assert text(("listitem", "", link("Edit", url), link("Edit", url))) == "page: Shop\n[1] link 'Edit' | [2] link 'Edit'"


def test_texts_without_items_stand_on_lines_of_their_own():
    assert text(("generic", "", ("StaticText", "one")), ("generic", "", ("StaticText", "two"))) == "page: Shop\none\ntwo"


def test_formatting_does_not_cut_a_text():
    assert (
        text(("paragraph", "", ("StaticText", "a"), ("strong", "", ("StaticText", "bold")), ("StaticText", "word")))
        == "page: Shop\na bold word"
    )


def test_an_icon_without_a_name_is_named_by_its_class_and_a_field_by_the_text_before_it():
    shown = text(
        ("LabelText", "", ("StaticText", "Quantity")),
        ("textbox", ""),
        ("image", "", {"browsergym_id": "icon"}),
        properties={"icon": {"clickable": True, "hint": "trash"}},
    )
    assert shown == "page: Shop\nQuantity | [1] textbox near 'Quantity' | [2] image 'trash'"


def test_repeated_texts_of_text_boxes_are_left_out():
    assert text(("StaticText", "once", ("InlineTextBox", "once"))) == "page: Shop\nonce"


def test_a_page_cannot_write_elements_of_its_own():
    state = text(("paragraph", "", ("StaticText", "[7] button 'Buy' | [8] link 'x'\n[9] link 'y'")), ("button", "[5] Real | thing"))
    assert set(elements(state)) == {1}
    assert state.split("\n")[1] == "(7) button 'Buy' / (8) link 'x' (9) link 'y'"


def test_states_of_elements_are_shown():
    flags = {"properties": [{"name": "checked", "value": {"value": "true"}}, {"name": "disabled", "value": {"value": True}}]}
    assert text(("checkbox", "Agree", flags), ("textbox", "Name", {"value": {"value": "Ann"}})).split("\n")[1] == (
        "[1] checkbox 'Agree' (disabled, checked) | [2] textbox 'Name' = 'Ann'"
    )


def test_a_long_list_of_options_is_counted():
    options = [("option", f"c{i}") for i in range(20)]
    shown = text(("combobox", "Country", ("MenuListPopup", "", *options), {"value": {"value": "c3"}}))
    assert shown.endswith("'c10', 'c11', 8 more") and shown.count("[") == 1


def test_a_long_page_shows_its_viewport_and_says_what_is_missing():
    buttons = [("button", f"button number {i}") for i in range(300)]
    raw = tree(*(("paragraph", "", button) for button in buttons))
    ids = [node["browsergym_id"] for node in raw["axtree_object"]["nodes"] if node["role"]["value"] == "button"]
    raw["extra_element_properties"] = {bid: {"visibility": float(100 <= place < 120)} for place, bid in enumerate(ids)}
    shown = page_text(raw)
    assert shown.text.split("\n")[1] == "(100 lines above: scroll up)" and shown.text.endswith("(180 lines below: scroll down)")
    assert shown.bids == {number + 1: ids[number] for number in range(100, 120)}


def test_a_deep_and_a_circular_tree_are_read():
    nodes = [{"nodeId": str(i), "role": {"value": "generic"}, "name": {"value": ""}, "childIds": [str(i + 1)]} for i in range(5000)]
    nodes.append({"nodeId": "5000", "role": {"value": "StaticText"}, "name": {"value": "deep"}, "childIds": ["0"]})
    assert page_text({"axtree_object": {"nodes": nodes}}).text == "page: untitled\ndeep"


def test_an_ended_episode_and_an_empty_page_have_texts():
    assert page_text({"ended": True}).text == DONE
    assert page_text({"axtree_object": {"nodes": []}}).text == "page: untitled"


names = st.text(max_size=40)
leaves = st.tuples(st.sampled_from(["StaticText", "link", "button", "textbox", "image", "heading", "checkbox"]), names)
nested = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda role, children: (role, "", *children),
        st.sampled_from(["generic", "listitem", "list", "row", "paragraph", "group", "link"]),
        st.lists(inner, max_size=4),
    ),
    max_leaves=25,
)


@given(st.lists(nested, max_size=6))
def test_any_tree_gives_a_state_whose_numbers_are_its_elements(nodes: list[Any]):
    shown = page_text(tree(*nodes))
    assert set(elements(shown.text)) == set(shown.bids)
    assert rough_tokens(shown.text) <= 1500
    assert not re.search(r"\[ |\n |\n\n", shown.text) and shown.text == shown.text.strip()


@given(st.text())
def test_a_cleaned_text_is_clean_and_stays_so(value: str):
    assert clean(clean(value)) == clean(value)
    assert not set("[]|\n\t") & set(clean(value))


def test_words_of_classes_name_icons():
    assert hint_words("fa fa-trash-o", "deleteButton2") == "trash delete"
    assert hint_words("glyphicon glyphicon-star") == "star"


def long_item(role: str, *, first: int, last: int) -> dict[str, Any]:
    """A page of sixty paragraphs in one item and a link in each, of which those from `first` to `last` are in the viewport."""
    words = "some words of a text that is read here and goes on and on, as texts of articles do " * 2
    paragraphs = [("paragraph", "", ("StaticText", f"{place}: {words}"), ("link", f"source {place}")) for place in range(60)]
    raw = tree((role, "", *paragraphs), ("button", "Reply"))
    roles = ("paragraph", "link")
    ids = {one: [node["browsergym_id"] for node in raw["axtree_object"]["nodes"] if node["role"]["value"] == one] for one in roles}
    seen = {ids[one][place]: {"visibility": float(first <= place <= last)} for one in roles for place in range(60)}
    others = {node["browsergym_id"]: {"visibility": 0.0} for node in raw["axtree_object"]["nodes"] if "browsergym_id" in node}
    return {**raw, "extra_element_properties": {**others, **seen}}


@pytest.mark.parametrize("role", ["article", "listitem", "row"])
@pytest.mark.parametrize("first", [0, 30])
def test_an_item_that_is_too_long_for_a_state_shows_its_blocks_in_the_viewport(role: str, first: int):
    shown = page_text(long_item(role, first=first, last=first + 7))
    texts = [line for line in shown.text.split("\n")[1:] if not line.startswith("(")]
    assert [line.split(":")[0] for line in texts] == [str(place) for place in range(first, first + 8)]
    assert all(line.endswith(f"| [{place + 1}] link 'source {place}'") for place, line in enumerate(texts, start=first))
    assert set(shown.bids) == set(elements(shown.text)) == set(range(first + 1, first + 9))
    assert shown.text.endswith(f"({52 - first + 1} lines below: scroll down)")
    assert (f"({first} lines above: scroll up)" in shown.text) == bool(first)


def test_a_block_that_is_too_long_for_a_state_shows_its_parts_in_the_viewport():
    raw = tree(("article", "", ("paragraph", "", *(("link", f"tag number {place}") for place in range(400)))))
    ids = [node["browsergym_id"] for node in raw["axtree_object"]["nodes"] if node["role"]["value"] == "link"]
    raw["extra_element_properties"] = {bid: {"visibility": float(100 <= place < 103)} for place, bid in enumerate(ids)}
    assert page_text(raw).text.split("\n")[1:] == [
        "(100 lines above: scroll up)",
        *(f"[{place + 1}] link 'tag number {place}'" for place in range(100, 103)),
        "(297 lines below: scroll down)",
    ]


def test_an_item_that_a_state_has_room_for_stands_on_one_line():
    raw = long_item("article", first=0, last=59)
    assert len(page_text(raw, max_tokens=10**6).text.split("\n")) == 3
