"""Episodes of a dream in TRL's GRPOTrainer; runs where the package is installed (`make test-peers`)."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
import torch
from chat_model import save_instruct_model
from datasets import Dataset
from dreams import CANCEL_RULES, CANCEL_TASK, TALK, corridor_dream, talking_dream
from dreams import SUITE as KEYED
from dreams import TASKS as KEYED_TASKS
from instruct import INSTRUCTIONS, SUITE, TASKS, instructed, recorded_dream
from tool_desk import episodes
from tool_templates import tool_tokenizer
from transformers import Qwen2ForCausalLM
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from dreamgym.adapters.trl import DreamRollouts
from dreamgym.adapters.trl_tools import environment_factory
from dreamgym.envs.tools.rules import ToolRules
from dreamgym.envs.tools.schemas import Tool, inferred_tools
from dreamgym.errors import UsageError
from dreamgym.experience.guard import Guard
from dreamgym.experience.models.no_model import NoModel, NoModelConfig
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.encoders import lexical
from dreamgym.serve.sessions import DreamSessions
from dreamgym.tool_calls import calls_of


def config(path: Path, **more: Any) -> GRPOConfig:
    plain = {"report_to": [], "save_strategy": "no", "logging_steps": 1, "use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    shape = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 1, "learning_rate": 1e-3}
    return GRPOConfig(output_dir=str(path), **(plain | shape | more))


def rollouts(**more: Any) -> DreamRollouts:
    given = {"max_steps": SUITE.max_steps, "max_reply_tokens": 8, "instructions": INSTRUCTIONS}
    return DreamRollouts(recorded_dream(), SUITE.rules, TASKS, **(given | more))


class Recording(GRPOTrainer):
    """A trainer that keeps what it was given and what it made of it."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.scored = super()._generate_and_score_completions(inputs)
        return self.scored


