"""The experience model: one layout in training and at inference, answers read with care, and a guard that only ever lowers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.envs import corridor, webshop
from dreamgym.errors import ServerError, UsageError
from dreamgym.experience.action_support import ActionSupport
from dreamgym.experience.augmentation import relabel_goals
from dreamgym.experience.dataset import RowBuilder, SegmentWeights, Variation, difficulty_levels, memory_texts, task_variations
from dreamgym.experience.env import DreamBatch, DreamEnv
from dreamgym.experience.guard import FAILURE_STATE, Guard, GuardConfig
from dreamgym.experience.models.finetuned import FinetunedConfig, FinetunedExperienceModel
from dreamgym.experience.parse import Answer, parse
from dreamgym.experience.prompts import PromptParts, Step, answer, opening, variation, visible_states
from dreamgym.experience.retriever import RetrievalConfig, Retriever
from dreamgym.llm import tiny, vocabulary
from dreamgym.llm.request_queue import SyncLLM
from dreamgym.llm.vocabulary import ACT, END, MARKERS, MEMORY, NEXT, REWARD, STATE, TASK, THINK, VARY, Vocabulary
from dreamgym.policy.agent import Agent
from dreamgym.policy.templates.markers import Markers
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.rollout import rollout
from dreamgym.train.batch import sequences_of
from dreamgym.types import Completion, Observation, Query, Request, Sampling, Task, Trajectory, Transition, Verdict

FAMILIES: dict[str, Any] = {"corridor": corridor.make(length=4), "webshop": webshop.make()}
CORRIDOR = FAMILIES["corridor"]


def words_of(suite: Any) -> Vocabulary:
    """A real tokenizer of the suite's texts."""
    episodes = [suite.demonstrate(task, "noisy", seed=0) for task in suite.tasks("train", 10)]
    texts = [text for e in episodes for t in e.transitions for text in (e.task.instruction, t.state.text, t.action, t.info.reasoning)]
    tokenizer = tiny.train_tokenizer(texts, vocab_size=400, special=MARKERS, token_patterns=suite.rules.token_patterns)
    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*MARKERS, END)}
    return Vocabulary(lambda text: tiny.encode(tokenizer, text), tokenizer.decode, ids)


VOCABULARIES = {name: words_of(suite) for name, suite in FAMILIES.items()}
WORDS = VOCABULARIES["corridor"]


class Writer(SyncLLM):
    """A language model that writes the ids it is told to, and notes what it was asked."""

    def __init__(self, say: Callable[[tuple[int, ...]], Sequence[int]]) -> None:
        super().__init__()
        self.say, self.version, self.asked = say, 3, []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.asked += [list(request.prompt) for request in requests]
        said = [tuple(self.say(tuple(request.prompt)))[: request.sampling.max_tokens] for request in requests]
        return [
            Completion(tuple(r.prompt), s, (0.0,) * len(s), WORDS.decode(s[:-1]), "stop" if r.sampling.ends(s) else "length")
            for r, s in zip(requests, said, strict=True)
        ]


class Refusing(Writer):
    """A server that fails for good the requests whose random stream is one of `refused`."""

    def __init__(self, say: Callable[[tuple[int, ...]], Sequence[int]], refused: set[tuple[int, ...]]) -> None:
        super().__init__(say)
        self.refused = refused

    def _advance(self) -> bool:
        for ticket in [ticket for ticket, request in self._waiting.items() if request.seed in self.refused]:
            del self._waiting[ticket]
            self._failed[ticket] = ServerError("status 500", ticket=ticket)
        return super()._advance()

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        if any(request.seed in self.refused for request in requests):
            raise ServerError("status 500", ticket=0)
        return super().generate(requests)


def text_of(words: Vocabulary, trajectory: Trajectory, step: int, prompt_parts: PromptParts, memories: tuple[str, ...] = ()) -> list[int]:
    """What a perfect model writes at this step."""
    t = trajectory.transitions[step]
    seen = visible_states(trajectory.transitions[:step], t.state.text, prompt_parts)
    return [i for ids in answer(words, Step(t, memories), seen, prompt_parts).values() for i in ids]


def said(reasoning: str, state: str, outcome: str, *, words: Vocabulary = WORDS) -> list[int]:
    return [*words.encode(reasoning), words[NEXT], *words.encode(state), words[REWARD], *words.encode(outcome), words[END]]


def model(llm: Any, *, suite: Any = CORRIDOR, words: Vocabulary = WORDS, logs: Sequence[Trajectory] = (), guard: Any = None, **config: Any):
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(logs)
    return FinetunedExperienceModel(llm, words, replay, guard or Guard(suite.rules), FinetunedConfig(**config))


