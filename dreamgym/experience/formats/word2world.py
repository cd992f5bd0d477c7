"""Word2World (arXiv:2512.18832): the episode as a chat, actions by the user, observations by the model.

The system message is what the environment says before the first action (in WebShop its first page, instruction included; in ALFWorld and
SciWorld the whole initial state). An observation that ends with ` [SUCCESS]` ends the episode with reward 1; no other end is ever
announced, and no reasoning is written. Temperature 0, at most 512 tokens.

Source: https://github.com/X1AOX1A/Word2World at 891b4e5, scripts/interact_with_world_model/run.py and scripts/collect_init_context/.
"""

from __future__ import annotations

from dreamgym.envs.base import TextRules
from dreamgym.experience.json_replies import BadReply, Message, escape_markers
from dreamgym.experience.parse import Answer
from dreamgym.types import Query

SUCCESS = " [SUCCESS]"


def make(*, rules: TextRules) -> Word2World:
    """The format; it needs nothing of the rules."""
    return Word2World()


class Word2World:
    """The task and the first state are the system message. The original stops at the mark wherever it stands; here it must be the end,
    because an action may hold the same letters and be quoted."""

    max_tokens, temperature = 512, 0.0

    def messages(self, query: Query) -> list[Message]:
        """The chat up to the action whose outcome is asked for."""
        first = query.history[0].state if query.history else query.state
        talk = [{"role": "system", "content": escape_markers(f"{query.task.instruction}\n{first.text}")}]
        for past in query.history:
            talk += [
                {"role": "user", "content": escape_markers(past.action)},
                {"role": "assistant", "content": escape_markers(past.next_state.text)},
            ]
        return [*talk, {"role": "user", "content": escape_markers(query.action)}]

    def read(self, query: Query, text: str) -> Answer:
        """The observation, and whether it is the end."""
        stripped = text.strip()
        won = stripped.endswith(SUCCESS)
        state = stripped.removesuffix(SUCCESS).rstrip()
        if not state or state == SUCCESS.strip():
            raise BadReply("the observation is empty")
        return Answer("", state, float(won), won)
