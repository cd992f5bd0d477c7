"""One word for one thing: names that gave way to the field's terms do not come back in code or prose."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import pages, prose

ROOT = Path(__file__).parents[2]
FOLDERS = ("dreamgym", "tests", "bench", "examples")

# Old identifier -> the present one. Every line is one subject.
IDENTIFIERS = {
    "Domain": "TextRules", "Domains": "TextRules", "domains": "rules", "Family": "EnvSuite", "Families": "EnvSuite", "family": "suite",
    "families": "suites", "make_family": "make_suite",
    "behave": "demonstrate", "behaviours": "scripted_policies",
    "Described": "TextRules", "SortsActions": "TextRules.action_kind", "Stocked": "EnvSuite.inventory", "Grounds": "EnvSuite.ground_task",
    "LeavesOpen": "Verdict('undecided')", "leaves_open": "Verdict('undecided')", "Doubts": "TextRules.contradictions",
    "PaysFractions": "EnvSuite.fractional_reward_option", "Glimpsed": "TextRules.reveals_new", "Narrated": "TextRules.encode_delta",
    "Lists": "TextRules.composer", "told_of": "TextRules.composer", "longest_list": "TextRules.composer", "Idles": "TextRules.noop_reason",
    "stands_still": "noop_rule", "stood_still": "Transition.is_noop", "IdleRule": "NoopRule",
    "Precedents": "ActionSupport", "precedents": "support", "precedented": "in_support", "unprecedented": "out_of_support",
    "unprecedented_penalty": "ood_penalty", "guessing": "out_of_support", "by_grounds": "by_support",
    "with_other_goals": "relabel_goals", "with_near_goals": "near_miss_goals_of", "with_invalid_actions": "insert_invalid_actions",
    "other_goals": "relabelled_goals", "near_goals": "near_miss_goals",
    "Recall": "Retriever", "recall_of": "retriever_of", "Growing": "GrowableArray", "growing": "growable_array",
    "Shuffled": "RandomRetrieval", "interchange": "export", "surplus": "select_evicted",
    "Told": "ItemMention", "Things": "ItemIndex",
    "Parts": "RunContext", "open_parts": "open_context", "measure_parts": "measure_context", "hire": "hire_workers",
    "RLBlock": "RLConfig", "AlgorithmBlock": "AlgorithmConfig", "RefreshBlock": "RefreshConfig", "EvalBlock": "EvalConfig",
    "LogsBlock": "LogsConfig", "EnvBlock": "EnvConfig", "ModelBlock": "ModelConfig", "PolicyBlock": "PolicyConfig",
    "ExperienceBlock": "ExperienceConfig", "VerifierBlock": "VerifierConfig", "ReplayBlock": "ReplayConfig",
    "quiet": "silence_progress_bars", "practise": "run_rl_phase", "Practice": "RLPhase", "judge_policies": "evaluate_policies",
    "_really": "real_slots", "_further": "refill_tasks", "_spent": "budget_exhausted",
    "Slab": "KVCache", "Slots": "RunningBatch", "Drafts": "NGramSpeculator", "Work": "ActiveRequest", "_few": "cpu_attention",
    "Flavour": "Dialect", "flavour": "dialect", "flavours": "dialects", "FLAVOURS": "DIALECTS", "_flavours": "dialects",
    "_sync": "weight_sync", "Manners": "ClientConfig", "manners": "ClientConfig", "Pace": "RateLimiter", "Purse": "Budget",
    "Ledger": "ReplyLog", "Meter": "Usage", "HFEngine": "LocalEngine", "OpenAIEngine": "ServerEngine",
    "relive": "replay_actions", "twins": "paired_episodes", "disputed": "masked_episodes", "Lookup": "NoModel", "LookupBaseline": "NoModel",
    "unguarded_success": "raw_success", "unguarded_false_success": "raw_false_success", "remembered_starts": "replayed_starts",
    "Pieces": "PromptParts", "pieces": "prompt_parts",
    "fade": "decay", "revisit": "replay_fraction", "storey": "layer", "storeys": "layers", "STOREYS": "LAYERS",
    "brief": "memory_text", "tell": "encode_delta", "news": "encode_delta", "Heard": "apply_delta", "Written": "state_delta",
    "slab": "kv_cache", "drafts": "speculator", "pace": "rate_limiter", "FAMILY": "SUITE", "DOMAIN": "RULES", "relived": "replayed_actions",
    "settled": "determined_accuracy", "Settled": "determined_accuracy", "Invented": "SyntheticTasks", "inventions": "synthetic_tasks",
    "ask_about": "draw_questions", "watched": "apply_guard", "ends_invented": "determined_accuracy", "Behave": "Demonstrate",
    "homeless": "without", "DeskSuite": "Tau2Suite", "settle": "restore_interrupted or release", "_settle": "_wait_until_quiet",
    "settle_s": "quiet_s", "_hire": "_start_workers",
    "Shelf": "ProductStore", "open_shelf": "open_products", "Lore": "AlfredData", "lore": "alfred_data", "Listed": "JoinedList",
    "Moment": "GameObservation", "Opened": "SessionStart", "Fitted": "Dream",
    "ServedDream": "Dream", "served_dream": "open_dream", "dream_of": "open_dream", "_somebody_to_start_as": "_check_initial_policy",
    "say_changed": "report_changed_settings", "_kin": "_run_or_algorithm", "invented_items": "unknown_elements",
    "Elsewhere": "RolloutFunction", "_elsewhere": "_remote_rollout", "PartOfRollout": "RolloutShardEnv", "parts_redone": "jobs_redone",
    "credit": "compute_advantages", "credited": "assign_advantages", "_credited": "_advantage_sequences", "_valued": "_critic_sequences",
    "valued": "TokenSequence.value_mask", "_Clock": "FitCheckpoint",
    "Prober": "GapProbes", "TriedClaim": "ProbedClaim", "ablation_row": "ablation_arm",
    "that_fit": "drop_too_long", "enter_dream": "load_dream", "judge_with": "load_verifier", "agreement_of": "measure_agreement",
    "_manner": "_call_settings", "_result_manner": "_result_settings", "explained_by": "documented_by",
    "unmarked": "escape_markers", "costed": "add_costs", "audited": "audit_measures",
    "extrapolated": "extrapolate", "of_small": "measure_small_model",
    "Conditioned": "MinedAnswer", "conditioned": "mined_answers",
    "task_seeds": "seeds_per_prompt", "DREAMT": "DREAM_ARMS",
    "whole_letters": "without_lone_surrogates", "storable": "without_lone_surrogates", "revisit_rates": "revisit_rate",
}  # fmt: skip

# Words that say nothing of what a value is, in the package: name the thing instead. In these parts no value is called `found` either.
PLAIN = ("loop.py", "rollout.py", "curriculum", "experience", "policy", "recipes/phases")
VAGUE = {"said": "reply, message or answer", "told": "message or metadata", "_said": "what it returns", "_told": "what it returns"}

# Old word of docstrings, comments and pages, where it can mean nothing else -> the present one.
PROSE = {
    r"\b(environment|shop|corridor|ALFWorld|house) famil(y|ies)\b": "suite", r"\bfamily\.\w+": "suite",
    r"\b(the|its) domain('s atoms| has)\b": "text rules", r"\breal twins?\b": "real replay", r"\brelived?\b(?!/)": "replayed",
    r"\b(un)?precedented\b": "in support", r"\b(stood|stands?) still\b": "no-op", r"\bthe dreamer('s)?\b": "the experience model",
    r"\blogged scripted_policies\b": "logged episodes", r"(?<!\b[Ii]n )\b[Pp]racti(ce|s(e|es|ed|ing))\b": "RL, or trained",
    r"\bidle (steps?|actions?)\b": "no-op",
    r"\bthe (telecom|retail|support) desk\b": "domain",
}  # fmt: skip
# Old identifiers that no sentence contains by chance: they are looked for in prose as well.
UNAMBIGUOUS = {old: new for old, new in IDENTIFIERS.items() if "_" in old.strip("_") or re.search(r"[a-z][A-Z]", old)}


def names(path: Path) -> Iterator[tuple[int, str]]:
    """(line, identifier) of every name in a Python file; strings and comments are not read."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_uses_an_identifier_that_was_replaced(folder: str):
    found = [
        f"{path.relative_to(ROOT)}:{line} {name} (now {IDENTIFIERS[name]})"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in names(path)
        if name in IDENTIFIERS
    ]
    assert not found, "\n".join(["Old words; use the present ones:", *found])


