"""What every site of `dreamgym web up` does: worlds, resets, ports, and episodes that leave nothing open."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
from web_pages import browser

from dreamgym import plugins
from dreamgym.envs.env_pool import EnvPool
from dreamgym.envs.web import SITES
from dreamgym.envs.web.forum.site import forum
from dreamgym.envs.web.loopback import FolderServer
from dreamgym.envs.web.shop.site import shop
from dreamgym.envs.web.sites import server as server_module
from dreamgym.envs.web.sites.server import HEADER, SiteServer
from dreamgym.errors import EnvironmentFailure, UsageError

pytestmark = pytest.mark.slow
BENCHMARKS = {"shop": shop, "forum": forum}


def installed(name: str) -> None:
    if importlib.util.find_spec(SITES[name].module) is None:
        pytest.skip(f"{SITES[name].distribution} is not installed: pip install 'dreamgym[web]'")


@pytest.fixture(scope="module", params=sorted(SITES))
def server(request: pytest.FixtureRequest) -> Iterator[SiteServer]:
    installed(request.param)
    started = SiteServer(SITES[request.param])
    yield started
    started.close()


def test_every_account_can_log_in_and_its_first_page_is_there(server: SiteServer):
    server.reset("a")
    for role, account in server.site.accounts.items():
        cookies = {"sessionid": server.sessions[role]}
        answer = httpx.get(f"http://{server.address}{account.start}", headers={HEADER: "a"}, cookies=cookies, timeout=60)
        assert answer.status_code == 200


def test_nothing_is_solved_at_the_start(server: SiteServer):
    server.reset("a")
    query = partial(server.query, "a")
    tasks = BENCHMARKS[server.site.name]().known.values()
    assert not [task for task in tasks if not task.answered and task.solved(query, "")]


def test_a_reset_takes_well_under_a_second(server: SiteServer):
    server.reset("a")
    began = time.perf_counter()
    for _ in range(5):
        server.reset("a")
    assert (time.perf_counter() - began) / 5 < 0.5


@pytest.mark.parametrize("world", ["missing", "../template", "A", "a" * 50])
def test_an_unknown_world_is_named(server: SiteServer, world: str):
    answer = httpx.get(f"http://{server.address}/", headers={HEADER: world}, timeout=60)
    assert answer.status_code == 404 and "There is no world" in answer.text


def test_a_port_in_use_is_named(server: SiteServer):
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        line.listen()
        with pytest.raises(UsageError, match=r"cannot be used .* dreamgym web up --port 0"):
            SiteServer(server.site, port=line.getsockname()[1])


def test_a_port_in_use_leaves_no_folder(server: SiteServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UsageError, match="cannot be used"):
        SiteServer(server.site, port=server.port)
    assert not list(tmp_path.iterdir())


def test_another_server_at_the_port_is_not_taken_for_the_site(server: SiteServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = FolderServer(tmp_path)
    monkeypatch.setattr(server_module, "_free", lambda port: int(other.site.split(":")[1]))  # it came between the choice and the start
    with pytest.raises(EnvironmentFailure, match=r"ended at its start: (.|\n)*Address already in use"):
        SiteServer(server.site)
    other.close()


def test_a_site_that_ends_by_itself_ends_the_command_with_an_error(server: SiteServer):
    own = SiteServer(server.site)
    assert own.process
    own.process.kill()
    with pytest.raises(EnvironmentFailure, match=rf"The {server.site.name} has ended by itself \(exit status -9\)"):
        own.wait()
    own.close()


def test_a_site_that_was_killed_starts_again_with_the_next_episode():
    installed("forum")
    browser()
    suite = plugins.make("envs", "web", benchmark="forum")
    try:
        env, task = suite.require_env(), suite.tasks("train", 1)[0]
        first = suite.rules.abstract(env.reset(task)).text
        address, process = suite.benchmark.server.address, suite.benchmark.server.process
        process.kill()
        process.wait()
        assert suite.rules.abstract(env.reset(task)).text == first
        assert suite.benchmark.server.address == address and suite.benchmark.server.process is not process
    finally:
        suite.close()


def test_a_site_that_hangs_fails_the_step_under_way_in_time_and_starts_again_for_every_episode_after_it():
    """A stopped process is still connected to, and never answers."""
    installed("forum")
    browser()
    suite = plugins.make("envs", "web", benchmark="forum", step_limit_s=12.0)
    try:
        tasks, pool = suite.tasks("train", 2), EnvPool(suite.require_env, suite.rules)
        first = pool.start(tasks, seed=0)
        followed = pool.step([1], ["click [8]"])[0].observation
        server = suite.benchmark.server
        address, process = server.address, server.process
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        (hung,) = pool.step([0], ["click [1]"])
        assert "within 12 s (env.options.step_limit_s)" in (hung.info.error or "") and time.monotonic() - began < 20
        (sibling,) = pool.step([1], ["scroll [up]"])
        assert sibling.info.error is None and sibling.observation == followed != first[1], "it was redone in the world that it had"
        assert server.address == address and server.process is not process and process.returncode == -signal.SIGKILL
        assert pool.begin(0, tasks[0]) == first[0] and pool.step([0], ["click [8]"])[0].observation != first[0]
    finally:
        suite.close()


def test_a_site_that_hangs_between_episodes_costs_none_of_them(caplog: pytest.LogCaptureFixture):
    installed("forum")
    browser()
    suite = plugins.make("envs", "web", benchmark="forum")
    try:
        (task,) = suite.tasks("train", 1)
        before = suite.demonstrate(task, "expert", seed=0)
        os.kill(suite.benchmark.server.process.pid, signal.SIGSTOP)
        began = time.monotonic()
        assert suite.demonstrate(task, "expert", seed=0) == before and before.success
        assert time.monotonic() - began < 60 and "the forum does not answer within 5 s" in caplog.text
    finally:
        suite.close()


def test_a_start_page_that_a_site_does_not_have_is_named():
    installed("forum")
    browser()
    suite = plugins.make("envs", "web", benchmark="forum")
    try:
        accounts = {role: replace(account, start="/nothing/") for role, account in suite.benchmark.site.accounts.items()}
        suite.benchmark.site = replace(suite.benchmark.site, accounts=accounts)
        with pytest.raises(EnvironmentFailure, match="answers 404 for http://127.*/nothing/"):
            suite.require_env().reset(suite.tasks("train", 1)[0])
    finally:
        suite.close()


def test_a_removed_world_is_unknown(server: SiteServer):
    server.reset("gone")
    cookies = {"sessionid": server.sessions[next(iter(server.site.accounts))]}
    ask = partial(httpx.get, f"http://{server.address}/", headers={HEADER: "gone"}, cookies=cookies, timeout=60)
    assert ask().status_code < 400
    server.remove("gone")
    server.remove("gone")
    assert ask().status_code == 404 and not server.world("gone").exists()


@pytest.mark.parametrize("name", sorted(SITES))
def test_scripted_episodes_leave_no_page_open_and_one_world_between_them(name: str):
    installed(name)
    browser()
    suite = plugins.make("envs", "web", benchmark=name)
    try:
        worlds = suite.benchmark.server.folder / "worlds"
        before = {one.name for one in worlds.iterdir()}
        left = []
        for task in suite.tasks("train", 3):
            suite.demonstrate(task, "expert", seed=0)
            left.append({one.name for one in worlds.iterdir()} - before)
            assert not suite.browser._browser.contexts
        assert [len(one) for one in left] == [1, 1, 1] and len(set.union(*left)) == 3, "each episode had a world of its own"
    finally:
        suite.close()
