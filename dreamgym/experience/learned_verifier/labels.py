"""Claims of success that a person judged (`dreamgym label`): they take the place of probes where there is no environment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from dreamgym.errors import RunDirError
from dreamgym.experience.learned_verifier.verifier import Probe
from dreamgym.runs.files import read_jsonl
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Task

FILE = "labels.jsonl"
"""The file of labels in a run directory."""
KEPT = ("uncertified-", "audit-with_guard")
"""How the names of episodes begin that may be labelled."""


def draw_of(label: Mapping[str, Any]) -> int:
    """The size of the draw whose probability a label has; 0 for one that was stored before labels said so."""
    return int(label.get("n", 0))


def answered_draw(labels: Collection[Mapping[str, Any]]) -> int:
    """The size of the draw whose labels count, 0 without labels: the smallest. Those of a larger one that is not all answered have its
    probabilities, and would be weighed as if the episodes without an answer had not been drawn."""
    return min(map(draw_of, labels), default=0)


def labelled_claims(path: Path, is_held_out: Callable[[Task], bool] = lambda task: False) -> list[Probe]:
    """The labelled claims of success of a run, in the order of their labels, without skipped ones, and without those of tasks that the run
    which learns from them holds out. RunDirError for a run without labels, and for a label of an episode that the run does not keep."""
    run = RunDir.view(path)
    if not (path / FILE).is_file():
        raise RunDirError(f"'{path}' has no labels. Judge its dreams with: dreamgym label {path}")
    names = [name for name in run.episode_names() if name.startswith(KEPT)]
    episodes = {episode.id: episode for name in names for episode in run.read_episodes(name)}
    probes = []
    lines = read_jsonl(path / FILE)
    draw = answered_draw(lines)
    for line in lines:
        if line["claim"] != "success" or line["answer"] == "skip" or draw_of(line) != draw:
            continue
        if line["episode"] not in episodes:
            raise RunDirError(
                f"'{path / FILE}' labels the episode {line['episode']!r:.80}, which the run does not keep. Restore its episodes."
            )
        episode = episodes[line["episode"]]
        if not is_held_out(episode.task):
            probes.append(Probe(episode, line["answer"] == "right", line["probability"]))
    return probes
