"""The guard works without knowing the answer: by construction it is given text alone, and there is nothing else that it could reach."""

from __future__ import annotations

import ast
import gc
import inspect
import json
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

import pytest
from predictions import predicted

import dreamgym
from dreamgym import plugins
from dreamgym.envs import corridor, webshop
from dreamgym.envs.base import TextRules
from dreamgym.experience.guard import Guard
from dreamgym.types import Observation, Prediction, Query, Task, Transition

PACKAGE = Path(next(iter(dreamgym.__path__)))
ENVS = ("corridor", "webshop", "alfworld")
HOUSE_RULES = {"_facts", "_grammar", "belief", "commands", "deltas", "goals", "reasoning", "rules", "state", "things"}
"""Modules of the houses that know no game: they read texts. Every other one is its engine, its generator or its files."""
BLIND = {"actions", "bm25", "item_index", "listing", "porter", "rules", "states", "wording"}
"""Modules of the shop that know no product and no goal. Every other one is its simulator, its catalogue or its scoring."""


@cache
def suite_of(name: str) -> Any:
    if name == "alfworld":
        pytest.importorskip("textworld")
        return plugins.make("envs", "alfworld", preset="mini", train=8, dev=2, test=2)
    return {"corridor": partial(corridor.make, length=4), "webshop": webshop.make}[name]()