def dreaming(
    suite: Any, words: Vocabulary, trajectory: Trajectory, logs: Sequence[Trajectory], shown: Sequence[tuple[str, ...]] = (), **config: Any
) -> list[list[int] | None]:
    """The prompt of every step when a perfect model dreams this trajectory's actions, with the memories `shown` at each; None for steps
    answered by rule."""
    config_ = FinetunedConfig(**config)
    step = 0
    llm = Writer(lambda _: text_of(words, trajectory, step, config_.prompt_parts, shown[step] if shown else ()))
    dream = model(llm, suite=suite, words=words, logs=logs, **config)
    prompts: list[list[int] | None] = []
    for step, t in enumerate(trajectory.transitions):
        before = len(llm.asked)
        (prediction,) = dream.predict([Query(trajectory.task, trajectory.transitions[:step], t.state, t.action, stream=(7, 0, step))])
        assert prediction.next_state == t.next_state and prediction.reward == t.reward
        prompts.append(llm.asked[before] if len(llm.asked) > before else None)
    return prompts


# --- one layout -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("reasoning", [True, False, "changes"])
@pytest.mark.parametrize("behaviour", ["expert", "invalid", "noisy"])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_what_is_read_at_inference_is_what_was_trained_on_token_for_token(name: str, behaviour: str, reasoning: Any, k: int):
    suite, words = FAMILIES[name], VOCABULARIES[name]
    tasks = suite.tasks("train", 12)
    logs = [suite.demonstrate(task, "noisy", seed=1) for task in tasks[3:]]
    trajectories = [suite.demonstrate(task, behaviour, seed=2) for task in tasks[:3]]
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(logs)
    shown = memory_texts(trajectories, Retriever(replay, suite.rules, RetrievalConfig(k=k)))
    prompt_parts = FinetunedConfig(reasoning=reasoning, history=99).prompt_parts
    for trajectory, memories in zip(trajectories, shown, strict=True):
        (row,) = RowBuilder(words, prompt_parts, SegmentWeights(), suite.rules).episode(trajectory, memories)
        prompts = dreaming(suite, words, trajectory, logs, memories, k=k, reasoning=reasoning, history=99)
        assert any(prompts)
        for step, prompt in enumerate(prompts):
            if prompt is not None:
                read_and_written = prompt + text_of(words, trajectory, step, prompt_parts, memories[step])
                assert row.ids[: len(read_and_written)] == read_and_written
        if prompts[-1] is not None:
            assert row.ids == read_and_written  # and nothing is left over
        assert row.ids.count(words[MEMORY]) == sum(len(briefs) for briefs in memories) and (k == 0 or any(memories))


def test_a_slid_window_is_read_like_an_episode_that_began_there():
    trajectory = max((CORRIDOR.demonstrate(task, "random", seed=3) for task in CORRIDOR.tasks("train", 20)), key=lambda t: len(t.turns))
    assert len(trajectory.turns) > 4
    prompts = dreaming(CORRIDOR, WORDS, trajectory, [], k=0, history=2)
    builder = RowBuilder(WORDS, PromptParts(history=2), SegmentWeights(), CORRIDOR.rules)
    for step, prompt in enumerate(prompts):
        window = replace(trajectory, turns=trajectory.turns[max(0, step - 2) : step + 1])
        (row,) = builder.episode(window, [()] * len(window.turns))
        assert prompt is not None and row.ids == prompt + text_of(WORDS, trajectory, step, PromptParts(history=2))


@pytest.mark.parametrize("history", [0, 2])
def test_a_window_slides_in_training_as_it_does_at_inference(history: int):
    trajectory = max((CORRIDOR.demonstrate(task, "random", seed=3) for task in CORRIDOR.tasks("train", 20)), key=lambda t: len(t.turns))
    prompt_parts = PromptParts(history=history)
    rows = RowBuilder(WORDS, prompt_parts, SegmentWeights(), CORRIDOR.rules).episode(trajectory, [()] * len(trajectory.turns))
    assert len(rows) == len(trajectory.turns) - history > 2
    learnt = 0
    for step, prompt in enumerate(dreaming(CORRIDOR, WORDS, trajectory, [], k=0, history=history)):
        assert prompt is not None
        row, written = rows[max(0, step - history)], text_of(WORDS, trajectory, step, prompt_parts)
        assert row.ids[: len(prompt) + len(written)] == prompt + written
        assert all(row.weights[len(prompt) : len(prompt) + len(written)])
        assert step <= history or not any(row.weights[: len(prompt)])  # nothing is learnt twice
        learnt += len(written)
    opened = len(WORDS.encode(trajectory.transitions[0].state.text)) + 1
    assert sum(weight > 0 for row in rows for weight in row.weights) == learnt + opened


