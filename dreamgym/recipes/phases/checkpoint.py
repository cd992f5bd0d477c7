"""The checkpoint of an RL phase, from which the same command goes on after an interruption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dreamgym.errors import RunDirError
from dreamgym.protocols import ReplayBuffer, Stateful
from dreamgym.recipes.phases.collect import Collector
from dreamgym.runs.episodes import lines_of
from dreamgym.runs.rundir import RunDir
from dreamgym.train import checkpoint


@dataclass
class Progress:
    """How far an RL phase is, but for the state of its collaborators."""

    iteration: int = 0
    """Number of iterations that are done."""
    seconds: float = 0.0
    real_seconds: float | None = 0.0
    """Wall-clock seconds of waiting for the real environment; None where they are not known."""
    stop_reason: str = ""
    """Why no iteration follows, in words; "" while the phase goes on."""
    failed_in_a_row: int = 0
    """Number of iterations in a row of which every rollout failed."""


class PhaseCheckpoint:
    """A file with the progress of a phase and the state of its collaborators, and another with the rollouts that were begun ahead."""

    def __init__(self, run: RunDir, name: str, replay: ReplayBuffer, collector: Collector, collaborators: Mapping[str, Stateful]) -> None:
        """`collaborators` are restored in their order, `collector` is one of them."""
        self.run, self.name, self.replay, self.collector, self.collaborators = run, name, replay, collector, collaborators

    @property
    def path(self) -> Path:
        return self.run.path / "checkpoints" / f"{self.name}.pt"

    def save(self, progress: Progress) -> None:
        """Everything that `restore` needs, replaced atomically."""
        begun = self.collector.prefetched
        if begun:
            self.run.write_atomic(self._prefetched_file(begun.iteration), lines_of(self.collector.wait_for_prefetched(), completions=True))
        state = {
            **{name: collaborator.state_dict() for name, collaborator in self.collaborators.items()},
            "replay": {"last_row": self.replay.last_row, "refused": self.replay.refused},
            "progress": asdict(progress),
            "prefetched": begun.iteration if begun else None,
        }
        checkpoint.save(self.path, state)
        (self.run.path / self._prefetched_file(progress.iteration - 1)).unlink(missing_ok=True)

    def restore(self) -> Progress | None:
        """The progress that was saved, with the collaborators as they were; what was written to the replay buffer after it is dropped. None
        where nothing was saved. RunDirError for the file of another version, or without the rollouts that were begun ahead."""
        if not self.path.exists():
            return None
        state = checkpoint.load(self.path)
        try:
            if missing := next((name for name in (*self.collaborators, "replay", "progress", "prefetched") if name not in state), ""):
                raise KeyError(missing)
            self.replay.rollback(state["replay"]["last_row"])  # first: a dream that is loaded again reads it
            self.replay.refused = state["replay"]["refused"]
            for name, collaborator in self.collaborators.items():
                collaborator.load_state_dict(state[name])
            progress = Progress(**{field.name: state["progress"][field.name] for field in fields(Progress)})
        except KeyError as error:
            raise RunDirError(
                f"'{self.path}' is of another version of dreamgym: it has no {error}. Go on with that version, or delete the file to "
                "begin this phase again."
            ) from error
        if (i := state["prefetched"]) is not None:
            if not (played := self.run.trajectories(self._prefetched_file(i))):
                file = self.run.path / self._prefetched_file(i)
                raise RunDirError(f"'{file}' is missing or empty, and iteration {i} learns from the rollouts in it. Restore it.")
            self.collector.restore_prefetched(i, played)
        return progress

    def _prefetched_file(self, i: int) -> str:
        """The file of the rollouts of iteration `i` that were played before it."""
        return f"checkpoints/{self.name}-prefetched-{i}.jsonl"