def test_a_masked_episode_is_out_of_the_mean_of_its_group_and_of_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    policy, made = instructed(0, epochs=1.0), rollouts()
    play = made.__call__
    kept: dict[str, Any] = {}

    def altered(prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        found = play(prompts, trainer)
        for i, one in enumerate(found["dream"]):  # rewards as if: 1, 0, 1, masked in each group
            failed = i % 4 == 3
            one |= {"reward": None if failed else float(i % 2 == 0), "failed": failed, "masked": failed}
            if failed:
                found["env_mask"][i] = [0] * len(found["env_mask"][i])
        kept.update(found)
        return found

    trainer = Recording(
        policy.model,
        made.reward,
        config(tmp_path, scale_rewards="none"),
        made.dataset(),
        processing_class=policy.tokenizer,
        rollout_func=altered,
    )
    trainer.train()
    advantages = trainer.scored["advantages"].view(-1, 4)
    assert torch.allclose(advantages, torch.tensor([1 / 3, -2 / 3, 1 / 3, 0.0]).expand(2, 4), atol=1e-6)
    trained = sum(map(sum, kept["env_mask"]))
    assert trainer.scored["num_items_in_batch"].item() == trained > 0
    logged = trainer.state.log_history[0]
    assert logged["dream/masked"] == 0.25 and logged["rewards/reward/mean"] == pytest.approx(2 / 3)


def test_the_tokens_that_were_sampled_are_those_that_are_trained_with_their_log_probabilities(tmp_path: Path):
    policy, made = instructed(0, epochs=1.0), rollouts()
    found: dict[str, Any] = {}

    def kept(prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        found.update(made(prompts, trainer))
        return found

    reference = Qwen2ForCausalLM(policy.model.config)
    reference.load_state_dict(policy.model.state_dict())
    GRPOTrainer(policy.model, made.reward, config(tmp_path), made.dataset(), processing_class=policy.tokenizer, rollout_func=kept).train()
    for prompt, response, logprobs, mask in zip(
        *(found[key] for key in ("prompt_ids", "completion_ids", "logprobs", "env_mask")), strict=True
    ):
        with torch.no_grad():
            scores = torch.log_softmax(reference(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1], -1)
        own = scores[torch.arange(len(response)), torch.tensor(response)]
        assert torch.allclose(own[torch.tensor(mask) == 1], torch.tensor(logprobs)[torch.tensor(mask) == 1], atol=1e-4)


def test_the_same_seed_plays_the_same_episodes_and_a_group_shares_its_task(tmp_path: Path):
    def played(seed: int) -> Any:
        policy, made, found = instructed(0, epochs=1.0), rollouts(seed=seed), []

        def kept(prompts: Any, trainer: Any) -> dict[str, list[Any]]:
            found.append(made(prompts, trainer))
            return found[-1]

        settings = config(tmp_path, max_steps=2)
        GRPOTrainer(policy.model, made.reward, settings, made.dataset(), processing_class=policy.tokenizer, rollout_func=kept).train()
        return [(one["completion_ids"], [each["task"] for each in one["dream"]]) for one in found]

    first = played(1)
    assert first == played(1) != played(2)
    assert all(len(set(tasks[i : i + 4])) == 1 for _, tasks in first for i in (0, 4))


@pytest.mark.parametrize("setting", [{"top_p": 0.9}, {"top_k": 5}, {"generation_kwargs": {"top_k": 5}}])
def test_sampling_that_our_log_probabilities_do_not_hold_is_refused(setting: dict[str, Any], tmp_path: Path):
    policy, made = instructed(0, epochs=0.1), rollouts()
    trainer = GRPOTrainer(
        policy.model, made.reward, config(tmp_path, **setting), made.dataset(), processing_class=policy.tokenizer, rollout_func=made
    )
    with pytest.raises(UsageError, match="by the temperature alone"):
        trainer.train()


def desk() -> tuple[NoModel, ToolRules, list[Any]]:
    logs = episodes(24)
    calls = [call for log in logs for step in log.transitions for call in calls_of(step.action)]
    rules = ToolRules("desk", inferred_tools(calls))
    replay = ReplayBuffer.open(None, lexical.make())
    replay.add(logs)
    openings = {log.task.instruction: log.turns[0].transition.state.text for log in logs}
    return NoModel(replay, Guard(rules), NoModelConfig(), openings=openings), rules, [log.task for log in logs]


def test_the_recorded_tools_are_methods_that_transformers_makes_the_recorded_schemas_of():
    model, rules, tasks = desk()
    with DreamSessions(model, rules, tasks, horizon=6) as dream:
        env = environment_factory(dream)()
        shown = env.reset(task=tasks[0].id)
        assert isinstance(shown, str)
        for tool in rules.tools:
            schema = get_json_schema(getattr(env, tool["name"]))["function"]
            assert schema["name"] == tool["name"]
            wanted = {key: value["type"] for key, value in tool["parameters"]["properties"].items()}
            assert {key: [one["type"]] for key, one in schema["parameters"].get("properties", {}).items()} == wanted
            assert sorted(schema["parameters"].get("required", [])) == sorted(tool["parameters"].get("required", []))
        room = tasks[0].instruction.split("in the ")[1].split(" (")[0]
        assert room in env.get_lamp(room=room)
        env.done()
        assert [one["decided_by"] is not None for one in env.outcomes] == [True, True] and env.outcomes[-1]["terminated"]
        with pytest.raises(Exception, match="This episode is over"):
            env.done()


def test_the_agent_speaks_with_the_user_and_an_episode_ends_with_a_message():
    with DreamSessions(talking_dream(), CANCEL_RULES, [CANCEL_TASK], horizon=6) as dream:
        env = environment_factory(dream)()
        env.reset(task=CANCEL_TASK.id)
        assert get_json_schema(env.respond)["function"]["parameters"]["required"] == ["content"]
        shown = [getattr(env, call.name)(**call.arguments) for call in TALK]
        assert "(the user says) yes" in shown[0] and env.get_reward() == 1.0 and env.outcomes[-1]["terminated"]


def test_an_episode_that_the_guard_masks_has_no_reward():
    with DreamSessions(corridor_dream(), KEYED.rules, KEYED_TASKS, horizon=KEYED.max_steps) as dream:
        env = environment_factory(dream)()
        env.reset(task=KEYED_TASKS[0].id)
        env.act(action="dance")
        assert env.get_reward() == 0.0
        env.outcomes.append(env.outcomes[0] | {"error": "masked by the guard: contradiction", "masked": True, "reward": 1.0})
        assert env.get_reward() is None


@pytest.mark.parametrize("name", ["reset", "_hidden", "get_reward"])
def test_a_tool_that_cannot_be_a_method_is_refused_by_its_name(name: str):
    model, _, tasks = desk()
    rules = ToolRules("desk", [Tool(name)])
    with DreamSessions(model, rules, tasks, horizon=6) as dream, pytest.raises(UsageError, match=f"'{name}' cannot be a method"):
        environment_factory(dream)


def test_an_argument_that_is_no_name_of_python_is_refused():
    model, _, tasks = desk()
    rules = ToolRules("desk", [Tool("move", "", {"properties": {"from": {"type": "string"}}})])
    with DreamSessions(model, rules, tasks, horizon=6) as dream, pytest.raises(UsageError, match="argument 'from' is no name"):
        environment_factory(dream)


class Scripted(GRPOTrainer):
    """A trainer whose model says what it is told to."""

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        room = "attic"
        said = [f'<tool_call>\n{{"name": "get_lamp", "arguments": {{"room": "{room}"}}}}\n</tool_call>', "Done."]
        texts = [said["tool_response" in self._tokenizer.decode(ids)[-200:]] for ids in prompt_ids]
        return [[*self._tokenizer.encode(text), self._tokenizer.eos_token_id] for text in texts], None


def test_trl_calls_the_recorded_tools_and_reads_the_reward(tmp_path: Path):
    model, rules, tasks = desk()
    tokenizer = tool_tokenizer((Path(inspect.getfile(GRPOTrainer)).parents[1] / "chat_templates/qwen2_5.jinja").read_text())
    policy = Qwen2ForCausalLM.from_pretrained(save_instruct_model(tmp_path / "model"))
    policy.resize_token_embeddings(len(tokenizer))
    kept: list[Any] = []
    with DreamSessions(model, rules, tasks, horizon=6) as dream:

        def seen(environments: Any, **_: Any) -> list[float]:
            kept.extend(environments)
            return [0.0] * len(environments)

        rows = Dataset.from_list([{"prompt": [{"role": "user", "content": task.instruction}], "task": task.id} for task in tasks[:4]])
        settings = config(tmp_path, max_completion_length=400)
        trainer = Scripted(policy, seen, settings, rows, processing_class=tokenizer, environment_factory=environment_factory(dream))
        trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["rewards/Dream/mean"] == 0.0 and logged["tools/call_frequency"] == 1.0 and logged["tools/failure_frequency"] == 0.0
    assert len(kept) == 8 and all(one.outcomes[0]["decided_by"] and one.outcomes[0]["simulation"] for one in kept)
