"""Dreams of a world that hides most of itself: what is drawn, what follows, and where a dream begins."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from predictions import predicted
from toy_house import random_house

from dreamgym.envs.alfworld.rules import HouseRules
from dreamgym.envs.alfworld.scripted_policies import ScriptMemory, scripted_action
from dreamgym.envs.alfworld.state import TrackedHouse
from dreamgym.envs.base import play
from dreamgym.evals.determined_steps import determined_accuracy
from dreamgym.experience.dataset import RowBuilder, SegmentWeights
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.models.finetuned import FinetunedConfig, FinetunedExperienceModel
from dreamgym.experience.pipeline import Unreadable, prediction
from dreamgym.experience.prompts import PromptParts, Step, answer, decode_state
from dreamgym.experience.state_delta import EncodedState
from dreamgym.llm import tiny
from dreamgym.llm.request_queue import SyncLLM
from dreamgym.llm.vocabulary import END, MARKERS, Vocabulary
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.types import Completion, Observation, Prediction, Query, Request, Task, Trajectory, Transition

RULES = HouseRules()


def walk(seed: int) -> Trajectory:
    house, task = random_house(seed)
    rng, memo = random.Random(seed), ScriptMemory()
    return play(
        TrackedHouse(house),
        RULES,
        task,
        lambda state: scripted_action("noisy", task.instruction, state, rng, memo),
        max_steps=20,
        behaviour="noisy",
        name=f"{seed}",
    )


LOGS = [walk(seed) for seed in range(12)]
TOKENIZER = tiny.train_tokenizer(
    [text for log in LOGS for t in log.transitions for text in (log.task.instruction, t.state.text, t.action, t.info.reasoning)],
    vocab_size=500,
    special=MARKERS,
    token_patterns=RULES.token_patterns,
)
WORDS = Vocabulary(lambda text: tiny.encode(TOKENIZER, text), TOKENIZER.decode, {m: tiny.special_id(TOKENIZER, m) for m in (*MARKERS, END)})


class Asked(SyncLLM):
    """A language model that answers nothing and notes how it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.requests += requests
        return [Completion(tuple(r.prompt), (WORDS[END],), (0.0,), "dreamt", "stop") for r in requests]


def model(llm: Asked, **config: object) -> FinetunedExperienceModel:
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(LOGS)
    return FinetunedExperienceModel(llm, WORDS, replay, Guard(RULES), FinetunedConfig(k=0, **config))  # type: ignore[arg-type]


ROOM = Observation("unseen: desk 1 drawer 1\nholding nothing\nin the room")
DESK = Observation("unseen: drawer 1\nholding nothing\nat desk 1: pen 1")
DRAWER = Observation("desk 1: pen 1\nholding nothing\nat drawer 1: closed")
HISTORY = (Transition(ROOM, "go to desk 1", DESK, 0.0, False), Transition(DESK, "go to drawer 1", DRAWER, 0.0, False))


@pytest.mark.parametrize(("action", "temperature"), [("open drawer 1", 1.0), ("go to desk 1", 0.0), ("look", 0.0)])
def test_only_what_nobody_has_seen_is_drawn_and_the_rest_is_the_likeliest(action: str, temperature: float):
    task = Task("t", "put a pen in drawer", "alfworld")
    for draw, expected in (("hidden", temperature), ("all", 1.0)):
        llm = Asked()
        model(llm, temperature=1.0, draw=draw, top_p=0.9).predict([Query(task, HISTORY, DRAWER, action)])
        (request,) = llm.requests
        assert request.sampling.temperature == expected
        assert request.sampling.top_p == (0.9 if expected else 1.0)


def test_a_logged_task_begins_where_it_really_began_and_another_where_the_model_says():
    llm = Asked()
    known, new = LOGS[0].task, replace(LOGS[0].task, id="new", instruction="put a book in bed", source="synthetic")
    dream = model(llm, replayed_starts=True, start_temperature=1.0)
    starts = {log.transitions[0].state for log in LOGS if log.task.instruction == known.instruction}
    first, second, third = dream.start([known, new, known], seed=5)
    assert first == third and first in starts and second == Observation("dreamt")
    assert len(llm.requests) == 1 and llm.requests[0].sampling.temperature == 1.0
    assert dream.start([known], seed=5) == [first]


