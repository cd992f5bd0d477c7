"""Which phases read which settings: a run resumes with another configuration as long as no phase that reads a changed setting has begun."""

from __future__ import annotations

from collections.abc import Mapping

DREAMS = ("dream", "mixed", "*-dream", "*-mixed", "dream-no-*", "*-dream-no-*")
LOOPS = (*DREAMS, "s2r", "real_only", "real_equal", "*-s2r", "*-real")
ANSWERED = (*DREAMS, "recorded_replay", "audit", "gap-*")
JUDGED = ("eval-*", "audit", "gap-*", "fidelity", "uncertified", "next_actions", "sft", "sft-curve")
ANSWERING = (
    "recall",
    "conditions",
    "temperature",
    "top_p",
    "draw",
    "redraws",
    "start_temperature",
    "replayed_starts",
    "vary_temperature",
    "max_answer_tokens",
    "structured",
)

READ_BY: Mapping[str, tuple[str, ...]] = {
    "env.workers": (),
    "exec": (),
    **{f"env.connection.{name}": () for name in ("timeout_s", "retries", "max_calls", "max_result_chars")},
    "mode": (),
    "arms": (),
    "seeds": (),
    "ablations": (),
    "equal_budget": (),
    "ablated": (),
    "logs.invalid_actions": ("experience*", *DREAMS),
    "logs.near_miss_goals": ("experience*", *DREAMS),
    "logs.relabelled_goals": ("experience*", *DREAMS),
    "logs.task_pairs": ("experience*",),
    "replay": ("experience*", *LOOPS, "audit", "gap-*"),
    "experience": ("experience*", *ANSWERED),
    **{f"experience.{name}": ANSWERED for name in ANSWERING},
    "experience.training": ("experience*",),
    "experience.backbone": ("experience*", "verifier", *ANSWERED),
    "experience.segment_weights": ("experience*", *DREAMS),
    "experience.horizon": ANSWERED,
    "experience.verifier": ("verifier", *ANSWERED),
    "guard": ANSWERED,
    "start": ("warm_start",),
    "warm_start": ("warm_start",),
    "policy": ("warm_start", "sft", "dpo", *LOOPS, *JUDGED),
    "policy.engine": (*LOOPS, *JUDGED),
    **{f"{role}.engine.tolerance": () for role in ("policy", "experience")},
    "sft": ("sft", "sft-curve"),
    "sft_patience": ("sft", "sft-curve"),
    "dpo": ("dpo",),
    "algorithms": LOOPS,
    "rl": LOOPS,
    "dream": (*DREAMS, "real_equal", "s2r", "*-s2r"),
    "mixed": ("mixed", "*-mixed"),
    "s2r": ("s2r", "*-s2r"),
    "real": ("*-real",),
    "real_only": ("real_only",),
    "eval.seed": ("eval-*", "recorded_replay", "audit", "gap-*", "uncertified"),
    "eval.paired_replays": ("audit",),
    "eval.uncertified_dreams": ("uncertified",),
    "eval.gap_tasks": ("gap-*",),
}
"""The start of a setting's name, and the phases that read it (patterns). Settings without an entry are read by all phases."""


def read_by(setting: str) -> tuple[str, ...]:
    """The phases that read a setting, by the longest entry that it begins with."""
    known = [name for name in READ_BY if f"{setting}.".startswith(f"{name}.")]
    return READ_BY[max(known, key=len)] if known else ("*",)
