"""DreamGym's whole loop in one file, without recipes or configuration: from logs to an agent that does better in the real environment.

You learn what the parts are and how they meet: logs, tokenizer, replay buffer, experience model (Eq. 5), guard, a policy that begins as
the experience model, practice in the dream by GRPO with a curriculum, and the only number that counts, success in the real environment.
The world is a corridor of rooms, so that two small transformers are trained from scratch in some minutes on one core. It has too few
tasks to hold any out: this is success on the tasks that were practised, in dreams only.

    python examples/03_the_whole_loop.py
"""

from __future__ import annotations

import copy

import torch

from dreamgym import plugins
from dreamgym.agent import Agent, demonstrations
from dreamgym.curriculum import CurriculumConfig, TaskCurriculum
from dreamgym.envs._pool import EnvPool
from dreamgym.evals.success import Rate, evaluate, success
from dreamgym.experience.dataset import RowBuilder, SegmentWeights, shown_memories, task_pairs
from dreamgym.experience.env import DreamBatch
from dreamgym.experience.guard import Guard
from dreamgym.experience.model import ExperienceConfig, ExperienceModel
from dreamgym.experience.recall import Recall
from dreamgym.layout import END, MARKERS, Vocabulary
from dreamgym.llm import tiny
from dreamgym.llm.hf import HFEngine
from dreamgym.logs.scripted import collect
from dreamgym.loop import train
from dreamgym.protocols import BatchEnv
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.rollout import rollout
from dreamgym.train import sft
from dreamgym.train.learner import Learner, LearnerConfig
from dreamgym.types import Trajectory


def main() -> None:
    torch.set_num_threads(1)  # models this small are no faster with more, and one gives the same run everywhere
    family = plugins.make("envs", "corridor", length=6, keys=False)
    domain, horizon = family.domain, family.max_steps
    tasks = family.tasks("train", 200, seed=0)
    real = EnvPool(family.env, domain)

    # Logs of mixed skill, and a tokenizer that keeps the domain's own words whole.
    logs = collect(family, 300, seed=0)
    texts = [text for log in logs for t in log.transitions for text in (log.task.instruction, t.state.text, t.action, t.reasoning)]
    tokenizer = tiny.train_tokenizer(texts, vocab_size=400, special=MARKERS, atoms=domain.atoms)
    ids = {marker: tiny.special_id(tokenizer, marker) for marker in (*MARKERS, END)}
    words = Vocabulary(lambda text: tiny.encode(tokenizer, text), tokenizer.decode, ids)
    wins, steps = [log for log in logs if log.success], sum(len(log.turns) for log in logs)
    print(f"logs: {len(logs)} episodes, {len(wins)} successes, {steps} real transitions")

    # The memory that grounds every dreamed step: the logs now, and later the dreams that passed the guard.
    replay = ReplayBuffer.open(None, plugins.make("replay.encoders", "lexical"))
    replay.add(logs)

    # Eq. 5: whole logged episodes, with the memories that each step would retrieve, teach reasoning, next state, reward and end.
    settings = ExperienceConfig(k=1)
    builder = RowBuilder(words, settings.pieces, SegmentWeights(), domain)
    shown = shown_memories(logs, Recall(replay, domain, k=settings.k))
    rows = [row for log, memories in zip(logs, shown, strict=True) for row in builder.episode(log, memories)]
    rows += [builder.task([seed.instruction], new.instruction) for seed, new in task_pairs(tasks, 200, seed=0)]
    dreamer = tiny.build(tokenizer, "100k", seed=0)
    sft.train(dreamer, [row.ids for row in rows], [row.weights for row in rows], sft.SFTConfig(epochs=20.0, lr=5e-3, batch_tokens=1024))

    # The policy begins as the experience model, which knows the world, and imitates what succeeded for a moment.
    policy = copy.deepcopy(dreamer)
    shots = [row for log in wins for row in demonstrations(log, words, domain)]
    sft.train(policy, [row for row, _ in shots], [weights for _, weights in shots], sft.SFTConfig(epochs=4.0, lr=2e-3, batch_tokens=512))
    agent = Agent(HFEngine(policy, tokenizer), words, domain)

    # The dream: an environment like the real one, which costs no real step.
    model = ExperienceModel(HFEngine(dreamer, tokenizer), words, replay, Guard(domain), settings)
    dream = DreamBatch(model, domain, horizon=horizon)

    def judged(env: BatchEnv) -> Rate:
        return success(evaluate(agent, env, tasks * 20, max_steps=horizon, temperature=1.0, seed=1))

    def told(i: int, episodes: list[Trajectory], metrics: dict[str, float]) -> bool:
        print(f"  iteration {i}: dream success {success(episodes)}, {metrics['groups_mixed']:.0f} tasks whose rollouts differ")
        return False  # go on

    print(f"warm start: real success {judged(real)}")
    curriculum = TaskCurriculum(
        tasks,
        CurriculumConfig(),
        domain=domain,
        vary=lambda seeds, i: model.vary(seeds, seed=i),
        memories=replay.memories,
    )
    train(  # the loop itself: sample tasks, roll out, update, remember, expand
        curriculum=curriculum,
        collect=lambda chosen, i: rollout(agent, dream, chosen, seed=i, max_steps=horizon, temperature=1.0, name=f"dream/{i}"),
        learner=Learner(policy, plugins.make("train.algos", "grpo", entropy_coef=0.01), LearnerConfig(lr=1e-3)),
        remember=replay.add,
        start=0,
        iterations=40,
        tasks_per_iter=16,
        group_size=8,
        on_iteration=told,
    )
    print(f"after the dream: dream success {judged(dream)}, real success {judged(real)}")
    print(f"{dream.steps:,} dreamed steps, {replay.stats()['dream']:.0f} of them remembered; real steps of training: 0")


if __name__ == "__main__":
    main()