class Forbidden(Mapping[str, Any]):
    """A goal record that cannot be looked at."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError(f"somebody looked at the goal record: {key}")

    def __iter__(self) -> Any:
        raise AssertionError("somebody looked at the goal record")

    def __len__(self) -> int:
        raise AssertionError("somebody looked at the goal record")


def cases(name: str) -> list[tuple[Query, Prediction]]:
    """What a guard is asked, from real episodes; the last step of each claims success, and the goal record may not be looked at."""
    suite = suite_of(name)
    found, scripted_policies = [], sorted(suite.scripted_policies)
    for i, task in enumerate(suite.tasks("train", 25)):
        episode = suite.demonstrate(task, scripted_policies[i % len(scripted_policies)], seed=0)
        hidden = replace(task, goal=Forbidden())
        for t, step in enumerate(episode.transitions):
            last = t == len(episode.transitions) - 1
            claim = predicted(step.next_state, float(last), last)
            found.append((Query(hidden, episode.transitions[:t], step.state, step.action), claim))
            found.append((Query(hidden, episode.transitions[:t], step.state, "click[nothing of the kind]"), claim))
    return found


def verdicts(name: str, rules: TextRules) -> list[dict[str, Any]]:
    """What the guard says of each case, as plain values."""
    guard = Guard(rules)
    said = [guard.before(query) or guard.review([query], [claim])[0] for query, claim in cases(name)]
    return [
        {
            "reward": one.reward,
            "state": one.next_state.text,
            "reasons": list(one.info.verdict.reasons),
            "by_rule": one.info.decided_by == "rule",
        }
        for one in said
    ]


@pytest.mark.parametrize("name", ENVS)
def test_the_guard_judges_without_looking_at_the_goal_record(name: str):
    said = verdicts(name, suite_of(name).rules)
    assert {one["by_rule"] for one in said} == {True, False}
    assert {one["reward"] for one in said} == {0.0, 1.0} and any(one["reasons"] and not one["by_rule"] for one in said)


@pytest.mark.parametrize("name", ENVS)
def test_nothing_that_a_guard_can_reach_is_a_simulator_a_catalogue_or_a_goal(name: str):
    """Every object that hangs on the guard, through any attribute, container or closure."""
    suite = suite_of(name)
    assert simulators(Guard(suite.rules)) == set()
    assert simulators(suite)  # the walk does find what is there to be found


def simulators(root: object) -> set[str]:
    """Kinds of objects within reach that belong to an environment, but for its rules, and tasks."""
    blind = {f"dreamgym.envs.webshop.{name}" for name in BLIND} | {f"dreamgym.envs.alfworld.{name}" for name in HOUSE_RULES}
    kinds = {type(one) for one in reachable(root)} - {corridor.CorridorRules}
    return {
        kind.__name__ for kind in kinds if kind is Task or (kind.__module__.startswith("dreamgym.envs.") and kind.__module__ not in blind)
    }


def reachable(root: object) -> list[object]:
    """Objects that can be got at from `root` without importing anything: not through modules, classes or the globals of functions."""
    found: dict[int, object] = {}
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) in found or isinstance(one, ModuleType | type):
            continue
        found[id(one)] = one
        if isinstance(one, FunctionType):
            todo += [*(one.__defaults__ or ()), *(cell.cell_contents for cell in one.__closure__ or ())]
        else:
            todo += gc.get_referents(one)
    return list(found.values())


def test_the_guard_and_the_shops_rules_give_the_same_verdicts_where_the_simulator_cannot_even_be_imported():
    script = f"""
        import importlib.abc, importlib.util, json, sys, types

        class NoSimulator(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                shop = "dreamgym.envs.webshop."
                if name.removeprefix("dreamgym.envs.") in ("base", "near_misses", "real_rows") or not name.startswith("dreamgym.envs"):
                    return
                if not (name.startswith(shop) and name.removeprefix(shop) in {BLIND}):
                    raise ImportError(f"{{name}} is out of reach")

        for name in ("dreamgym.envs", "dreamgym.envs.webshop"):  # the packages without what their __init__ imports
            package = types.ModuleType(name)
            package.__path__ = [{str(PACKAGE)!r} + name.removeprefix("dreamgym").replace(".", "/")]
            sys.modules[name] = package
        sys.meta_path.insert(0, NoSimulator())
        try:
            import dreamgym.envs.webshop.shop
        except ImportError:
            pass
        else:
            sys.exit("the simulator could be imported")
        from dreamgym.envs.webshop.rules import ShopRules
        from dreamgym.experience.guard import Guard
        from dreamgym.types import Observation, Prediction, Query, StepInfo, Task, Transition, Verdict

        guard, said = Guard(ShopRules()), []
        for case in json.load(sys.stdin):
            steps = tuple(Transition(Observation(s), a, Observation(n), 0.0, False) for s, a, n in case["history"])
            query = Query(Task("t", case["instruction"], "webshop"), steps, Observation(case["state"]), case["action"])
            claim = Prediction(Observation(case["next"]), case["reward"], case["ends"], StepInfo(verdict=Verdict("passed")))
            one = guard.before(query) or guard.review([query], [claim])[0]
            reasons, by_rule = list(one.info.verdict.reasons), one.info.decided_by == "rule"
            said.append({{"reward": one.reward, "state": one.next_state.text, "reasons": reasons, "by_rule": by_rule}})
        print(json.dumps(said))
    """
    asked = [
        {
            "instruction": query.task.instruction,
            "history": [(t.state.text, t.action, t.next_state.text) for t in query.history],
            "state": query.state.text,
            "action": query.action,
            "next": claim.next_state.text,
            "reward": claim.reward,
            "ends": claim.terminated,
        }
        for query, claim in cases("webshop")
    ]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == verdicts("webshop", suite_of("webshop").rules)


def test_the_guards_own_module_and_the_blind_modules_of_the_shop_import_no_simulator():
    guard = {name for name in imported(PACKAGE / "experience" / "guard.py") if name.startswith("dreamgym")}
    names = ("config", "envs.base", "experience.verifiers", "protocols", "types", "usage")
    assert guard == {f"dreamgym.{name}" for name in names}
    verifiers = imported(PACKAGE / "experience" / "verifiers" / "__init__.py")
    assert {name for name in verifiers if name.startswith("dreamgym.envs")} == {"dreamgym.envs.base"}
    shop = PACKAGE / "envs" / "webshop"
    for blind in BLIND:
        known = {name for name in imported(shop / f"{blind}.py") if name.startswith("dreamgym.envs")}
        assert known <= {
            "dreamgym.envs.base",
            "dreamgym.envs.real_rows",
            "dreamgym.envs.webshop",
            *(f"dreamgym.envs.webshop.{other}" for other in BLIND),
        }, blind


def imported(path: Path) -> set[str]:
    """Modules that a file imports anywhere; `from dreamgym.envs.webshop import wording` is the module it brings."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module
            brought = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= brought if node.module == "dreamgym.envs.webshop" else {node.module}
    return found


def test_the_corridors_rules_use_none_of_the_corridors_dynamics():
    """TextRules and simulator share a file there, so the names are looked at one by one."""
    source = inspect.getsource(corridor)
    dynamics = {"Corridor", "CorridorSuite", "follow", "Situation", "Outcome", "_raw", "make", "_walk"}
    functions = {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    todo, seen = ["admissible", "check_success"], set()
    while todo:
        name = todo.pop()
        seen.add(name)
        used = {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)}
        assert not used & dynamics, f"{name} uses {used & dynamics}"
        todo += [other for other in used & functions.keys() if other not in seen]
    assert {"_missing", "read_goal", "elements"} <= seen


def test_what_the_rules_are_given_is_text():
    """Instruction, states, actions and history: no task, with the goal record that it carries."""
    for method in ("admissible", "check_success"):
        given = {name for name in inspect.signature(getattr(TextRules, method)).parameters} - {"self"}
        assert given <= {"observation", "instruction", "history", "action", "claim"} and "task" not in given
    assert [field.name for field in fields(Observation)] == ["text"]
    assert get_type_hints(Transition)["state"] is Observation and get_type_hints(Transition)["action"] is str
