"""Settings of the engine of a server."""

from __future__ import annotations

import os
from typing import Any, Literal

from pydantic import Field, SecretStr

from dreamgym.config import Config, ServerUrl
from dreamgym.errors import ConfigError

Logprobs = Literal["raw", "tempered", "processed"]


class ServerConfig(Config):
    """Settings of `ServerEngine`. `base_url` is the OpenAI base, with `/v1`; a server's root will do as well."""

    base_url: ServerUrl
    more_urls: tuple[ServerUrl, ...] = ()  # further servers of the same model; the requests of one episode go to one of them
    model: str
    dialect: Literal["vllm", "sglang", "llama_cpp", "chat"]
    api_key: SecretStr | None = None
    api_key_env: str = "OPENAI_API_KEY"  # read when api_key is not given
    max_context: int | None = Field(None, ge=2)  # None: ask the server at the first request
    training: bool = True  # refuse requests whose log-probabilities would not be the learner's; False: such log-probabilities are nan
    server_logprobs: Logprobs | None = None  # what the server reports; None: the dialect's default
    tolerance: float | None = Field(None, gt=0)
    """Nats by which the server's log-probabilities of a probe may differ from those of the model whose weights are published. Not set:
    0.05, and 0.25 for a model in bfloat16. Set 0.25 for a server in bfloat16 and a model in float32."""
    concurrency: int = Field(64, ge=1)  # requests under way at once, those between two attempts included
    retries: int = Field(4, ge=0)  # further attempts of a request
    timeout_s: float = Field(300.0, gt=0)  # of one attempt, from sending to the whole answer
    deadline_s: float | None = Field(None, gt=0)  # of a request, from its first attempt: none begins after it
    backoff_s: float = Field(0.5, ge=0)  # before the first retry; doubles, up to 30 seconds
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)  # prompts and max_tokens, corrected to what was used
    price_per_million_input: float = Field(0.0, ge=0)
    price_per_million_output: float = Field(0.0, ge=0)
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # newer hosts require the second, in chats
    length_limits: bool = True
    """Whether JSON schemas go out with maxLength and maxItems. Where xgrammar holds replies to a schema (vLLM, SGLang), they may cost a few
    milliseconds a token (its issue 852)."""
    extra: dict[str, Any] = {}  # laid over the payload of every request
    seed: int = 0  # names the stream of requests that bring no seeds of their own

    def key(self) -> str | None:
        """The key to send: the option, else the variable, else none. ConfigError, which does not show it, for one that no header takes."""
        given = self.api_key.get_secret_value() if self.api_key is not None else os.environ.get(self.api_key_env, "")
        key = given.strip()  # a file that holds a key ends in a newline
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"The key in {'api_key' if self.api_key is not None else self.api_key_env} holds a character that no HTTP header takes, "
                "such as a line break or a letter with an accent. Copy it again."
            )
        return key or None
