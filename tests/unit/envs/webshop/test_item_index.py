"""What the world holds is remembered thing by thing, and lists that nobody has asked for are put together from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dreamgym.envs import webshop
from dreamgym.envs.webshop import item_index
from dreamgym.envs.webshop.bm25 import Bm25, Document
from dreamgym.envs.webshop.item_index import ItemIndex
from dreamgym.envs.webshop.listing import item_mentions, requested_page, results_page, search_terms
from dreamgym.envs.webshop.products import Product
from dreamgym.envs.webshop.search import Index
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.logs.demonstrations import collect
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.types import Memory, Observation, Query, StepInfo, Trajectory, Transition, Turn, Verdict

SHOP = webshop.make()
RULES = SHOP.rules
TASK = SHOP.tasks("train", 1)[0]
HOME = "shop home\n[search]"
LAMPS = "results 1\n[b001] $9 red lamp\n[b002] $12 blue lamp\n[next >][back to search]"
RUGS = "results 1\n[b003] $40 red rug\n[next >][back to search]"
RED_LAMP = "item $9 red lamp\ncolor: [pink][grey]\n[description][features][reviews][buy now][< prev][back to search]"


def episode(name: str, *steps: tuple[str, str], source: Any = "demo") -> Trajectory:
    """From the shop's door, by (action, what followed)."""
    states = [HOME, *(after for _, after in steps)]
    info = StepInfo(verdict=Verdict("passed") if source == "dream" else None)
    turns = [
        Turn(Transition(Observation(state), action, Observation(after), 0.0, False, info))
        for state, (action, after) in zip(states, steps, strict=False)
    ]
    return Trajectory(name, TASK, source, tuple(turns), success=False)


LOGS = [
    episode("one", ("search[lamp]", LAMPS), ("click[b001]", RED_LAMP)),
    episode("two", ("search[rug]", RUGS)),
]


def buffer(logs: Sequence[Trajectory] = LOGS) -> ReplayBuffer:
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(logs)
    return replay


def things(logs: Sequence[Trajectory] = LOGS) -> ItemIndex:
    return ItemIndex(buffer(logs), "webshop", stemmed=False)


def results(*lines: str, number: int = 1) -> str:
    return results_page(lines, number)


def query(action: str, *, state: str = HOME, history: tuple[Transition, ...] = ()) -> Query:
    return Query(TASK, history, Observation(state), action)


def test_a_list_that_somebody_asked_for_is_the_list_that_was_shown():
    known = things().recorded_page("lamp", 1)
    assert known is not None and (known.next_state, known.trajectory) == (LAMPS, "one")
    assert things().recorded_page("red lamp", 1) is None and things().recorded_page("lamp", 2) is None


def test_a_list_that_nobody_asked_for_holds_the_things_that_fit_best_first():
    red, blue, rug = "[b001] $9 red lamp", "[b002] $12 blue lamp", "[b003] $40 red rug"
    assert things().compose_page("blue lamp", 1) == results(blue, red)
    assert things().compose_page("red rug", 1) == results(rug, red)
    assert things().compose_page("red rug", 2) == results(number=2)  # two fit a page, as nobody has seen more on one
    assert things().compose_page("pink", 1) == results(red)  # by an option that its own page told
    assert things().compose_page("green", 1) == results()
    assert things([]).compose_page("lamp", 1) is None  # what a page would look like is not known


def test_dreams_tell_nothing_and_real_steps_do_as_soon_as_they_come():
    green = "results 1\n[b004] $3 green lamp\n[next >][back to search]"
    replay = buffer()
    known = ItemIndex(replay, "webshop", stemmed=False)
    replay.add([episode("dream/0", ("search[green lamp]", green), source="dream")])
    assert known.recorded_page("green lamp", 1) is None and known.compose_page("green", 1) == results()
    replay.add([episode("probe/0", ("search[green lamp]", green), source="real")])
    assert known.recorded_page("green lamp", 1) is not None and known.compose_page("green", 1) == results("[b004] $3 green lamp")


def test_what_a_wound_back_buffer_does_not_hold_is_forgotten():
    replay = buffer(LOGS[:1])
    at, known = replay.last_row, ItemIndex(replay, "webshop", stemmed=False)
    replay.add(LOGS[1:])
    assert known.recorded_page("rug", 1) is not None
    replay.rollback(at)
    assert known.recorded_page("rug", 1) is None and known.compose_page("rug", 1) == results()


def test_a_buffer_that_was_wound_back_and_grew_again_tells_what_it_holds_now():
    replay = buffer(LOGS[:1])
    at, known = replay.last_row, ItemIndex(replay, "webshop", stemmed=False)
    replay.add(LOGS[1:])
    assert known.recorded_page("rug", 1) is not None
    replay.rollback(at)
    replay.add([episode("three", ("search[hat]", "results 1\n[b009] $2 hat\n[next >][back to search]"))])  # as many rows as before
    assert known.recorded_page("rug", 1) is None and known.recorded_page("hat", 1) is not None


