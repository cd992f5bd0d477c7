"""Recorded episodes of AgentLab and BrowserGym: states as from the browser, WebArena's actions, and a reason for what is left out."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy import command, object_in

from dreamgym.envs.web import WebSuite
from dreamgym.envs.web.page_text import DONE, page_text
from dreamgym.envs.web.recorded import Unusable, episode, import_recorded, tree_of
from dreamgym.envs.web.rules import WebRules, elements
from dreamgym.runs.episodes import read_trajectories
from dreamgym.types import Task

TREES: dict[str, Any] = json.loads(gzip.decompress((Path(__file__).parents[3] / "support/web_trees.json.gz").read_bytes()))
PAGE = """RootWebArea 'A shop', focused
\t[7] heading 'Scarves', visible
\t[a12] link 'Amber scarf', clickable, visible
\t[15] searchbox 'Search' value='red', clickable, visible
\t[16] combobox 'Sort by' value='Price', clickable, visible, expanded=False
\t\t[17] menuitem 'Price', visible
\tStaticText 'It\\'s 4 pm'
not a node
\t[18] button '', clickable"""
GOAL = "Find the amber scarf."


def steps(*actions: str, reward: float = 1.0, page: str = PAGE) -> list[dict[str, Any]]:
    """BrowserGym's steps of an episode that ends after its last action."""
    found: list[dict[str, Any]] = [{"obs": {"goal": GOAL, "axtree_txt": page}, "action": one, "reward": 0.0} for one in actions]
    return [*found, {"obs": {"goal": GOAL, "axtree_txt": page}, "action": None, "reward": reward, "terminated": True}]


def tape(*actions: str, reward: float = 1.0, truncated: bool = False) -> dict[str, Any]:
    """AgentLab's tape of the same."""
    found: list[dict[str, Any]] = []
    for one in actions:
        found.append({"kind": "dict_observation", "content": json.dumps({"goal": GOAL, "axtree_txt": PAGE})})
        found.append({"kind": "assistant_thought", "content": "I should click."})
        found.append({"kind": "assistant", "content": one, "metadata": {"other": {"reward": 0}}})
    return {"metadata": {"reward": reward, "truncated": truncated, "terminated": not truncated}, "steps": found}


def test_a_tree_as_text_gives_the_state_that_the_tree_gives():
    obs = pytest.importorskip("browsergym.utils.obs")
    for name, raw in TREES.items():
        properties = {bid: known | {"bbox": None} for bid, known in raw["extra_element_properties"].items()}
        flat = obs.flatten_axtree_to_str(
            raw["axtree_object"], extra_properties=properties, with_visible=True, with_clickable=True, remove_redundant_static_text=False
        )
        ours = page_text(raw | tree_of(flat))
        theirs = page_text(raw)
        named = {(one.role, one.name) for one in elements(theirs.text).values() if one.name and one.role not in ("clickable", "image")}
        assert named <= {(one.role, one.name) for one in elements(ours.text).values()}, name
        assert set(ours.bids.values()) <= {str(node.get("browsergym_id")) for node in raw["axtree_object"]["nodes"]}


@pytest.mark.parametrize(
    ("action", "ours"),
    [
        ("click('a12')", "click [1]"),
        ("click(bid='a12', button='left')", "click [1]"),
        ("hover('a12')", "hover [1]"),
        ("fill('15', 'blue [x]')", "type [2] [blue [x]] [0]"),
        ("clear('15')", "type [2] [] [0]"),
        ("select_option('16', 'Price')", "select [3] [Price]"),
        ("select_option('16', ['Price'])", "select [3] [Price]"),
        ("press('15', 'Enter')", "press [Enter]"),
        ("scroll(0, -200)", "scroll [up]"),
        ("goto('http://shop.test/a')", "goto [http://shop.test/a]"),
        ("go_back()", "go_back"),
        ("tab_close()", "close_tab"),
        ("tab_focus(1)", "tab_focus [1]"),
        ("click the amber scarf", "click the amber scarf"),
        ("__import__('os').system('true')", "__import__('os').system('true')"),
    ],
)
def test_an_action_is_written_as_the_browser_here_takes_it(action: str, ours: str):
    found = episode(steps(action, "send_msg_to_user('4 pm')"), "one")
    assert [step.action for step in found.transitions] == [ours, "stop [4 pm]"]
    assert found.success and found.transitions[-1].next_state.text == DONE and found.task.instruction == GOAL
    assert found.transitions[0].state.text.startswith("page: A shop") and "[1] link 'Amber scarf'" in found.transitions[0].state.text


