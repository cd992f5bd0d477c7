"""Whether servers take new weights, tried before a run spends anything: weights with noise are published, and then the right ones.

A server that accepts weights and goes on sampling from those before looks like a policy that does not learn. An update moves
log-probabilities by less than a server may round, so `weight_sync` needs several of them to tell. Noise that moves them by more than the
tolerance tells at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.engines.server.weight_sync import LOADERS, largest_gap, probe, publish_saved, score, unload
from dreamgym.errors import ServerError
from dreamgym.types import Completion

if TYPE_CHECKING:
    from dreamgym.engines.server.engine import ServerEngine

log = logging.getLogger(__name__)
CLEAR = 3
"""Times the tolerance by which log-probabilities of the probe must move: a server that keeps its weights is then off by two at least."""
SIZES = tuple(1e-3 * 2**i for i in range(14))
"""Standard deviations of the noise that is tried, in turn."""


def check_publication(engine: ServerEngine, save: Callable[[], Path]) -> None:
    """Publish the module's weights with noise, then as they are, and compare the servers' log-probabilities with the module's both times.

    `engine` is for this check alone, and closed after it: no adapter of it stays on the servers. `save` writes the module's weights as they
    are and gives their folder. The module is left as it was. ServerError that names the server, for one that goes on with weights before.
    """
    module = engine.module
    if module is None or engine.external_publisher or engine.config.dialect not in LOADERS:
        return
    scored: list[Completion] = []

    def scorer(completion: Completion) -> Sequence[float]:
        scored.append(completion)
        return score(module, completion)

    first = probe(engine, engine.servers.live[0], engine.model)
    try:
        try:
            with noise(module, first, CLEAR * engine.tolerance) as moved:
                if not moved:
                    log.warning("Whether %s takes new weights could not be tried: noise does not move the policy.", engine.servers.live[0])
                    return
                publish_saved(engine, save(), 0, scorer)
        except ServerError as error:
            # A gap to the weights before as well is of another model, or of a coarser precision, as the error says.
            if _failed(error) or not scored or largest_gap(scored[-1].logprobs, score(module, scored[-1])) > engine.tolerance:
                raise
            raise ServerError(f"{KEEPS} It was sent weights with noise. {error} {ADVICE}") from error
        before = len(scored)
        try:
            publish_saved(engine, save(), 0, scorer)
        except ServerError as error:
            if _failed(error) or len(scored) == before:
                raise
            raise ServerError(f"{KEEPS} It took weights with noise, but not those of the policy after them. {error} {ADVICE}") from error
    finally:
        unload(engine, engine.servers.live, engine.model, engine.config.timeout_s)


KEEPS = "A server accepts weights and goes on sampling from those before: no policy could learn through it."
ADVICE = (
    "Check that the server reads that folder and serves what it loads, and that no proxy sends requests to another server. "
    "docs/tutorials/servers.md says how to start it."
)


def _failed(error: ServerError) -> bool:
    """Whether a server failed or refused a request, rather than answering by other weights. One that refuses with status 200 is known by
    that nothing was scored."""
    return error.gone or error.status is not None


@contextmanager
def noise(module: Any, completion: Completion, wanted: float) -> Iterator[bool]:
    """Within, weights that learn have noise added, just enough to move a log-probability of the completion by `wanted` nats; gives
    whether any was enough. Afterwards they are what they were, bit by bit.

    Noise goes to adapters, or to the vectors of a whole model (norms and biases), which every layer has and of which a copy is small.
    """
    import torch

    learning = [p for p in module.parameters() if p.requires_grad]
    weights = [p for p in learning if p.dim() == 1] or learning
    before, scores = [p.detach().clone() for p in weights], score(module, completion)
    try:
        moved = False
        for size in SIZES:
            draw = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for p, was in zip(weights, before, strict=True):
                    p.copy_(was.float() + size * torch.randn(p.shape, generator=draw).to(p.device))
            moved = largest_gap(scores, score(module, completion)) >= wanted
            if moved:
                break
        yield moved
    finally:
        with torch.no_grad():
            for p, was in zip(weights, before, strict=True):
                p.copy_(was)
