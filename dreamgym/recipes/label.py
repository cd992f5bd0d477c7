"""Dreamed episodes that a person judges: which are shown, where the answers are kept, and what they say of the dream.

Episodes are drawn by Poisson sampling: each by its own probability, which grows with the uncertainty of a claimed success and is the same
for all others. A fixed random number per episode makes a larger draw contain a smaller one, so that labels add up. Rates weigh each answer
by one over its probability (Hájek 1971), all of one draw: the answers of a larger one count once all of it is answered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from dreamgym.errors import RunDirError, UsageError, explain_errors, reason_of
from dreamgym.experience.learned_verifier.labels import FILE, answered_draw, draw_of
from dreamgym.runs.files import dumps, read_jsonl, write_atomic
from dreamgym.runs.rundir import RunDir
from dreamgym.statistics import inclusion_probabilities, weighted_rate
from dreamgym.types import Trajectory

Answer = Literal["right", "wrong", "skip"]
CLAIMS = 0.75  # share of a draw that are claims of success; the rest is drawn uniformly from the other episodes
FLOOR = 0.2  # weight of a claim that nothing makes uncertain; a fully uncertain one has 1.2


@dataclass(frozen=True)
class Candidate:
    """An episode that may be shown. `probability` is that of its selection in a draw of about `n`."""

    episode: Trajectory
    uncertainty: float  # in [0, 1]
    probability: float
    n: int

    @property
    def claim(self) -> str:
        return "success" if self.episode.success else "failure"


def candidates(path: Path, n: int) -> list[Candidate]:
    """About `n` dreamed episodes of a run, claims of success first, each kind in random order. RunDirError where none was kept."""
    run = RunDir.view(path)
    names = [name for name in run.episode_names() if name.startswith("uncertified-") and name != "uncertified-warm_start"]
    names = names or [name for name in run.episode_names() if name == "audit-with_guard"]
    episodes = [episode for name in names for episode in run.read_episodes(name) if episode.error is None and episode.turns]
    if not episodes:
        has_env = run.done("logs") and run.data("logs").get("has_env", True)
        setting = "eval.paired_replays" if has_env else "eval.uncertified_dreams"
        raise RunDirError(f"'{path}' keeps no dreamed episodes to label. Finish the run with {setting} above 0.")
    claims = [episode for episode in episodes if episode.success]
    others = [episode for episode in episodes if not episode.success]
    size = min(len(claims), max(round(CLAIMS * n), n - len(others)))
    drawn = [*_drawn(claims, size, [FLOOR + uncertainty(one) for one in claims]), *_drawn(others, n - size, [1.0] * len(others))]
    return [Candidate(episode, uncertainty(episode), probability, n) for episode, probability in drawn]


def uncertainty(episode: Trajectory) -> float:
    """The mean of: the share of steps out of support, the share of generated states, and whether the last reward was generated."""
    steps = [step.info for step in episode.transitions]
    out = sum(info.out_of_support for info in steps) / len(steps)
    generated = sum(info.decided_by == "generated" for info in steps) / len(steps)
    return (out + generated + (steps[-1].reward_by in ("generated", "verifier"))) / 3


def labels(path: Path) -> dict[str, dict[str, Any]]:
    """The answers of a run by episode; RunDirError for a line that is none."""
    found = {}
    for number, line in enumerate(read_jsonl(path / FILE), start=1):
        probability = line.get("probability")
        sound = (
            isinstance(line.get("episode"), str) and line.get("answer") in get_args(Answer) and line.get("claim") in ("success", "failure")
        )
        sound = sound and isinstance(line.get("n", 0), int)
        if not sound or not isinstance(probability, int | float) or not 0 < probability <= 1:
            raise RunDirError(f"Line {number} of '{path / FILE}' is no label. Restore the file.")
        found[line["episode"]] = line
    return found


def store(path: Path, shown: Sequence[Candidate], answers: Mapping[str, Answer]) -> None:
    """Add answers, by episode, atomically. Earlier labels get the probabilities of a larger draw once all that it shows are answered:
    until then they would be weighed as if the episodes without an answer had not been drawn."""
    kept = labels(path)
    counted = answered_draw(kept.values())
    new = any(one.episode.id not in kept for one in shown)  # else all are of a larger draw, or this one is complete already
    complete = all(one.episode.id in answers or one.episode.id in kept for one in shown)
    for one in shown:
        name, label = one.episode.id, kept.get(one.episode.id)
        answer = answers.get(name) or (label and label["answer"])
        if label and not (complete and (new or counted <= one.n)):
            kept[name] = label | {"answer": answer}
        elif answer:
            kept[name] = {
                "episode": name, "claim": one.claim, "answer": answer, "n": one.n, "probability": one.probability,
                "uncertainty": one.uncertainty,
            }  # fmt: skip
    write_atomic(path / FILE, "".join(dumps(line) + "\n" for line in kept.values()))
    run = RunDir.view(path)
    if (summary := run.summary()) is not None:
        write_atomic(path / "summary.json", json.dumps({**summary, "labelled": labelled(path)}, indent=2, allow_nan=False) + "\n")


def labelled(path: Path) -> dict[str, Any] | None:
    """Counts, and the Hájek-weighted share of false ones among labelled claims of success; None without labels. `pending` labels are of a
    larger draw that is not answered yet, and not in the rate."""
    kept = list(labels(path).values())
    if not kept:
        return None
    draw = answered_draw(kept)
    judged = [one for one in kept if draw_of(one) == draw and one["claim"] == "success" and one["answer"] != "skip"]
    rate = weighted_rate([one["answer"] == "wrong" for one in judged], [1 / one["probability"] for one in judged])
    return {
        "answers": {answer: sum(one["answer"] == answer for one in kept) for answer in get_args(Answer)},
        "pending": sum(draw_of(one) != draw for one in kept),
        "false_success_among_accepted": asdict(rate),
    }


def export(path: Path, file: Path, n: int) -> int:
    """Write the episodes without a label as JSON lines with an empty `answer` to fill in; returns how many."""
    done = labels(path)
    rows = [_row(one) for one in candidates(path, n) if one.episode.id not in done]
    write_atomic(file, "".join(dumps(row) + "\n" for row in rows))
    return len(rows)


def read_answers(path: Path, file: Path, n: int) -> tuple[list[Candidate], dict[str, Answer]]:
    """The filled-in answers of an exported file. UsageError with the line and the reason, such as rows of another draw; then nothing is
    stored."""
    with explain_errors(file):
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    shown = candidates(path, n)
    known, answers = {one.episode.id for one in shown}, dict[str, Answer]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"Line {number} of '{file}' is not JSON: {reason_of(error)}. Nothing was stored.") from error
        name, answer = (row.get("episode"), row.get("answer")) if isinstance(row, dict) else (None, None)
        if isinstance(row, dict) and row.get("n", n) != n:
            raise UsageError(
                f"Line {number} of '{file}' is of a draw of {row['n']!r:.20}, and not of {n}. Give the export's --n. Nothing was stored."
            )
        if not isinstance(name, str) or name not in known:
            raise UsageError(
                f"Line {number} of '{file}': no episode {name!r:.80} in a draw of {n}. Give the --n of the export. Nothing was stored."
            )
        if answer not in ("", *get_args(Answer)):
            raise UsageError(
                f"Line {number} of '{file}': the answer is {answer!r:.40}, and not right, wrong, skip or \"\". Nothing was stored."
            )
        if answer:
            answers[name] = answer
    return shown, answers


def _row(one: Candidate) -> dict[str, Any]:
    steps = [
        {"action": step.action, "next_state": step.next_state.text, "decided_by": step.info.decided_by} for step in one.episode.transitions
    ]
    return {
        "episode": one.episode.id, "task": one.episode.task.instruction, "first_state": one.episode.transitions[0].state.text,
        "steps": steps, "claim": one.claim, "n": one.n, "probability": one.probability, "answer": "",
    }  # fmt: skip


def _drawn(episodes: Sequence[Trajectory], n: int, weights: Sequence[float]) -> list[tuple[Trajectory, float]]:
    """A Poisson sample of about `n`, each with its probability, in random order."""
    if not episodes or n <= 0:
        return []
    probabilities = zip(episodes, inclusion_probabilities(weights, n).tolist(), strict=True)
    drawn = [(episode, probability) for episode, probability in probabilities if _number("label", episode) < probability]
    return sorted(drawn, key=lambda one: _number("order", one[0]))


def _number(purpose: str, episode: Trajectory) -> float:
    """The fixed random number of an episode, in [0, 1)."""
    return random.Random(f"{purpose}/{episode.id}").random()
