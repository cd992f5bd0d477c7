"""Rolling out: many episodes side by side, each as if it were alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from dreamgym.engines.scripted import END_ID, ScriptedLLM
from dreamgym.envs import corridor
from dreamgym.envs.batch import AsyncBatchEnv, SyncBatchEnv
from dreamgym.envs.env_pool import EnvPool
from dreamgym.experience.env import DreamBatch
from dreamgym.llm.vocabulary import ACT, END, MARKERS, STATE, TASK, Vocabulary
from dreamgym.policy.agent import Agent
from dreamgym.policy.templates.markers import Markers
from dreamgym.rollout import group_by_task, rollout, rollout_groups
from dreamgym.train.batch import sequences_of
from dreamgym.types import Completion, Observation, Prediction, Query, StepInfo, StepResult, Task

SUITE = corridor.make(length=4)
IDS = {END: END_ID} | {marker: END_ID + 1 + i for i, marker in enumerate(MARKERS)}


def task(start: int, target: int) -> Task:
    goal = corridor.Goal(start, target)
    return Task(f"{start}-{target}", goal.instruction, "corridor", goal={"start": start, "target": target, "key": 0})


def walker(prompt: str) -> str:
    """Goes right until the room that the instruction names, and opens its door."""
    goal = corridor.read_goal(prompt[: prompt.index("door") + 4])
    assert goal is not None
    room = int(prompt.rsplit("room ", 1)[1].split(" of")[0])
    return "open" if room == goal.target else "right"


def agent(llm: ScriptedLLM, **more: Any) -> Agent:
    return Agent(llm, Markers(Vocabulary(llm.encode, llm.decode, IDS)), SUITE.rules, **more)


def walk(tasks: Sequence[Task], *, answer: Any = walker, max_steps: int = 10, **how: Any):
    llm, env = ScriptedLLM(answer), EnvPool(SUITE.env, SUITE.rules)
    return rollout(agent(llm), env, tasks, seed=5, max_steps=max_steps, **how), llm, env


def test_every_task_gets_its_trajectory_in_order_and_finished_episodes_leave_the_batch():
    tasks = [task(1, 2), task(1, 4), task(3, 4)]
    trajectories, llm, env = walk(tasks, name="x")
    assert [t.task for t in trajectories] == tasks and [t.id for t in trajectories] == ["x/0", "x/1", "x/2"]
    assert [len(t.turns) for t in trajectories] == [2, 4, 2]
    assert len(llm.prompts) == env.steps == 8  # nobody acted for an episode that was over
    assert all((t.success, t.truncated, t.error, t.source, t.behaviour) == (True, False, None, "real", "policy") for t in trajectories)
    assert [t.total_reward for t in trajectories] == [1.0, 1.0, 1.0]


def test_an_episode_that_does_not_end_is_truncated_and_no_success():
    (episode,), _, _ = walk([task(1, 4)], max_steps=2)
    assert (len(episode.turns), episode.truncated, episode.success, episode.error) == (2, True, False, None)
    assert not episode.transitions[-1].terminated


def test_the_wrong_door_ends_an_episode_without_success():
    (episode,), _, _ = walk([task(1, 4)], answer=lambda _: "open")
    assert (len(episode.turns), episode.truncated, episode.success, episode.total_reward) == (1, False, False, 0.0)


def test_states_and_next_states_form_a_chain():
    (episode,), _, _ = walk([task(1, 4)])
    for before, after in zip(episode.transitions, episode.transitions[1:], strict=False):
        assert before.next_state == after.state
    assert episode.transitions[0].state.text == "room 1 of 4\n[right] [open]"


def test_the_conversation_is_append_only_so_a_whole_episode_is_one_row():
    (episode,), llm, _ = walk([task(1, 3)])
    (row,) = sequences_of(episode, 0)
    words = Vocabulary(llm.encode, llm.decode, IDS)
    expected, mask = [words[TASK], *words.encode(episode.task.instruction)], []
    mask += [0.0] * len(expected)
    for t in episode.transitions:
        given, said = [words[STATE], *words.encode(t.state.text), words[ACT]], [*words.encode(t.action), words[END]]
        expected += given + said
        mask += [0.0] * len(given) + [1.0] * len(said)
    assert (row.ids, row.mask) == (expected, mask)


def test_what_was_sampled_is_kept_as_tokens_even_where_the_environment_reads_another_spelling():
    (episode,), _, _ = walk([task(1, 2)], answer=lambda p: walker(p).upper())
    assert episode.success
    assert [bytes(t.completion.ids[:-1]).decode() for t in episode.turns] == ["RIGHT", "OPEN"]
    assert [t.action for t in episode.transitions] == ["right", "open"]  # what is remembered is spelled as the logs and the dreams are


def test_an_answer_that_is_cut_off_is_no_end_and_is_still_played():
    llm, env = ScriptedLLM(lambda _: "right and on and on"), EnvPool(SUITE.env, SUITE.rules)
    (episode,) = rollout(agent(llm, max_reply_tokens=5), env, [task(1, 2)], seed=0, max_steps=2)
    assert [(t.completion.text, t.completion.finish_reason, len(t.completion.ids)) for t in episode.turns] == [("right", "length", 5)] * 2


class Noting:
    """A policy that notes the seeds it is given."""

    concurrent = False

    def __init__(self) -> None:
        self.seeds: list[list[tuple[int, ...]]] = []
        self.ended = 0
        self.asked: list[int] = []

    def begin(self, tasks: Sequence[Task], *, name: str) -> list[int]:
        return list(range(len(tasks)))

    def submit(self, conversations: Sequence[int], observations: Sequence[Observation], *, temperature: float, seeds: Any) -> list[int]:
        self.seeds.append([tuple(seed) for seed in seeds])
        self.asked = list(conversations)
        return self.asked

    def poll(self) -> list[tuple[int, Completion]]:
        asked, self.asked = self.asked, []
        return [(talk, Completion((1,), (2,), (0.0,), "right", "stop", version=9)) for talk in asked]

    def end(self, conversations: Sequence[int]) -> None:
        self.ended += len(conversations)


class Script(SyncBatchEnv):
    """An environment that answers from a table (slot, step) -> result; else it goes on."""

    source, version = "dream", 4

    def __init__(self, table: dict[tuple[int, int], StepResult]) -> None:
        super().__init__()
        self.table, self.count, self.ends = table, {}, 0

    def end(self) -> None:
        self.ends += 1

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        return [Observation("s")] * len(tasks)

    def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult]:
        results = []
        for slot in slots:
            n = self.count[slot] = self.count.get(slot, -1) + 1
            results.append(self.table.get((slot, n), StepResult(Observation(f"s{n}"), 0.0, False)))
        return results


def test_episode_and_step_name_the_random_stream_whatever_runs_beside_it():
    policy, over = Noting(), StepResult(Observation("end"), 1.0, True)
    rollout(policy, Script({(1, 0): over, (0, 2): over}), [task(1, 2)] * 3, seed=5, max_steps=4)
    assert policy.seeds == [[(5, 0, 0), (5, 1, 0), (5, 2, 0)], [(5, 0, 1), (5, 2, 1)], [(5, 0, 2), (5, 2, 2)], [(5, 2, 3)]]
    assert policy.ended == 3


def test_an_environment_is_told_when_no_episode_goes_on_after_a_failure_too(monkeypatch: pytest.MonkeyPatch):
    env = Script({})
    rollout(Noting(), env, [task(1, 2)] * 3, seed=5, max_steps=2, max_parallel=2)
    assert env.ends == 2, "after each part of the episodes"
    monkeypatch.setattr(env, "step", lambda slots, actions: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rollout(Noting(), env, [task(1, 2)], seed=5, max_steps=2)
    assert env.ends == 3


def test_an_error_ends_its_episode_only_and_is_recorded():
    broken = StepResult(Observation("?"), 1.0, True, info=StepInfo(error="the server went away"))
    bad, good = rollout(Noting(), Script({(0, 1): broken}), [task(1, 2)] * 2, seed=5, max_steps=4)
    assert (bad.error, len(bad.turns), bad.success) == ("the server went away", 2, False)
    assert bad.transitions[-1].info.error == "the server went away" and sequences_of(bad, 0) == []
    assert (good.error, len(good.turns), good.truncated) == (None, 4, True)
    assert (good.policy_version, good.model_version, good.source) == (9, 4, "dream")


@pytest.mark.parametrize(("room", "turns"), [(190, (1, 4)), (40, (0, 1))])  # of bytes; the turns that it may hold
def test_a_conversation_that_outgrows_the_context_is_cut_off_and_a_first_state_that_does_not_fit_fails(room: int, turns: tuple[int, int]):
    class Short(ScriptedLLM):
        max_context = room

    llm = Short(walker)
    acting = agent(llm)
    short, long = rollout(acting, EnvPool(SUITE.env, SUITE.rules), [task(3, 4), task(1, 4)], seed=5, max_steps=10)
    assert not long.success and len(long.turns) in range(*turns) and long.truncated
    if turns[0]:
        assert short.success and short.error is None and long.error is None, "it counts as a failure of the policy"
        assert acting.next_prompt(long) is None, "so that nothing is expected to follow it"
    else:
        assert "the first state does not fit" in str(long.error) and "does not fit" in str(short.error)
    assert all(len(prompt) + 24 <= room for prompt in llm.prompts), "nobody was asked what could not be answered"


def test_a_horizon_of_the_environment_ends_an_episode_as_truncated():
    (episode,) = rollout(Noting(), Script({(0, 1): StepResult(Observation("x"), 0.0, False, True)}), [task(1, 2)], seed=5, max_steps=4)
    assert (len(episode.turns), episode.truncated, episode.success) == (2, True, False)


def test_without_a_step_an_episode_is_an_error_and_without_tasks_there_is_nothing():
    (episode,) = rollout(Noting(), Script({}), [task(1, 2)], seed=5, max_steps=0)
    assert episode.error == "no step was taken"
    assert walk([])[0] == []


@pytest.mark.parametrize("size", [1, 2, 4])
def test_groups_are_the_rollouts_of_one_task(size: int):
    tasks = [t for t in (task(1, 2), task(1, 3), task(2, 3)) for _ in range(size)]
    groups = group_by_task(walk(tasks)[0], size)
    assert [len(group) for group in groups] == [size] * 3
    assert all(len({t.task.id for t in group}) == 1 for group in groups)


def test_a_loop_collects_a_group_for_every_task():
    tasks = [task(1, 2), task(1, 3)]
    groups = rollout_groups(agent(ScriptedLLM(walker)), EnvPool(SUITE.env, SUITE.rules), tasks, 3, seed=5, max_steps=10, name="walk")
    assert [[t.task for t in group] for group in groups] == [[one] * 3 for one in tasks]
    assert [t.id for group in groups for t in group] == [f"walk/{i}" for i in range(6)]


class Slow(AsyncBatchEnv):
    """Wraps an environment: a poll gives one result, that of the slot which is next in the order of a random stream."""

    concurrent = True

    def __init__(self, inner: EnvPool, seed: int) -> None:
        self.inner, self.source, self.version, self.random = inner, inner.source, inner.version, random.Random(seed)
        self.answers: list[tuple[int, StepResult]] = []

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        return self.inner.start(tasks, seed=seed)

    def submit(self, slots: Sequence[int], actions: Sequence[str]) -> None:
        self.answers += zip(slots, self.inner.step(slots, actions), strict=True)

    def poll(self) -> list[tuple[int, StepResult]]:
        return [self.answers.pop(self.random.randrange(len(self.answers)))] if self.answers else []


@pytest.mark.parametrize("ready", [0.01, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_steps_are_answered_changes_no_episode(ready: float, seed: int):
    tasks = [task(start, target) for start in (1, 2, 3) for target in (2, 3, 4)]
    expected = walk(tasks)[0]
    env = Slow(EnvPool(SUITE.env, SUITE.rules), seed)
    found = rollout(agent(ScriptedLLM(walker)), env, tasks, seed=0, max_steps=10, min_ready=ready)
    assert [[t.transition for t in e.turns] for e in found] == [[t.transition for t in e.turns] for e in expected]
    assert [e.success for e in found] == [e.success for e in expected]


def test_nobody_waits_for_the_slowest_episode():
    """One episode's step is answered only when nothing else is under way; the others have finished by then."""

    class Held(Slow):
        def poll(self) -> list[tuple[int, StepResult]]:
            free = [one for one in self.answers if one[0] != 0] or self.answers
            self.answers = [one for one in self.answers if one not in free[:1]]
            return free[:1]

    policy = Noting()
    rollout(policy, Held(Script({}), 0), [task(1, 2)] * 3, seed=5, max_steps=3)  # type: ignore[arg-type]
    asked = [seed[1] for batch in policy.seeds for seed in batch]
    assert asked[-2:] == [0, 0], "the first episode acts again when the other two are over"