def test_tasks_of_one_instruction_begin_each_where_it_really_began():
    """A wrapper that numbers names gives many tasks one instruction."""
    alike = [replace(log, task=replace(log.task, instruction="put NAME1 in NAME2")) for log in LOGS]
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(alike)
    dream = FinetunedExperienceModel(Asked(), WORDS, replay, Guard(RULES), FinetunedConfig(k=0, replayed_starts=True))  # type: ignore[arg-type]
    begun = dream.start([log.task for log in alike], seed=3)
    assert len({state.text for state in begun}) > 1
    assert begun == [log.transitions[0].state for log in alike]
    unknown = replace(alike[0].task, id="unknown")
    assert dream.start([unknown], seed=3)[0] in begun, "a task without a log begins as one of its instruction"


def test_rollouts_of_a_task_begin_alike_within_a_call_and_elsewhere_in_the_next():
    llm = Asked()
    dream = model(llm, start_temperature=1.0)
    dream.start([LOGS[0].task] * 4, seed=1)
    dream.start([LOGS[0].task] * 4, seed=2)
    (one, other) = (request.seed or () for request in llm.requests)
    assert (one[:2], other[:2]) == ((0, 1), (0, 2)) and one[2] == other[2], "of the run, of the call, of the task"


def test_a_success_that_the_model_does_not_see_is_masked_where_worlds_end_with_the_task():
    taken = Observation("unseen: drawer 1\nholding pen 1\nat desk 1: nothing")
    there = Observation("desk 1: nothing\nholding pen 1\nat drawer 1: nothing")
    steps = [
        Transition(ROOM, "go to desk 1", DESK, 0.0, False),
        Transition(DESK, "take pen 1 from desk 1", taken, 0.0, False),
        Transition(taken, "go to drawer 1", there, 0.0, False),
    ]
    query = Query(Task("t", "put a pen in drawer", "alfworld"), tuple(steps), steps[-1].next_state, "move pen 1 to drawer 1")
    said = predicted("desk 1: nothing\nholding nothing\nat drawer 1: pen 1", reasoning="not yet")
    assert Guard(RULES, GuardConfig(only_success_ends=True)).after(query, said).info.has_verdict("masked")
    assert Guard(RULES).after(query, said) == said
    looked = replace(query, action="look")
    by_rule = replace(said, info=replace(said.info, reward_by="rule"))  # the check agrees
    assert Guard(RULES, GuardConfig(only_success_ends=True)).after(looked, said) == by_rule


@pytest.mark.parametrize(("reward", "place"), [(1.0, "a success"), (0.0, "a failure")])
def test_an_end_that_is_no_success_is_no_end_where_only_success_ends(reward: float, place: str):
    """The state that was told stands, so the episode goes on in it; elsewhere the end stands and pays nothing."""
    query = Query(Task("t", "put a pen in drawer", "alfworld"), HISTORY, DRAWER, "open drawer 1")
    opened = Observation("desk 1: pen 1\nholding nothing\nat drawer 1: open nothing")
    said = predicted(opened, reward, True)
    found = Guard(RULES, GuardConfig(only_success_ends=True)).after(query, said)
    assert (found.reward, found.terminated, found.next_state) == (0.0, False, opened) and not found.info.has_verdict("masked"), place
    assert Guard(RULES).after(query, said).terminated


def test_a_success_ends_a_world_that_ends_with_the_task_whatever_the_model_says_of_the_end():
    """ "1 go" with the task done is granted with its end; with the task not done it is refused, and the episode goes on."""
    held = Observation("desk 1: nothing\nholding pen 1\nat drawer 1: open nothing")
    put = Observation("desk 1: nothing\nholding nothing\nat drawer 1: open pen 1")
    taken = Observation("unseen: drawer 1\nholding pen 1\nat desk 1: nothing")
    closed = Observation("desk 1: nothing\nholding pen 1\nat drawer 1: closed")
    history = (
        Transition(ROOM, "go to desk 1", DESK, 0.0, False),
        Transition(DESK, "take pen 1 from desk 1", taken, 0.0, False),
        Transition(taken, "go to drawer 1", closed, 0.0, False),
        Transition(closed, "open drawer 1", held, 0.0, False),
    )
    said = predicted(put, 1.0, False)
    guard = Guard(RULES, GuardConfig(only_success_ends=True))
    for goal, reward in (("put a pen in drawer", 1.0), ("put a book in drawer", 0.0)):
        found = guard.after(Query(Task("t", goal, "alfworld"), history, held, "move pen 1 to drawer 1"), said)
        assert (found.reward, found.terminated) == (reward, bool(reward)) and not found.info.has_verdict("masked")


