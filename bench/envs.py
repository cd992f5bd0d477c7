"""Steps per second of the shop, the household and the telecom domain, the last two beside their stock engines; seconds of a web step.

    python bench/envs.py [--json] [--full | --smoke] [--games FOLDER] [--only webshop|household|telecom|web] [--resume FILE] [--write]

Times are processor seconds of one process: other work on the machine does not count. The shop is a generated catalogue in the original's
schema with the original's search, in text mode, with random clicks and searches for words of instructions. The household takes random
admissible commands; the stock engine repeats them in another process, and every text, command list, reward and end is compared.
The telecom domain repeats the calls of scripted agents, resets included, in our environment and in the package's own environment object as
shipped, and answers and rewards are compared.
The web is MiniWoB in a real browser, beside BrowserGym's own environment with a whole Chromium, as BrowserGym starts it, which repeats the
same actions: medians of wall-clock seconds, since most of a step is spent in other processes. Steps after which an episode goes on are kept
apart from those that end one. Also the memory of the browser with eight open pages, and by how much browser, driver and Python grew over
the episodes (300 with `--full`). The example shop and forum are measured in the same browser. With `--resume FILE` an interrupted
measurement of the web goes on behind its last finished part; `--write` puts the web's rows into docs/results/environments.json.
Games are generated at full size, or official ones (`--games`, or $ALFWORLD_DATA). Without the extra `alfworld` its figures are null, and
"alfworld_missing" names the reason.
"""

from __future__ import annotations

import datetime
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import options as cli
from common import web_speed, web_table
from common.isolation import isolated

from dreamgym import plugins
from dreamgym.envs._tau2 import answer
from dreamgym.envs.webshop import lifelike, store
from dreamgym.errors import MissingExtra
from dreamgym.tool_calls import calls_of
from dreamgym.types import Task

FIELDS = (
    "alfworld_steps_per_s", "alfworld_ratio_vs_stock", "alfworld_identical", "alfworld_stock_steps_per_s", "alfworld_load_ms",
    "alfworld_reset_ms", "alfworld_stock_reset_ms",
)  # fmt: skip
TELECOM = ("telecom_steps_per_s", "telecom_ratio_vs_stock", "telecom_identical", "telecom_stock_steps_per_s")


def shop(products: int, steps: int) -> dict[str, Any]:
    """Opening, random steps and searches in a shop of `products` products."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        items, attributes = lifelike.write(folder, products, 0)
        store.build(items, attributes, folder / "built")
        start = time.process_time()
        suite = plugins.make("envs", "webshop", built=folder / "built", goals="synthetic", mode="text")
        opened = time.process_time() - start
        tasks, rng, env = suite.tasks("train", 200), random.Random(0), suite.env()
        words = [word for task in tasks for word in task.instruction.split()]
        walked, searches = _walk(env, tasks, words, steps, rng)
    return {"products": products, "open_seconds": opened, "steps_per_s": walked, "search_p95_ms": _p95(searches)}


def _walk(env: Any, tasks: Sequence[Task], words: Sequence[str], steps: int, rng: random.Random) -> tuple[float, list[float]]:
    """(steps per second, milliseconds of each search) of random clicks, and of searches wherever the page has a search bar."""
    searches: list[float] = []
    spent = 0.0
    raw, done = {}, True
    for _ in range(steps):
        if done:
            raw = env.reset(rng.choice(tasks))
        available = raw["available"]
        clicks = [one for one in available["clickables"] if one != "search"]
        if available["has_search_bar"] or not clicks:
            action = f"search[{' '.join(rng.sample(words, 5))}]"
        else:
            action = f"click[{rng.choice(clicks)}]"
        start = time.process_time()
        raw, _, done = env.step(action)
        took = time.process_time() - start
        spent += took
        if action.startswith("search"):
            searches.append(1e3 * took)
    return steps / spent, searches


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


def household(folder: Path | None, count: int, steps: int, stock_steps: int) -> dict[str, Any]:
    """The fast engine on `count` games, with its outputs along the first steps, which the stock engine repeats."""
    try:
        from dreamgym.envs.alfworld import engine

        several = _games(folder, count)
        started = time.process_time()
        for game in several:
            engine.fast().load(game)
        loaded = time.process_time() - started
    except MissingExtra as error:
        raise ImportError(str(error)) from error
    rng, scripts, outputs, spent, taken, resets = random.Random(0), [], [], 0.0, 0, []
    for turn in range(-(-steps // (50 * len(several))) * len(several)):
        game = several[turn % len(several)]
        start = time.process_time()
        episode = engine.fast().start(game)
        resets.append(time.process_time() - start)
        observations, actions = [_output(episode.observation)], []
        for _ in range(50):
            actions.append(rng.choice(episode.observation.admissible))
            start = time.process_time()
            observation = episode.step(actions[-1])
            spent += time.process_time() - start
            taken += 1
            observations.append(_output(observation))
            if observation.won:
                break
        if turn < len(several):
            scripts.append(actions[:stock_steps])
            outputs.append(observations[: stock_steps + 1])
    return {
        "games": [(game.id, game.text) for game in several], "scripts": scripts, "outputs": outputs, "load_ms": 1e3 * loaded / len(several),
        "reset_ms": 1e3 * max(resets[len(several) :] or resets), "steps_per_s": taken / spent,
    }  # fmt: skip


def telecom(episodes: int) -> dict[str, Any]:
    """Calls per second of scripted episodes, resets included, here and in the package's own environment object."""
    try:
        suite = plugins.make("envs", "telecom")
    except MissingExtra as error:
        raise ImportError(str(error)) from error
    logs = [suite.demonstrate(task, "wrong_tool", seed=0) for task in suite.tasks("train", episodes)]
    scripts = [(log.task, [step.action for step in log.transitions]) for log in logs]
    steps, env = sum(len(actions) for _, actions in scripts), suite.env()
    start = time.process_time()
    ours = [_repeat(env, task, actions) for task, actions in scripts]
    middle = time.process_time()
    stock = [_repeat_in_stock(suite.package, task, actions) for task, actions in scripts]
    return {
        "steps_per_s": steps / (middle - start),
        "stock_steps_per_s": steps / (time.process_time() - middle),
        "identical": ours == stock,
    }