def test_two_engines_of_one_process_take_turns_in_lockstep():
    policy = Noting()
    rollout(policy, Script({(1, 0): StepResult(Observation("end"), 1.0, True)}), [task(1, 2)] * 3, seed=5, max_steps=2)
    assert [len(batch) for batch in policy.seeds] == [3, 2]


def test_an_interrupted_rollout_leaves_nothing_under_way():
    llm = ScriptedLLM(lambda _: "right")

    class Broken(Script):
        def step(self, slots: Sequence[int], actions: Sequence[str]) -> list[StepResult]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rollout(agent(llm), Broken({}), [task(1, 2)] * 4, seed=0, max_steps=3, min_ready=0.25)
    assert llm.poll() == []


class Echo:
    """An experience model that answers with the name of the random stream that it would draw from."""

    version, concurrent, answers_by = 1, False, "generated"

    def __init__(self) -> None:
        self.asked: list[Query] = []
        self.forgotten: list[tuple[int, ...]] = []

    def start(self, tasks: Sequence[Task], *, seed: int) -> list[Observation]:
        return [Observation("room 1") for _ in tasks]

    def submit(self, queries: Sequence[Query]) -> list[int]:
        self.asked = list(queries)
        return list(range(len(queries)))

    def poll(self) -> list[tuple[int, Prediction]]:
        return [(i, Prediction(Observation(str(query.stream)), 0.0, False, StepInfo())) for i, query in enumerate(self.asked)]

    def forget(self, episodes: Sequence[tuple[int, ...]]) -> None:
        self.forgotten += episodes


