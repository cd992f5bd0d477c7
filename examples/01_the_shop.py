"""The real environment: a text shop with a generated catalogue, as a page and as an abstract state.

You learn what a suite holds (tasks, environments, scripted policies, text rules), how a raw page becomes the abstract state s_t that
agents and experience model read, and what an action that the page does not offer does: nothing, in the shop as in a dream.

    python examples/01_the_shop.py
"""

from __future__ import annotations

from dreamgym import plugins
from dreamgym.envs.base import EnvSuite
from dreamgym.types import Task


def show(title: str, text: str) -> None:
    print(f"  {title}")
    print("\n".join(f"  | {line}" for line in text.strip().split("\n")))


def play(suite: EnvSuite, task: Task, behaviour: str, *, seed: int, raw_pages: bool) -> None:
    """One logged episode of a scripted shopper, repeated action for action in a fresh shop."""
    episode = suite.demonstrate(task, behaviour, seed=seed)
    shop = suite.env()
    print(f"\n== {behaviour}: {task.instruction}")
    page = shop.reset(task)
    for step, logged in enumerate(episode.transitions, start=1):
        state = suite.rules.abstract(page)
        offered = suite.rules.admissible(state, episode.transitions[: step - 1], logged.action)
        page, reward, terminated = shop.step(logged.action)
        after = suite.rules.abstract(page)
        assert after == logged.next_state, "the same actions give the same pages"
        changed = "" if offered else "   <- not on the page" + (", and nothing changes" if after == state else "")
        print(f"\n{step}. {logged.action}{changed}")
        print(f"  reasoning of the scripted teacher: {logged.info.reasoning}")
        if raw_pages:
            show("raw page", page["text"])
        if after != state:
            show("abstract state", after.text)
        if terminated:
            print(f"  the episode is over: reward {reward:g}")
            return
    print("  the horizon is reached: no purchase, no reward")


def main() -> None:
    suite = plugins.make("envs", "webshop")
    tasks = suite.tasks("train", 20, seed=0)
    print(
        f"{suite.name}: {len(suite.products)} products, at most {suite.max_steps} steps, "
        f"scripted policies {', '.join(suite.scripted_policies)}"
    )
    task = next(task for task in tasks if task.difficulty == 3)
    play(suite, task, "expert", seed=0, raw_pages=True)
    play(suite, task, "invalid", seed=7, raw_pages=False)


if __name__ == "__main__":
    main()