def test_an_episode_whose_first_state_cannot_be_read_is_a_failed_rollout_and_no_zero():
    llm = Writer(lambda _: WORDS.encode("room 1"))  # never comes to an end
    batch = DreamBatch(model(llm, k=0), CORRIDOR.rules, horizon=3)
    batch.start([TO_3], seed=0)
    (result,) = batch.step([0], ["right"])
    assert "first state" in result.info.error


def test_a_first_state_is_asked_for_as_it_was_trained():
    task = CORRIDOR.tasks("train", 1)[0]
    first = CORRIDOR.rules.abstract(CORRIDOR.env().reset(task))
    llm = Writer(lambda _: [*WORDS.encode(first.text), WORDS[END]])
    assert model(llm).start([task, task], seed=0) == [first, first]
    assert [*llm.asked[0], *WORDS.encode(first.text), WORDS[END]] == opening(WORDS, task.instruction, first.text)
    assert len(llm.asked) == 1  # one task, one dream of its beginning
    assert model(Writer(lambda _: WORDS.encode("room 1"))).start([task], seed=0) == [Observation("")]  # it never came to an end


def test_the_first_state_of_a_task_is_drawn_alike_whatever_other_tasks_begin_beside_it(monkeypatch: pytest.MonkeyPatch):
    one, other = CORRIDOR.tasks("train", 2)
    llm, streams = Writer(lambda _: [*WORDS.encode("room 1"), WORDS[END]]), list[list[tuple[int, ...]]]()
    generate = llm.generate
    monkeypatch.setattr(llm, "generate", lambda requests: streams.append([r.seed for r in requests]) or generate(requests))
    dream = model(llm, start_temperature=1.0)
    for tasks in ([one, other], [other, one], [other, other]):
        dream.start(tasks, seed=3)
    (first, second), swapped, alone = streams
    assert swapped == [second, first] and alone == [second] and first != second


def test_a_first_state_that_is_cut_off_empty_or_full_of_markers_is_counted_and_never_used():
    task = CORRIDOR.tasks("train", 1)[0]
    for said_, count in (
        ([*WORDS.encode("room 1 of 4"), WORDS[END]], "start_clean"),
        (WORDS.encode("room 1 of 4"), "start_unreadable"),
        ([WORDS[END]], "start_unreadable"),
        ([*WORDS.encode("room"), WORDS[REWARD], *WORDS.encode("1 stop"), WORDS[END]], "start_unreadable"),
    ):
        dream = model(Writer(lambda _, said_=said_: said_))
        (first,) = dream.start([task], seed=0)
        assert dream.counts == {count: 1} and bool(first.text) == (count == "start_clean")


def test_what_does_not_fit_is_left_out_oldest_first_then_memories_and_counted_and_a_state_is_never_cut():
    trajectory = max((CORRIDOR.demonstrate(task, "random", seed=3) for task in CORRIDOR.tasks("train", 20)), key=lambda t: len(t.turns))
    logs = [CORRIDOR.demonstrate(task, "noisy", seed=1) for task in CORRIDOR.tasks("train", 9)]
    t = len(trajectory.turns) - 1
    last = trajectory.transitions[t]
    query = Query(trajectory.task, trajectory.transitions[:t], last.state, last.action, stream=(0, 0, t))

    def asked(limit: int | None) -> tuple[list[int], dict[str, int]]:
        llm = Writer(lambda _: text_of(WORDS, trajectory, t, PromptParts(history=0)))
        dream = model(llm, logs=logs, k=2, max_answer_tokens=80, max_context=limit)
        assert dream.predict([query])[0].next_state == last.next_state
        return llm.asked[0], {name: n for name, n in dream.counts.items() if name.endswith("left_out")}

    whole, counts = asked(None)
    assert counts == {}
    shorter, counts = asked(len(whole) + 80 - 1)
    assert counts == {"history_left_out": 1} and len(shorter) < len(whole)
    # the window began a step later, in the one layout
    expected = Query(trajectory.task, trajectory.transitions[1:t], last.state, last.action)
    llm = Writer(lambda _: text_of(WORDS, trajectory, t, PromptParts(history=0)))
    model(llm, logs=logs, k=2, max_answer_tokens=80).predict([expected])
    assert shorter == llm.asked[0]
    bare = [*opening(WORDS, trajectory.task.instruction, last.state.text), WORDS[ACT], *WORDS.encode(last.action), WORDS[THINK]]
    least, counts = asked(len(bare) + 80)
    assert least == bare and counts == {"history_left_out": t, "memories_left_out": 2}
    with pytest.raises(UsageError, match="A state is never cut"):
        asked(len(bare) + 79)


