"""Filters, exclusion and eviction of the replay buffer, against a plain Python model of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.config import build
from dreamgym.errors import ConfigError
from dreamgym.replay.buffer import ReplayBuffer, ReplayBufferConfig
from dreamgym.replay.encoders import lexical
from dreamgym.replay.eviction import select_evicted
from dreamgym.replay.indexes import exact
from dreamgym.types import Memory, Observation, Source, StepInfo, Task, Trajectory, Transition, Turn, Verdict

WORDS = ["mug", "hat", "red", "blue", "cheap", "old"]
SOURCES: tuple[Source, ...] = ("real", "dream", "demo")
ENCODER = lexical.make(state_dim=32, action_dim=32)


@st.composite
def trajectories(draw: st.DrawFn) -> list[Trajectory]:
    found = []
    for number in range(draw(st.integers(1, 10))):
        source = draw(st.sampled_from(SOURCES))
        verdict = Verdict("passed") if source == "dream" else draw(st.sampled_from([None, Verdict("refused", ("price",))]))
        steps = draw(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS), st.sampled_from([-1.0, 0.0, 1.0])), max_size=4))
        turns = tuple(
            Turn(Transition(Observation(s), a, Observation(f"{s} {a}"), r, False, StepInfo(verdict=verdict))) for s, a, r in steps
        )
        env = draw(st.sampled_from(["shop", "house"]))
        found.append(Trajectory(f"t{number}", Task("t", "i", env), source, turns, True))
    return found


def opened(rows: list[Trajectory], coarse: str = "auto", **config: Any) -> ReplayBuffer:
    buffer = ReplayBuffer.open(None, ENCODER, build(ReplayBufferConfig, {"index_options": {"coarse": coarse}, **config}))
    buffer.add(rows)
    return buffer


def similarity(memory: Memory, state: str, action: str) -> float:
    rows = ENCODER.encode([memory.state, state], [memory.action, action])
    return min(1.0, round(float(rows[0].astype(np.float16).astype(np.float32) @ rows[1]), 5))


@settings(max_examples=80)
@given(trajectories(), st.data())
def test_a_search_finds_what_a_plain_loop_over_the_rows_finds(rows: list[Trajectory], data: st.DataObject) -> None:
    buffer = opened(rows, data.draw(st.sampled_from(["auto", "always"])))
    env = data.draw(st.sampled_from([None, "shop", "house", "moon"]))
    exclude = data.draw(st.sampled_from([None, ("t0", "t3"), ("t1", "t99")]))
    states, actions, k = ["red", "mug"], ["hat", "blue"], data.draw(st.integers(1, 9))

    answers = buffer.search(states, actions, k=k, env=env, exclude=exclude)

    for i, (state, action) in enumerate(zip(states, actions, strict=True)):
        allowed = [m for m in buffer.memories(env=env) if exclude is None or m.trajectory != exclude[i]]
        expected = sorted(allowed, key=lambda m: (-similarity(m, state, action), m.row))
        expected = list({(m.action, m.next_state): m for m in reversed(expected)}.values())
        expected = sorted(expected, key=lambda m: (-similarity(m, state, action), m.row))
        close = [pytest.approx(similarity(m, state, action), abs=2e-5) for m in expected[:k]]
        assert [n.similarity for n in answers[i]] == close
        assert [n.similarity for n in answers[i]] == [pytest.approx(similarity(n.memory, state, action), abs=2e-5) for n in answers[i]]
        every = [*(n.similarity for n in answers[i]), *(similarity(m, state, action) for m in allowed)]
        for found, wanted in zip(answers[i], expected[:k], strict=True):
            assert found.memory == wanted or swapped_by_rounding(found.similarity, every)


def swapped_by_rounding(place: float, every: Sequence[float]) -> bool:
    """Whether another row may stand at the place of this cosine than was expected. A product in another order may round a cosine the other
    way, and so swap rows whose cosines are the same but for that; `every` holds all the cosines of the query, by either product."""
    near = {float(value) for value in every if abs(value - place) < 3e-5}
    return len(near) > 1


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1e-3, 0.3]), st.integers(1, 40))
def test_two_passes_find_what_one_finds_among_many_near_twins(seed: int, spread: float, k: int) -> None:
    random = np.random.default_rng(seed)
    n, dim = 700, 24
    centres = random.standard_normal((12, dim))
    rows = (centres[random.integers(0, 12, n)] + spread * random.standard_normal((n, dim))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows.astype(np.float16).astype(np.float32)
    groups, mask = random.integers(0, 30, n), random.random(n) < random.choice([0.1, 0.8])
    one, two = exact.make(dim=dim, coarse="never"), exact.make(dim=dim, coarse="always")
    for index in (one, two):
        index.add(rows, groups)
    exclude = random.integers(-1, 30, (9, 2))
    for more in ({}, {"mask": mask}, {"exclude": exclude}, {"mask": mask, "exclude": exclude}):
        (plain, cosines), (coarse, same) = (index.search(rows[:9], k=k, **more) for index in (one, two))
        np.testing.assert_allclose(cosines, same, atol=1.1e-5)
        every = one.search(rows[:9], k=n, **more)[1]
        for query, place in zip(*np.nonzero(plain != coarse), strict=True):
            assert swapped_by_rounding(same[query, place], [*every[query], *same[query]])
            np.testing.assert_allclose(rows[query] @ rows[coarse[query, place]], same[query, place], atol=1.1e-5)
        assert all(len(set(found[found >= 0])) == (found >= 0).sum() for found in coarse)


def test_the_margin_of_the_coarse_pass_covers_what_rounding_to_bfloat16_does_to_a_cosine() -> None:
    import torch

    from dreamgym.replay.indexes._coarse import HALF_ULP

    cosines = torch.linspace(0.01, 1.0, 200_001)
    changed = ((cosines - cosines.bfloat16().float()).abs() / cosines).max()
    assert 0.9 * HALF_ULP < changed <= HALF_ULP


def test_two_passes_follow_truncation_retention_and_growth() -> None:
    random = np.random.default_rng(0)
    rows = np.eye(8, dtype=np.float32)[random.integers(0, 8, 300)]
    index = exact.make(dim=8, coarse="always")
    index.add(rows[:200], np.arange(200))
    assert (index.search(rows[:1], k=1)[1] == 1.0).all()
    index.truncate(50)
    index.add(rows[200:], np.arange(100))
    keep = random.random(150) < 0.5
    index.search(rows[:1], k=1)
    index.retain(keep)
    left = np.concatenate([rows[:50], rows[200:]])[keep]
    fresh = exact.make(dim=8, coarse="never")
    fresh.add(left, np.concatenate([np.arange(50), np.arange(100)])[keep])
    exclude = np.arange(8)
    for found, expected in zip(index.search(rows[:8], k=9, exclude=exclude), fresh.search(rows[:8], k=9, exclude=exclude), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_rows_that_float16_cannot_hold_keep_their_cosines_whenever_they_come() -> None:
    random = np.random.default_rng(0)
    fine = random.standard_normal((60, 16)).astype(np.float32)
    fine /= np.linalg.norm(fine, axis=1, keepdims=True)
    rounded = fine.astype(np.float16).astype(np.float32)
    one, two = exact.make(dim=16, coarse="never"), exact.make(dim=16, coarse="always")
    for part in (rounded[:30], rounded[30:40], fine[40:]):
        for index in (one, two):
            index.add(part, np.zeros(len(part), np.int64))
        for plain, same in zip(one.search(fine[:5], k=4), two.search(fine[:5], k=4), strict=True):
            np.testing.assert_allclose(plain, same, atol=1.1e-5)


def test_a_gpu_is_used_when_there_is_one_and_nothing_else_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, found in ((True, ["cuda", "cpu", "cuda:1"]), (False, ["cpu", "cpu"])):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert [exact._device(name) for name in ("auto", "cpu", "cuda:1")[: len(found)]] == found
    assert exact.make(dim=2)._config.device == "auto"


def test_a_gpu_that_is_not_there_is_named() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    index = exact.make(dim=2, device="cuda", coarse="always")
    index.add(np.eye(2, dtype=np.float32), np.arange(2))
    with pytest.raises(ConfigError, match="device 'cuda'.*no GPU"):
        index.search(np.eye(2, dtype=np.float32), k=1)


def episode(name: str, *steps: tuple[str, str, str, float], source: Source = "dream") -> Trajectory:
    turns = tuple(
        Turn(Transition(Observation(s), a, Observation(n), r, False, StepInfo(verdict=Verdict("passed")))) for s, a, n, r in steps
    )
    return Trajectory(name, Task("t", "i", "shop"), source, turns, True)


def test_a_full_buffer_keeps_every_real_row_and_the_newest_of_equal_dreams(tmp_path: Path) -> None:
    path, config = tmp_path / "log.sqlite", build(ReplayBufferConfig, {"max_rows": 4})
    with ReplayBuffer.open(path, ENCODER, config) as buffer:
        buffer.add([episode("real", ("s", "a", "known", 0.0), ("s", "b", "n", 0.0), source="real")])
        buffer.add([episode("d1", ("s", "a", "known", 0.0), ("s", "c", "x", 0.0), ("s", "c", "y", 1.0))])
        assert [m.next_state for m in buffer.memories()] == ["known", "n", "x", "y"]  # the dream of what is known went
        buffer.add([episode("d2", ("t", "c", "x", 0.0))])
        assert [m.row for m in buffer.memories()] == [1, 2, 5, 6] and buffer.last_row == 6  # the older dream of x went
        checkpoint = buffer.last_row
        buffer.add([episode("d3", ("t", "e", "z", 0.0))])
        assert [m.row for m in buffer.memories()] == [1, 2, 5, 7]  # one success, two failures: the oldest failure went
        assert buffer.search(["t"], ["e"], k=9)[0][0].memory.row == 7
    with ReplayBuffer.open(path, ENCODER, config) as resumed:
        assert [m.row for m in resumed.memories()] == [1, 2, 5, 7]
        resumed.rollback(checkpoint)
        assert [m.row for m in resumed.memories()] == [1, 2, 5, 6] and resumed.last_row == checkpoint
        assert {n.memory.row for n in resumed.search(["t"], ["c"], k=9)[0]} == {1, 2, 5, 6}
        resumed.add([episode("d3", ("t", "e", "z", 0.0))])
        assert [m.row for m in resumed.memories()] == [1, 2, 5, 7]  # as if it had never been interrupted


def test_a_log_whose_last_rows_are_evicted_goes_on_numbering_after_them(tmp_path: Path) -> None:
    path, config = tmp_path / "log.sqlite", build(ReplayBufferConfig, {"max_rows": 1})
    with ReplayBuffer.open(path, ENCODER, config) as buffer:
        buffer.add([episode("real", ("s", "a", "n", 0.0), source="real")])
        buffer.add([episode("dream", ("s", "a", "m", 0.0))])
        assert len(buffer) == 1 and buffer.last_row == 2
    with ReplayBuffer.open(path, ENCODER, config) as again:
        assert again.last_row == 2 and again.add([episode("r2", ("s", "a", "o", 0.0), source="real")]) == 1
        assert [m.row for m in again.memories()] == [1, 3]  # real rows stay, also beyond the limit


def test_a_dream_of_what_a_real_row_says_goes_before_an_older_one_that_says_something_new() -> None:
    dream, content, reward = np.array([True, True, False]), np.array([1, 0, 0]), np.zeros(3)
    assert select_evicted(1, dream, content, reward).tolist() == [1]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from([-1.0, 0.0, 1.0])), max_size=40), st.integers(0, 40))
def test_eviction_takes_repeats_first_then_the_commonest_outcomes_and_never_a_real_row(rows: list[tuple[bool, int, float]], n: int) -> None:
    dream, content, reward = np.array([r[0] for r in rows], bool), np.array([r[1] for r in rows], np.int64), np.array([r[2] for r in rows])
    out = select_evicted(n, dream, content, reward).tolist()
    assert len(set(out)) == len(out) == min(n, int(dream.sum())) and all(dream[out]) and out == sorted(out)
    repeats = [
        i for i in np.flatnonzero(dream) if any(content[j] == content[i] and (j > i or not dream[j]) for j in range(len(rows)) if j != i)
    ]
    assert set(out) <= set(repeats) or set(repeats) <= set(out)
    if set(repeats) < set(out):
        rest = [i for i in np.flatnonzero(dream) if i not in repeats]
        before, after = (Counter(reward[i] for i in rest if kept or i not in out) for kept in (True, False))
        lost = [kind for kind in before if after[kind] < before[kind]]
        assert all(after[kind] >= max(after.values(), default=0) - 1 for kind in lost)
