"""The one layout of the experience model, in training and at inference (Eq. 4 and 5, arXiv:2511.03773).

    <|task|> instruction <|state|> s0 <|end|>              (or: <|task|> environment: instruction)
    <|act|> a0 <|memory|> d1 <|memory|> d2 <|think|> reasoning <|next|> s1 <|reward|> 0 go <|end|>
    <|act|> a1 ...

A next state that resembles a visible one is written as its difference, behind `<|same|>` (`state_delta`).

Retrieved memories stand inside the step they belong to and stay there, so that the prefix, and its cache, remain valid. When the
window slides, `<|state|>` opens with the first kept step's state: a new prefix, the same layout.
Task variation (Eq. 6) shares the weights: `<|vary|> seed <|vary|> seed <|task|> new instruction <|end|>`. `<|vary|> level 2` before the
task asks for a difficulty.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dreamgym.envs.base import TextRules
from dreamgym.errors import UsageError
from dreamgym.experience.state_delta import EncodedState, decode, encode
from dreamgym.experience.trace import trace_of_changes
from dreamgym.llm.vocabulary import ACT, END, MEMORY, NEXT, REWARD, SAME, STATE, TASK, THINK, VARY, Vocabulary
from dreamgym.types import Query, Task, Transition

GO, STOP = "go", "stop"


@dataclass(frozen=True)
class Step:
    """A transition and the texts of its memories."""

    transition: Transition
    memories: tuple[str, ...] = ()
    delta: str = ""  # what is written in place of the next state, where the rules encode deltas
    scored: bool = True  # whether the reward is known; False at the end of an episode whose outcome no log tells


@dataclass(frozen=True)
class PromptParts:
    """Which parts the experience model sees and writes: the switches of the paper's ablations."""

    reasoning: bool = True
    changes: bool = False  # the reasoning of a real step is `trace_of_changes`, whatever the logs explain
    history: int = 16  # steps of history that stay in context; 0 is the ablation without history
    name_env: bool = False  # the environment's name before the instruction, for a model of several environments
    state_delta: bool = True  # a next state that resembles a visible one is written as its difference

    def about(self, task: Task) -> str:
        """The text behind `<|task|>`."""
        return f"{task.env}: {task.instruction}" if self.name_env else task.instruction


def start_prompt(vocab: Vocabulary, instruction: str) -> list[int]:
    """The task, up to where the model writes the first state."""
    return [vocab[TASK], *vocab.encode(instruction), vocab[STATE]]


def opening(vocab: Vocabulary, instruction: str, state: str) -> list[int]:
    """Task and first state. The start state's tokens and their `<|end|>` are what `start` samples."""
    return [*start_prompt(vocab, instruction), *vocab.encode(state), vocab[END]]


def question(vocab: Vocabulary, action: str, memories: Sequence[str], prompt_parts: PromptParts) -> list[int]:
    """The given part of a step: the action and the retrieved memories, up to where the model takes over."""
    ids = [vocab[ACT], *vocab.encode(action)]
    for memory in memories:
        ids += [vocab[MEMORY], *vocab.encode(memory)]
    return [*ids, vocab[THINK if prompt_parts.reasoning else NEXT]]


def visible_states(history: Sequence[Transition], state: str, prompt_parts: PromptParts) -> tuple[str, ...]:
    """The states in the prompt: those of the window of history, and the present one."""
    return (*(transition.state.text for transition in history[max(0, len(history) - prompt_parts.history) :]), state)


def encode_delta(rules: TextRules, transition: Transition) -> str:
    """The delta by the rules; "" where they encode none."""
    return rules.encode_delta(transition) if rules.encodes_deltas else ""


def encode_state(step: Step, visible: tuple[str, ...], prompt_parts: PromptParts) -> EncodedState:
    """The next state as the model writes it: a delta by the rules, a delta from a visible state, or the state in full."""
    after = step.transition.next_state.text
    return EncodedState(step.delta) if step.delta else encode(visible, after) if prompt_parts.state_delta else EncodedState(after)


