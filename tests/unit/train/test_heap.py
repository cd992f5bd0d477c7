"""Memory that nothing uses goes back to the system, where the C library can tell and do it."""

from __future__ import annotations

import pytest
import torch

from dreamgym.train import heap, optimisers

pytestmark = pytest.mark.skipif(heap._functions() is None or not heap.STATM.is_file(), reason="no glibc 2.33 or newer on Linux")


def holes() -> list[bytes]:
    """What is left of 100 MB in blocks of 100 KB when every second one is freed."""
    blocks = [b"\1" * 100_000 for _ in range(1000)]
    return blocks[::2]


def test_holes_in_the_heap_are_given_back_and_what_lies_between_them_stays():
    kept = holes()
    before = heap.resident_bytes()
    assert heap.free_bytes() > 45_000_000
    assert heap.Heap().give_back(10_000_000)
    assert before - heap.resident_bytes() > 40_000_000
    assert all(block == b"\1" * 100_000 for block in kept)


def test_little_free_memory_stays_where_it_is():
    kept = holes()
    before = heap.resident_bytes()
    assert not heap.Heap().give_back(heap.free_bytes() + 1_000_000)
    assert abs(before - heap.resident_bytes()) < 10_000_000
    assert len(kept) == 500


def test_what_was_given_back_is_not_given_back_again_before_it_was_taken():
    own, kept = heap.Heap(), holes()
    assert own.give_back(10_000_000)
    assert not own.give_back(10_000_000)
    kept += holes()  # fills the holes before the heap grows
    kept += holes()
    assert own.give_back(10_000_000)


@pytest.mark.parametrize("make", [optimisers.adamw, optimisers.muon])
def test_every_optimiser_gives_memory_back_after_a_step(make, monkeypatch: pytest.MonkeyPatch):
    given = []
    monkeypatch.setattr(heap.Heap, "give_back", lambda self: given.append(self))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    optimiser = make(model, lr=1e-3, weight_decay=0.0)
    model(torch.ones(2, 4)).sum().backward()
    optimiser.step()
    assert given == [heap.HEAP]


def test_a_system_without_these_functions_keeps_its_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heap, "_functions", lambda: None)
    assert heap.free_bytes() == 0
    assert not heap.Heap().give_back(0)
