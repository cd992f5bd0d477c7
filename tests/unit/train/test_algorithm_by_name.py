"""A run names its algorithm: its own settings beside the name, resolved and checked when the configuration is read."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

import pytest
import rollouts
import torch
from rollouts import act

from dreamgym.config import build, dump, read
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.envs import corridor
from dreamgym.errors import ConfigError, PluginError, UsageError
from dreamgym.llm import sizes, tiny
from dreamgym.llm.chat_format import ChatFormat
from dreamgym.llm.request_queue import SyncLLM
from dreamgym.llm.vocabulary import END, MARKERS, Vocabulary
from dreamgym.policy.agent import Agent
from dreamgym.policy.templates.chat import Chat
from dreamgym.policy.templates.markers import Markers
from dreamgym.recipes.config import RunConfig
from dreamgym.recipes.context import RunContext
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.recipes.phases.rl import RLPhase
from dreamgym.recipes.plan import Loop
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Completion, Observation, Task, Trajectory, Transition, Turn


def algorithm(tmp_path: Path, text: str) -> dict[str, Any]:
    """The dream's algorithm as a configuration file with this text resolves it."""
    (tmp_path / "run.toml").write_text(text)
    config = read(RunConfig, tmp_path / "run.toml")
    assert build(RunConfig, tomllib.loads(dump(config))) == config, "what is dumped must read back as the same"
    return config.dream.algorithm.model_dump()


def test_without_a_word_it_is_grpo_with_a_little_entropy_and_all_switches_are_written_down(tmp_path: Path):
    found = algorithm(tmp_path, "")
    assert found["name"] == "grpo" and found["entropy_coef"] == 0.01 and found["clip_high"] == 0.28
    assert {"scale_by_std", "mean_std_over", "aggregate", "kl", "kl_in", "negative_weight", "importance_cap"} <= found.keys()
    assert '\n[dream.algorithm]\nname = "grpo"\n' in dump(RunConfig())
    assert algorithm(tmp_path, "[dream.algorithm]\nclip_low = 0.1") == found | {"clip_low": 0.1}


def test_another_algorithm_brings_its_own_settings_and_none_of_the_defaults(tmp_path: Path):
    found = algorithm(tmp_path, '[dream]\nalgorithm = {name = "ppo", gamma = 0.95, critic = {kind = "separate"}}')
    assert found["gamma"] == 0.95 and found["critic"]["kind"] == "separate" and found["lam"] == 0.95
    assert found["entropy_coef"] == 0.0 and "scale_by_std" not in found


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('algorithm = {name = "pppo"}', PluginError, "Did you mean 'ppo'"),
        ('algorithm = {name = "ppo", gama = 0.9}', ConfigError, "'gama' in algorithm ppo. Did you mean 'gamma'"),
        ('algorithm = {name = "ppo", critic = {kid = "shared"}}', ConfigError, "'critic.kid' in algorithm ppo. Did you mean 'kind'"),
        ('algorithm = {name = "ppo", scale_by_std = true}', ConfigError, "Unknown key 'scale_by_std' in algorithm ppo"),
        ("algorithm = {clip_lo = 0.1}", ConfigError, "'clip_lo' in algorithm grpo. Did you mean 'clip_low'"),
        ("algorithm = {name = 3}", ConfigError, "an algorithm's name is text"),
        ('algorithm = {aggregate = "constant"}', ConfigError, "belong together"),
        ("group_size = 1", ConfigError, "greater than or equal to 2, because grpo compares rollouts"),
        ('group_size = 1\nalgorithm = {name = "gigpo"}', ConfigError, "because gigpo compares rollouts"),
        ('group_size = 0\nalgorithm = {name = "ppo"}', ConfigError, "greater than or equal to 1"),
    ],
)
def test_a_wrong_name_or_key_is_an_error_before_the_run_begins(tmp_path: Path, text: str, error: type[Exception], words: str):
    with pytest.raises(error) as caught:
        algorithm(tmp_path, f"[dream]\n{text}")
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ['{name = "ppo"}', '{name = "reinforce", baseline = "running"}'])
def test_algorithms_that_compare_nothing_may_have_groups_of_one(tmp_path: Path, text: str):
    uniform = 'curriculum = {strategy = "uniform"}'
    assert algorithm(tmp_path, f"[dream]\ngroup_size = 1\nalgorithm = {text}\n{uniform}")
    with pytest.raises(ConfigError, match="groups of one have no variance to choose tasks by"):
        algorithm(tmp_path, f"[dream]\ngroup_size = 1\nalgorithm = {text}")