@pytest.mark.parametrize("size", [1, 2, 3, 4, None])
def test_a_dreamed_episode_draws_by_its_place_in_the_whole_rollout_however_many_are_open(size: int | None):
    model, tasks = Echo(), [task(1, 2)] * 4

    def dreamt(tasks: Sequence[Task], **how: Any) -> list[list[str]]:
        env = DreamBatch(model, SUITE.rules, horizon=9)  # type: ignore[arg-type]
        return [[t.next_state.text for t in e.transitions] for e in rollout(Noting(), env, tasks, seed=7, max_steps=2, **how)]

    expected = [[f"(7, {i}, {k})" for k in range(2)] for i in range(4)]
    assert dreamt(tasks, max_parallel=size) == expected
    assert sorted(model.forgotten) == [(7, i) for i in range(4)]
    assert dreamt(tasks[:2], max_parallel=size, episode_indices=[1, 3]) == [expected[1], expected[3]]


def test_a_share_of_zero_waits_for_one_answer_and_no_more():
    tasks = [task(start, target) for start in (1, 2) for target in (2, 4)]
    env = Slow(EnvPool(SUITE.env, SUITE.rules), 0)
    episodes = rollout(agent(ScriptedLLM(walker)), env, tasks, seed=0, max_steps=10, min_ready=0.0)
    assert [[t.transition for t in e.turns] for e in episodes] == [[t.transition for t in e.turns] for e in walk(tasks)[0]]
