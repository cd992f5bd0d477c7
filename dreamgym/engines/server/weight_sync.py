"""New weights for a server: it is sent the path of a checkpoint, must confirm it, and is probed whether it samples from it.

The probe is there for a known failure: the server accepts the call and goes on with the weights it began with, which looks like an agent
that does not learn. One update moves log-probabilities by less than a coarse server rounds, so what is compared is how far they moved since
a probe that is kept, for as many publications as it takes to tell. Checkpoints travel through a file system that the server can read at the
same path.
"""

from __future__ import annotations

import logging
import math
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.errors import InvariantError, ServerError, UsageError
from dreamgym.types import Completion, Request, Sampling

if TYPE_CHECKING:
    from dreamgym.engines.server.engine import ServerEngine

log = logging.getLogger(__name__)
PROBE_TOKENS = 16
PROBE_TEXT = "The quick brown fox looks for a red mug under 12.50"
TOLERANCE, COARSE_TOLERANCE = 0.05, 0.25
"""Nats. The second is for a learner in bfloat16: from one in float32 a server in bfloat16 differed by up to 0.19 in 768 tokens."""
CLEAR = 8
"""Times the noise of one log-probability that the learner's must move, all in all, before a server's are asked whether they followed."""
LEAST_NOISE = 1e-5
"""Nats. What float32 rounds."""
LOAD_TIMEOUT_S = 600.0
Scorer = Callable[[Completion], Sequence[float]]
"""The learner's log-probabilities of the ids of a completion."""


def publish_weights(
    engine: ServerEngine,
    checkpoint: Path,
    version: int,
    *,
    lora: bool,
    scorer: Scorer | None = None,
    tolerance: float = TOLERANCE,
) -> None:
    """Make every server sample from `checkpoint`, and then set `engine.version`; on any failure the version stays what it was. An adapter
    is then taken back; of a whole checkpoint servers may hold the new weights by then, so publish again before anything is sampled.
    A server that is gone is left out, and one that is back and took the weights is used again.

    `lora`: an adapter is loaded under a name never used before, which requests then ask for, and the one before is unloaded. Under a new
    name no stale prefix cache can be hit. vLLM needs `--enable-lora` with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, SGLang `--enable-lora`.
    Otherwise the whole checkpoint is read again and the prefix cache dropped: vLLM needs VLLM_SERVER_DEV_MODE=1.

    A server that cannot load weights (llama.cpp) must serve them already, and only `scorer` can tell.

    `scorer` gives the learner's log-probabilities of the probe's ids, which must agree with the server's within `tolerance`. Once they
    have moved clearly since an earlier probe, by more than the server's own noise and rounding, the server's must have moved nearer to
    them than to where they were: smaller moves add up over publications until they can be told. The first publication of an engine has
    nothing to compare with. Without a scorer nothing is checked.
    """
    path = Path(checkpoint).absolute()
    loads = engine.dialect is not None and engine.dialect.name in LOADERS
    if engine.dialect is None or not (loads or scorer):
        raise UsageError(
            f"A server of dialect '{engine.config.dialect}' cannot load weights as it runs. Use vllm or sglang, or restart it on '{path}'."
        )
    if not path.is_dir():
        raise UsageError(f"No checkpoint at '{path}': expected a directory{' with an adapter' if lora else ''}. Save it there first.")
    engine.require_drained()
    if not loads:  # its weights are those that it was started with, so they must be ours already
        assert scorer is not None
        for api in engine.servers.apis:
            _must_serve(engine, api, engine.model, scorer, tolerance, path, loads=False)
        engine.version, engine.published = version, True
        engine.servers.rejoin(engine.servers.apis)
        return
    name = _new_name(engine, version) if lora else engine.config.model
    took = _send(engine, path, name, scorer, tolerance)
    previous, engine.model, engine.version, engine.published = engine.model, name, version, True
    engine.servers.rejoin(took)
    if not lora:
        _HOLDERS.update({(api, name): weakref.ref(engine) for api in took})
    if name != previous:
        unload(engine, took, previous, LOAD_TIMEOUT_S)


def publish_saved(engine: ServerEngine, path: Path, version: int, scorer: Scorer | None) -> None:
    """Publish the adapters or the whole model at `path`, as `publish_weights` does."""
    lora = (path / "adapter_config.json").is_file()
    publish_weights(engine, path, version, lora=lora, scorer=scorer, tolerance=engine.tolerance)


def _send(engine: ServerEngine, path: Path, name: str, scorer: Scorer | None, tolerance: float) -> list[str]:
    """The servers that took the checkpoint. On a failure of one that is not gone, or of all, an adapter is taken back from every one."""
    took: list[str] = []
    try:
        for api in engine.servers.apis:
            try:
                _load(engine, api, path, name)
                took.append(api)
                if scorer is not None:
                    _must_serve(engine, api, name, scorer, tolerance, path)
            except ServerError as error:
                took = [one for one in took if one != api or not error.gone]
                if not error.gone or (not took and api == engine.servers.apis[-1]):
                    raise
                log.warning("%s is left out until the next weights: it did not take these. %s", api, error)
    except BaseException:
        unload(engine, took, name, LOAD_TIMEOUT_S)
        raise
    return took


