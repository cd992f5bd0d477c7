"""The real household: the fast path says what the stock engine says, and generated games can be won.

Needs the extra `alfworld`. Official games are played too where DREAMGYM_ALFWORLD_GAMES names a folder of them (or ALFWORLD_DATA does).
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.envs.alfworld import games
from dreamgym.errors import UsageError
from dreamgym.types import Task

pytest.importorskip("fast_downward", reason="needs the extra 'alfworld' (make test-all installs it)")
pytest.importorskip("textworld", reason="needs the extra 'alfworld' (make test-all installs it)")

from dreamgym.envs.alfworld import engine, generator
from dreamgym.envs.alfworld.games import KINDS, Game
from dreamgym.envs.alfworld.world import House

OFFICIAL = os.environ.get("DREAMGYM_ALFWORLD_GAMES") or os.environ.get("ALFWORLD_DATA")
NONSENSE = ("", "go to the moon", "take", "look around", "go to  fridge 1", "HELP", "open drawer 99", "<|end|>", "a" * 300)


@cache
def mini(split: str, n: int = 12) -> tuple[Game, ...]:
    return tuple(generator.generate(split, n, seed=0))


def task(game: Game) -> Task:
    return Task(game.id, game.goal, "alfworld")


def house(*several: Game, name: engine.EngineName = "fast") -> House:
    return House({one.id: one for one in several}, engine=name)


def script(game: Game, steps: int, seed: int) -> list[str]:
    """A random walk, a verb as likely as another, with nonsense in it; and what the planner would do after it."""
    rng, episode = random.Random(f"{game.id}/{seed}"), engine.fast().start(game)
    actions = []
    for _ in range(steps):
        verb = rng.choice(sorted({command.split()[0] for command in episode.observation.admissible}))
        command = rng.choice([command for command in episode.observation.admissible if command.startswith(verb)])
        actions.append(command if rng.random() < 0.9 else rng.choice(NONSENSE))
        if episode.step(actions[-1]).won:
            return actions
    return [*actions, *game.walkthrough]


def shown(name: engine.EngineName, game: Game, actions: list[str]) -> list[object]:
    """Everything an engine shows along a script, until the game is won."""
    env = house(game, name=name)
    seen: list[object] = [env.reset(task(game))]
    for action in actions:
        seen.append(env.step(action))
        if seen[-1][2]:
            break
    return seen


def differences(several: list[Game], steps: int) -> list[str]:
    """Games in which the two engines differ. The stock engine plays in a process of its own, so that they share nothing."""
    scripts = [(one, script(one, steps, seed)) for seed, one in enumerate(several)]
    code = "import sys; from tests.unit.envs.test_alfworld_engine import _stock; _stock()"
    lines = "\n".join(json.dumps([one.id, one.text, actions]) for one, actions in scripts)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], input=lines, capture_output=True, text=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(several)
    ours = [json.loads(json.dumps(shown("fast", one, actions))) for one, actions in scripts]
    return [one.id for one, a, b in zip(several, ours, said, strict=True) if a != b]


def _stock() -> None:
    for line in sys.stdin:
        name, text, actions = json.loads(line)
        print(json.dumps(shown("stock", games.parse(text, name, where="stdin"), actions)))


def official(split: str) -> list[Game]:
    if not OFFICIAL:
        pytest.skip("needs official games: set DREAMGYM_ALFWORLD_GAMES to a folder that holds them")
    return list(games.read(Path(OFFICIAL), split))


@pytest.mark.slow
def test_the_fast_path_is_the_stock_engine_to_the_byte_on_generated_games():
    several = [*mini("train"), *mini("test", 6), *generator.generate("train", 6, seed=1, preset="full")]
    assert differences(several, steps=25) == []


@pytest.mark.slow
def test_the_fast_path_is_the_stock_engine_to_the_byte_on_official_games():
    found = official("dev")
    chosen = [next(one for one in found if one.kind == kind) for kind in KINDS]
    chosen += random.Random(1).sample(found, 4)
    assert differences(chosen, steps=25) == []


@pytest.mark.slow
def test_the_walkthroughs_of_official_games_win_them():
    for game in random.Random(2).sample(official("dev"), 12):
        episode = engine.fast().start(game)
        assert [episode.step(action).won for action in game.walkthrough][-1], game.id


@pytest.mark.parametrize("preset", ["mini", pytest.param("full", marks=pytest.mark.slow)])
def test_the_planners_walkthrough_wins_each_generated_game_and_no_game_is_won_at_the_start(preset: str):
    for split in ("train", "dev", "test"):
        for game in generator.generate(split, 6, seed=2, preset=preset):
            env = house(game)
            assert env.reset(task(game))["won"] is False
            ends = [env.step(action)[1:] for action in game.walkthrough]
            assert ends == [(0.0, False)] * (len(ends) - 1) + [(1.0, True)], game.id
            with pytest.raises(UsageError, match="is over"):
                env.step("look")


def test_the_six_kinds_are_balanced_and_each_split_has_its_own_houses():
    splits = {split: mini(split, 24) for split in ("train", "dev", "test")}
    assert all(Counter(game.kind for game in several) == dict.fromkeys(KINDS, 4) for several in splits.values())
    scenes = {split: {game.scene for game in several} for split, several in splits.items()}
    assert not (scenes["train"] | scenes["dev"]) & scenes["test"]
    texts = [game.text for several in splits.values() for game in several]
    assert len(set(texts)) == len(texts)


def test_mini_houses_are_small():
    for game in mini("train", 24):
        first = house(game).reset(task(game))["text"]
        assert 5 <= len(re.findall(r"\ba \w+ \d", first)) <= 8 and len(first) < 400
        assert 4 <= json.loads(game.text)["pddl_problem"].split("(:init")[0].count(" - object\n") <= 8
        assert len(game.walkthrough) <= 12


def test_a_seed_names_the_games_and_an_id_is_enough_to_make_one_again():
    assert generator.generate("train", 4, seed=7) == generator.generate("train", 6, seed=7)[:4]
    assert generator.generate("train", 4, seed=7) != generator.generate("train", 4, seed=8)
    generator.make.cache_clear()
    known = generator.Generated("mini", 7)
    for game in generator.generate("test", 3, seed=7):
        generator.make.cache_clear()
        assert known[game.id] == game
    for name in ("", "invented", mini("train")[0].id, game.id.replace("_s7", "_s8"), game.id + "0", game.id.replace("-None", "-Bowl")):
        assert name not in known
    with pytest.raises(UsageError, match="Did you mean 'mini'"):
        generator.generate("train", 1, preset="mni")


@settings(max_examples=12)
@given(index=st.integers(0, 11), seed=st.integers(0, 10**6))
def test_what_is_listed_is_accepted_and_what_is_not_changes_nothing(index: int, seed: int):
    game, rng = mini("train")[index], random.Random(seed)
    env = house(game)
    raw = env.reset(task(game))
    for _ in range(12):
        assert raw["admissible"] == sorted(set(raw["admissible"])) and {"look", "inventory", "help"} <= set(raw["admissible"])
        wrong = rng.choice(NONSENSE)
        refused, reward, done = env.step(wrong)
        assert (refused, reward, done) == (raw | {"text": "Nothing happens."}, 0.0, False)
        raw, reward, done = env.step(rng.choice(raw["admissible"]))
        assert raw["text"] and raw["text"] != "Nothing happens." and reward == float(done) == float(raw["won"])
        if done:
            return


def test_episodes_beside_each_other_do_not_disturb_each_other_even_with_one_copy_of_the_library():
    shared, several = engine.FastEngine(copies=1), mini("train", 6)
    together = [shared.start(one) for one in several for _ in range(2)]
    for step in range(max(len(one.walkthrough) for one in several)):
        for place, episode in enumerate(together):
            walk = several[place // 2].walkthrough
            if step < len(walk):
                alone = shared.start(several[place // 2])
                assert [alone.step(action) for action in walk[: step + 1]][-1] == episode.step(walk[step])
    assert all(episode.observation.won for episode in together)


def test_a_house_refuses_a_task_without_a_game_and_a_step_before_a_reset():
    game = mini("train")[0]
    invented = Task("invented", game.goal, "alfworld", source="synthetic")
    assert house(game).accepts(task(game)) and not house(game).accepts(invented)
    with pytest.raises(UsageError, match="no game"):
        house(game).reset(invented)
    with pytest.raises(UsageError, match="reset"):
        house(game).step("look")
    with pytest.raises(UsageError, match="Known: fast, stock"):
        house(game, name="slow")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "broken", [{"pddl_problem": "(define (problem p))"}, {"pddl_problem": ")"}, {"pddl_domain": ""}, {"grammar": "action {"}]
)
def test_a_game_with_broken_rules_is_named_and_the_engine_lives_on(broken: dict[str, str]):
    game = mini("train")[0]
    spoilt = replace(game, text=json.dumps(json.loads(game.text) | broken))
    with pytest.raises(UsageError, match=f"Game '{game.id}' cannot be played"):
        engine.fast().start(spoilt)
    assert engine.fast().start(game).observation.admissible


def test_the_translator_leaves_arguments_and_output_as_they_were():
    argv, stdout = list(sys.argv), sys.stdout
    engine.FastEngine().start(mini("train")[0])
    assert sys.argv == argv and sys.stdout is stdout


@pytest.mark.slow
def test_a_thousand_resets_leave_memory_flat():
    def resident_mb() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    several = [*mini("train"), *generator.generate("train", 6, seed=1, preset="full")]
    env, rng = house(*several), random.Random(0)

    def play(episodes: int) -> None:
        for _ in range(episodes):
            raw = env.reset(task(rng.choice(several)))
            for _ in range(10):
                raw, _, done = env.step(rng.choice(raw["admissible"]))
                if done:
                    break

    play(300)
    before = resident_mb()
    play(1000)
    assert resident_mb() - before < 8
