"""The text side of household games against the real engine: what a state offers, and what counts as done."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from dreamgym.envs import alfworld
from dreamgym.envs.alfworld import games
from dreamgym.envs.alfworld.commands import offered
from dreamgym.envs.alfworld.scripted_policies import MIX, SCRIPTED_POLICIES
from dreamgym.envs.alfworld.state import read
from dreamgym.evals.revisit_consistency import revisit_rate

for package in ("textworld", "fast_downward"):
    pytest.importorskip(package, reason="the engine of household games is not installed: pip install dreamgym[alfworld]")

SUITE = alfworld.make(train=12, dev=6, test=6)
TASKS = SUITE.tasks("train", 12)
WALKS = [SUITE.demonstrate(task, behaviour, seed=1) for task in TASKS for behaviour in SCRIPTED_POLICIES]


def test_the_rule_offers_what_the_engine_admits():
    """Along random walks, both ways: nothing offered that the engine refuses, nothing refused that it admits."""
    both: Counter[str] = Counter()
    for task in TASKS[:8]:
        env, rng = SUITE.env(), random.Random(task.id)
        raw = env.reset(task)
        for _ in range(25):
            state = read(SUITE.rules.abstract(raw).text)
            if state is None:
                break
            rule, real = set(offered(state)), set(raw["admissible"])
            both.update(agreed=len(rule & real), invented=len(rule - real), overlooked=len(real - rule))
            raw, _, _ = env.step(rng.choice(sorted(rule - {"look", "inventory", "help"})))
    assert both["agreed"] > 1000 and not both["invented"] and not both["overlooked"]


def test_the_check_grants_success_exactly_where_the_engine_does():
    confusion: Counter[tuple[bool, bool]] = Counter()
    for walk in WALKS:
        for t, transition in enumerate(walk.transitions):
            claim = replace(transition, reward=1.0, terminated=True)
            confusion[transition.terminated, SUITE.rules.check_success(walk.task.instruction, walk.transitions[:t], claim).passed] += 1
    assert confusion[True, True] >= 24 and confusion[False, False] > 500
    assert not confusion[True, False] and not confusion[False, True]


def test_the_planner_wins_every_game_in_the_steps_of_its_walkthrough():
    for task in TASKS:
        walk = SUITE.demonstrate(task, "planner", seed=0)
        assert walk.success and tuple(t.action for t in walk.transitions) == SUITE.games[task.id].walkthrough


def test_game_folders_with_walkthroughs_become_logged_episodes(tmp_path: Path):
    games.write([SUITE.games[task.id] for task in TASKS[:3]], tmp_path)
    official = alfworld.make(data=tmp_path)
    episodes = official.demonstrations("train", 5)
    assert {episode.task.id for episode in episodes} == {task.id for task in TASKS[:3]}
    assert all(episode.success and episode.source == "demo" and episode.transitions[-1].info.reasoning for episode in episodes)
    assert official.rules.crowded and official.max_steps == 50


def test_real_houses_stay_as_they_are():
    found = revisit_rate([walk for walk in WALKS if walk.behaviour in MIX], SUITE.rules)
    assert found.n > 50 and found.value == 1.0


def test_scenes_of_test_houses_are_in_no_other_split():
    scenes = {split: {(task.goal or {})["scene"] for task in SUITE.tasks(split, 6)} for split in ("train", "dev", "test")}
    assert not scenes["test"] & (scenes["train"] | scenes["dev"])
