"""The guard: what may be believed of a dream.

You learn how an experience model is put together (language model, vocabulary, replay buffer, guard) and what the guard does to one that
grants every wish. The language model is scripted: it answers every action with a successful purchase. Nothing is trained.

    python examples/02_guard.py
"""

from __future__ import annotations

from dreamgym import plugins
from dreamgym.engines.scripted import END_ID, ScriptedLLM
from dreamgym.experience.guard import Guard, GuardConfig
from dreamgym.experience.models.finetuned import FinetunedConfig, FinetunedExperienceModel
from dreamgym.llm import vocabulary
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.types import Observation, Query, Task

TASK = Task("example", "i am looking for a soft scarf with color: red, and price lower than 40.00 dollars", "webshop")
BUTTONS = "[description][features][reviews][buy now][< prev][back to search]"
WRONG = f"item $70 wooden chair\ncolor: [black][white]\n{BUTTONS}"
RIGHT = f"item $25 soft striped scarf\ncolor: [red][blue]\nchosen [red]\n{BUTTONS}"
CASES = (
    ("buys where nothing is for sale", "shop home\n[search]", "click[buy now]"),
    ("clicks what is not on the page", RIGHT, "click[green]"),
    ("buys a chair", WRONG, "click[buy now]"),
    ("buys a red soft scarf for $25", RIGHT, "click[buy now]"),
)

# The scripted model's alphabet is bytes, so control characters, which no page holds, play the markers of the layout.
MARKS = {marker: number for number, marker in enumerate(vocabulary.MARKERS, start=1)} | {vocabulary.END: END_ID}


def optimist(prompt: str) -> str:
    """Reasoning, next state and outcome, whatever was asked."""
    return f"that is what was wanted, success.{chr(MARKS[vocabulary.NEXT])}purchase done{chr(MARKS[vocabulary.REWARD])}1 stop"


def main() -> None:
    rules = plugins.make("envs", "webshop").rules
    replay = ReplayBuffer.open(None, plugins.make("replay.encoders", "lexical"))
    for title, config in (("without the guard", GuardConfig(admissibility=False, grounding=False)), ("with the guard", GuardConfig())):
        llm = ScriptedLLM(optimist)
        guard = Guard(rules, config)
        dream = FinetunedExperienceModel(llm, vocabulary.Vocabulary(llm.encode, llm.decode, MARKS), replay, guard, FinetunedConfig(k=0))
        print(f"\n== {title}")
        for what, state, action in CASES:
            [answer] = dream.predict([Query(TASK, (), Observation(state), action)])
            info = answer.info
            how = "by rule, the model was not asked" if info.decided_by == "rule" else f"the model claims {info.raw_reward:g}"
            reasons = f": {'; '.join(info.verdict.reasons)}" if info.verdict.reasons and info.decided_by != "rule" else ""
            print(f"  the agent {what:<34} reward {answer.reward:g}, {'over' if answer.terminated else 'goes on'} ({how}{reasons})")
        print(f"  questions to the model: {len(llm.prompts)}; the guard counted {dict(guard.counts)}")


if __name__ == "__main__":
    main()