@pytest.mark.parametrize("name", ["gspo", "row_ratio_of.mine"])
def test_a_sequence_level_algorithm_is_one_file_here_or_elsewhere_and_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    """`row_ratio_of.mine` is a module outside the package that the configuration names by its dotted path."""
    (tmp_path / "row_ratio_of").mkdir()
    (tmp_path / "row_ratio_of" / "mine.py").write_text((Path(__file__).parents[2] / "support" / "row_ratio.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    found = algorithm(tmp_path, f'[dream]\nalgorithm = {{name = "{name}", invalid_penalty = 0.1}}')
    assert found["invalid_penalty"] == 0.1 and found["clip_high"] == (4e-4 if name == "gspo" else 0.28)
    model = rollouts.tiny()
    before = [p.clone() for p in model.parameters()]
    one = rollouts.learner(model, found, epochs=2, lr=1e-2)
    metrics = one.update(rollouts.groups(model))
    assert metrics["optimiser_steps"] == 2 and 0 < metrics["clip_fraction"] < 1 and not all(map(torch.equal, before, model.parameters()))


SUITE = corridor.make(length=4, keys=False, max_steps=3)


def test_an_rl_phase_with_ppo_bootstraps_its_cut_episodes_and_resumes_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sizes.SIZES, "test", {"layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "mlp": 64})
    settings = {
        "env": {"name": "corridor", "options": {"length": 4, "keys": False, "max_steps": 3}},
        "logs": {"trajectories": 30},
        "model": {"size": "test", "vocab_size": 320},
        "dream": {
            "iterations": 3, "tasks_per_iter": 4, "group_size": 2, "train_tasks": 12, "probe_every": 0,
            "algorithm": {"name": "ppo", "bootstrap": True, "critic": {"kind": "separate"}},
            "learner": {"min_trajectories": 1, "minibatches": 2},
        },
        "eval": {"tasks": 3, "dev_tasks": 3},
    }  # fmt: skip
    config = build(RunConfig, settings)

    def run_rl_phase(context: RunContext, run: RunDir, name: str, iterations: int) -> RLPhase:
        session = RLPhase(run, context, Loop(name, "tokenizer", config.dream, "real", context.config))
        session.block = config.dream.model_copy(update={"iterations": iterations})
        session.run_loop()
        session.replay.close()
        return session

    with RunDir.open(tmp_path / "run", dump(config)) as run:
        context = prepare_logs(run, config)
        whole = run_rl_phase(context, run, "whole", 3)
        run_rl_phase(context, run, "broken", 1)
        resumed = run_rl_phase(context, run, "broken", 3)
        assert resumed.progress.iteration == 3 and resumed.learner.critic is not None and whole.learner.critic is not None
        for a, b in (
            (whole.model.parameters(), resumed.model.parameters()),
            (whole.learner.critic.parameters(), resumed.learner.critic.parameters()),
        ):
            assert all(bool((p == q).all()) for p, q in zip(a, b, strict=True))
        lines = run.read_jsonl("metrics.jsonl")
        assert lines and all(line["value_loss"] >= 0 and line["truncated"] > 0 for line in lines)


def cut(agent: Any, task: Task, said: list[list[int]]) -> tuple[Trajectory, list[int]]:
    """(an episode of the given replies, the prompt that the agent itself makes for the next turn)."""
    prompts: list[list[int]] = []

    class Prepared(SyncLLM):
        def generate(self, requests: Any) -> list[Completion]:
            prompts.append(list(requests[0].prompt))
            reply = said[len(prompts) - 1] if len(prompts) <= len(said) else [9]
            return [Completion(tuple(requests[0].prompt), tuple(reply), (-1.0,) * len(reply), "right", "stop")]

    agent.llm = Prepared()
    (talk,) = agent.begin([task], name="x")
    states = [Observation(f"room {i + 1} of 4\n[left] [right] [open]") for i in range(len(said) + 1)]
    turns = []
    for state, after in itertools.pairwise(states):
        completion = act(agent, talk, state)
        turns.append(Turn(Transition(state, "right", after, 0.0, False), completion))
    act(agent, talk, states[-1])
    return Trajectory("t", task, "real", tuple(turns), False, truncated=True), prompts[-1]


@pytest.fixture(scope="module")
def engine() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sizes.SIZES, "test", {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "mlp": 16})
        texts = ["room 1 of 4 [left] [right] [open] start in room 1, go to room 3 and open the door"]
        tokenizer = tiny.train_tokenizer(
            texts, vocab_size=300, special=(*MARKERS, "<|im_start|>", "<|im_end|>"), token_patterns=SUITE.rules.token_patterns
        )
        return LocalEngine(tiny.build(tokenizer, "test", seed=0), tokenizer)


SAID = [[5, 6], [7], [8, 5]]
TASK = Task("t", "start in room 1, go to room 3 and open the door", "corridor")


def test_the_next_prompt_is_the_one_that_the_agent_would_have_read(engine: Any):
    tokenizer = engine.tokenizer
    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*MARKERS, END)}
    words = Vocabulary(lambda text: tiny.encode(tokenizer, text), tokenizer.decode, ids)
    agent = Agent(engine, Markers(words), SUITE.rules)
    episode, expected = cut(agent, TASK, SAID)
    assert agent.next_prompt(episode) == expected
    agent.llm, agent.max_reply_tokens = engine, engine.max_context - len(expected)
    assert agent.next_prompt(episode) == expected
    agent.max_reply_tokens += 1
    assert agent.next_prompt(episode) is None, "a conversation that outgrew the context has no value after it"
    with pytest.raises(UsageError, match="no tokens"):
        agent.next_prompt(Trajectory("t", TASK, "demo", (Turn(episode.turns[0].transition),), False, truncated=True))


@pytest.mark.parametrize("window", [None, 0, 1, 2, 5])
def test_a_chat_agents_next_prompt_slides_with_its_window(engine: Any, window: int | None):
    engine.tokenizer.chat_template = (
        "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    )
    agent = Agent(engine, Chat(ChatFormat(engine.tokenizer), "corridor", "Act."), SUITE.rules, window=window)
    episode, expected = cut(agent, TASK, SAID)
    assert agent.next_prompt(episode) == expected