def _repeat(env: Any, task: Task, actions: Sequence[str]) -> list[str]:
    """What every call of an episode returned, and its reward."""
    env.reset(task)
    found: list[str] = []
    for action in actions:
        raw, reward, ended = env.step(action)
        found += [str(reward)] if ended else [raw["exchanges"][-1].results[0]]
    return found


def _repeat_in_stock(package: Any, task: Task, actions: Sequence[str]) -> list[str]:
    """The same by the package's environment object, made as its own code makes it."""
    world = package.environment.get_environment(solo_mode=True)
    assert task.goal is not None
    criteria, first = package.tasks[task.goal["task"]], package.tasks[task.goal["task"]].initial_state
    world.set_state(initialization_data=first.initialization_data, initialization_actions=first.initialization_actions, message_history=[])
    found, names = [], set()
    for action in actions:
        (call,) = calls_of(action)
        if call.name == "done":
            wanted = criteria.evaluation_criteria
            held = all(world.run_env_assertion(one, raise_assertion_error=False) for one in wanted.env_assertions or ())
            by_action = any(basis.value == "ACTION" for basis in wanted.reward_basis)
            found.append(str(float(held and (not by_action or all(one.name in names for one in wanted.actions or ())))))
        else:
            assert not isinstance(call.arguments, str), f"unreadable arguments: {call.arguments}"
            names.add(call.name)
            found.append(answer(world, call.name, dict(call.arguments))[0])
    return found


