"""The one layout of the experience model, in training and at inference (Eq. 4 and 5, arXiv:2511.03773).

    <|task|> instruction <|state|> s0 <|end|>              (or: <|task|> environment: instruction)
    <|act|> a0 <|memory|> d1 <|memory|> d2 <|think|> reasoning <|next|> s1 <|reward|> 0 go <|end|>
    <|act|> a1 ...

A next state that is much like one in view is written as what changed, behind `<|same|>` (`changes`).

Retrieved memories stand inside the step they belong to and stay there, so that the prefix, and its cache, remain valid. When the
window slides, `<|state|>` opens with the first kept step's state: a new prefix, the same layout.
Task variation (Eq. 6) shares the weights: `<|vary|> seed <|vary|> seed <|task|> new instruction <|end|>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.experience.changes import Written, tell
from dreamgym.layout import ACT, END, MEMORY, NEXT, REWARD, SAME, STATE, TASK, THINK, VARY, Vocabulary
from dreamgym.types import Task, Transition

GO, STOP = "go", "stop"


@dataclass(frozen=True)
class Step:
    """A transition and the memories that were shown with it, already in brief."""

    transition: Transition
    memories: tuple[str, ...] = ()
    told: str = ""  # what is written in place of the next state, where that follows from it (`protocols.Narrated`)


@dataclass(frozen=True)
class Pieces:
    """Which parts the experience model sees and writes: the switches of the paper's ablations."""

    reasoning: bool = True
    history: int = 16  # steps of history that stay in context; 0 is the ablation without history
    named: bool = False  # the environment's name before the instruction, for a model of several environments
    changes: bool = True  # a next state that is much like one in view is written as what changed

    def about(self, task: Task) -> str:
        """What stands behind `<|task|>`."""
        return f"{task.env}: {task.instruction}" if self.named else task.instruction


def opening(words: Vocabulary, instruction: str, state: str) -> list[int]:
    """Task and first state. The start state's tokens and their `<|end|>` are what `start` samples."""
    return [words[TASK], *words.encode(instruction), words[STATE], *words.encode(state), words[END]]


def question(words: Vocabulary, action: str, memories: Sequence[str], pieces: Pieces) -> list[int]:
    """The given part of a step: the action and the retrieved memories, up to where the model takes over."""
    ids = [words[ACT], *words.encode(action)]
    for memory in memories:
        ids += [words[MEMORY], *words.encode(memory)]
    return [*ids, words[THINK if pieces.reasoning else NEXT]]


def in_view(history: Sequence[Transition], state: str, pieces: Pieces) -> tuple[str, ...]:
    """The states that the model sees when it answers: those of its window of history, and the present one."""
    return (*(transition.state.text for transition in history[max(0, len(history) - pieces.history) :]), state)


def written(step: Step, seen: tuple[str, ...], pieces: Pieces) -> Written:
    """What stands for the next state: what the step told, or the state, or what changed since one of those in view."""
    after = step.transition.next_state.text
    return Written(step.told) if step.told else tell(seen, after) if pieces.changes else Written(after)


def answer(words: Vocabulary, step: Step, seen: tuple[str, ...], pieces: Pieces) -> dict[str, list[int]]:
    """The written part of a step by segment, `seen` being `in_view`; concatenated in this order it follows `question`."""
    segments, transition = {}, step.transition
    if pieces.reasoning:
        segments["reasoning"] = [*words.encode(transition.reasoning), words[NEXT]]
    text, same = written(step, seen, pieces)
    segments["state"] = [*([words[SAME]] if same else []), *words.encode(text), words[REWARD]]
    segments["reward"] = [*words.encode(outcome(transition.reward, transition.terminated)), words[END]]
    return segments


def grammar(pieces: Pieces) -> str:
    """What an answer may look like, for engines that decode by a grammar (llguidance's Lark dialect)."""
    reasoning = f"TEXT {NEXT} " if pieces.reasoning else ""
    state = f"({SAME} TEXT? | TEXT)" if pieces.changes else "TEXT"
    return f"start: {reasoning}{state} {REWARD} OUTCOME\nTEXT: /(.|\\n)+/\nOUTCOME: /-?[0-9]+(\\.[0-9]+)? ({GO}|{STOP})/\n"


def outcome(reward: float, terminated: bool) -> str:
    """`0 go`, `1 stop`, `0.5 go`: the reward and whether the episode goes on."""
    return f"{reward:g} {STOP if terminated else GO}"


def variation(words: Vocabulary, seeds: Sequence[str]) -> list[int]:
    """The prompt of M_task: seed instructions, up to where the model writes a new one."""
    ids: list[int] = []
    for seed in seeds:
        ids += [words[VARY], *words.encode(seed)]
    return [*ids, words[TASK]]


def prompt(words: Vocabulary, instruction: str, steps: Sequence[Step], state: str, asked: Step, pieces: Pieces) -> list[int]:
    """Everything the model reads before it answers `asked`: task, the window of history, the action and its memories."""
    window = steps[max(0, len(steps) - pieces.history) :]
    seen = (*(step.transition.state.text for step in window), state)
    ids = opening(words, instruction, seen[0])
    for i, step in enumerate(window, start=1):
        ids += question(words, step.transition.action, step.memories, pieces)
        for segment in answer(words, step, seen[:i], pieces).values():
            ids += segment
    return ids + question(words, asked.transition.action, asked.memories, pieces)