def test_rollouts_of_a_task_that_look_in_the_same_place_draw_with_the_same_numbers():
    """Whenever they look; another task, another place and the next iteration bring others."""
    llm = Asked()
    dream = model(llm, temperature=1.0, draw="hidden")
    pen, book = Task("t", "put a pen in drawer", "alfworld"), Task("t", "put a book in drawer", "alfworld")
    asked = [(pen, (5, 0, 2)), (pen, (5, 1, 7)), (book, (5, 2, 2)), (pen, (6, 0, 2))]
    dream.predict([Query(task, HISTORY, DRAWER, "open drawer 1", key) for task, key in asked])
    first, second, other, later = (request.seed for request in llm.requests)
    assert first == second and len({first, other, later}) == 3
    llm.requests.clear()
    dream.predict([Query(pen, HISTORY, DRAWER, "look", (5, rollout, 2)) for rollout in (0, 1)])
    assert [request.seed for request in llm.requests] == [(0, 5, 0, 2), (0, 5, 1, 2)]


@pytest.mark.parametrize(("redraws", "action", "seeds"), [(0, "open drawer 1", 1), (2, "open drawer 1", 3), (2, "go to desk 1", 1)])
def test_a_drawn_answer_that_cannot_be_read_is_drawn_again_with_other_numbers(redraws: int, action: str, seeds: int):
    """The likeliest answer would be the same again."""
    llm = Asked()
    dream = model(llm, temperature=1.0, draw="hidden", redraws=redraws)
    (said,) = dream.predict([Query(Task("t", "put a pen in drawer", "alfworld"), HISTORY, DRAWER, action, (5, 0, 2))])
    assert len({request.seed for request in llm.requests}) == len(llm.requests) == seeds
    assert said.info.has_verdict("unreadable") and dream.counts == {"unreadable": 1, **({"redrawn": seeds - 1} if seeds > 1 else {})}


