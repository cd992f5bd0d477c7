"""The two passes of the exact index with the first one on a GPU: `pytest -m gpu tests/gpu`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dreamgym.replay.indexes import exact

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_the_index_finds_on_a_gpu_what_it_finds_on_the_processor() -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((20_000, 384)).astype(np.float32)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)
    groups, mask, exclude = np.arange(20_000) // 8, random.random(20_000) < 0.5, np.arange(64)[:, None]
    plain, fast = exact.make(dim=384, coarse="never"), exact.make(dim=384, coarse="always", device="cuda")
    for index in (plain, fast):
        index.add(rows, groups)
    for more in ({}, {"mask": mask}, {"mask": mask & (random.random(20_000) < 0.1)}, {"exclude": exclude}):
        expected, found = plain.search(rows[:64], k=8, **more), fast.search(rows[:64], k=8, **more)
        np.testing.assert_allclose(expected[1], found[1], atol=1.1e-5)
        assert (expected[0] == found[0]).mean() > 0.99  # but for cosines that round apart in the fifth decimal