_HOLDERS: dict[tuple[str, str], weakref.ref[ServerEngine]] = {}
"""The engine of this process that last published whole weights to a server, by (server, model)."""


def require_current(engine: ServerEngine) -> None:
    """InvariantError when another engine of this process has put other weights in place of those that this one published."""
    for api in engine.servers.live:
        holder = _HOLDERS.get((api, engine.model))
        if holder is not None and engine.published and (other := holder()) is not None and other is not engine:
            raise InvariantError(f"Another engine has published its weights to {api} since this one did. Publish again before sampling.")


def tolerance_of(module: Any) -> float:
    """Nats by which a server may differ from a torch module that learns, by the precision in which the module computes."""
    import torch

    coarse = module is not None and any(p.dtype == torch.bfloat16 for p in module.parameters())
    return COARSE_TOLERANCE if coarse else TOLERANCE


def score(module: Any, completion: Completion) -> list[float]:
    """The log-probabilities that a torch module gives the ids of a completion, at temperature 1."""
    import torch

    ids = torch.tensor([[*completion.prompt_ids, *completion.ids]], device=next(module.parameters()).device)
    with torch.no_grad():
        logits = module(input_ids=ids, use_cache=False).logits[0, len(completion.prompt_ids) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(1, ids[0, len(completion.prompt_ids) :, None])[:, 0].tolist()


def require_loading(engine: ServerEngine, *, lora: bool) -> None:
    """ServerError for a server without the call that loads weights (`lora`: adapters). The call is made without what it needs, so that
    nothing is loaded: a server that has it refuses, and one that has not says so."""
    if engine.dialect is None or engine.dialect.name not in LOADERS:
        return
    path = _ROUTES[engine.dialect.name][0 if lora else 1]
    for api in engine.servers.apis:
        try:
            _control(engine, api, "POST", path, {}, None)
        except ServerError as error:
            if error.status in (None, 401, 403, 404, 405):
                raise


def _load(engine: ServerEngine, api: str, path: Path, name: str) -> None:
    """Load a checkpoint on one server: the whole model, or an adapter where `name` is another than the model's."""
    assert engine.dialect is not None
    LOADERS[engine.dialect.name](engine, api, path, name, LOAD_TIMEOUT_S)


def _load_vllm(engine: ServerEngine, api: str, path: Path, name: str, timeout_s: float) -> None:
    if name == engine.config.model:
        _control(engine, api, "POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}, timeout_s)
        # Without the flag vLLM answers 200 and keeps the cache whenever a request of somebody still holds blocks of it.
        _control(engine, api, "POST", "/reset_prefix_cache?reset_running_requests=true", None, timeout_s)
        return
    _control(engine, api, "POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}, timeout_s)
    cards = engine.cards(api, timeout_s=timeout_s)
    if not any(card["id"] == name for card in cards):
        raise ServerError(f"{api} took the adapter '{name}' but does not list it: {', '.join(card['id'] for card in cards)}.")


def _load_sglang(engine: ServerEngine, api: str, path: Path, name: str, timeout_s: float) -> None:
    if name != engine.config.model:
        answer = _control(engine, api, "POST", "/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}, timeout_s)
    else:
        answer = _control(engine, api, "POST", "/update_weights_from_disk", {"model_path": str(path), "flush_cache": True}, timeout_s)
    if not (isinstance(answer, dict) and answer.get("success")):
        raise ServerError(f"{api} did not take the weights of '{path}': {answer!r:.200} Expected success: true. Check its log.")


LOADERS: dict[str, Callable[[Any, str, Path, str, float], None]] = {"vllm": _load_vllm, "sglang": _load_sglang}
_ROUTES = {"vllm": ("/v1/load_lora_adapter", "/collective_rpc"), "sglang": ("/load_lora_adapter", "/update_weights_from_disk")}
"""By dialect, the calls that load an adapter and a whole model."""
_UNLOAD = {"vllm": "/v1/unload_lora_adapter", "sglang": "/unload_lora_adapter"}


def _new_name(engine: ServerEngine, version: int) -> str:
    """Of an adapter. A resumed run publishes versions again that the server may still hold from before."""
    return f"{engine.config.model}-v{version}-{secrets.token_hex(4)}"


def unload(engine: ServerEngine, apis: Sequence[str], name: str, timeout_s: float) -> None:
    """Let an adapter go; the base model stays. A server that does not let it go keeps it until its own limit of adapters drops it."""
    if engine.dialect is None or name == engine.config.model:
        return
    for api in apis:
        try:
            _control(engine, api, "POST", _UNLOAD[engine.dialect.name], {"lora_name": name}, timeout_s)
        except ServerError as error:
            log.warning("%s keeps the adapter '%s': %s", api, name, error)


_NEEDS = {
    "/collective_rpc": "Start vLLM with VLLM_SERVER_DEV_MODE=1.",
    "/v1/load_lora_adapter": "Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1.",
    "/load_lora_adapter": "Start SGLang with --enable-lora.",
    "/update_weights_from_disk": "Use a version of SGLang that has it.",
}


def _control(engine: ServerEngine, api: str, method: str, path: str, payload: Any, timeout_s: float | None) -> Any:
    """The answer to a call that manages the server; a path that is not there says how to start the server with it."""
    try:
        return engine.client.wait(engine.client.control(method, engine.url(path, api), payload, timeout_s=timeout_s))
    except ServerError as error:
        if error.status in (404, 405) and path in _NEEDS:
            raise ServerError(f"{error} {_NEEDS[path]}", status=error.status) from error
        raise


def probe(engine: ServerEngine, api: str, model: str) -> Completion:
    """A short greedy continuation of a fixed text, by one server."""
    greedy = Sampling(PROBE_TOKENS, temperature=0.0)
    return engine.sample_at(api, Request(engine.encode(PROBE_TEXT), greedy, seed=(0,)), model)


@dataclass(frozen=True)
class Scored:
    """A probe of a server, as far as two tries chose the same ids, with the server's and the learner's log-probabilities of them."""

    ids: tuple[int, ...]
    theirs: tuple[float, ...]  # nan where llama.cpp gives none
    ours: tuple[float, ...]
    noise: float  # by how much the two tries differ


def _must_serve(
    engine: ServerEngine,
    api: str,
    model: str,
    scorer: Scorer,
    tolerance: float,
    path: Path,
    *,
    loads: bool = True,
) -> None:
    """ServerError for a server whose log-probabilities are not the learner's, or did not move as the learner's did."""
    first, again = (probe(engine, api, model) for _ in range(2))
    ours = tuple(scorer(first))
    then = "" if loads else " It cannot load weights as it runs: start it anew on that checkpoint, or use vllm or sglang."
    _must_agree(first, ours, tolerance, path, api, then)
    n = _same(first.ids, again.ids)
    noise = largest_gap(first.logprobs[:n], again.logprobs[:n])
    now, before = Scored(first.ids[:n], first.logprobs[:n], ours[:n], noise), engine.probed.get(api)
    followed = None if before is None else _followed(before, now)
    if followed is False:
        raise ServerError(
            f"The learner's log-probabilities of a probe have moved, and those of {api} have not moved with them, though they are within "
            f"tolerance={tolerance:g}: it still samples from weights before '{path}'. Check that it reads this path and serves what it "
            f"loads.{then}"
        )
    if followed or before is None or not before.ids or _same(before.ids, now.ids) < min(len(before.ids), n):
        engine.probed[api] = now  # else small moves add up from where they began


def _followed(before: Scored, now: Scored) -> bool | None:
    """Whether a server's log-probabilities are nearer to where the learner's went than to where they were; None: too little to tell.

    Moves are compared, not values: what a server in another precision always has too much or too little falls out.
    """
    noise = max(before.noise, now.noise, largest_gap(before.theirs, before.ours), LEAST_NOISE)
    n = _same(before.ids, now.ids)
    moves = [
        (ours - ours_before, theirs - theirs_before)
        for ours, ours_before, theirs, theirs_before in zip(now.ours[:n], before.ours[:n], now.theirs[:n], before.theirs[:n], strict=True)
        if not math.isnan(theirs - theirs_before)
    ]
    wanted = sum(ours * ours for ours, _ in moves)
    if math.sqrt(wanted) <= CLEAR * noise:
        return None
    return sum(ours * theirs for ours, theirs in moves) > wanted / 2


def _same(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two sequences begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def largest_gap(a: Sequence[float], b: Sequence[float], default: float = 0.0) -> float:
    """The largest difference of log-probabilities; llama.cpp gives none inside a character."""
    return max((abs(x - y) for x, y in zip(a, b, strict=True) if not math.isnan(x - y)), default=default)


def _must_agree(found: Completion, ours: Sequence[float], tolerance: float, path: Path, api: str, then: str) -> None:
    gap = largest_gap(found.logprobs, ours, default=math.inf)
    if not gap <= tolerance:
        raise ServerError(
            f"The log-probabilities that {api} gives a probe differ from the learner's by up to {gap:.3g}, more than "
            f"tolerance={tolerance:g}, for '{path}'. It samples from other weights, or in a coarser precision than the tolerance "
            f"allows.{then or (_PRECISION if tolerance < COARSE_TOLERANCE else '')}"
        )


_PRECISION = (
    f" A server in bfloat16 differs from a learner in float32 by up to 0.2: set tolerance = {COARSE_TOLERANCE:g} in the engine's settings, "
    "or start the server in the learner's precision."
)
