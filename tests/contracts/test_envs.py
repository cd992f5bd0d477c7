"""What every environment suite promises (`envs.base.EnvSuite`). Suites are discovered: a new one is tested as soon as it exists, and so is
the one that docs/tutorials/environment.md is about.

Suites whose package is not installed are skipped; suites too big for a default test mark themselves by taking long, so keep
the default configuration small.
"""

from __future__ import annotations

import random
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import tool_desk
from retail_tasks import retail_tasks

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite, TextRules
from dreamgym.envs.env_pool import EnvPool
from dreamgym.errors import MissingExtra, UsageError
from dreamgym.logs.demonstrations import collect
from dreamgym.runs.episodes import read_trajectories, write_trajectories
from dreamgym.types import Observation, Task, Trajectory

LOGS_ONLY = ("logs", "tools")
NEEDED = {
    **{name: lambda name=name: {"files": (recorded_episodes(name),)} for name in LOGS_ONLY},
    "retail": lambda: {"tasks": retail_tasks()},
}
"""Options without which a suite cannot be made."""
SPLITS = ("train", "dev", "test")
NONSENSE = ("", " ", "xyzzy", "click[no such thing]", "open[", "] [", "[ ]", "go to the moon", "a" * 300, "click[\n]", "<|end|>")


@cache
def recorded_episodes(name: str) -> Path:
    path = Path(tempfile.mkdtemp()) / "episodes.jsonl"
    write_trajectories(path, tool_desk.episodes(200) if name == "tools" else collect(plugins.make("envs", "corridor"), 200, seed=0))
    return path


@cache
def suite(name: str) -> EnvSuite:
    try:
        made: EnvSuite = plugins.make("envs", name, **(NEEDED[name]() if name in NEEDED else {}))
        made.tasks("train", 1, seed=0)  # a suite may do without its package until it is asked for real tasks
        return made
    except MissingExtra as error:
        pytest.skip(str(error))


@cache
def logs(name: str, behaviour: str) -> tuple[Trajectory, ...]:
    n = 6 if name == "web" else 40  # a browser takes a third of a second for a step
    return tuple(suite(name).demonstrate(task, behaviour, seed=i) for i, task in enumerate(suite(name).tasks("train", n, seed=0)))


def every_behaviour(name: str) -> list[Trajectory]:
    return [trajectory for behaviour in suite(name).scripted_policies for trajectory in logs(name, behaviour)]


def abstract(name: str, raw: dict) -> Observation:
    return suite(name).rules.abstract(raw)


NAMES = [pytest.param(name, marks=pytest.mark.slow) if name == "web" else name for name in (*plugins.known("envs"), "examples.lamps")]
every_suite = pytest.mark.parametrize("name", NAMES)
every_family = pytest.mark.parametrize("name", [name for name in NAMES if name not in LOGS_ONLY])


@pytest.mark.parametrize("name", LOGS_ONLY)
def test_a_suite_of_logs_has_episodes_and_nothing_that_acts(name: str):
    made = suite(name)
    assert made.name == made.rules.name and made.env() is None and not made.scripted_policies
    assert made.max_steps >= max(len(episode.turns) for file in made.log_files for episode in read_trajectories(file))
    with pytest.raises(UsageError, match="holds logs only"):
        made.require_env()
    with pytest.raises(UsageError, match="no scripted policy 'expert'. Known: none"):
        made.demonstrate(made.tasks("train", 1)[0], "expert", seed=0)


@every_family
def test_a_family_says_what_it_is(name: str):
    assert suite(name).name == suite(name).rules.name == suite(name).env().name
    assert suite(name).max_steps > 0
    assert sum(suite(name).scripted_policies.values()) == pytest.approx(1.0)
    assert "expert" in suite(name).scripted_policies


@every_suite
def test_splits_share_no_task_and_a_seed_names_the_order(name: str):
    splits = {split: suite(name).tasks(split, 60, seed=0) for split in SPLITS}
    assert all(len({task.id for task in tasks}) == len(tasks) > 0 for tasks in splits.values())
    keys = {split: {suite(name).task_key(task) for task in tasks} for split, tasks in splits.items()}
    assert not (keys["train"] & keys["dev"] or keys["train"] & keys["test"] or keys["dev"] & keys["test"])
    assert suite(name).tasks("train", 10, seed=0) == suite(name).tasks("train", 10, seed=0)
    assert suite(name).tasks("train", 10, seed=0) != suite(name).tasks("train", 10, seed=1)


