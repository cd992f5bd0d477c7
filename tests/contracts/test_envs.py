"""What every environment family promises (`protocols.Family`). Families are discovered: a new one is tested as soon as it exists, and so is
the one that docs/your_environment.md is about.

Families whose package is not installed are skipped; families too big for a default test mark themselves by taking long, so keep
the default configuration small.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import pytest

from dreamgym import plugins
from dreamgym.errors import MissingExtra, UsageError
from dreamgym.protocols import Family, Idles, Lists
from dreamgym.types import Observation, Task, Trajectory

SPLITS = ("train", "dev", "test")
NONSENSE = ("", " ", "xyzzy", "click[no such thing]", "open[", "] [", "[ ]", "go to the moon", "a" * 300, "click[\n]", "<|end|>")


@cache
def family(name: str) -> Family:
    try:
        made: Family = plugins.make("envs", name)
        made.tasks("train", 1, seed=0)  # a family may do without its package until it is asked for real tasks
        return made
    except MissingExtra as error:
        pytest.skip(str(error))


@cache
def logs(name: str, behaviour: str, n: int = 40) -> tuple[Trajectory, ...]:
    return tuple(family(name).behave(task, behaviour, seed=i) for i, task in enumerate(family(name).tasks("train", n, seed=0)))


def every_behaviour(name: str) -> list[Trajectory]:
    return [trajectory for behaviour in family(name).behaviours for trajectory in logs(name, behaviour)]


def abstract(name: str, raw: dict) -> Observation:
    return family(name).domain.abstract(raw)


every_family = pytest.mark.parametrize("name", [*plugins.known("envs"), "examples.lamps"])


@every_family
def test_a_family_says_what_it_is(name: str):
    assert family(name).name == family(name).domain.name == family(name).env().name
    assert family(name).max_steps > 0
    assert sum(family(name).behaviours.values()) == pytest.approx(1.0)
    assert "expert" in family(name).behaviours


@every_family
def test_splits_share_no_task_and_a_seed_names_the_order(name: str):
    splits = {split: family(name).tasks(split, 60, seed=0) for split in SPLITS}
    ids = {split: {task.id for task in tasks} for split, tasks in splits.items()}
    assert all(ids.values())
    assert all(len(ids[split]) == len(splits[split]) for split in SPLITS)
    assert not (ids["train"] & ids["dev"] or ids["train"] & ids["test"] or ids["dev"] & ids["test"])
    assert family(name).tasks("train", 10, seed=0) == family(name).tasks("train", 10, seed=0)
    assert family(name).tasks("train", 10, seed=0) != family(name).tasks("train", 10, seed=1)


@every_family
def test_tasks_are_real_well_formed_and_accepted_by_the_environment(name: str):
    for task in (task for split in SPLITS for task in family(name).tasks(split, 30, seed=3)):
        assert task.env == family(name).name and task.source == "real" and task.difficulty >= 0
        assert family(name).domain.well_formed(task.instruction), task.instruction
        assert family(name).env().accepts(task)


@every_family
def test_an_invented_task_is_refused_because_nobody_can_score_it(name: str):
    invented = Task(id="invented", instruction=family(name).tasks("train", 1, seed=0)[0].instruction, env=name, source="synthetic")
    env = family(name).env()
    assert not env.accepts(invented)
    with pytest.raises(UsageError):
        env.reset(invented)


@every_family
def test_nonsense_is_not_a_well_formed_instruction(name: str):
    assert not any(family(name).domain.well_formed(text) for text in ("", "xyzzy", "<|end|>", "\n"))


@every_family
def test_the_same_actions_give_the_same_episode_in_any_instance_and_after_any_other_episode(name: str):
    used = family(name).env()
    for trajectory in every_behaviour(name)[::7]:
        for env in (family(name).env(), used):
            state = abstract(name, env.reset(trajectory.task))
            for transition in trajectory.transitions:
                assert state == transition.state
                raw, reward, terminated = env.step(transition.action)
                state = abstract(name, raw)
                assert (state, reward, terminated) == (transition.next_state, transition.reward, transition.terminated)


@every_family
def test_an_action_that_is_not_admissible_changes_nothing(name: str):
    """The rule of the domain and the real environment agree, on what agents do and on nonsense."""
    domain, refused = family(name).domain, 0
    for trajectory in every_behaviour(name)[::5]:
        env, rng = family(name).env(), random.Random(trajectory.id)
        state = abstract(name, env.reset(trajectory.task))
        for step, transition in enumerate(trajectory.transitions):
            elsewhere = [other.action for other in rng.choice(logs(name, "expert")).transitions]
            for action in (*rng.sample(NONSENSE, 3), rng.choice(elsewhere)):
                if domain.admissible(state, trajectory.transitions[:step], action) is False:
                    refused += 1
                    raw, reward, terminated = env.step(domain.canonical(action))
                    assert (abstract(name, raw), reward, terminated) == (state, 0.0, False), action
            if domain.admissible(state, trajectory.transitions[:step], transition.action) is False:
                assert (transition.next_state, transition.reward, transition.terminated) == (state, 0.0, False)
            state = abstract(name, env.step(transition.action)[0])
    assert refused > 100


@every_family
def test_an_action_that_is_said_to_be_idle_changes_nothing(name: str):
    """Every action of an episode is tried again at each later step of it."""
    domain = family(name).domain
    if not isinstance(domain, Idles):
        pytest.skip("this domain knows of no idle actions")
    idle = 0
    for trajectory in every_behaviour(name):
        for step, transition in enumerate(trajectory.transitions):
            history = trajectory.transitions[:step]
            for action in {past.action for past in history}:
                if domain.admissible(transition.state, history, action) is False or not domain.idle(transition.state, history, action):
                    continue
                idle += 1
                env = family(name).env()
                env.reset(trajectory.task)
                for past in history:
                    env.step(past.action)
                raw, reward, terminated = env.step(action)
                assert (abstract(name, raw), reward, terminated) == (transition.state, 0.0, False), action
    assert idle > 20


@every_family
def test_a_list_that_was_shown_can_be_written_again_from_what_it_told(name: str):
    domain = family(name).domain
    if not isinstance(domain, Lists):
        pytest.skip("this domain lists nothing")
    lists = 0
    for trajectory in every_behaviour(name):
        for step, transition in enumerate(trajectory.transitions):
            told = domain.told_of(transition)
            assert len({one.name for one in told}) == len(told) and all(one.text for one in told)
            if asked := domain.asked(transition.state, trajectory.transitions[:step], transition.action):
                lists += 1
                assert domain.written([one.line for one in told], asked[1]) == transition.next_state.text
    assert lists > 100


@every_family
def test_what_an_expert_does_is_admissible(name: str):
    for trajectory in logs(name, "expert"):
        for step, transition in enumerate(trajectory.transitions):
            assert family(name).domain.admissible(transition.state, trajectory.transitions[:step], transition.action) is not False


@every_family
def test_nothing_is_admissible_once_the_episode_is_over(name: str):
    ends = [t for t in logs(name, "expert") if t.transitions[-1].terminated]
    assert ends
    for trajectory in ends:
        for transition in trajectory.transitions:
            assert not family(name).domain.admissible(trajectory.transitions[-1].next_state, trajectory.transitions, transition.action)


@every_family
def test_the_canonical_spelling_is_stable_and_means_the_same(name: str):
    domain = family(name).domain
    for trajectory in every_behaviour(name):
        for step, transition in enumerate(trajectory.transitions):
            history, action = trajectory.transitions[:step], transition.action
            assert domain.canonical(action) == action  # logs are written in it
            assert domain.admissible(transition.state, history, action) == domain.admissible(
                transition.state, history, domain.canonical(action)
            )
    for action in NONSENSE:
        assert domain.canonical(domain.canonical(action)) == domain.canonical(action)


@every_family
def test_state_texts_can_be_cut_into_words_and_put_together_again(name: str):
    """No bracket before a space and no line that starts with one, none empty: word vocabularies lean on it."""
    for trajectory in every_behaviour(name):
        for transition in trajectory.transitions:
            for text in (transition.state.text, transition.next_state.text):
                assert text and text == text.strip() and text == text.lower()
                assert "[ " not in text and "\n " not in text and "\n\n" not in text


@every_family
def test_an_expert_succeeds_on_nine_in_ten_tasks_within_the_horizon(name: str):
    episodes = logs(name, "expert")
    assert all(len(episode.turns) <= family(name).max_steps for episode in episodes)
    assert sum(episode.success for episode in episodes) >= 0.9 * len(episodes)


@every_family
def test_a_behaviour_can_be_repeated_and_labels_its_episodes(name: str):
    task = family(name).tasks("train", 1, seed=0)[0]
    for behaviour in family(name).behaviours:
        episode = family(name).behave(task, behaviour, seed=5)
        assert episode == family(name).behave(task, behaviour, seed=5)
        assert episode.behaviour == behaviour and episode.task == task and episode.source in ("real", "demo")
        assert 1 <= len(episode.turns) <= family(name).max_steps
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
    domain, refused, tried = family(name).domain, 0, 0
    successes = [trajectory for trajectory in every_behaviour(name) if trajectory.success]
    for trajectory, other in zip(successes, [*successes[1:], successes[0]], strict=True):
        *history, last = trajectory.transitions
        verdict = domain.check(trajectory.task.instruction, history, last)
        assert verdict.passed, (trajectory.task.instruction, last, verdict)
        if other.task.instruction != trajectory.task.instruction:
            tried += 1
            refused += not domain.check(other.task.instruction, history, last).passed
    assert tried and refused >= 0.7 * tried


@every_family
def test_the_teacher_explains_every_step_in_a_line(name: str):
    for trajectory in every_behaviour(name):
        for step, transition in enumerate(trajectory.transitions):
            text = family(name).domain.explain(trajectory.task, trajectory.transitions[:step], transition)
            assert text and "\n" not in text and "[ " not in text
