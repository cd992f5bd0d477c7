"""Controls around suites: without hand-written rules, and with every word renamed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import plugins
from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.wrappers import WrappedEnv
from dreamgym.envs.wrappers.mapped import MappedEnv
from dreamgym.envs.wrappers.placeholders import NamedEnv
from dreamgym.envs.wrappers.renamed import Cipher, RenamedEnv
from dreamgym.logs.demonstrations import collect
from dreamgym.runs.episodes import read_trajectories, write_trajectories

CORRIDOR = {"length": 5, "keys": False}
SUITES = [("corridor", CORRIDOR), ("webshop", {})]


@given(text=st.text(), seed=st.integers(0, 99))
def test_renaming_is_a_bijection_that_moves_every_letter(text: str, seed: int):
    cipher = Cipher(seed)
    renamed = cipher.encode(text)
    assert cipher.decode(renamed) == text and len(renamed) == len(text)
    assert all(a != b for a, b in zip(text, renamed, strict=True) if a.isascii() and a.isalpha())
    assert all(a == b for a, b in zip(text, renamed, strict=True) if not (a.isascii() and a.isalpha()))


@pytest.mark.parametrize(("name", "options"), SUITES)
def test_a_renamed_world_has_the_dynamics_of_the_original(name: str, options: dict):
    plain = plugins.make("envs", name, **options)
    renamed = plugins.make("envs", "dreamgym.envs.wrappers.renamed", suite=name, options=options, seed=3)
    code = renamed.cipher.encode
    for task, other in zip(plain.tasks("train", 5), renamed.tasks("train", 5), strict=True):
        assert other.instruction == code(task.instruction) != task.instruction
        for policy in plain.scripted_policies:
            known, found = plain.demonstrate(task, policy, seed=1), renamed.demonstrate(other, policy, seed=1)
            assert [(s.state.text, s.action, s.next_state.text, s.reward, s.terminated) for s in found.transitions] == [
                (code(s.state.text), code(s.action), code(s.next_state.text), s.reward, s.terminated) for s in known.transitions
            ]
            pool = EnvPool(renamed.require_env, renamed.rules)
            (walk,) = pool.repeat([(other, [step.action for step in found.transitions])])
            assert walk is not None and [step.next_state for step in walk] == [step.next_state for step in found.transitions]


def test_recorded_episodes_are_renamed_as_their_tasks_are_and_keep_their_keys(tmp_path: Path):
    plain = plugins.make("envs", "corridor", length=5)
    file = tmp_path / "logs.jsonl"
    write_trajectories(file, collect(plain, 40, seed=0))
    inner = plugins.make("envs", "logs", files=[file])
    renamed = plugins.make("envs", "dreamgym.envs.wrappers.renamed", suite="logs", options={"files": [file]}, seed=3)
    tasks = {task.instruction for split in ("train", "dev", "test") for task in renamed.tasks(split, 100)}
    for episode in read_trajectories(file):
        shown = renamed.recorded(episode)
        assert shown.task.instruction in tasks
        assert renamed.cipher.decode(shown.transitions[0].state.text) == episode.transitions[0].state.text
        assert renamed.cipher.decode(shown.transitions[0].action) == episode.transitions[0].action
        assert renamed.task_key(shown.task) == inner.task_key(episode.task)


@pytest.mark.parametrize("wrapper", ["placeholders", "renamed", "without_rules"])
def test_a_wrapped_suite_has_the_limits_of_the_suite_inside(wrapper: str, monkeypatch: pytest.MonkeyPatch):
    plain = plugins.make("envs", "corridor", **CORRIDOR)
    monkeypatch.setattr(type(plain), "max_parallel", 3)
    wrapped = plugins.make("envs", f"dreamgym.envs.wrappers.{wrapper}", suite="corridor", options=CORRIDOR)
    assert (wrapped.max_parallel, wrapped.max_steps, wrapped.log_files) == (3, plain.max_steps, plain.log_files)


def test_rules_that_know_the_words_of_the_shop_fail_in_the_renamed_one():
    plain = plugins.make("envs", "webshop")
    renamed = plugins.make("envs", "dreamgym.envs.wrappers.renamed", suite="webshop")
    for suite, known in ((plain, True), (renamed, False)):
        (task,) = suite.tasks("train", 1)
        end = suite.demonstrate(task, "expert", seed=0)
        assert end.success
        verdict = suite.rules.check_success(task.instruction, end.transitions[:-1], end.transitions[-1])
        assert verdict.passed is known
        assert bool(suite.rules.admissible(end.transitions[0].state, (), end.transitions[0].action)) is known


@pytest.mark.parametrize(("name", "options"), SUITES)
def test_without_rules_the_states_are_the_same_and_nothing_else_is_known(name: str, options: dict):
    plain = plugins.make("envs", name, **options)
    bare = plugins.make("envs", "dreamgym.envs.wrappers.without_rules", suite=name, options=options)
    (task,) = bare.tasks("train", 1)
    known, found = plain.demonstrate(task, "expert", seed=0), bare.demonstrate(task, "expert", seed=0)
    assert [step.next_state for step in found.transitions] == [step.next_state for step in known.transitions]
    assert not any(step.info.reasoning for step in found.transitions) and all(step.info.reasoning for step in known.transitions)
    last = found.transitions[-1]
    assert bare.rules.check_success(task.instruction, found.transitions[:-1], last) is None
    assert bare.rules.admissible(last.state, (), "no such action") is None
    assert bare.rules.composer(None) is None and not bare.rules.token_patterns  # type: ignore[arg-type]


INSIDE = plugins.make("envs", "corridor")


@pytest.mark.parametrize("wrap", [MappedEnv, lambda env: RenamedEnv(env, Cipher(0)), lambda env: NamedEnv(env, INSIDE.rules)])
def test_a_wrapped_environment_is_closed_and_cut_off_with_the_one_inside(wrap: Callable[[Any], WrappedEnv]):
    class Inner:
        name, truncated, closed = "inner", True, False

        def close(self) -> None:
            self.closed = True

    env = wrap(Inner())
    assert env.truncated
    env.close()
    assert env.inner.closed  # type: ignore[attr-defined]
    wrap(INSIDE.env()).close()  # which has nothing to close