def decode_state(rules: TextRules, query: Query, encoded: EncodedState, prompt_parts: PromptParts) -> str | None:
    """The next state that the model wrote; None when it cannot be decoded."""
    if not rules.encodes_deltas:
        return decode(visible_states(query.history, query.state.text, prompt_parts), encoded)
    state = None if encoded.is_delta else rules.apply_delta(query.state, query.action, encoded.text)
    return None if state is None else state.text


def answer(vocab: Vocabulary, step: Step, visible: tuple[str, ...], prompt_parts: PromptParts) -> dict[str, list[int]]:
    """The written part of a step by segment; `visible` are the `visible_states`. Concatenated in this order it follows `question`."""
    segments, transition = {}, step.transition
    if prompt_parts.reasoning:
        segments["reasoning"] = [*vocab.encode(_reasoning(step, visible, prompt_parts)), vocab[NEXT]]
    text, is_delta = encode_state(step, visible, prompt_parts)
    segments["state"] = [*([vocab[SAME]] if is_delta else []), *vocab.encode(text), vocab[REWARD]]
    segments["reward"] = [*vocab.encode(outcome(transition.reward, transition.terminated)), vocab[END]]
    return segments


def _reasoning(step: Step, visible: tuple[str, ...], prompt_parts: PromptParts) -> str:
    """Choose the text that explains a step: the experience model's own words where it wrote some, else the configured source."""
    info = step.transition.info
    if prompt_parts.changes and info.decided_by != "generated":
        return trace_of_changes(step.transition, visible, step.memories)
    return info.reasoning


def grammar(prompt_parts: PromptParts) -> str:
    """The grammar of an answer, for engines that constrain decoding (llguidance's Lark dialect)."""
    reasoning = f"TEXT {NEXT} " if prompt_parts.reasoning else ""
    state = f"({SAME} TEXT? | TEXT)" if prompt_parts.state_delta else "TEXT"
    return f"start: {reasoning}{state} {REWARD} OUTCOME\nTEXT: /(.|\\n)+/\nOUTCOME: /{NUMBER} ({GO}|{STOP})/\n"


NUMBER = r"-?(?:0|[1-9][0-9]{0,6})(?:\.[0-9]{1,12})?"
"""A reward as `outcome` writes it."""


def outcome(reward: float, terminated: bool) -> str:
    """Reward and end: `0 go`, `1 stop`, `0.5 go`. UsageError for a reward that no number of this form is near to."""
    number = f"{reward:g}"
    if "e" in number:  # 1e-05, 1e+06
        number = f"{reward:.12f}".rstrip("0").rstrip(".")
    if not re.fullmatch(NUMBER, number) or (float(number) == 0) is not (reward == 0):
        raise UsageError(
            f"A reward of {reward} cannot be written: expected one between 1e-12 and 9,999,999. Scale the rewards of the logs."
        )
    return f"{number} {STOP if terminated else GO}"


def variation(vocab: Vocabulary, seeds: Sequence[str], level: int = 0) -> list[int]:
    """The prompt of M_task: seed instructions, the wanted difficulty if there is one, up to where the model writes a new one."""
    ids: list[int] = []
    for seed in [*seeds, *([f"level {level}"] if level else [])]:
        ids += [vocab[VARY], *vocab.encode(seed)]
    return [*ids, vocab[TASK]]


def prompt(vocab: Vocabulary, instruction: str, steps: Sequence[Step], state: str, current: Step, prompt_parts: PromptParts) -> list[int]:
    """Everything the model reads before it answers `current`: task, the window of history, the action and its memories."""
    window = steps[max(0, len(steps) - prompt_parts.history) :]
    visible = (*(step.transition.state.text for step in window), state)
    ids = opening(vocab, instruction, visible[0])
    for i, step in enumerate(window, start=1):
        ids += question(vocab, step.transition.action, step.memories, prompt_parts)
        for segment in answer(vocab, step, visible[:i], prompt_parts).values():
            ids += segment
    return ids + question(vocab, current.transition.action, current.memories, prompt_parts)