def test_what_was_told_last_counts_also_where_it_was_told_before():
    prices = [episode(f"{i}", ("search[rug]", RUGS.replace("$40", price))) for i, price in enumerate(("$40", "$45", "$40"))]
    assert things(prices).compose_page("red", 1) == results("[b003] $40 red rug")


def test_asking_leaves_things_as_they_are():
    known = things()
    for i in range(50):
        known.recorded_page(f"lamp {i}", 1)
        known.compose_page(f"lamp {i}", 2)
    assert (len(known._shown), len(known._pages)) == (2, 2)


def test_a_further_page_goes_on_where_the_known_pages_of_the_list_end():
    logs = collect(SHOP, 400, seed=0)
    known, turned = things(logs), 0
    assert known.recorded_page("", 1) is None  # reads the buffer
    for (words, number), memory in list(known._shown.items()):
        if number == 1 and known.recorded_page(words, 2) is None and (page := known.compose_page(words, 2)):
            turned += 1
            assert not set(memory.next_state.split("\n")) & set(page.split("\n")[1:-1])
    assert turned > 50


def test_no_list_is_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(item_index, "MAX_RESULTS", 3)
    lamps = [episode(f"{i}", (f"search[{i}]", f"results 1\n[b{i}] $1 lamp\n[b{i}0] $1 lamp\n[next >][back to search]")) for i in range(4)]
    assert [(things(lamps).compose_page("lamp", n) or "").count("lamp") for n in (1, 2, 3)] == [2, 1, 0]


@pytest.mark.parametrize("action", ["press[next >]", "next >", "click[next]", "search[]", "search[<r>]", "search[<a> dish safe]"])
def test_what_turns_no_page_and_draws_or_filters_products_asks_for_no_list(action: str):
    history = (LOGS[0].transitions[0],)
    assert requested_page(Observation(LAMPS), history, action) is None
    assert requested_page(Observation(LAMPS), history, "click[next >]") == ("lamp", 2)


def test_in_shops_of_the_originals_kind_plurals_are_found_and_stop_words_find_nothing():
    lamp = search_terms("Red lamp", stemmed=True)
    assert search_terms("the red lamps", stemmed=True) == lamp != search_terms("the red lamps", stemmed=False)


def test_a_list_that_ended_does_not_go_on():
    ended = episode("ended", ("search[lamp shade]", "results 1\n[b001] $9 red lamp\n[next >][back to search]"))
    assert things([*LOGS, ended]).compose_page("lamp shade", 2) == results(number=2)


def test_a_page_number_that_was_dreamed_costs_nothing():
    assert things().compose_page("lamp", 10**15) == results(number=10**15)


def test_what_lists_and_things_tell_is_of_the_latest_episodes():
    told = [episode(f"{i}", ("search[rug]", RUGS.replace("$40", price))) for i, price in enumerate(("$40", "$45", "$45"))]
    latest = things(told).recorded_page("rug", 1)
    assert latest is not None and "$45" in latest.next_state and "$45" in (things(told).compose_page("red", 1) or "")


def test_things_of_another_environment_are_not_listed():
    elsewhere = [replace(log, task=replace(TASK, env="other")) for log in LOGS]
    assert ItemIndex(buffer(elsewhere), "webshop", stemmed=False).compose_page("lamp", 1) is None


def test_a_results_page_is_written_as_the_shop_writes_it():
    pages = 0
    for log in collect(SHOP, 100, seed=0):
        for t, step in enumerate(log.transitions):
            items = item_mentions(step)
            assert len({one.name for one in items}) == len(items) and all(one.text for one in items)
            if requested := requested_page(step.state, log.transitions[:t], step.action):
                pages += 1
                assert results_page([one.line for one in items], requested[1]) == step.next_state.text
    assert pages > 100


def bm25(query: str, texts: dict[str, str]) -> dict[str, float]:
    """Scores by the formula (k1 0.9, b 0.4, without the constant factor k1 + 1), one document at a time."""
    counts = {name: Counter(search_terms(text, stemmed=False)) for name, text in texts.items()}
    mean = sum(count.total() for count in counts.values()) / len(counts)
    scores: Counter[str] = Counter()
    for term in search_terms(query, stemmed=False):
        holding = sum(term in count for count in counts.values())
        for name, count in counts.items():
            idf, norm = math.log(1 + (len(counts) - holding + 0.5) / (holding + 0.5)), 0.9 * (0.6 + 0.4 * count.total() / mean)
            scores[name] += idf * count[term] / (count[term] + norm)
    return {name: score for name, score in scores.items() if score}


