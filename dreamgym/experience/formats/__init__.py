"""The input formats of world models that others have released, one file each. `experience.models.released` asks them.

| file | models | source |
|---|---|---|
| `word2world` | X1AOX1A/WorldModel-{Alfworld,Sciworld,Textworld,Webshop,...}-{Qwen2.5-7B,Llama3.1-8B} | github.com/X1AOX1A/Word2World |
| `qwen_agentworld` | Qwen/Qwen-AgentWorld-35B-A3B | github.com/QwenLM/Qwen-AgentWorld |

WebDreamer's models (osunlp/Dreamer-7B) are not among them: they read screenshots and describe what one would see, so neither what they are
given nor what they answer is an abstract state.
"""

from __future__ import annotations

from typing import Protocol

from dreamgym.experience.json_replies import Message
from dreamgym.experience.parse import Answer
from dreamgym.types import Query


class WorldModelFormat(Protocol):
    """How one family of world models is asked, and how its answers are read."""

    max_tokens: int
    temperature: float

    def messages(self, query: Query) -> list[Message]: ...

    def read(self, query: Query, text: str) -> Answer:
        """The answer; BadReply says what it lacks."""
        ...