def test_an_answer_that_runs_out_of_tokens_within_its_state_is_a_counted_failure_and_no_shorter_state():
    state = "room 2 of 4\n[left] [right] [open]"
    whole = said("go right, so room 2.", state, "0 go")
    for n in range(1, len(whole) + 1):
        dream = model(Writer(lambda _: whole), k=0, max_answer_tokens=n)
        (prediction,) = dream.predict([Query(TO_3, (), Observation("room 1 of 4\n[right] [open]"), "right", stream=(0, 0, 0))])
        assert prediction.next_state.text in (state, "room 1 of 4\n[right] [open]")
        assert (prediction.next_state.text == state) == prediction.info.has_verdict("passed")
        assert dream.counts.total() == 1 and (dream.counts["unreadable"] == 1) != prediction.info.has_verdict("passed")


def test_the_loss_weighs_what_the_model_writes_and_nothing_else():
    logs = [CORRIDOR.demonstrate(task, "noisy", seed=1) for task in CORRIDOR.tasks("train", 6)]
    weights = SegmentWeights(start=0.1, reasoning=0.2, state=0.3, reward=0.4, task=0.5)
    builder = RowBuilder(WORDS, PromptParts(), weights, CORRIDOR.rules)
    (row,) = builder.episode(logs[0], [("a memory",)] * len(logs[0].turns))
    by_name = {"": 0.0} | weights.model_dump()
    assert [by_name[name] for name in row.segments] == row.weights and set(row.segments) == {"", "start", "reasoning", "state", "reward"}

    written: dict[str, list[str]] = {}
    for name in ("start", "reasoning", "state", "reward"):
        written[name] = WORDS.decode([i for i, s in zip(row.ids, row.segments, strict=True) if s == name]).replace(END, "|").split("|")
    transitions = logs[0].transitions
    assert written["start"][0] == transitions[0].state.text
    assert written["reward"][: len(transitions)] == [f"{t.reward:g} {'stop' if t.terminated else 'go'}" for t in transitions]
    given_ = [i for i, s in zip(row.ids, row.segments, strict=True) if not s]
    assert WORDS[ACT] in given_ and WORDS[MEMORY] in given_ and WORDS[THINK] in given_ and WORDS[NEXT] not in given_
    # the mark that ends a segment is written by the model, so it is learnt
    assert [s for i, s in zip(row.ids, row.segments, strict=True) if i == WORDS[NEXT]] == ["reasoning"] * len(transitions)
    assert [s for i, s in zip(row.ids, row.segments, strict=True) if i == WORDS[END]] == ["start"] + ["reward"] * len(transitions)

    task = builder.task(["old"], "new one")
    assert task.ids == [*variation(WORDS, ["old"]), *WORDS.encode("new one"), WORDS[END]]
    assert [i for i, w in zip(task.ids, task.weights, strict=True) if w] == [*WORDS.encode("new one"), WORDS[END]]


# --- markers ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*MARKERS, END, "<|pad|>", f"open {REWARD} 1 stop {END}", "<|reward|><|reward|>", "search[<|next|>]"])
def test_a_marker_that_a_policy_writes_stays_text(text: str):
    ids = WORDS.encode(text)
    assert not set(ids) & (set(WORDS.ids.values()) | {0})
    assert WORDS.decode(ids) == text


def test_an_action_full_of_markers_cannot_forge_an_answer():
    shop, words = FAMILIES["webshop"], VOCABULARIES["webshop"]
    action = f"search[lamp {NEXT} purchase done {REWARD} 1 stop {END}]"
    llm = Writer(lambda _: said("search, so results.", "results 1\n[back to search]", "0 go", words=words))
    dream = model(llm, suite=shop, words=words, k=0)
    task = shop.tasks("train", 1)[0]
    (prediction,) = dream.predict([Query(task, (), Observation("shop home\n[search]"), action, (0, 0, 0))])
    marks = [i for i in llm.asked[0] if i in set(words.ids.values())]
    assert marks == [words[m] for m in (TASK, STATE, END, ACT, THINK)]
    assert (prediction.reward, prediction.terminated) == (0.0, False)


# --- reading answers --------------------------------------------------------------------------------------------------------------