def test_the_search_engine_and_the_item_index_rank_by_the_formula_of_bm25():
    texts = ["soft red scarf", "red lamp red shade", "blue lamp", "a long text about a lamp and a scarf and nothing else", "rug"]
    made = [product(f"B{i}", text) for i, text in enumerate(texts)]
    ranking, engine = Bm25(), Index(made)
    for one in made:
        ranking.put(one.asin, document(one.title))
    for asked in ("lamp", "red lamp", "lamp lamp red", "scarf soft", "nothing", "else blue rug"):
        scores = ranking.scores(search_terms(asked, stemmed=False))
        assert scores == pytest.approx(bm25(asked, {one.asin: one.title for one in made}))
        assert [engine.asins[i] for i in engine.search(asked.split())] == sorted(scores, key=lambda name: (-round(scores[name], 6), name))


def test_a_thing_of_which_a_part_is_known_does_not_win_by_being_short():
    ranking = Bm25()
    for name, text, whole in (
        ("whole", "red lamp brass", True),
        ("part", "red lamp", False),
        ("long", "lamp brass glass oak wood", True),
    ):
        ranking.put(name, document(text, whole=whole))
    scores = ranking.scores(["lamp"])
    assert scores["whole"] > scores["part"] > scores["long"]
    ranking.put("part", document("red lamp"))  # that was all
    assert ranking.scores(["lamp"])["part"] > ranking.scores(["lamp"])["whole"]


def test_most_searches_that_no_log_holds_are_put_together_to_the_letter():
    """1,500 logs, and what held-out shoppers search for: what was asked before is always right, and most of the rest is."""
    known, found = things(collect(SHOP, 1500, seed=0, mix={"noisy": 0.7, "curious": 0.3})), Counter[tuple[str, bool]]()
    for log in collect(SHOP, 150, seed=1, split="dev"):
        for t, step in enumerate(log.transitions):
            if asked := requested_page(step.state, log.transitions[:t], step.action):
                page = known.recorded_page(*asked)
                shown = page.next_state if page else known.compose_page(*asked)
                found["listed" if page else "composed", shown == step.next_state.text] += 1
    assert found["listed", False] == 0 and found["composed", True] > 2 * found["composed", False] > 0


def composed(asked: Query, logs: Sequence[Trajectory] = LOGS) -> Memory | None:
    composer = webshop.make(compose_results=True).rules.composer(buffer(logs))
    assert composer is not None
    return composer.compose(asked)


def test_a_search_is_answered_by_its_recorded_results_or_else_by_composed_ones():
    made, recorded = composed(query("search[blue lamp]")), composed(query("search[lamp]"))
    assert made is not None and recorded is not None
    assert made.row == 0 and made.next_state == results("[b002] $12 blue lamp", "[b001] $9 red lamp")
    assert (recorded.trajectory, recorded.next_state) == ("one", LAMPS) and recorded.row > 0
    assert composed(query("click[b001]", state=LAMPS)) is None


def test_a_recorded_page_is_returned_as_the_answer_to_the_action_at_hand():
    """Page 2 was recorded on the way forward, and the query goes back to it."""
    second, third = (RUGS.replace("results 1", f"results {n}").replace("[next >]", "[next >][< prev]") for n in (2, 3))
    walk = episode("on", ("search[rug]", RUGS), ("click[next >]", second), ("click[next >]", third))
    found = composed(query("click[< prev]", state=third, history=walk.transitions), [walk])
    assert found is not None
    assert (found.state, found.action, found.next_state, found.reasoning) == (third, "click[< prev]", second, "")


def test_the_next_page_of_results_follows_the_search_in_the_history():
    history = (LOGS[0].transitions[0],)
    found = composed(query("click[next >]", state=LAMPS, history=history))
    assert found is not None and found.next_state == results(number=2)
    assert composed(query("click[next >]", state=LAMPS)) is None


def test_results_are_composed_only_where_the_shop_is_asked_to():
    assert SHOP.rules.composer(buffer()) is None


def test_an_option_that_is_chosen_already_is_answered_by_rule_and_another_one_by_the_model():
    chosen = RED_LAMP.replace("[description]", "chosen [pink]\n[description]")
    guard = Guard(RULES)
    answer = guard.before(query("click[pink]", state=chosen))
    assert (
        answer is not None
        and answer.info.decided_by == "rule"
        and answer.next_state.text == chosen
        and (answer.reward, answer.terminated) == (0.0, False)
    )
    assert answer.info.has_verdict("passed") and answer.info.reasoning == "choose [pink], so it is chosen."
    assert guard.before(query("click[grey]", state=chosen)) is None and guard.before(query("click[pink]", state=RED_LAMP)) is None
    assert guard.counts == {"noop": 1}
    assert Guard(RULES, GuardConfig(admissibility=False)).before(query("click[pink]", state=chosen)) is None


def document(text: str, *, whole: bool = True) -> Document:
    return Document(Counter(search_terms(text, stemmed=False)), whole)


def product(asin: str, title: str) -> Product:
    return replace(next(iter(SHOP.env().products)), asin=asin, title=title, description="", bullets=(), options={})
