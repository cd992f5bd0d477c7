"""What the viewport of a browser does to states: its size, and which part of a page that is too long is shown after a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from web_pages import browser, page_env, page_task

from dreamgym.envs.web.page_text import rough_tokens
from dreamgym.envs.web.rules import WebRules

SIZE = "<title>Size</title><p id=n></p><script>const say = () => n.textContent = `${innerWidth} by ${innerHeight}`; say()</script>"
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    browser()
    return tmp_path


def state(raw: dict[str, Any]) -> str:
    return WebRules().abstract(raw).text


def rows_shown(text: str) -> list[int]:
    return [int(line.split()[1]) for line in text.split("\n") if line.startswith("row ")]


def test_the_viewport_is_the_benchmarks_at_the_start_and_after_every_step(folder: Path):
    (folder / "size.html").write_text(f"{SIZE}<button onclick='say()'>Say</button><a href='size.html' target=_blank>New</a>")
    env = page_env(folder)
    shown = [state(env.reset(page_task("size.html")))]
    shown += [state(env.step(action)[0]) for action in ("click [1]", "scroll [down]", "click [2]", "click [1]")]
    wanted = "{width} by {height}".format(**env.benchmark.viewport)
    assert all(wanted in text for text in shown) and "tabs:" in shown[-1], "a tab that a page opens has it too"


def test_a_page_that_is_too_long_is_cut_to_where_each_step_has_scrolled(folder: Path):
    rows = "".join(f"<p>row {i} {'word ' * 12}</p>" for i in range(400))
    (folder / "long.html").write_text(f"<title>Long</title><a href='#end'>To the end</a>{rows}<p id=end>row 400</p>")
    env = page_env(folder)
    first = state(env.reset(page_task("long.html")))
    second, third, back = (state(env.step(action)[0]) for action in ("scroll [down]", "scroll [down]", "scroll [up]"))
    top, middle, lower = map(rows_shown, (first, second, third))
    assert top[0] == 0 < middle[0] < lower[0] and middle[-1] > top[-1] and lower[-1] > middle[-1]
    assert middle == list(range(middle[0], middle[-1] + 1)) and back == second
    assert all(rough_tokens(text) <= 1500 for text in (first, second, third))
    env.step("scroll [up]")
    assert rows_shown(state(env.step("click [1]")[0]))[-1] == 400, "what a click scrolled to is shown"
