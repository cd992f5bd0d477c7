"""Configuration: short TOML in, frozen models out, and an answer for every typing error."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from dreamgym.config import PRESETS, Config, build, dump, find, merge, read
from dreamgym.errors import ConfigError
from dreamgym.recipes.blocks import AlgorithmConfig, RLConfig
from dreamgym.recipes.config import CompareConfig, RunConfig, TrainConfig


class Dream(Config):
    iterations: int = Field(10, ge=1)
    temperature: float = 1.0


class Settings(Config):
    name: str = "run"
    sizes: tuple[int, ...] = (1, 2)
    guard: bool = True
    limit: int | None = None
    dream: Dream = Dream()


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_a_file_lists_only_what_differs_from_the_defaults(tmp_path: Path):
    settings = read(Settings, write(tmp_path, "name = 'mine'\n[dream]\niterations = 3"))
    assert settings == Settings(name="mine", dream=Dream(iterations=3))
    assert settings.dream.temperature == 1.0


def test_overrides_lie_over_the_file_by_dotted_name(tmp_path: Path):
    settings = read(Settings, write(tmp_path, "[dream]\niterations = 3"), {"dream.temperature": 0.5, "guard": False})
    assert settings.dream == Dream(iterations=3, temperature=0.5) and settings.guard is False


def test_merging_leaves_both_sides_as_they_were():
    values, overrides = {"a": {"b": 1}}, {"a.c": 2, "d.e": 3}
    assert merge(values, overrides) == {"a": {"b": 1, "c": 2}, "d": {"e": 3}}
    assert values == {"a": {"b": 1}} and overrides == {"a.c": 2, "d.e": 3}


def test_a_value_cannot_be_used_as_a_block():
    with pytest.raises(ConfigError, match="'name' is a value"):
        merge({"name": "run"}, {"name.first": "x"})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nmae": "x"}, ["'nmae'", "Did you mean 'name'?", "Known: name, sizes, guard, limit, dream"]),
        ({"dream": {"iteration": 3}}, ["'dream.iteration'", "Did you mean 'iterations'?", "Known: iterations, temperature"]),
        ({"dream": {"iterations": 0}}, ["'dream.iterations'", "greater than or equal to 1", "got 0"]),
        ({"guard": "perhaps"}, ["'guard'", "got 'perhaps'"]),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_was_expected(values: dict, words: list[str]):
    with pytest.raises(ConfigError) as caught:
        build(Settings, values, where="settings.toml")
    assert all(word in str(caught.value) for word in ["settings.toml", *words]), str(caught.value)


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        build(Settings, {"nmae": "x", "dream": {"iterations": -1}})
    assert len(str(caught.value).splitlines()) == 2


def test_a_preset_is_found_by_name_a_file_of_that_name_comes_first_and_the_nearest_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train-grpo").mkdir()  # a run directory of that name is no configuration
    assert find(Path("train-grpo")) == PRESETS / "train-grpo.toml"
    (tmp_path / "train-ppo").write_text("")
    assert find(Path("train-ppo")) == Path("train-ppo")
    with pytest.raises(ConfigError, match=r"Did you mean 'train-grpo'\? Give the path of a TOML file, or a preset: .*, compare,"):
        find(Path("train-grop"))
    with pytest.raises(ConfigError, match="No configuration file or preset"):
        find(Path("x" * 300))


def test_a_missing_or_broken_file_is_a_configuration_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="No configuration file or preset"):
        read(Settings, tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="Cannot read .* directory"):
        read(Settings, tmp_path)
    with pytest.raises(ConfigError, match="not valid TOML"):
        read(Settings, write(tmp_path, "name = "))


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValidationError):
        Settings().name = "other"  # type: ignore[misc]


letters = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=9)
plain = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e29, 1e29) | letters
tables = st.recursive(
    plain | st.lists(plain, max_size=3), lambda inner: st.dictionaries(letters, inner, max_size=3) | st.lists(inner, max_size=2)
)


class Everything(Settings):
    options: dict[str, Any] = {"kept": 1}
    shares: dict[str, float] = {"expert": 0.5}


@given(
    name=letters,
    sizes=st.lists(st.integers(-(2**40), 2**40), max_size=4),
    guard=st.booleans(),
    limit=st.none() | st.integers(0, 9),
    temperature=st.floats(-1e29, 1e29),
    options=st.dictionaries(letters, tables, max_size=3),
    shares=st.dictionaries(letters, st.floats(-1e29, 1e29), max_size=2),
)
def test_what_is_dumped_reads_back_as_the_same(tmp_path_factory: pytest.TempPathFactory, temperature: float, sizes: list[int], **more: Any):
    settings = Everything(sizes=tuple(sizes), dream=Dream(temperature=temperature), **more)
    assert build(Everything, tomllib.loads(dump(settings))) == settings
    file = tmp_path_factory.getbasetemp() / "dumped.toml"
    file.write_text(dump(settings), encoding="utf-8", newline="")
    assert read(Everything, file) == settings


def test_what_toml_has_no_word_for_is_refused_and_not_left_out():
    class Limited(Config):
        limit: int | None = 3
        options: dict[str, Any] = {}

    for wrong, name in (
        (Limited(limit=None), "limit"),
        (Limited(options={"a": None}), "options"),
        (Limited(options={"a": [1, None]}), "options.a"),
    ):
        with pytest.raises(ConfigError, match=f"'{name}.*' = .* cannot be written as TOML: it would read back as"):
            dump(wrong)


@pytest.mark.parametrize(
    "odd", ["\ud800", "a\0b", math.inf, math.nan, 2**63, -(10**400), ["a", {"b": "\ud800"}], {"\ud800": 1}], ids=lambda odd: repr(odd)[:20]
)
def test_a_value_that_no_file_or_library_takes_is_refused_in_free_tables_too(odd: Any):
    with pytest.raises(ConfigError, match=r"^'options.a.*' is .* (Expected a finite number|Correct it)"):
        Everything(options={"a": odd})


def test_a_wrong_key_inside_a_list_of_blocks_is_named():
    class Many(Config):
        dreams: tuple[Dream, ...] = ()
        by_name: dict[str, Dream] = {}

    for values, name in (({"dreams": [{"iteration": 3}]}, "dreams.0.iteration"), ({"by_name": {"a": {"x": 1}}}, "by_name.a.x")):
        with pytest.raises(ConfigError, match=f"Unknown key '{name}'"):
            build(Many, values)


def test_a_block_that_a_file_opens_keeps_its_other_values(tmp_path: Path):
    class Inner(Config):
        a: int = 1
        b: int = 2

    class Outer(Config):
        inner: Inner = Inner(b=7)

    (tmp_path / "c.toml").write_text("[inner]\na = 5\n")
    assert read(Outer, tmp_path / "c.toml") == Outer(inner=Inner(a=5, b=7))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dream": {"group_size": 1}}, ["'dream.group_size'", "greater than or equal to 2"]),
        ({"dream": {"group_size": 2000, "tasks_per_iter": 1000}}, ["dream.tasks_per_iter = 1,000 groups of dream.group_size = 2,000"]),
        ({"dream": {"probe_tasks": 0}}, ["'dream.probe_tasks'"]),
        ({"dream": {"curriculum": {"synthetic_share": 1.5}}}, ["'dream.curriculum.synthetic_share'", "less than or equal to 1"]),
        ({"dream": {"learner": {"minibatches": 0}}}, ["'dream.learner.minibatches'"]),
        ({"experience": {"history": -1}}, ["'experience.history'"]),
        ({"seeds": []}, ["'seeds'"]),
        ({"dream": {"curriculum": {"sythetic_share": 0.5}}}, ["'dream.curriculum.sythetic_share'", "Did you mean 'synthetic_share'?"]),
    ],
)
def test_a_run_that_could_not_end_well_is_refused_before_it_begins(values: dict, words: list[str]):
    with pytest.raises(ConfigError) as caught:
        build(RunConfig, values, where="run.toml")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_second_stage_is_bounded_with_the_groups_of_the_first():
    with pytest.raises(ConfigError, match="s2r.tasks_per_iter = 20,000 groups of rl.group_size = 100"):
        build(TrainConfig, {"rl": {"group_size": 100}, "s2r": {"tasks_per_iter": 20_000}})
    with pytest.raises(ConfigError, match="s2r.tasks_per_iter = 20,000 groups of dream.group_size = 100"):
        build(CompareConfig, {"dream": {"group_size": 100}, "s2r": {"tasks_per_iter": 20_000}})


def test_the_second_stage_is_the_first_but_for_what_it_names():
    dream = {"iterations": 3, "group_size": 4, "logged_tasks": True, "max_seconds": 9.0, "learner": {"epochs": 2, "lr": 1e-3}}
    config = build(RunConfig, {"dream": dream, "s2r": {"iterations": 2, "learner": {"epochs": 1}}})
    block = config.s2r.after(config.dream)
    assert (block.iterations, block.tasks_per_iter, block.max_real_steps, block.max_seconds) == (2, 8, 2000, None)
    assert (block.learner.lr, block.learner.minibatches, block.learner.epochs) == (1e-4, 1, 1)
    assert not block.logged_tasks, "the dream has played the logged ones"
    own = {"iterations", "tasks_per_iter", "max_real_steps", "max_seconds", "logged_tasks", "learner"}
    assert block.model_dump(exclude=own) == config.dream.model_dump(exclude=own)
    assert RunConfig().s2r.iterations == 0 and TrainConfig().s2r.iterations == 8


def test_an_algorithm_of_the_second_stage_replaces_the_dreams_or_some_of_its_settings():
    ppo = {"name": "ppo", "gamma": 0.9, "critic": {"kind": "separate", "coef": 0.25}}
    config = build(RunConfig, {"dream": {"algorithm": ppo}, "s2r": {"algorithm": {"gamma": 0.8, "critic": {"coef": 1.0}}}})
    found = config.s2r.after(config.dream).algorithm.model_dump()
    assert found["name"] == "ppo" and found["gamma"] == 0.8 and found["critic"]["coef"] == 1.0 and found["critic"]["kind"] == "separate"
    other = build(RunConfig, {"dream": {"algorithm": ppo}, "s2r": {"algorithm": {"name": "grpo"}}})
    assert other.s2r.after(other.dream).algorithm == AlgorithmConfig.model_validate({"name": "grpo"})


@pytest.mark.parametrize("kind", [RunConfig, TrainConfig, CompareConfig])
@pytest.mark.parametrize(
    ("s2r", "words"),
    [
        ({"lr": 1e-4}, "Unknown key 's2r.lr'"),
        ({"learner": {"minibatch": 2}}, "Unknown key 's2r.learner.minibatch' in .*Did you mean 'minibatches'"),
        ({"learner": {"lr": -1.0}}, "'s2r.learner.lr'"),
    ],
)
def test_a_setting_that_the_second_stage_cannot_have_is_refused_when_the_file_is_read(kind: type[Config], s2r: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        build(kind, {"s2r": s2r}, where="run.toml")


def test_an_algorithm_of_the_second_stage_is_checked_and_a_comparison_names_its_own():
    with pytest.raises(ConfigError, match="entropy_coeff"):
        build(RunConfig, {"s2r": {"algorithm": {"entropy_coeff": 0.1}}})
    with pytest.raises(ConfigError, match="Arms name their algorithms"):
        build(CompareConfig, {"s2r": {"algorithm": {"entropy_coef": 0.1}}})


def test_a_learner_that_takes_the_samplers_log_probabilities_is_refused_beside_a_cap_that_weighs_them():
    """When the configuration is read, and not after the experience model was trained."""
    with pytest.raises(ValidationError, match="set learner.old_logprobs = 'learner'"):
        RLConfig.model_validate({"algorithm": {"name": "grpo", "importance_cap": 2.0}, "learner": {"old_logprobs": "sampler"}})
    assert RLConfig.model_validate({"learner": {"old_logprobs": "sampler"}}).learner.old_logprobs == "sampler"


def test_the_samplers_log_probabilities_are_refused_where_the_clip_is_narrower_than_they_are_exact():
    with pytest.raises(ValidationError, match="clipped at 0.0003; set learner.old_logprobs = 'learner'"):
        RLConfig.model_validate({"algorithm": {"name": "gspo"}, "learner": {"old_logprobs": "sampler"}})
    wide = {"name": "gspo", "clip_low": 0.1, "clip_high": 0.1}
    for algorithm in (wide, {"name": "reinforce"}, {"name": "ppo"}, {"name": "gigpo"}):
        RLConfig.model_validate({"algorithm": algorithm, "learner": {"old_logprobs": "sampler"}})
    assert RLConfig.model_validate({"algorithm": {"name": "gspo"}}).learner.old_logprobs == "learner"


def test_a_wrong_override_is_not_blamed_on_the_file_alone(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text("")
    with pytest.raises(ConfigError, match=r"Unknown key 'rl.iteratons' in .*run\.toml or the overrides"):
        read(TrainConfig, file, {"rl": {"iteratons": 3}})
    file.write_text("[rl]\niteratons = 3\n")
    with pytest.raises(ConfigError, match=r"Unknown key 'rl.iteratons' in .*run\.toml\. Did you mean 'iterations'"):
        read(TrainConfig, file)
