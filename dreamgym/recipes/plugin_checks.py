"""Whether plug-ins have the members that a run asks for, before anything is fitted: the run would find out hours later."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dreamgym.errors import ConfigError

ALGORITHM = ("config", "grouped", "compute_advantages", "loss")
ACTOR_CRITIC = ("config", "grouped", "critic", "mark_valued", "set_advantages", "normalise", "loss")
STATEFUL = ("state_dict", "load_state_dict")
ENCODER = ("id", "dim", "encode")
VERIFIER = ("verify",)
"""The members of the interfaces in `protocols`."""


def check_algorithm(name: str, algorithm: Any) -> None:
    """ConfigError where a plug-in is neither a `protocols.Algorithm` nor a `protocols.ActorCritic`, or only half a `protocols.Stateful`:
    the learner would leave the state out of checkpoints."""
    members = _members(algorithm)
    of_critic = any(member in members for member in ("critic", "mark_valued", "set_advantages", "normalise"))
    actor_critic = of_critic and "compute_advantages" not in members
    expected = ACTOR_CRITIC if actor_critic else ALGORITHM
    _require(
        "algorithm", name, algorithm, expected, f"protocols.{'ActorCritic' if actor_critic else 'Algorithm'} has {', '.join(expected)}"
    )
    # a name as near as `load_statedict` is meant to be one of the two; `load_state` may be something else
    if any(difflib.get_close_matches(member, members, n=1, cutoff=0.85) for member in STATEFUL):
        _require("algorithm", name, algorithm, STATEFUL, f"state that checkpoints hold needs {' and '.join(STATEFUL)}")


def check_verifier(name: str, verifier: Any) -> None:
    """ConfigError where a plug-in is no `protocols.Verifier`."""
    _require("verifier", name, verifier, VERIFIER, "protocols.Verifier has verify(cases)")


def check_encoder(name: str, encoder: Any) -> None:
    """ConfigError where a plug-in is no `protocols.Encoder`: its members and, of one outside the package, the vector of one situation."""
    _require("encoder", name, encoder, ENCODER, f"protocols.Encoder has {', '.join(ENCODER)}")
    if "." not in name:  # one of the package may ask a server
        return
    vectors = encoder.encode(["a state"], ["an action"])
    expected = f"a float32 array of shape (1, {encoder.dim}), for one state and one action, with rows of length 1"
    if not isinstance(vectors, np.ndarray) or vectors.dtype != np.float32 or vectors.shape != (1, encoder.dim):
        got = f"{vectors.dtype} of shape {vectors.shape}" if isinstance(vectors, np.ndarray) else type(vectors).__name__
    elif not abs((length := float(np.linalg.norm(vectors[0]))) - 1) < 1e-3:  # not-a-number is not either
        got = f"a row of length {length:.3g}"
    else:
        return
    raise ConfigError(f"The encoder '{name}' ({type(encoder).__name__}) returns {got}. Expected {expected}.")


def _require(kind: str, name: str, plugin: Any, expected: Sequence[str], requirement: str) -> None:
    """ConfigError for members that are missing, with those that are named nearly so."""
    members = _members(plugin)
    if missing := [member for member in expected if member not in members]:
        others = set(members) - {*expected, *STATEFUL}
        suggestions = [(member, difflib.get_close_matches(member, others, n=1)) for member in missing]
        lacks = ", ".join(f"{member} (it has '{near[0]}')" if near else member for member, near in suggestions)
        raise ConfigError(f"The {kind} '{name}' ({type(plugin).__name__}) lacks {lacks}: {requirement}. Add or rename what is missing.")


def _members(plugin: Any) -> list[str]:
    return [member for member in dir(plugin) if not member.startswith("_")]