def test_a_tape_and_a_list_of_steps_of_one_episode_are_the_same():
    actions = ("click('a12')", "report_infeasible('no such scarf')")
    assert episode(tape(*actions), "one") == episode(steps(*actions), "one")


@pytest.mark.parametrize("form", [tape, steps])
@pytest.mark.parametrize(("last", "ended"), [("click('a12')", False), ("send_msg_to_user('4 pm')", True), ("report_infeasible('x')", True)])
def test_a_recording_that_does_not_say_how_it_ended_has_ended_only_where_the_agent_answered(form: Any, last: str, ended: bool):
    record = form("click('a12')", last)
    (record["metadata"] if isinstance(record, dict) else record[-1]).pop("terminated")
    read = episode(record, "one")
    step = read.transitions[-1]
    assert (step.terminated, read.success, read.truncated) == (ended, ended, not ended)
    assert (step.next_state.text == DONE) is ended and step.reward == float(ended)


@pytest.mark.parametrize(("named", "action"), [("Price [low]", "select [3] [Price (low)]"), ("Price (low)", "select [3] [Price (low)]")])
def test_an_option_is_named_as_its_state_shows_it(named: str, action: str):
    page = PAGE.replace("menuitem 'Price'", "menuitem 'Price [low]'")
    (first, _) = episode(steps(f"select_option('16', '{named}')", "go_back()", page=page), "one").transitions
    assert first.action == action and WebRules().admissible(first.state, (), first.action) is True


def test_waiting_is_no_action_and_an_episode_that_was_cut_did_not_end():
    found = episode(tape("click('a12')", "noop(500)", "click('a12')", reward=0.0, truncated=True), "one")
    assert [step.action for step in found.transitions] == ["click [1]", "click [1]"]
    assert found.truncated and not found.success and not found.transitions[-1].terminated


def test_after_a_wait_comes_the_page_that_was_waited_for_and_a_last_wait_earns_for_the_action_before_it():
    record = steps("click('a12')", "noop()", "go_back()", "noop()")
    record[2]["obs"] = {"goal": GOAL, "axtree_txt": PAGE.replace("A shop", "Loaded")}
    found = episode(record, "one")
    click, back = found.transitions
    assert (click.action, back.action) == ("click [1]", "go_back") and click.next_state == back.state
    assert click.next_state.text.startswith("page: Loaded") and found.success and back.terminated and back.reward == 1.0