class Stammering(Asked):
    """One whose answer about the drawer is readable at the second attempt, and every other at the first."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.requests += requests
        told = {"open drawer 1": "The drawer 1 is open. In it, you see nothing.", "go to desk 1": "You arrive at desk 1."}
        found = []
        for request in requests:
            action = next(name for name in told if name in WORDS.decode(list(request.prompt)))
            text = "mumble" if action == "open drawer 1" and len(request.seed or ()) == 3 else told[action]
            written = answer(WORDS, Step(HISTORY[0], (), text), (), PromptParts())
            ids = tuple(i for part in written.values() for i in part)
            found.append(Completion(tuple(request.prompt), ids, (0.0,) * len(ids), "", "stop"))
        return found


def test_an_answer_drawn_again_goes_to_its_own_question():
    llm = Stammering()
    dream = model(llm, temperature=1.0, draw="hidden", redraws=2, history=0)
    task = Task("t", "put a pen in drawer", "alfworld")
    back, opened = dream.predict(
        [Query(task, HISTORY, DRAWER, action, (5, i, 2)) for i, action in enumerate(("go to desk 1", "open drawer 1"))]
    )
    assert back.next_state.text.endswith("at desk 1: pen 1") and opened.next_state.text.endswith("at drawer 1: open nothing")
    assert len(llm.requests) == 2 + 2 and dream.counts == {"clean": 2, "redrawn": 1}  # the first of two more chances was enough


class Perfect:
    """An experience model that knows what really happened, except where it was told to forget."""

    version = 1

    def __init__(self, forgets: str = "") -> None:
        self.forgets = forgets
        self.real = {(t.state, t.action, len(log.transitions[:i]), log.task.id): t for log in LOGS for i, t in enumerate(log.transitions)}

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        said = []
        for query in queries:
            t = self.real[query.state, query.action, len(query.history), query.task.id]
            state = query.state if self.forgets and query.action.startswith(self.forgets) else t.next_state
            by_rule = RULES.admissible(query.state, query.history, query.action) is False
            answer = predicted(state, t.reward, t.terminated)
            said.append(replace(answer, info=replace(answer.info, decided_by="rule")) if by_rule else answer)
        return said

    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None:
        """Nothing is kept."""


class Mumbling(Perfect):
    """One whose answers cannot be read."""

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return [prediction(query, Unreadable("?"), ()) for query in queries]


def test_an_answer_that_cannot_be_read_is_wrong_also_where_nothing_changed():
    found = determined_accuracy(Mumbling(), LOGS, RULES)  # type: ignore[arg-type]
    assert found.value == 0.0 and found.n > 50


def test_a_model_is_held_to_the_letter_where_nothing_is_hidden():
    perfect = determined_accuracy(Perfect(), LOGS, RULES)  # type: ignore[arg-type]
    assert perfect.value == 1.0 and perfect.n > 50
    forgetful = determined_accuracy(Perfect("take"), LOGS, RULES)  # type: ignore[arg-type]
    assert 0.0 < forgetful.value < 1.0 and forgetful.n == perfect.n


def test_a_first_look_is_neither_right_nor_wrong():
    asked = [
        RULES.reveals_new(t.state, log.transitions[:i], t.action)
        for log in LOGS
        for i, t in enumerate(log.transitions)
        if not t.terminated and RULES.admissible(t.state, log.transitions[:i], t.action) is not False
    ]
    measured = determined_accuracy(Perfect(), LOGS, RULES)  # type: ignore[arg-type]
    assert sum(asked) > 20 and measured.n == len(asked) - sum(asked)


# --- state deltas


class Honest(Asked):
    """A language model that writes what a real step told."""

    def __init__(self, log: Trajectory, prompt_parts: PromptParts) -> None:
        super().__init__()
        self.log, self.prompt_parts, self.step = log, prompt_parts, 0

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.requests += requests
        transition = self.log.transitions[self.step]
        written = answer(WORDS, Step(transition, (), RULES.encode_delta(transition)), (), self.prompt_parts)
        ids = tuple(i for part in written.values() for i in part)
        return [Completion(tuple(request.prompt), ids, (0.0,) * len(ids), "", "stop") for request in requests]


@pytest.mark.parametrize("history", [0, 20])
def test_the_model_writes_the_news_and_the_dream_shows_the_state_in_training_as_at_inference(history: int):
    log = max(LOGS, key=lambda one: len(one.turns))
    config = FinetunedConfig(k=0, history=history)
    rows = RowBuilder(WORDS, config.prompt_parts, SegmentWeights(), RULES).episode(log, [() for _ in log.turns])
    llm = Honest(log, config.prompt_parts)
    dream = FinetunedExperienceModel(llm, WORDS, ReplayBuffer.open(None, lexical.make()), Guard(RULES), config)  # type: ignore[arg-type]
    asked = 0
    for llm.step, step in enumerate(log.transitions):
        (said,) = dream.predict([Query(log.task, log.transitions[: llm.step], step.state, step.action, stream=(7, 0, llm.step))])
        assert said.next_state == step.next_state and dream.counts["unreadable"] == 0
        if len(llm.requests) > asked:
            asked = len(llm.requests)
            prompt = list(llm.requests[-1].prompt)
            row = rows[0 if history else llm.step]
            assert row.ids[: len(prompt)] == prompt
    assert asked > 5


@pytest.mark.parametrize(("told", "readable"), [("The drawer 1 is open. In it, you see nothing.", True), ("It is a lovely house.", False)])
def test_news_that_cannot_be_understood_is_an_unreadable_answer(told: str, readable: bool):
    log = replace(LOGS[0], turns=())
    llm = Honest(log, PromptParts())
    written = answer(WORDS, Step(HISTORY[0], (), told), (), PromptParts())
    llm.generate = lambda requests: [  # type: ignore[method-assign]
        Completion(tuple(r.prompt), ids := tuple(i for part in written.values() for i in part), (0.0,) * len(ids), "", "stop")
        for r in requests
    ]
    (said,) = model(llm).predict([Query(Task("t", "put a pen in drawer", "alfworld"), HISTORY, DRAWER, "open drawer 1")])
    assert said.info.has_verdict("unreadable") != readable and (said.next_state != DRAWER) == readable


def test_news_behind_the_mark_of_changes_are_none():
    query = Query(Task("t", "put a pen in drawer", "alfworld"), HISTORY, DRAWER, "open drawer 1")
    told = "The drawer 1 is open. In it, you see nothing."
    assert decode_state(RULES, query, EncodedState(told), PromptParts()) is not None
    for text in (told, ""):
        assert decode_state(RULES, query, EncodedState(text, is_delta=True), PromptParts()) is None
