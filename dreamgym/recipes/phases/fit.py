"""Supervised training as part of a phase: with progress, metrics, and a checkpoint that bridges interruptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from dreamgym.llm.memory import return_free_memory
from dreamgym.runs.progress import Advance, progress
from dreamgym.runs.rundir import RunDir
from dreamgym.train import sft
from dreamgym.train.settings import SFTConfig

Watch = Callable[[int, float, dict[str, float]], bool]
"""(step, share done, losses) -> whether to stop."""


def fit(
    run: RunDir,
    name: str,
    model: Any,
    ids: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]],
    config: SFTConfig,
    *,
    seed: int,
    segments: Sequence[Sequence[str]] | None = None,
    on_step: Callable[[int], bool] | None = None,
) -> dict[str, float]:
    """Supervised training with a progress bar, with a checkpoint to resume from. `seed`: of the run."""
    with progress_watch(run, name, on_step) as watch:
        checkpoint = run.path / "checkpoints" / f"{name}.pt"
        return sft.train(model, ids, weights, config, seed=seed, segments=segments, on_step=watch, checkpoint=checkpoint)


@contextmanager
def progress_watch(run: RunDir, name: str, on_step: Callable[[int], bool] | None = None) -> Iterator[Watch]:
    """A function for a trainer to call after every step: it shows a progress bar and writes a metrics line every 25 steps."""
    with ExitStack() as stack:
        shown, advance = 0, cast("Advance | None", None)

        def watch(step: int, done: float, losses: dict[str, float]) -> bool:
            nonlocal shown, advance
            if advance is None:  # the first step tells how far an interrupted training had come; what it wrote after that is written again
                run.keep_lines("metrics.jsonl", lambda line: line["phase"] != name or line["iteration"] < step)
                shown = int(done * 1000)
                advance = stack.enter_context(progress(1000, name, start=shown))
            if step % 25 == 0:
                run.append_jsonl("metrics.jsonl", {"phase": name, "iteration": step, "done": done, **losses})
            if int(done * 1000) > shown:
                advance(int(done * 1000) - shown, f"loss {losses['loss']:.3f}")
                shown = int(done * 1000)
            return bool(on_step and on_step(step))

        yield watch


def finish(run: RunDir, name: str, record: dict[str, Any]) -> None:
    """Mark a fitted model as done, and only then drop what an interrupted training would have gone on from."""
    run.mark(name, record)
    (run.path / "checkpoints" / f"{name}.pt").unlink(missing_ok=True)
    return_free_memory()