def test_files_of_one_name_are_one_task_only_where_they_ask_for_the_same(tmp_path: Path):
    asked = {"a": "Find a rug.", "b": "Find a lamp.", "c": "Find a rug."}
    for name, goal in asked.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.json").write_text(json.dumps(steps("click('a12')")).replace(GOAL, goal))
    (tmp_path / "one-2.json").write_text(json.dumps(steps("click('a12')")))
    files = [*(tmp_path / name / "one.json" for name in asked), tmp_path / "one-2.json"]
    import_recorded(files, tmp_path / "out.jsonl")
    found = [(one.id.removeprefix("recorded/"), one.task.id.removeprefix("recorded/")) for one in read_trajectories(tmp_path / "out.jsonl")]
    assert found == [("one", "one"), ("one-3", "one-3"), ("one-4", "one"), ("one-2", "one-2")]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (steps("drag_and_drop('a12', '15')"), "drag_and_drop has no counterpart"),
        (steps("click('a12', 'right')"), "click has no counterpart"),
        (steps("click('99')"), "not in its state"),
        (steps("select_option('16', 'price_asc')"), "an option is not named as its state shows it"),
        (steps("keyboard_press('Control+c')"), "keyboard_press has no counterpart"),
        (steps("click('a12')\nclick('15')"), "several actions"),
        (steps("send_msg_to_user('hm')", "click('a12')"), "send_msg_to_user has no counterpart"),
        (steps("click('a12')", page=" "), "no accessibility tree"),
        ({"obs": {}, "action": "click('a12')"}, "one step and not an episode"),
        ([{"obs": {"axtree_txt": PAGE}, "action": "noop()"}], "no goal"),
        (steps("noop()"), "no step with an action"),
        ({"steps": [{"kind": "dict_observation", "content": "{"}]}, "no JSON"),
        ([{"obs": {"goal": GOAL, "axtree_object": {"nodes": [{"nodeId": 1, "role": 3}]}}, "action": "noop()"}], "damaged"),
        ("nothing", "neither a tape nor a list"),
    ],
)
def test_what_cannot_be_read_is_left_out_with_its_reason(record: Any, reason: str):
    with pytest.raises(Unusable, match=reason):
        episode(record, "one")


@given(st.data())
def test_a_damaged_record_is_read_or_left_out_and_never_a_traceback(data: st.DataObject):
    record: Any = deepcopy(data.draw(st.sampled_from([tape("click('a12')", "go_back()"), steps("fill('15', 'x')")])))
    junk = st.sampled_from([None, 1, "x", [], {}, "\ud800", float("nan")])
    for _ in range(data.draw(st.integers(1, 4))):
        at: Any = record
        while isinstance(at, dict | list) and at:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
                at[key] = data.draw(junk)
                break
            at = at[key]
    try:
        assert episode(record, "one").turns
    except Unusable as error:
        assert str(error)


def test_the_command_writes_episodes_and_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, record in {"a": tape("click('a12')"), "b": tape("click('a12')", reward=0.0), "c": steps("click('99')")}.items():
        (tmp_path / "study" / name).mkdir(parents=True)
        (tmp_path / "study" / name / ("tape.json" if isinstance(record, dict) else "steps_info.json")).write_text(json.dumps(record))
    out = tmp_path / "episodes.jsonl"
    code, said, _ = command(monkeypatch, capsys, "web", "import", tmp_path / "study", "--out", out)
    assert code == 0 and "2 episodes (1 success, 2 steps) of 3 files" in said and "not in its state" in said
    assert [(one.id, one.success) for one in read_trajectories(out)] == [("recorded/a", True), ("recorded/b", False)]
    code, said, _ = command(monkeypatch, capsys, "web", "import", tmp_path / "study", "--dry-run", "--json")
    assert code == 0 and object_in(said)["episodes"] == 2


class Pages:
    """Two pages that ask for the same, as those of MiniWoB do."""

    def all_tasks(self) -> list[Task]:
        return [Task(f"page/{n}", f"Click  on {n // 2}.", "web", goal={"page": n}) for n in range(60)]

    def task_key(self, task: Task) -> str:
        return f"{(task.goal or {}).get('page')}: {task.instruction}"


class PagesSuite(WebSuite):
    def __init__(self) -> None:
        self.benchmark = Pages()  # type: ignore[assignment]


def test_a_recording_of_a_held_out_task_is_known_by_its_wording():
    suite = PagesSuite()
    held = {suite.task_key(task): task for split in ("dev", "test") for task in suite.tasks(split, 100)}
    assert 0 < len(held) < 60
    for task in suite.all_tasks():
        recorded = Task("recorded/one", " ".join(task.instruction.split()), "web")
        alike = {suite.task_key(one) for one in suite.all_tasks() if one.instruction == task.instruction}
        assert suite.task_key(recorded) in (alike & held.keys() or alike)


def test_a_folder_of_pickles_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "step_0.pkl.gz").write_bytes(b"")
    code, _, err = command(monkeypatch, capsys, "web", "import", tmp_path, "--dry-run")
    assert code != 0 and "step_0.pkl.gz" in err and "not opened" in err
