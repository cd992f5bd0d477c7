"""New weights for a server: it is sent the path of a checkpoint, must confirm it, and is probed whether it samples from it.

The probe is there for a known failure: the server accepts the call and goes on with the weights it began with, which looks like an agent
that does not learn. Checkpoints travel through a file system that the server can read at the same path.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.errors import ServerError, UsageError
from dreamgym.types import Completion, Request, Sampling

if TYPE_CHECKING:
    from dreamgym.engines.server.engine import ServerEngine

log = logging.getLogger(__name__)
PROBE_TOKENS = 8
PROBE_TEXT = "The quick brown fox looks for a red mug under 12.50"


def publish_weights(
    engine: ServerEngine,
    checkpoint: Path,
    version: int,
    *,
    lora: bool,
    verify: bool = True,
    scorer: Callable[[Completion], Sequence[float]] | None = None,
    tolerance: float = 0.05,
    timeout_s: float = 600.0,
) -> None:
    """Make the server sample from `checkpoint`, and then set `engine.version`; on any failure the version stays what it was. An adapter is
    then taken back; of a whole checkpoint the server may hold the new weights by then, so publish again before anything is sampled.

    `lora`: an adapter is loaded under a name never used before, which requests then ask for, and the one before is unloaded. Under a new
    name no stale prefix cache can be hit. vLLM needs `--enable-lora` with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, SGLang `--enable-lora`.
    Otherwise the whole checkpoint is read again and the prefix cache dropped: vLLM needs VLLM_SERVER_DEV_MODE=1.

    `verify` requires that greedy log-probabilities of a probe differ from those before; turn it off to publish the same weights again. Of a
    server that chose different tokens for two probes of the same weights this cannot be seen: a warning says so, and the weights count.
    `scorer` gives the learner's log-probabilities of the probe's ids, which must agree with the server's within `tolerance`.
    """
    path = Path(checkpoint).absolute()
    if engine.dialect is None or engine.dialect.name not in LOADERS:
        raise UsageError(
            f"A server of dialect '{engine.config.dialect}' cannot load weights as it runs. Use vllm or sglang, or restart it on '{path}'."
        )
    if not path.is_dir():
        raise UsageError(f"No checkpoint at '{path}': expected a directory{' with an adapter' if lora else ''}. Save it there first.")
    engine.idle()
    before = [_probe(engine), _probe(engine)] if verify else []
    previous = engine.model
    load = LOADERS[engine.dialect.name]
    engine.model = load(engine, path, version, lora, timeout_s)
    try:
        if before:
            _must_differ(before, _probe(engine), path)
        if scorer is not None:
            _must_agree(_probe(engine), scorer, tolerance, path)
    except BaseException:
        unwanted, engine.model = engine.model, previous
        with contextlib.suppress(ServerError):  # the first error is the one to show
            _unload(engine, unwanted, timeout_s)
        raise
    engine.version = version
    if engine.model != previous:
        _unload(engine, previous, timeout_s)


def score(module: Any, completion: Completion) -> list[float]:
    """The log-probabilities that a torch module gives the ids of a completion, at temperature 1."""
    import torch

    ids = torch.tensor([[*completion.prompt_ids, *completion.ids]], device=next(module.parameters()).device)
    with torch.no_grad():
        logits = module(input_ids=ids, use_cache=False).logits[0, len(completion.prompt_ids) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(1, ids[0, len(completion.prompt_ids) :, None])[:, 0].tolist()


def _load_vllm(engine: ServerEngine, path: Path, version: int, lora: bool, timeout_s: float) -> str:
    if not lora:
        _control(engine, "POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}, timeout_s)
        # Without the flag vLLM answers 200 and keeps the cache whenever a request of somebody still holds blocks of it.
        _control(engine, "POST", "/reset_prefix_cache?reset_running_requests=true", None, timeout_s)
        return engine.config.model
    name = _new_name(engine, version)
    _control(engine, "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}, timeout_s)
    cards = engine.cards(timeout_s=timeout_s)
    if not any(card["id"] == name for card in cards):
        raise ServerError(f"The server took the adapter '{name}' but does not list it: {', '.join(card['id'] for card in cards)}.")
    return name


def _load_sglang(engine: ServerEngine, path: Path, version: int, lora: bool, timeout_s: float) -> str:
    name = _new_name(engine, version) if lora else engine.config.model
    if lora:
        answer = _control(engine, "POST", "/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}, timeout_s)
    else:
        answer = _control(engine, "POST", "/update_weights_from_disk", {"model_path": str(path), "flush_cache": True}, timeout_s)
    if not (isinstance(answer, dict) and answer.get("success")):
        raise ServerError(f"The server did not take the weights of '{path}': {answer!r:.200} Expected success: true. Check its log.")
    return name


LOADERS: dict[str, Callable[[Any, Path, int, bool, float], str]] = {"vllm": _load_vllm, "sglang": _load_sglang}
_UNLOAD = {"vllm": "/v1/unload_lora_adapter", "sglang": "/unload_lora_adapter"}


def _new_name(engine: ServerEngine, version: int) -> str:
    """Of an adapter. A resumed run publishes versions again that the server may still hold from before."""
    return f"{engine.config.model}-v{version}-{secrets.token_hex(4)}"


def _unload(engine: ServerEngine, name: str, timeout_s: float) -> None:
    """Let an adapter go; the base model stays."""
    if engine.dialect is not None and name != engine.config.model:
        _control(engine, "POST", _UNLOAD[engine.dialect.name], {"lora_name": name}, timeout_s)


_NEEDS = {
    "/collective_rpc": "Start vLLM with VLLM_SERVER_DEV_MODE=1.",
    "/v1/load_lora_adapter": "Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.",
    "/load_lora_adapter": "Start SGLang with --enable-lora.",
}


def _control(engine: ServerEngine, method: str, path: str, payload: Any, timeout_s: float) -> Any:
    """The answer to a call that manages the server; a path that is not there says how to start the server with it."""
    try:
        return engine.client.wait(engine.client.control(method, engine.url(path), payload, timeout_s=timeout_s))
    except ServerError as error:
        if error.status in (404, 405) and path in _NEEDS:
            raise ServerError(f"{error} {_NEEDS[path]}", status=error.status) from error
        raise


def _probe(engine: ServerEngine) -> Completion:
    """A short greedy continuation of a fixed text."""
    greedy = Sampling(PROBE_TOKENS, temperature=0.0)
    return engine.generate([Request(engine.encode(PROBE_TEXT), greedy, seed=(0,))])[0]


def _distance(a: Completion, b: Completion) -> float:
    """The largest difference of log-probabilities; infinite when other tokens were chosen."""
    if a.ids != b.ids:
        return math.inf
    return max(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True))


def _must_differ(before: Sequence[Completion], after: Completion, path: Path) -> None:
    noise = _distance(before[0], before[1])  # of a server whose batches change its rounding
    if noise == math.inf:
        log.warning(
            "Whether the server samples from '%s' could not be verified: two greedy probes chose different tokens before the load "
            "already. Give a scorer, which compares with the learner's log-probabilities, or let nobody else use the server meanwhile.",
            path,
        )
    elif _distance(before[0], after) <= noise:
        raise ServerError(
            f"The server said that it loaded '{path}', but its log-probabilities of a probe are what they were: it still samples from the "
            "weights before. Check that it reads this path and serves what it loads; pass verify=False if the weights are the same."
        )


def _must_agree(probe: Completion, scorer: Callable[[Completion], Sequence[float]], tolerance: float, path: Path) -> None:
    gap = max(abs(x - y) for x, y in zip(probe.logprobs, scorer(probe), strict=True))
    if not gap <= tolerance:
        raise ServerError(
            f"The server's log-probabilities of a probe differ from the learner's by up to {gap:.3g}, more than tolerance={tolerance:g}, "
            f"after loading '{path}'. It samples from other weights, or in a coarser precision than the tolerance allows."
        )
