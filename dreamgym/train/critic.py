"""The value function of actor-critic algorithms: a linear head on the policy's last hidden state, or a model of its own.

A value is read before a token: from the hidden state that predicts the token, which has not seen it. Before the first token of an action
that state has seen the observation and nothing of the action. One position later would leak the action into the baseline.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from dreamgym.engines.local import causal_lm
from dreamgym.train.batch import Batch
from dreamgym.train.forward import device_of, token_states
from dreamgym.train.optimisers import adamw
from dreamgym.train.settings import CriticConfig
from dreamgym.train.weights import restore, state_of


class Critic:
    """Owns the value function's weights and their optimiser. The head starts at zero, in float32."""

    def __init__(self, policy: nn.Module, config: CriticConfig) -> None:
        self.policy, self.config = policy, config
        frozen = {id(weight): weight for weight in policy.parameters() if not weight.requires_grad}  # of a base under adapters: shared
        self.body = copy.deepcopy(policy, frozen) if config.kind == "separate" else None
        width = causal_lm.plain(policy).config.get_text_config().hidden_size
        self.head = nn.Linear(width, 1).to(device_of(policy))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.optimiser = adamw(self.head, lr=config.lr, weight_decay=0.0)
        if self.body is not None:
            for group in adamw(self.body, lr=config.lr, weight_decay=0.0).param_groups:
                self.optimiser.add_param_group(group)

    def values(self, batch: Batch, *, bf16: bool, states: torch.Tensor | None = None) -> torch.Tensor:
        """Values [M] before the M tokens of the batch whose weight is not 0.

        `states` [M, W] are the policy's there; without them they are computed. A critic with a model of its own does not look at them.
        """
        if self.body is not None:
            states = token_states(self.body, batch, bf16=bf16)
        elif states is None:
            states = token_states(self.policy, batch, bf16=bf16)
        if self.config.kind == "detached":
            states = states.detach()
        values: torch.Tensor = self.head(states.float())[:, 0]
        return values

    def loss(self, values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        """0.5 * sum max((V - R)^2, (V_clipped - R)^2), V_clipped within `clip` of the `old` value. All tensors are [M]."""
        errors = (values - returns).square()
        if self.config.clip:
            bounded = old + (values - old).clamp(-self.config.clip, self.config.clip)
            errors = torch.maximum(errors, (bounded - returns).square())
        return 0.5 * errors.sum()

    def parameters(self) -> list[nn.Parameter]:
        """What this critic's optimiser moves."""
        return [p for group in self.optimiser.param_groups for p in group["params"]]

    def zero_grad(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)

    def clip(self, grad_clip: float) -> float:
        """Bound the gradient; returns its norm before."""
        return float(nn.utils.clip_grad_norm_(self.parameters(), grad_clip))

    def step(self, scale: float) -> None:
        """One step at `scale` times the learning rate."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.lr * scale
        self.optimiser.step()

    def train(self, mode: bool) -> None:
        """Training mode of the second model; the learner sets the policy's."""
        if self.body is not None:
            self.body.train(mode)

    def state_dict(self) -> dict[str, Any]:
        body = {} if self.body is None else state_of(self.body)
        return {"head": self.head.state_dict(), "body": body, "optimiser": self.optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        if self.body is not None:
            restore(self.body, state["body"])
        self.optimiser.load_state_dict(state["optimiser"])