def stock_household(games: Sequence[tuple[str, str]], scripts: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The stock engine on the same commands."""
    from dreamgym.envs.alfworld import engine
    from dreamgym.envs.alfworld.games import parse

    stock, outputs, spent, resets = engine.StockEngine(), [], 0.0, []
    for (name, text), actions in zip(games, scripts, strict=True):
        game = parse(text, name, where="bench")
        stock.start(game)
        start = time.process_time()
        episode = stock.start(game)
        resets.append(time.process_time() - start)
        observations = [_output(episode.observation)]
        for action in actions:
            start = time.process_time()
            observation = episode.step(action)
            spent += time.process_time() - start
            observations.append(_output(observation))
        outputs.append(observations)
    return {"outputs": outputs, "steps_per_s": sum(map(len, scripts)) / spent, "reset_ms": 1e3 * sum(resets) / len(resets)}


def _games(folder: Path | None, count: int) -> list[Any]:
    """Official games, spread over the split, or generated ones of full size."""
    from dreamgym.envs.alfworld import games, generator

    if folder is None:
        return generator.generate("train", count, seed=0, preset="full")
    found = list(games.read(folder, "dev"))
    return found[:: max(1, len(found) // count)][:count]


def _output(observation: Any) -> tuple[str, tuple[str, ...], bool]:
    return observation.text, observation.admissible, observation.won


def _telecom(scripts: int) -> dict[str, Any]:
    rates = isolated(telecom, scripts)
    if "missing" in rates:
        return {"telecom_missing": rates["missing"]}
    found = {f"telecom_{name}": rates[name] for name in ("steps_per_s", "stock_steps_per_s", "identical")}
    return found | {"telecom_ratio_vs_stock": rates["steps_per_s"] / rates["stock_steps_per_s"]}


def _household(folder: Path | None, games: int, steps: int, scripts: int) -> dict[str, Any]:
    ours = isolated(household, folder, games, steps, scripts)
    if "missing" in ours:
        return {"alfworld_missing": ours["missing"]}
    stock = isolated(stock_household, ours["games"], ours["scripts"])
    return {
        "alfworld_steps_per_s": ours["steps_per_s"],
        "alfworld_ratio_vs_stock": ours["steps_per_s"] / stock["steps_per_s"],
        "alfworld_identical": ours["outputs"] == stock["outputs"],
        "alfworld_stock_steps_per_s": stock["steps_per_s"],
        "alfworld_load_ms": ours["load_ms"],
        "alfworld_reset_ms": ours["reset_ms"],
        "alfworld_stock_reset_ms": stock["reset_ms"],
        "alfworld_games": "official" if folder else "generated",
        "alfworld_compared": sum(len(observations) for observations in ours["outputs"]),
        "alfworld_peak_mb": {"fast": ours["peak_mb"], "stock": stock["peak_mb"]},
    }


def main() -> None:
    parser = cli.parser(__doc__, full="100,000 products too, and more and longer games", smoke="800 products and 1 game, a few steps")
    named = os.environ.get("ALFWORLD_DATA")
    parser.add_argument("--games", type=Path, default=Path(named) if named else None, help="a folder of official games")
    parser.add_argument("--only", choices=("webshop", "household", "telecom", "web"), help="measure this one alone")
    parser.add_argument("--resume", type=Path, help="a JSON file that keeps the finished parts of the web, which are not measured again")
    parser.add_argument("--write", action="store_true", help="put the web's figures into docs/results/environments.json")
    options = parser.parse_args()
    if options.write and options.smoke:
        parser.error("--write puts figures on a page, and those of --smoke say nothing. Leave one out.")
    products, steps = ((1_000, 100_000), 20_000) if options.full else ((800,), 200) if options.smoke else ((1_000,), 4_000)
    shops = [isolated(shop, size, steps) for size in products] if options.only in (None, "webshop") else []
    found: dict[str, Any] = {
        "webshop_steps_per_s": shops[0]["steps_per_s"] if shops else None,
        "webshop_search_p95_ms": shops[-1]["search_p95_ms"] if shops else None,
        "webshop": shops,
        **dict.fromkeys(FIELDS),
        **dict.fromkeys(TELECOM),
        **dict.fromkeys(web_speed.FIELDS),
    }
    if options.only in (None, "telecom"):
        found |= _telecom(200 if options.full else 5 if options.smoke else 40)
    if options.only in (None, "web"):
        where = web_table.machine()  # before the measurement makes the machine busy
        found |= web_speed.measure(2 if options.smoke else 24, 300 if options.full else 2 if options.smoke else 24, options.resume)
        if options.write:
            from dreamgym.recipes.context import commit

            web_table.rewrite(found, at=f"commit {commit()}, {datetime.date.today()}", where=where)
    if options.only in (None, "household"):
        found |= _household(options.games, *((12, 20_000, 50) if options.full else (1, 50, 3) if options.smoke else (3, 1_500, 12)))
    for one in shops:
        print("webshop  " + "  ".join(f"{key}={one[key]:,.4g}" for key in ("products", "open_seconds", "steps_per_s", "search_p95_ms")))
    for part, fields in (("alfworld", FIELDS), ("web", web_speed.FIELDS), ("telecom", TELECOM)):
        figures = "  ".join(f"{key.removeprefix(f'{part}_')}={found[key]:,.4g}" for key in fields if isinstance(found[key], (int, float)))
        if text := "  ".join(filter(None, [figures, found.get(f"{part}_missing")])):
            print(f"{part}  {text}")
    cli.finish(options, found)


if __name__ == "__main__":
    main()