@every_suite
def test_a_suite_knows_its_own_tasks(name: str):
    assert all(suite(name).knows_task(task) for split in SPLITS for task in suite(name).tasks(split, 20, seed=0))


@every_suite
def test_tasks_are_real_well_formed_and_accepted_by_the_environment(name: str):
    for task in (task for split in SPLITS for task in suite(name).tasks(split, 30, seed=3)):
        assert task.env == suite(name).name and task.source == "real" and task.difficulty >= 0
        assert suite(name).rules.well_formed(task.instruction), task.instruction
        assert name in LOGS_ONLY or suite(name).require_env().accepts(task)


@every_family
def test_an_invented_task_is_refused_because_nobody_can_score_it(name: str):
    synthetic = Task(id="synthetic", instruction=suite(name).tasks("train", 1, seed=0)[0].instruction, env=name, source="synthetic")
    assert not suite(name).require_env().accepts(synthetic)
    with pytest.raises(UsageError):
        EnvPool(suite(name).require_env, suite(name).rules).start([synthetic], seed=0)


@every_family
def test_nonsense_is_not_a_well_formed_instruction(name: str):
    knows_wording = type(suite(name).rules).well_formed is not TextRules.well_formed
    assert not any(suite(name).rules.well_formed(text) for text in ("", "\n", *(("xyzzy", "<|end|>") if knows_wording else ())))


@every_family
def test_the_same_actions_give_the_same_episode_in_any_instance_and_after_any_other_episode(name: str):
    used = suite(name).env()
    for trajectory in every_behaviour(name)[::7]:
        for env in (suite(name).env(), used):
            state = abstract(name, env.reset(trajectory.task))
            for transition in trajectory.transitions:
                assert state == transition.state
                raw, reward, terminated = env.step(transition.action)
                state = abstract(name, raw)
                assert (state, reward, terminated) == (transition.next_state, transition.reward, transition.terminated)


@every_family
def test_an_action_that_is_not_admissible_changes_nothing(name: str):
    """The rules and the real environment agree, on what agents do and on nonsense."""
    rules, refused = suite(name).rules, 0
    for trajectory in every_behaviour(name)[::5]:
        env, rng = suite(name).env(), random.Random(trajectory.id)
        state = abstract(name, env.reset(trajectory.task))
        for step, transition in enumerate(trajectory.transitions):
            elsewhere = [other.action for other in rng.choice(logs(name, "expert")).transitions]
            for action in (*rng.sample(NONSENSE, 3), rng.choice(elsewhere)):
                if rules.admissible(state, trajectory.transitions[:step], action) is False:
                    refused += 1
                    raw, reward, terminated = env.step(rules.canonical(action))
                    assert (abstract(name, raw), reward, terminated) == (state, 0.0, False), action
            if rules.admissible(state, trajectory.transitions[:step], transition.action) is False:
                assert (transition.next_state, transition.reward, transition.terminated) == (state, 0.0, False)
            state = abstract(name, env.step(transition.action)[0])
    assert refused > (20 if name == "web" else 100)  # of six episodes an expert, and of forty


@every_family
def test_an_action_that_is_said_to_be_a_noop_changes_nothing(name: str):
    """Every action of an episode is tried again at each later step of it."""
    rules = suite(name).rules
    if type(rules).noop_reason is TextRules.noop_reason:
        pytest.skip("these rules know no actions that change nothing")
    noops = 0
    for trajectory in every_behaviour(name):
        for step, transition in enumerate(trajectory.transitions):
            history = trajectory.transitions[:step]
            for action in {past.action for past in history}:
                if rules.admissible(transition.state, history, action) is False or not rules.noop_reason(transition.state, history, action):
                    continue
                noops += 1
                env = suite(name).env()
                env.reset(trajectory.task)
                for past in history:
                    env.step(past.action)
                raw, reward, terminated = env.step(action)
                assert (abstract(name, raw), reward, terminated) == (transition.state, 0.0, False), action
    assert noops > 20


@every_family
def test_what_an_expert_does_is_admissible(name: str):
    for trajectory in logs(name, "expert"):
        for step, transition in enumerate(trajectory.transitions):
            assert suite(name).rules.admissible(transition.state, trajectory.transitions[:step], transition.action) is not False


