"""DreamGym's whole loop in one file, without recipes or configuration: from logs to an agent that does better in the real environment.

You learn what the parts are and how they meet: logs, tokenizer, replay buffer, experience model (Eq. 5), guard, a policy that begins as
the experience model, RL in the dream by GRPO with a curriculum, and the only number that counts, success in the real environment.
The world is a corridor of rooms, so that two small transformers are trained from scratch in some minutes on one core. It has too few
tasks to hold any out: this is success on the training tasks, which were only dreamed.

    python examples/03_the_whole_loop.py
"""

from __future__ import annotations

import copy

import torch

from dreamgym import plugins
from dreamgym.curriculum.task_curriculum import CurriculumConfig, TaskCurriculum
from dreamgym.engines.local.engine import LocalEngine
from dreamgym.envs.env_pool import EnvPool
from dreamgym.evals.success import evaluate, success
from dreamgym.experience.dataset import RowBuilder, SegmentWeights, task_variations
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import Guard
from dreamgym.experience.models.finetuned import FinetunedConfig, FinetunedExperienceModel
from dreamgym.experience.retriever import Retriever
from dreamgym.llm import tiny
from dreamgym.llm.vocabulary import END, MARKERS, Vocabulary
from dreamgym.logs.demonstrations import collect
from dreamgym.loop import train
from dreamgym.policy.agent import Agent, demonstrations
from dreamgym.policy.templates.markers import Markers
from dreamgym.protocols import BatchEnv
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.rollout import rollout_groups
from dreamgym.statistics import Rate
from dreamgym.train import sft
from dreamgym.train.learner import Learner
from dreamgym.train.settings import LearnerConfig, SFTConfig
from dreamgym.types import Trajectory


def main() -> None:
    torch.set_num_threads(1)  # models this small are no faster with more, and one gives the same run everywhere
    suite = plugins.make("envs", "corridor", length=6, keys=False)
    rules, horizon = suite.rules, suite.max_steps
    tasks = suite.tasks("train", 200, seed=0)
    real = EnvPool(suite.env, rules)

    # Logs of mixed skill, and a tokenizer that keeps the environment's own words whole.
    logs = collect(suite, 300, seed=0)
    texts = [text for log in logs for t in log.transitions for text in (log.task.instruction, t.state.text, t.action, t.info.reasoning)]
    tokenizer = tiny.train_tokenizer(texts, vocab_size=400, special=MARKERS, token_patterns=rules.token_patterns)
    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*MARKERS, END)}
    words = Vocabulary(lambda text: tiny.encode(tokenizer, text), tokenizer.decode, ids)
    wins, steps = [log for log in logs if log.success], sum(len(log.turns) for log in logs)
    print(f"logs: {len(logs)} episodes, {len(wins)} successes, {steps} real transitions")

    # The memory that grounds every dreamed step: the logs now, and later the dreams that passed the guard.
    replay = ReplayBuffer.open(None, plugins.make("replay.encoders", "lexical"))
    replay.add(logs)

    # Eq. 5: whole logged episodes, with the memories that each step would retrieve, teach reasoning, next state, reward and end.
    settings = FinetunedConfig(k=1)
    builder = RowBuilder(words, settings.prompt_parts, SegmentWeights(), rules, Retriever(replay, rules, settings))
    rows = builder.episodes(logs) + builder.tasks(task_variations(tasks, 200, seed=0))
    dreamer = tiny.build(tokenizer, "100k", seed=0)
    sft.train(dreamer, [row.ids for row in rows], [row.weights for row in rows], SFTConfig(epochs=20.0, lr=5e-3, batch_tokens=1024))

    # The policy begins as the experience model, which knows the world, and imitates what succeeded for a moment.
    policy = copy.deepcopy(dreamer)
    shots = [row for log in wins for row in demonstrations(log, Markers(words), rules)]
    sft.train(policy, [row for row, _ in shots], [weights for _, weights in shots], SFTConfig(epochs=4.0, lr=2e-3, batch_tokens=512))
    agent = Agent(LocalEngine(policy, tokenizer), Markers(words), rules)

    # The dream: an environment like the real one, which costs no real step.
    model = FinetunedExperienceModel(LocalEngine(dreamer, tokenizer), words, replay, Guard(rules), settings)
    dream = DreamBatch(model, rules, horizon=horizon)

    def judged(env: BatchEnv) -> Rate:
        return success(evaluate(agent, env, tasks * 20, max_steps=horizon, temperature=1.0, seed=1))

    def told(i: int, episodes: list[Trajectory], metrics: dict[str, float]) -> bool:
        print(f"  iteration {i}: dream success {success(episodes)}, {metrics['groups_mixed']:.0f} tasks whose rollouts differ")
        return False  # go on

    print(f"warm start: real success {judged(real)}")
    curriculum = TaskCurriculum(
        tasks,
        CurriculumConfig(),
        rules=rules,
        vary=lambda seeds, i, level: model.vary(seeds, seed=i, level=level),
        memories=replay.memories,
    )
    train(  # the loop itself: sample tasks, roll out, update, remember, expand
        curriculum=curriculum,
        collect=lambda chosen, i: rollout_groups(agent, dream, chosen, 8, seed=i, max_steps=horizon, name=f"dream/{i}"),
        learner=Learner(policy, plugins.make("train.algos", "grpo", entropy_coef=0.01), LearnerConfig(lr=1e-3)),
        remember=replay.add,
        start=0,
        iterations=40,
        tasks_per_iter=16,
        on_iteration=told,
    )
    print(f"after the dream: dream success {judged(dream)}, real success {judged(real)}")
    print(f"{dream.steps:,} dreamed steps, {replay.stats()['dream']:.0f} of them remembered; real steps of training: 0")


if __name__ == "__main__":
    main()