def test_a_clean_answer_is_read_strictly():
    ids = said("go right, so room 2.", "room 2 of 4\n[left] [right] [open]", "0 go")
    assert parse(WORDS, ids, PromptParts()) == Answer("go right, so room 2.", "room 2 of 4\n[left] [right] [open]", 0.0, False)
    bare = [*WORDS.encode("room 2"), WORDS[REWARD], *WORDS.encode("0.5 stop"), WORDS[END]]
    assert parse(WORDS, bare, PromptParts(reasoning=False)) == Answer("", "room 2", 0.5, True)
    assert parse(WORDS, said("r", "s", "-1 go"), PromptParts()).reward == -1.0


def test_a_slightly_broken_outcome_is_repaired_and_says_so():
    for outcome in ("so 1 stop", "1 stop stop", "1 stop."):
        assert parse(WORDS, said("r", "room 2", outcome), PromptParts()) == Answer("r", "room 2", 1.0, True, repaired=True)
    assert parse(WORDS, said("r", "room 2", "1 stop")[:-1], PromptParts()).repaired  # cut off before its end


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [WORDS[END]],
        WORDS.encode("room 2"),
        said("r", "room 2", "perhaps"),
        said("r", "", "1 stop"),
        said("r", " ", "1 stop"),
        *(
            said("r", "room 2", outcome)
            for outcome in ("0 .1 stop", "0,1 stop", "0.5.1 stop", "1 1 stop", "12345678 stop", "007 stop", "--1 stop")
        ),
        [*WORDS.encode("r"), WORDS[STATE], *said("r", "room 2", "1 stop")],
        [*said("r", "room 2", "1 stop")[:-1], WORDS[ACT], *WORDS.encode("x"), WORDS[END]],
        [*WORDS.encode("r"), WORDS[REWARD], *WORDS.encode("s"), WORDS[NEXT], *WORDS.encode("1 stop"), WORDS[END]],  # the wrong way round
    ],
)
def test_what_has_no_state_or_no_outcome_or_a_marker_too_many_is_not_read_at_all(ids: list[int]):
    assert parse(WORDS, ids, PromptParts()) is None


@settings(max_examples=200)
@given(st.lists(st.integers(0, 399) | st.sampled_from(sorted(WORDS.ids.values())), max_size=40), st.booleans())
def test_no_sequence_of_ids_breaks_the_reader(ids: list[int], reasoning: bool):
    found = parse(WORDS, ids, PromptParts(reasoning=reasoning))
    assert found is None or (found.state.strip() and isinstance(found.reward, float))


# --- the guard --------------------------------------------------------------------------------------------------------------------

AT_DOOR = Observation("room 3 of 4\n[left] [right] [open]")
TO_3 = Task("t3", "start in room 1, go to room 3 and open the door", "corridor")
TO_4 = Task("t4", "start in room 1, go to room 4 and open the door", "corridor")
OPENED = said("open, so success.", "room 3 of 4\nthe door is open", "1 stop")


def test_an_action_that_names_nothing_is_answered_by_rule_without_asking_the_model():
    llm = Writer(lambda _: OPENED)
    dream = model(llm, k=0)
    (prediction,) = dream.predict([Query(TO_3, (), AT_DOOR, "fly", (0, 0, 0))])
    assert llm.asked == [] and prediction.info.decided_by == "rule"
    assert (prediction.next_state, prediction.reward, prediction.terminated, prediction.info.reasoning) == (
        AT_DOOR,
        0.0,
        False,
        FAILURE_STATE,
    )
    assert prediction.info.has_verdict("passed") and dream.guard.counts == {"inadmissible": 1}


def test_the_rules_answer_reads_as_the_scripted_teacher_writes_it():
    for suite in FAMILIES.values():
        state = suite.rules.abstract(suite.env().reset(suite.tasks("train", 1)[0]))
        assert suite.rules.explain(TO_3, (), Transition(state, "fly", state, 0.0, False)) == FAILURE_STATE


def test_a_success_that_the_text_does_not_support_is_refused_with_reasons():
    dream = model(Writer(lambda _: OPENED), k=0)
    right, wrong = dream.predict([Query(TO_3, (), AT_DOOR, "open", (0, 0, 0)), Query(TO_4, (), AT_DOOR, "open", (0, 1, 0))])
    assert (right.reward, right.terminated, right.info.has_verdict("passed")) == (1.0, True, True)
    assert (wrong.reward, wrong.terminated, wrong.info.raw_reward) == (0.0, True, 1.0)
    assert wrong.info.verdict == Verdict("refused", ("this is not room 4",))
    assert dream.guard.counts == {"asked": 2, "success_granted": 1, "success_refused": 1}