def test_the_package_names_values_by_what_they_are():
    found = [
        f"{path.relative_to(ROOT)}:{line} {name} (say {VAGUE[name]})"
        for path in sorted((ROOT / "dreamgym").rglob("*.py"))
        for line, name in names(path)
        if name in VAGUE
    ]
    found += [
        f"{path.relative_to(ROOT)}:{line} found (say what was found)"
        for place in PLAIN
        for path in sorted((ROOT / "dreamgym" / place).rglob("*.py")) or [ROOT / "dreamgym" / place]
        for line, name in names(path)
        if name == "found"
    ]
    assert not found, "\n".join(found)


def old_words(line: str) -> Iterator[tuple[str, str]]:
    """(old word, present one) of a line of prose."""
    for name in re.findall(r"[A-Za-z_]\w*", line):
        if name in UNAMBIGUOUS:
            yield name, UNAMBIGUOUS[name]
    for pattern, present in PROSE.items():
        if match := re.search(pattern, line):
            yield match[0], present


@pytest.mark.parametrize("folder", [*FOLDERS, "docs"])
def test_no_prose_uses_a_word_that_was_replaced(folder: str):
    files = pages() if folder == "docs" else sorted((ROOT / folder).rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}:{line} {old} (now {present})"
        for path in files
        if path != Path(__file__)
        for line, text in prose(path)
        for old, present in old_words(text)
    ]
    assert not found, "\n".join(["Old words; use the present ones:", *found])
