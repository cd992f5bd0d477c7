"""The trained weights: all of a model, or its adapters alone. Their state in checkpoints, and the reference of the KL term."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dreamgym.errors import UsageError


def partial(model: nn.Module) -> bool:
    """Whether some of the weights are frozen, as under LoRA."""
    return not all(p.requires_grad for p in model.parameters())


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that have gradients, by name. UsageError when there is none."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise UsageError("Every weight of the model is frozen, so nothing can be trained. Unfreeze it, or load it with adapters.")
    return parameters


def state_of(model: nn.Module) -> dict[str, Any]:
    """What a checkpoint must hold of the model: its state, or the trained weights alone when the others are frozen."""
    return {name: p.detach() for name, p in trained(model).items()} if partial(model) else model.state_dict()


def restore(model: nn.Module, state: dict[str, Any]) -> None:
    """Restore what `state_of` returned. UsageError when it is the state of other weights."""
    if not partial(model):
        model.load_state_dict(state)
        return
    own = trained(model)
    if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
        odd = sorted(own.keys() ^ state.keys()) or [name for name in own if own[name].shape != state[name].shape]
        raise UsageError(
            f"The checkpoint is of other adapters: '{odd[0]}' does not fit. Use the LoRA settings (rank, target modules) it was made with."
        )
    with torch.no_grad():
        for name, p in own.items():
            p.copy_(state[name])


class Reference:
    """The policy as it was when this was made, for the KL term.

    Of a model trained whole it is a second model. Of one with frozen weights it is a copy of the others, exchanged for the present ones
    while it is asked: switching adapters off would forget an adapter that supervised training had already moved.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.copied = None if partial(model) else copy.deepcopy(model).eval().requires_grad_(False)
        self.weights = {name: p.detach().clone() for name, p in trained(model).items()} if partial(model) else {}

    @contextmanager
    def acting(self) -> Iterator[nn.Module]:
        """The reference as a model, without gradients. Between a forward and its backward pass of the policy, do not enter."""
        with torch.no_grad():
            if self.copied is not None:
                yield self.copied
                return
            was_training = self.model.training
            self.model.eval()
            self._exchange()
            try:
                yield self.model
            finally:
                self._exchange()
                self.model.train(was_training)

    def _exchange(self) -> None:
        """Swap the storages of then and now; the parameters themselves, which the optimiser knows, stay."""
        own = dict(self.model.named_parameters())
        for name, then in self.weights.items():
            p = own[name]
            p.data, self.weights[name] = then, p.data
