"""The gain of RL: paired over seeds, beside the ceiling and the control, and decided by five seeds or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from dreamgym.recipes.gains import gains, gains_by_run, lines


def entry(*seeds: float) -> dict[str, Any]:
    mean = sum(seeds) / len(seeds)
    return {"per_seed": list(seeds), "per_seed_sampled": [s - 0.1 for s in seeds], "sampled": {"value": mean - 0.1}, "real_success": mean}


FIVE = {
    "warm_start": entry(0.40, 0.42, 0.38, 0.41, 0.39),
    "sft": entry(0.50, 0.52, 0.48, 0.51, 0.49),
    "dream": entry(0.60, 0.63, 0.57, 0.61, 0.60),
    "real_only": entry(0.70, 0.72, 0.68, 0.71, 0.69),
    "s2r": None,
}


def test_a_gain_is_over_converged_imitation_and_its_share_of_the_ceiling_is_given():
    found = gains(FIVE, control=entry(0.55, 0.56, 0.52, 0.57, 0.55))
    assert found["over"] == "sft" and found["policies"].keys() == {"dream", "real_only"}
    dream = found["policies"]["dream"]["greedy"]
    assert dream["mean"] == pytest.approx(0.102) and dream["claim"] == "above 0" and dream["low"] > 0
    assert found["share_of_ceiling"] == {"dream": pytest.approx(0.51)}
    assert found["dream_over_no_model"]["greedy"]["mean"] == pytest.approx(0.052)
    assert any("dream over sft: greedy +10.2 points" in line for line in lines(found))


def test_a_control_is_compared_with_the_dream_that_it_is_an_ablation_of():
    rows = {"warm_start": entry(0.2), "ppo-dream": entry(0.3), "grpo-dream": entry(0.6)}
    found = gains_by_run(rows, {"": entry(0.6), "model": entry(0.55)})
    assert found["dream_over_no_model"]["greedy"]["mean"] == pytest.approx(0.05), "of GRPO, and not of the dream that comes first"
    assert found == gains(rows, entry(0.55), rows["grpo-dream"])


def test_every_run_has_its_own_baseline():
    rows = {"a/warm_start": entry(0.2), "a/dream": entry(0.5), "b/sft": entry(0.1), "b/dream": entry(0.4), "c/dream": entry(0.9)}
    found = gains_by_run(rows, {"b/model": entry(0.3)})
    assert found == {
        "a": gains({"warm_start": entry(0.2), "dream": entry(0.5)}),
        "b": gains({"sft": entry(0.1), "dream": entry(0.4)}, entry(0.3)),
    }
    said = lines(found)
    assert said[0].startswith("a: dream over warm_start: greedy +30.0 points") and said[1].startswith("b: dream over sft: greedy +30.0")
    assert said[2].startswith("b: dream over the dream without a model: greedy +10.0") and len(said) == 3


def test_fewer_than_five_seeds_decide_nothing_however_large_the_gain():
    two = {name: entry(*(one["per_seed"][:2])) if one else None for name, one in FIVE.items()}
    assert gains(two)["policies"]["dream"]["greedy"]["claim"] == "not decided"
    one = {"warm_start": entry(0.4) | {"per_seed_sampled": None}, "dream": entry(0.9) | {"per_seed_sampled": None}}
    found = gains(one)
    assert found["over"] == "warm_start" and found["policies"]["dream"]["greedy"]["low"] is None
    assert "1 of 5 seeds" in lines(found)[0]


def test_a_difference_that_seeds_disagree_on_is_not_decided():
    rows = {"warm_start": entry(0.5, 0.5, 0.5, 0.5, 0.5), "dream": entry(0.9, 0.1, 0.8, 0.2, 0.6)}
    assert gains(rows)["policies"]["dream"]["greedy"]["claim"] == "not decided"


def test_without_a_baseline_there_is_no_gain():
    assert gains({"warm_start": None, "dream": entry(0.5)}) == {} and lines({}) == []