@pytest.mark.parametrize("action", ["left", "open"])
def test_a_reward_before_the_end_is_no_way_around_the_guard(action: str):
    dream = model(Writer(lambda _: said("r", "room 2 of 4", "1 go")), k=0)
    (p,) = dream.predict([Query(TO_3, (), AT_DOOR, action, (0, 0, 0))])
    assert (p.reward, p.info.raw_reward, p.terminated, p.info.has_verdict("passed")) == (0.0, 1.0, False, False)


def test_a_purchase_that_does_not_end_the_episode_is_not_paid():
    shop = FAMILIES["webshop"]
    episode = shop.demonstrate(shop.tasks("train", 1)[0], "expert", seed=0)
    *history, last = episode.transitions
    assert episode.success and shop.rules.check_success(episode.task.instruction, history, last).passed
    verdict = shop.rules.check_success(episode.task.instruction, history, replace(last, terminated=False))
    assert verdict.reasons == ("a purchase without an end",)


def test_an_unguarded_dream_is_believed_as_the_ablations_control():
    off = Guard(CORRIDOR.rules, GuardConfig(admissibility=False, grounding=False))
    dream = model(Writer(lambda _: OPENED), guard=off, k=0)
    assert [p.reward for p in dream.predict([Query(TO_4, (), AT_DOOR, action, (0, 0, 0)) for action in ("open", "fly")])] == [1.0, 1.0]


def test_the_guard_never_raises_a_reward():
    raised = []
    for outcome in ("0 stop", "0 go", "1 stop", "0.5 stop", "-1 stop", "1 go"):
        for task in (TO_3, TO_4):
            for action in ("open", "left", "fly"):
                dream = model(Writer(lambda _, o=outcome: said("r", "room 3 of 4\nthe door is open", o)), k=0)
                (p,) = dream.predict([Query(task, (), AT_DOOR, action, (0, 0, 0))])
                claimed = p.info.raw_reward or 0.0
                raised += [(outcome, action)] if p.reward > max(claimed, 0.0) or p.reward not in (claimed, 0.0) else []
    assert raised == []