@every_family
def test_nothing_is_admissible_once_the_episode_is_over(name: str):
    ends = [t for t in logs(name, "expert") if t.transitions[-1].terminated]
    assert ends
    for trajectory in ends:
        for transition in trajectory.transitions:
            assert not suite(name).rules.admissible(trajectory.transitions[-1].next_state, trajectory.transitions, transition.action)


@every_family
def test_the_canonical_spelling_is_stable_and_means_the_same(name: str):
    rules = suite(name).rules
    for trajectory in every_behaviour(name):
        for step, transition in enumerate(trajectory.transitions):
            history, action = trajectory.transitions[:step], transition.action
            assert rules.canonical(action) == action  # logs are written in it
            assert rules.admissible(transition.state, history, action) == rules.admissible(
                transition.state, history, rules.canonical(action)
            )
    for action in NONSENSE:
        assert rules.canonical(rules.canonical(action)) == rules.canonical(action)


@every_family
def test_state_texts_can_be_cut_into_words_and_put_together_again(name: str):
    """No bracket before a space and no line that starts with one, none empty: word vocabularies lean on it."""
    for trajectory in every_behaviour(name):
        for transition in trajectory.transitions:
            for text in (transition.state.text, transition.next_state.text):
                assert text and text == text.strip()
                if suite(name).rules.tools:
                    continue  # what tools return is shown as it is
                assert text == text.lower() or name == "web"  # what is typed into a page must keep its case
                assert "[ " not in text and "\n " not in text and "\n\n" not in text


@every_family
def test_an_expert_succeeds_on_nine_in_ten_tasks_within_the_horizon(name: str):
    episodes = logs(name, "expert")
    assert all(len(episode.turns) <= suite(name).max_steps for episode in episodes)
    assert sum(episode.success for episode in episodes) >= 0.9 * len(episodes)


@every_family
def test_a_behaviour_can_be_repeated_and_labels_its_episodes(name: str):
    task = suite(name).tasks("train", 1, seed=0)[0]
    for behaviour in suite(name).scripted_policies:
        episode = suite(name).demonstrate(task, behaviour, seed=5)
        assert episode == suite(name).demonstrate(task, behaviour, seed=5)
        assert episode.behaviour == behaviour and episode.task == task and episode.source in ("real", "demo")
        assert 1 <= len(episode.turns) <= suite(name).max_steps
        assert episode.truncated != episode.turns[-1].transition.terminated
    ids = [episode.id for episode in every_behaviour(name)]
    assert len(set(ids)) == len(ids)


@every_family
def test_states_chain_and_only_the_last_step_ends_an_episode(name: str):
    for trajectory in every_behaviour(name):
        steps = trajectory.transitions
        assert all(before.next_state == after.state for before, after in pairwise(steps))
        assert not any(step.terminated for step in steps[:-1])
        assert trajectory.success == (steps[-1].terminated and steps[-1].reward >= 1.0)


@every_family
def test_the_check_agrees_with_every_real_success_and_refuses_it_under_another_task(name: str):
    """`check` sees text only. A success that it refuses would cost the dream its rewards; one it grants anywhere is worth nothing."""
    if type(suite(name).rules).check_success is TextRules.check_success:
        pytest.skip("these rules judge no success")
    rules, refused, tried = suite(name).rules, 0, 0
    successes = [trajectory for trajectory in every_behaviour(name) if trajectory.success]
    for trajectory, other in zip(successes, [*successes[1:], successes[0]], strict=True):
        *history, last = trajectory.transitions
        verdict = rules.check_success(trajectory.task.instruction, history, last)
        assert verdict.passed, (trajectory.task.instruction, last, verdict)
        if other.task.instruction != trajectory.task.instruction:
            tried += 1
            refused += not rules.check_success(other.task.instruction, history, last).passed
    assert tried and refused >= 0.7 * tried


@every_family
def test_the_teacher_explains_every_step_in_a_line(name: str):
    if type(suite(name).rules).explain is TextRules.explain:
        pytest.skip("these rules explain nothing")
    for trajectory in every_behaviour(name):
        for step, transition in enumerate(trajectory.transitions):
            text = suite(name).rules.explain(trajectory.task, trajectory.transitions[:step], transition)
            assert text and "\n" not in text and "[ " not in text
