"""`dreamgym annotate`: logged episodes in, the same episodes with an instruct model's reasoning on every step out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dreamgym.errors import UsageError, counted
from dreamgym.experience.chat_requests import AskConfig
from dreamgym.experience.teacher import ChatTeacher, Estimate
from dreamgym.protocols import Chat
from dreamgym.runs.episodes import read_trajectories, write_trajectories
from dreamgym.runs.progress import progress
from dreamgym.types import Trajectory
from dreamgym.usage import Usage


def read_logs(logs: Path, out: Path) -> list[Trajectory]:
    """The episodes of `logs`, to annotate into `out`. UsageError for what cannot be: it costs little, so it can come before a model is
    loaded."""
    if out.resolve() == logs.resolve():
        raise UsageError(f"--out is the file that is read: '{out}'. Give another path.")
    return read_trajectories(logs)


def annotate(chat: Chat, episodes: Sequence[Trajectory], out: Path, config: AskConfig, *, dry_run: bool = False) -> dict[str, Any]:
    """Annotate episodes into `out`, or only say what that would take. The result is plain values, for machines.

    Every reply is kept beside `out`, in `replies_path(out)`: the same call goes on where it was interrupted, and asks for what is missing.
    """
    teacher = ChatTeacher(chat, replies_path(out), config)
    estimate = teacher.estimate(episodes)
    if dry_run:
        return {"estimate": asdict(estimate)}
    _require_money(estimate, config)
    with progress(len(episodes), "annotating", start=len(episodes) - estimate.requests) as advance:
        annotated = teacher.annotate(episodes, watch=advance)
    if not annotated:
        first = next(iter(teacher.problems.values()), "nothing was asked")
        raise UsageError(f"No episode could be annotated. The first problem: {first} The replies are in '{replies_path(out)}'.")
    write_trajectories(out, annotated)
    return {
        "out": str(out),
        "replies": str(replies_path(out)),
        "episodes": len(episodes),
        "written": len(annotated),
        "counts": dict(teacher.counts),
        "problems": teacher.problems,
        "estimate": asdict(estimate),
        "used": used(chat.usage),
    }


def replies_path(out: Path) -> Path:
    """Where the replies of an annotation lie: `annotated.jsonl` has `annotated.replies.jsonl` beside it."""
    return out.with_name(f"{out.stem}.replies.jsonl")


def used(usage: Usage) -> dict[str, Any]:
    """What a chat model was used for, and what that cost."""
    names = ("prompt_tokens", "completion_tokens", "lost_tokens", "unreported", "cost", "lost_cost")
    return {name: getattr(usage, name) for name in names}


def _require_money(estimate: Estimate, config: AskConfig) -> None:
    if config.max_cost is not None and estimate.cost > config.max_cost:
        raise UsageError(
            f"{counted(estimate.requests, 'request')} would cost about {estimate.cost:.2f}, and --max-dollars is {config.max_cost:g}. "
            "Raise it, or give fewer episodes. Nothing was sent."
        )
