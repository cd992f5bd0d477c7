"""Qwen-AgentWorld (arXiv:2606.24597): a system prompt for the domain, and a turn of the user for each action.

    system     the role of a world model, what it is given, and what it must answer
    user       ### Turn 1 / **Task Instruction:** / **Current State:** / **Action:**
    assistant  **Environment Observation:** and what the environment said
    user       ### Turn 2 / **Action:** ...

The answer is reasoning, and then the observation between `<predicted_observation>` tags. It says nothing of rewards, nor of the end: who
uses the model must (`ending`). Temperature 0.6 and up to 32,768 tokens, as in the authors' evaluation.

Source: https://github.com/QwenLM/Qwen-AgentWorld, README.md (data format, messages) at b7c9059 and eval/eval.py (history, tags) at 98baaaf.
The system prompts of the seven domains are in that repository. The one here is ours, in their structure.
"""

from __future__ import annotations

from collections.abc import Callable

from dreamgym.envs.base import TextRules
from dreamgym.experience.json_replies import BadReply, Message, escape_markers
from dreamgym.experience.parse import Answer
from dreamgym.types import Observation, Query, Transition

OPEN, CLOSE = "<predicted_observation>", "</predicted_observation>"
HEADING = "**Environment Observation:**"
SYSTEM = f"""# Role and Objective

You are a **Text Environment World Model**: you simulate an environment that an agent acts in, and predict what it answers.

Given the task, earlier turns, the current state and an action, predict the **exact next observation** after the action.

## Rules

- Keep the format of the observations exactly: their order, labels and identifiers.
- An action that names nothing in the current state changes nothing: repeat the state.
- What earlier turns have shown stays as it was unless an action changed it.
- Invent nothing that the environment has not shown or would not hold.

## Output

First think step by step. Then give the observation between {OPEN} and {CLOSE}, and nothing else there."""
Ending = Callable[[Query, Observation], tuple[float, bool]]
"""(query, predicted observation) -> reward, and whether the episode ends."""


def make(*, rules: TextRules) -> QwenAgentWorld:
    """The format with ends by `TextRules.check_success`: a confirmed success ends the episode with reward 1, nothing else ends it."""

    def ending(query: Query, state: Observation) -> tuple[float, bool]:
        claim = Transition(query.state, query.action, state, 1.0, True)
        verdict = rules.check_success(query.task.instruction, query.history, claim)
        won = verdict is not None and verdict.passed
        return float(won), won

    return QwenAgentWorld(ending)


class QwenAgentWorld:
    """Asks for observations alone; `ending` decides what they are worth."""

    max_tokens, temperature = 32_768, 0.6

    def __init__(self, ending: Ending) -> None:
        self.ending = ending

    def messages(self, query: Query) -> list[Message]:
        """The chat up to the action whose outcome is asked for. Only the first turn tells the task and a state."""
        first = query.history[0].state if query.history else query.state
        talk: list[Message] = [{"role": "system", "content": SYSTEM}]
        opening = f"**Task Instruction:**\n{query.task.instruction}\n\n**Current State:**\n{first.text}\n\n"
        for turn, past in enumerate(query.history, start=1):
            talk.append(_turn(turn, past.action, opening if turn == 1 else ""))
            talk.append({"role": "assistant", "content": f"{HEADING}\n{escape_markers(past.next_state.text)}"})
        return [*talk, _turn(len(query.history) + 1, query.action, "" if query.history else opening)]

    def read(self, query: Query, text: str) -> Answer:
        """Read what stands in the last pair of tags; an end tag that is missing is forgiven, and told as a repair."""
        before, tag, rest = text.rpartition(OPEN)
        if not tag:
            raise BadReply(f"there is no {OPEN}")
        inside, closed, _ = rest.partition(CLOSE)
        state = inside.strip().removeprefix(HEADING).strip()
        if not state:
            raise BadReply("the observation is empty")
        reward, ended = self.ending(query, Observation(state))
        return Answer(before.strip(), state, reward, ended, repaired=not closed)


def _turn(number: int, action: str, opening: str) -> Message:
    return {"role": "user", "content": f"### Turn {number}\n{escape_markers(opening)}**Action:**\n{escape_markers(action)}"}
