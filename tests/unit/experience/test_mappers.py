"""Learned state mapping: lines are kept or left out, by what logs used or by an instruct model, and what that loses is measured."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer
from scripted_chat import ScriptedChat
from toy import command, object_in

from dreamgym import plugins
from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.mapping import mapped, needed, shorten
from dreamgym.errors import ConfigError, ServerError, UsageError
from dreamgym.evals.mapping_loss import measure
from dreamgym.experience.chat_requests import AskConfig
from dreamgym.experience.mappers import fitted, prompted
from dreamgym.experience.mappers.prompted import PromptedMapper
from dreamgym.runs.episodes import read_trajectories, write_trajectories
from dreamgym.types import Observation, Task, Trajectory, Transition, Turn

MENU = ["[1] link 'Home'", "[2] link 'Account'", "Imprint and terms", "(c) 2026", "[3] link 'Help'"]
COLOURS, THINGS = ("red", "blue", "green", "amber"), ("scarf", "mug", "lamp", "teapot", "kettle")


def page(wanted: str, code: str, rng: random.Random) -> list[str]:
    others = [f"[{4 + i}] link '{rng.choice(COLOURS)} {thing}' | in stock" for i, thing in enumerate(THINGS[:3])]
    return ["page: the shop", *MENU, *others, f"[9] link '{wanted}' | in stock", f"UPC | {code}", "newsletter: write to us"]


def episodes(n: int) -> list[Trajectory]:
    """A page with a menu, of which the agent clicks what the task asks for and then says its code."""
    rng, found = random.Random(0), []
    for i in range(n):
        wanted, code = f"{rng.choice(COLOURS)} {rng.choice(THINGS)}", str(rng.randint(10_000, 99_999))
        first = Observation("\n".join(page(wanted, code, rng)))
        steps = [
            Transition(first, "click [9]", first, 0.0, False),
            Transition(first, f"stop [{code}]", Observation("the end"), 1.0, True),
        ]
        task = Task(f"t{i}", f"What is the code of the {wanted}?", "shop")
        found.append(Trajectory(f"e{i}", task, "demo", tuple(map(Turn, steps)), True))
    return found


class Menu:
    """A mapper that leaves the menu out."""

    def keep(self, instruction: str, actions: Sequence[str], lines: Sequence[str]) -> set[int]:
        return {i for i, line in enumerate(lines) if line not in MENU}


def test_a_shortened_state_keeps_its_first_line_and_says_how_much_is_missing():
    lines = page("red scarf", "12345", random.Random(0))
    short = shorten(Menu(), "", [], "\n".join(lines)).split("\n")
    assert short[0] == "page: the shop" and short[-1] == "(5 lines left out)" and set(short[:-1]) == set(lines) - set(MENU)
    assert shorten(Menu(), "", [], "one\ntwo") == "one\ntwo"  # there is nothing to leave out


ACTIONS = {"click [9]": {9}, "click[9]": {9}, 'open(title="red scarf")': {9}, "go_back": set(), "type [9] [x] [1]": {9, 1}}


@pytest.mark.parametrize(("action", "places"), ACTIONS.items())
def test_the_lines_that_an_action_names_are_needed(action: str, places: set[int]):
    assert needed(action, page("red scarf", "12345", random.Random(1))) == places


def test_what_successes_used_is_kept_on_pages_that_nobody_has_seen_and_the_rest_is_left_out():
    learned, others = fitted.split_by_instruction(episodes(150))
    assert others and not {one.task.instruction for one in learned} & {one.task.instruction for one in others}
    loss = measure(fitted.fit(learned), others)
    assert loss.actions_kept.value > 0.95 and loss.tokens_after < 0.75 * loss.tokens_before
    short = mapped(fitted.fit(learned), others[0]).transitions[0].state.text
    assert "UPC" in short and "[9] link" in short and "newsletter" not in short and "Imprint" not in short


def test_a_mapping_that_hides_what_decides_the_outcome_is_found_out():
    class Blind(Menu):
        def keep(self, instruction: str, actions: Sequence[str], lines: Sequence[str]) -> set[int]:
            return set()

    lever = [
        Trajectory(
            f"e{i}",
            Task("t", "pull it", "lever"),
            "demo",
            (Turn(Transition(Observation(f"a room\nlever {i % 2}\na wall"), "pull", Observation(f"light {i % 2}"), 0.0, True)),),
            False,
        )
        for i in range(8)
    ]
    loss = measure(Blind(), lever)
    assert (loss.ambiguous_before.value, loss.ambiguous_after.value) == (0.0, 1.0)


def test_a_fitted_mapping_is_kept_in_a_file_and_read_again(tmp_path: Path):
    one = fitted.fit(episodes(60))
    one.save(tmp_path / "mapper.json")
    again = plugins.make("experience.mappers", "fitted", file=tmp_path / "mapper.json")
    for episode in episodes(9):
        lines = episode.transitions[0].state.text.split("\n")
        assert again.keep(episode.task.instruction, [], lines) == one.keep(episode.task.instruction, [], lines)
    (tmp_path / "other.json").write_text('{"format": "something else"}')
    for file, words in (("other.json", "no state mapping of this version"), ("nowhere.json", "dreamgym mapping LOGS --out")):
        with pytest.raises(UsageError, match=words):
            fitted.make(file=tmp_path / file)


def test_logs_that_name_too_little_are_refused_with_their_numbers():
    with pytest.raises(UsageError, match="successes among 3 episodes name 6 lines .* and 0 of those .* It takes 20 or more of each"):
        fitted.fit(episodes(3))


def test_an_instruct_model_names_the_lines_and_what_cannot_be_read_leaves_the_state_whole():
    answers = iter(['{"reasoning": "the shop", "lines": [0, 9]}', "hm", '{"reasoning": "", "lines": [99]}', "hm"])
    chat = ScriptedChat(lambda messages: next(answers))
    mapper, lines = PromptedMapper(chat), page("red scarf", "12345", random.Random(0))
    assert mapper.keep("find it", ["click [1]"], lines) == {0, 9} == mapper.keep("find it", ["click [1]"], lines)
    assert len(chat.asked) == 1, "the same question is asked once"
    asked = json.loads(chat.asked[0][1]["content"])
    assert asked["task"] == "find it" and asked["latest_actions"] == ["click [1]"] and asked["lines"]["9"] == lines[9]
    assert mapper.keep("find another", [], lines) == set(range(len(lines)))
    assert mapper.counts["unreadable"] == 1


def test_a_state_mapping_that_may_cost_no_more_ends_with_an_error_and_shows_no_other_states():
    chat = ScriptedChat(lambda messages: '{"reasoning": "the shop", "lines": [0, 9]}', price_in=1.0, price_out=1.0)
    mapper, lines = PromptedMapper(chat, AskConfig(max_tokens=50, max_cost=0.002)), page("red scarf", "12345", random.Random(0))
    with pytest.raises(UsageError, match="The state mapper has spent its budget"):
        for i in range(100):
            assert mapper.keep(f"find {i}", [], lines) == {0, 9}


def test_a_state_that_the_server_failed_stays_whole_until_it_answers_and_too_many_failures_in_a_row_end_the_run():
    with FaultServer() as server:
        server.answer = lambda messages: '{"reasoning": "", "lines": [1]}'
        mapper = prompted.make(
            engine={"base_url": server.url, "model": "policy", "retries": 1, "backoff_s": 0.01}, ask={"max_tokens": 512, "give_up_after": 3}
        )
        for name, status in (("a", 503), ("b", 429), ("c", 400)):
            server.faults.extend([("status", status)] * 2)
            assert mapper.keep(name, [], ["one", "two", "three"]) == {0, 1, 2}
        assert mapper.keep("d", [], ["one", "two", "three"]) == {1}
        assert mapper.keep("a", [], ["one", "two", "three"]) == {1}, "the failure has passed"
        asked = len(server.paths())
        assert mapper.keep("a", [], ["one", "two", "three"]) == {1} and len(server.paths()) == asked, "an answer is remembered"
        assert mapper.counts == {"failed": 3, "clean": 2}
        server.faults.extend([("status", 503)] * 6)
        for name in "ef":
            assert mapper.keep(name, [], ["one", "two", "three"]) == {0, 1, 2}
        with pytest.raises(
            ServerError, match=r"failed 3 states in a row, each after its retries.*failed after 2 attempts.*ask.give_up_after"
        ):
            mapper.keep("g", [], ["one", "two", "three"])
        server.faults.append(("status", 401))
        with pytest.raises(ServerError, match="status 401"):
            mapper.keep("h", [], ["one", "two", "three"])


def test_an_environment_and_its_logs_are_seen_through_the_mapping(tmp_path: Path):
    fitted.LineMapper(fitted.np.zeros(fitted.SLOTS), 1.0).save(tmp_path / "nothing.json")  # keeps the first line alone
    options: Mapping[str, Any] = {"length": 4}
    suite = plugins.make(
        "envs",
        "dreamgym.envs.wrappers.mapped",
        suite="corridor",
        options=options,
        mapper={"name": "fitted", "file": tmp_path / "nothing.json"},
    )
    task = suite.tasks("train", 1)[0]
    inner = plugins.make("envs", "corridor", **options).demonstrate(task, "expert", seed=0)
    episode = suite.demonstrate(task, "expert", seed=0)
    assert [step.action for step in episode.transitions] == [step.action for step in inner.transitions]
    assert any("left out)" in step.state.text for step in episode.transitions)
    pool = EnvPool(suite.require_env, suite.rules)
    assert pool.start([task], seed=0)[0] == episode.transitions[0].state
    assert pool.step([0], [episode.transitions[0].action])[0].observation == episode.transitions[0].next_state
    with pytest.raises(ConfigError, match="mapper.fil"):
        plugins.make("envs", "dreamgym.envs.wrappers.mapped", suite="corridor", mapper={"name": "fitted", "fil": "x"})


def test_the_command_fits_measures_and_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    logs, out, short = tmp_path / "logs.jsonl", tmp_path / "mapper.json", tmp_path / "short.jsonl"
    write_trajectories(logs, episodes(120))
    code, said, _ = command(monkeypatch, capsys, "mapping", logs, "--out", out, "--mapped", short)
    assert code == 0 and "that it was not fitted to" in said and out.is_file()
    assert all("Imprint" not in one.transitions[0].state.text for one in read_trajectories(short))
    code, said, _ = command(monkeypatch, capsys, "mapping", logs, "--mapper", out, "--json")
    assert code == 0 and object_in(said)["tokens_after"] < object_in(said)["tokens_before"]
    code, _, err = command(monkeypatch, capsys, "mapping", logs)
    assert code != 0 and "--out FILE to fit a mapping" in err