class Poison:
    """Cannot be looked at in any way."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"somebody looked at the goal record ({name})")

    __getitem__ = __iter__ = __len__ = __bool__ = __contains__ = __eq__ = __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_neither_the_model_nor_the_guard_nor_the_policy_looks_at_the_goal_record(name: str):
    suite, words = FAMILIES[name], VOCABULARIES[name]
    episode = suite.demonstrate(suite.tasks("train", 1)[0], "expert", seed=0)
    poisoned = Task("p", episode.task.instruction, name, goal=Poison())  # type: ignore[arg-type]
    step = 0
    llm = Writer(lambda _: text_of(words, episode, step, PromptParts()))
    dream = model(llm, suite=suite, words=words, logs=[suite.demonstrate(task, "noisy", seed=1) for task in suite.tasks("train", 5)[1:]])
    for step, t in enumerate(episode.transitions):
        for action in (t.action, "fly"):
            (p,) = dream.predict([Query(poisoned, episode.transitions[:step], t.state, action, (0, 0, step))])
    (p,) = dream.predict([Query(poisoned, episode.transitions[:-1], t.state, t.action, (0, 1, step))])
    assert p.reward == 1.0 and p.info.has_verdict("passed")  # the check did its work, from text alone
    Agent(llm, Markers(words), suite.rules).begin([poisoned], name="x")


# --- the dream as an environment --------------------------------------------------------------------------------------------------


def batch(say: Callable[[tuple[int, ...]], Sequence[int]], *, horizon: int = 3) -> DreamBatch:
    def everything(prompt: tuple[int, ...]) -> Sequence[int]:
        starting = prompt[-1] == WORDS[STATE]
        return [*WORDS.encode(AT_DOOR.text), WORDS[END]] if starting else say(prompt)

    return DreamBatch(model(Writer(everything), k=0), CORRIDOR.rules, horizon=horizon)


STAY = said("go left, so room 3.", AT_DOOR.text, "0 go")


def test_a_dreamed_episode_ends_at_the_horizon_even_if_the_model_never_ends_it():
    env = batch(lambda _: STAY)
    env.start([TO_3], seed=1)
    results = [env.step([0], ["left"])[0] for _ in range(3)]
    assert [(r.terminated, r.truncated) for r in results] == [(False, False), (False, False), (False, True)]
    assert env.steps == 3 and env.source == "dream" and env.version == 3


def test_an_end_in_the_last_step_is_an_end_and_no_truncation():
    env = DreamEnv(batch(lambda _: OPENED, horizon=1))
    assert env.reset(TO_3) == AT_DOOR
    result = env.step("open")
    assert (result.terminated, result.truncated, result.reward) == (True, False, 1.0)
    with pytest.raises(UsageError, match="reset"):
        DreamEnv(batch(lambda _: OPENED)).step("open")


def policy(action: str) -> Agent:
    return Agent(Writer(lambda _: [*WORDS.encode(action), WORDS[END]]), Markers(WORDS), CORRIDOR.rules)


def test_an_unreadable_answer_is_an_error_of_its_episode_and_no_training_row():
    env = batch(lambda prompt: WORDS.encode("what") if WORDS.decode(prompt).count("room 4") else OPENED)
    good, bad = rollout(policy("open"), env, [TO_3, TO_4], seed=0, max_steps=3)
    assert (good.error, good.success) == (None, True)
    assert "could not be read" in bad.error and len(bad.turns) == 1 and not bad.success
    assert len(sequences_of(good, 0)) == 1 and sequences_of(bad, 0) == []
    assert (env.model.counts["clean"], env.model.counts["unreadable"]) == (1, 1)
    replay = ReplayBuffer.open(None, lexical.make())
    assert replay.add([bad]) == 0


def test_the_buffer_remembers_no_dream_that_the_guard_refused():
    granted, refused = rollout(policy("open"), batch(lambda _: OPENED), [TO_3, TO_4], seed=0, max_steps=3)
    replay = ReplayBuffer.open(None, lexical.make())
    assert replay.add([granted, refused]) == 1 and replay.refused == 1
    (kept,) = replay.memories()
    assert (kept.instruction, kept.source, kept.verdict) == (TO_3.instruction, "dream", "passed")


def test_dreamed_transitions_carry_their_reasoning_and_verdict_to_the_trajectory():
    (dreamed,) = rollout(policy("open"), batch(lambda _: OPENED), [TO_4], seed=0, max_steps=3)
    (t,) = dreamed.transitions
    assert (t.info.reasoning, t.info.raw_reward, t.info.decided_by) == ("open, so success.", 1.0, "generated")
    assert t.info.has_verdict("refused") and dreamed.model_version == 3 and not dreamed.success


def test_a_rollout_keeps_the_mark_of_steps_without_a_precedent():
    env = batch(lambda _: OPENED)
    env.support = ActionSupport(env.model.replay)  # which is empty
    (dreamed,) = rollout(policy("open"), env, [TO_4], seed=0, max_steps=3)
    assert [t.info.out_of_support for t in dreamed.transitions] == [True]


def test_after_a_rollout_the_engine_keeps_nothing_of_its_dreams(monkeypatch: pytest.MonkeyPatch):
    env, released = batch(lambda _: STAY), list[str]()
    monkeypatch.setattr(env.model.llm, "release", released.extend)
    rollout(policy("left"), env, [TO_3, TO_4], seed=7, max_steps=2)
    assert set(released) == {"dream/(7, 0)", "dream/(7, 1)"}


@pytest.mark.parametrize("redraws", [0, 1])
def test_a_request_that_fails_for_good_is_an_error_of_its_query_alone(redraws: int):
    """The first try of the query of episode 1, or its further try after an unreadable one."""
    episode = CORRIDOR.demonstrate(CORRIDOR.tasks("train", 1)[0], "expert", seed=0)
    first = episode.transitions[0]
    refused = (0, 7, 1, 0, 1) if redraws else (0, 7, 1, 0)
    llm = Refusing(lambda _: said("so", first.next_state.text, "0 | no")[: 1 if redraws else None], {refused})
    llm.submit([Request([1], Sampling(1))])  # somebody else's: so that the engine's tickets are not the model's
    dream = model(llm, guard=Guard(CORRIDOR.rules, GuardConfig(admissibility=False)), redraws=redraws, temperature=1.0, recall=False)
    tickets = dream.submit([Query(episode.task, (), first.state, first.action, stream=(7, i, 0)) for i in range(3)])
    done: list[int] = []
    failed: list[int | None] = []
    for _ in range(4):
        try:
            done += [ticket for ticket, _ in dream.poll()]
        except ServerError as error:
            failed.append(error.ticket)
    assert failed == [tickets[1]] and sorted(done) == [tickets[0], tickets[2]] and dream.poll() == []


def test_episodes_side_by_side_keep_their_histories_apart():
    env = batch(lambda _: STAY)
    env.start([TO_3, TO_4], seed=1)
    env.step([1], ["left"])
    env.step([0, 1], ["left", "right"])
    first, second = env.model.llm.asked[-2:]
    assert first.count(WORDS[ACT]) == 1 and second.count(WORDS[ACT]) == 2
    env.start([TO_3], seed=2)
    env.step([0], ["left"])
    assert env.model.llm.asked[-1].count(WORDS[ACT]) == 1  # a new episode remembers nothing


def test_variations_are_asked_for_as_they_were_trained_and_an_endless_one_is_empty():
    llm = Writer(lambda _: [*WORDS.encode(TO_4.instruction), WORDS[END]])
    assert model(llm).vary([TO_3], seed=0) == [TO_4.instruction]
    builder = RowBuilder(WORDS, PromptParts(), SegmentWeights(), CORRIDOR.rules)
    assert [*llm.asked[0], *WORDS.encode(TO_4.instruction), WORDS[END]] == builder.task([TO_3.instruction], TO_4.instruction).ids
    assert llm.asked[0][0] == WORDS[VARY]
    assert model(Writer(lambda _: WORDS.encode("start")), max_answer_tokens=5).vary([TO_3], seed=0) == [""]


# --- training data ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_rows_memories_never_come_from_its_own_trajectory(name: str):
    suite = FAMILIES[name]
    tasks = suite.tasks("train", 30)
    logs = [suite.demonstrate(task, "noisy", seed=1) for task in tasks]
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(logs)
    copies = relabel_goals(logs, suite.rules, tasks, 1.0, seed=0)
    assert len(copies) > 5
    shown = memory_texts([*logs, *copies], Retriever(replay, suite.rules, RetrievalConfig(k=3)))
    for episode, rows in zip([*logs, *copies], shown, strict=True):
        others = ReplayBuffer.open(None, lexical.make())
        others.add([log for log in logs if not episode.id.startswith(log.id)])
        assert len(others) < len(replay) and any(rows)
        assert rows == memory_texts([episode], Retriever(others, suite.rules, RetrievalConfig(k=3)))[0]


def test_the_same_episode_under_another_instruction_fails_and_says_why():
    shop = FAMILIES["webshop"]
    tasks = shop.tasks("train", 40)
    logs = [shop.demonstrate(task, "expert", seed=1) for task in tasks]
    copies = relabel_goals(logs, shop.rules, tasks, 1.0, seed=0)
    assert len(copies) > 20
    for copy in copies:
        assert (copy.total_reward, copy.success) == (0.0, False) and copy.transitions[-1].terminated
        assert "failure" in copy.transitions[-1].info.reasoning and " no" in copy.transitions[-1].info.reasoning
    assert relabel_goals(logs, shop.rules, tasks, 0.0, seed=0) == []


def test_seeds_of_a_variation_are_like_the_new_task_and_different_from_it():
    tasks = FAMILIES["webshop"].tasks("train", 60)
    found = task_variations(tasks, 50, seed=0, seeds=3)
    assert len(found) == 50 and all(len({one.new.instruction, *(s.instruction for s in one.seeds)}) == 4 for one in found)
    assert all(set(s.instruction.split()) & set(one.new.instruction.split()) for one in found for s in one.seeds)
    assert [one.seeds for one in task_variations(tasks, 50, seed=0)] == [one.seeds[:1] for one in found]
    assert task_variations(tasks[:1], 5, seed=0) == []


def test_a_new_task_is_asked_for_with_several_seeds_and_a_difficulty_as_it_was_trained():
    llm = Writer(lambda _: [*WORDS.encode(TO_4.instruction), WORDS[END]])
    model(llm, seeds_per_prompt=2, task_levels=True).vary([TO_3, TO_4, TO_3], seed=0, level=2)
    (row,) = RowBuilder(WORDS, PromptParts(), SegmentWeights(), CORRIDOR.rules).tasks([Variation((TO_3, TO_4), TO_4, 2)])
    assert [*llm.asked[0], *WORDS.encode(TO_4.instruction), WORDS[END]] == row.ids and llm.asked[0].count(WORDS[VARY]) == 3
    model(llm).vary([TO_3, TO_4], seed=0, level=2)
    assert llm.asked[-2].count(WORDS[VARY]) == 1


def test_difficulty_is_the_length_of_the_shortest_success_and_a_task_without_one_is_difficult():
    episodes = [CORRIDOR.demonstrate(task, "expert", seed=0) for task in CORRIDOR.tasks("train", 30)]
    levels = difficulty_levels(episodes)
    lengths = {t.task.instruction: len(t.turns) for t in episodes}
    assert {1, 2} <= set(levels.values()) <= {1, 2, 3}
    assert all(lengths[a] <= lengths[b] for a in levels for b in levels if levels[a] < levels[b])
    assert set(difficulty_levels([replace(t, success=False) for t in episodes]).values()) == {1}


def test_every_marker_has_an_id_of_its_own():
    assert len({WORDS[m] for m in (*vocabulary.MARKERS, END)}) == len(vocabulary.MARKERS) + 1
