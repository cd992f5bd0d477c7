"""Rules, retrieval, generation, verification: in this order, for every experience model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from outside import nearest_memory

from dreamgym.config import build, dump, resolve
from dreamgym.envs import webshop
from dreamgym.errors import ConfigError, PluginError, ServerError, UsageError
from dreamgym.experience.env import DreamEnv
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.pipeline import ModelInputs
from dreamgym.recipes import factory
from dreamgym.recipes.blocks import ExperienceConfig
from dreamgym.recipes.config import TrainConfig
from dreamgym.recipes.factory import open_replay
from dreamgym.recipes.phases.logs import prepare_logs
from dreamgym.runs.rundir import RunDir
from dreamgym.types import Query

SHOP = webshop.make()
LOGS = [SHOP.demonstrate(task, "expert", seed=0) for task in SHOP.tasks("train", 3)]
SETTINGS: dict[str, Any] = {
    "start": "scratch",
    "env": {"name": "corridor", "options": {"length": 4, "keys": False}},
    "logs": {"trajectories": 12},
    "model": {"size": "100k", "vocab_size": 300},
    "experience": {"name": "outside.nearest_memory", "reasoning": "it was so."},
}


def test_an_experience_model_in_a_file_of_ones_own_dreams_an_episode_by_configuration(tmp_path: Path):
    config = resolve(TrainConfig, SETTINGS)
    with RunDir.open(tmp_path / "run", dump(config)) as run:
        context = prepare_logs(run, config)
    logged = next(log for log in context.logs if log.success)
    batch, model = factory.make_dream(context, factory.replay_in_memory(context))
    dream = DreamEnv(batch)
    assert dream.reset(logged.task) == logged.transitions[0].state and not context.config.experience.fitted
    results = [dream.step(transition.action) for transition in logged.transitions]
    assert [result.observation for result in results] == [transition.next_state for transition in logged.transitions]
    assert results[-1].reward == 1.0 and results[-1].terminated and results[0].info.reasoning == "it was so."
    with pytest.raises(UsageError, match="NearestMemory varies no tasks. Set curriculum.synthetic_share = 0"):
        model.vary([logged.task], seed=0)


def test_a_plug_in_checks_and_completes_its_own_settings():
    assert build(ExperienceConfig, {"name": "outside.nearest_memory"}).settings == {"reasoning": "as before."}
    assert build(ExperienceConfig, {"k": 3}).settings["k"] == 3 and build(ExperienceConfig, {}).training.optimiser == "muon"
    assert (
        tomled(build(ExperienceConfig, {"name": "outside.nearest_memory"})) == 'name = "outside.nearest_memory"\nreasoning = "as before."\n'
    )
    for values, says in {
        "reasonings": (
            {"name": "outside.nearest_memory", "reasonings": 1},
            "Unknown key 'experience.reasonings'.*Did you mean 'reasoning'",
        ),
        "training": ({"name": "outside.nearest_memory", "training": {}}, "'outside.nearest_memory' is not. Remove it"),
        "name": ({"name": 3}, "experience.name is the name of a plug-in as text"),
    }.values():
        with pytest.raises(ConfigError, match=says):
            build(ExperienceConfig, values)
    with pytest.raises(PluginError, match="Did you mean 'prompted'"):
        build(ExperienceConfig, {"name": "promted"})


def tomled(block: ExperienceConfig) -> str:
    return "".join(sorted(dump(block).splitlines(keepends=True)))


@pytest.mark.parametrize("guard", [GuardConfig(), GuardConfig(admissibility=False)])
def test_only_queries_that_no_rule_decides_are_retrieved_for(guard: GuardConfig):
    """In training rows too; so a step that a rule would decide has no memories where the rules are off."""

    class Noting(nearest_memory.NearestMemory):
        def generate(self, queries: Sequence[Query], memories: Any) -> list[Any]:
            self.generated = [(query.action, len(shown)) for query, shown in zip(queries, memories, strict=True)]
            return super().generate(queries, memories)

    model = Noting(ModelInputs(Guard(SHOP.rules, guard), open_replay(None, LOGS), LOGS), nearest_memory.Config())
    first = LOGS[0].transitions[0]
    asked: list[str] = []
    search = model.retriever.replay.search
    model.retriever.replay.search = lambda states, actions, **more: asked.extend(actions) or search(states, actions, **more)  # type: ignore
    queries = [Query(LOGS[0].task, (), first.state, action) for action in (first.action, "click[nothing of the kind]")]
    right, nothing = model.predict(queries)
    assert right.info.decided_by == "generated" and asked == [first.action] and nothing.next_state == first.state
    assert model.generated == [(first.action, 1)] + ([] if guard.admissibility else [("click[nothing of the kind]", 0)])


def test_the_ticket_of_a_verifiers_request_is_not_taken_for_that_of_a_query(monkeypatch: pytest.MonkeyPatch):
    def failing(*_: Any) -> Any:
        raise ServerError("status 500", ticket=0)

    model = nearest_memory.NearestMemory(ModelInputs(Guard(SHOP.rules), open_replay(None, LOGS), LOGS), nearest_memory.Config())
    monkeypatch.setattr(model.guard, "review", failing)
    (asked,) = model.submit([Query(LOGS[0].task, (), LOGS[0].transitions[0].state, LOGS[0].transitions[0].action)])
    with pytest.raises(ServerError) as caught:
        model.poll()
    assert asked == 0 and caught.value.ticket is None
