"""The web's part of docs/results/environments.json, from what `web_speed` measured."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "docs/results/environments.json"
ROWS = ("MiniWoB", "the example ")
CLAIMS = ("MiniWoB", "memory of a browser", "memory that")
NOTES = ("The web:",)
"""How rows, claims and notes begin that are written anew."""
LEAK = 0.1
"""MiB an episode: ten thousand episodes would add a gigabyte."""
NEEDED = (
    "web_step_s", "web_stock_step_s", "web_stock_step_same_wait_s", "web_end_s", "web_grown_late_mb", "web_shop_step_s", "web_forum_step_s",
)  # fmt: skip
NOTE = (
    "The web: `bench/envs.py --only web` on {where}; {web_compared_episodes} scripted episodes of each, medians, state mapping "
    "included. BrowserGym, in {web_stock_browser}, repeats the same actions on the same pages and seeds; {web_identical} of "
    "{web_compared} rewards and ends are equal. It waits 0.5 s after every action and reads the page after the last one too. Ours "
    "waits {web_wait_s:g} s, and where a step ends an episode it neither waits nor reads ({web_end_s:.3f} s; BrowserGym "
    "{web_stock_end_s:.2f} s). A reset of the shop takes {web_shop_reset_s:.2f} s and of the forum {web_forum_reset_s:.2f} s, a step "
    "that goes on {web_shop_step_s:.2f} and {web_forum_step_s:.2f} s; the sites' processes have {web_shop_server_mb:.0f} and "
    "{web_forum_server_mb:.0f} MiB. From the first tenth to the end of {web_episodes} episodes of MiniWoB memory grew by "
    "{web_grown_mb:.1f} MiB: the browser by {web_grown_browser_mb:.1f}, Playwright's driver by {web_grown_driver_mb:.1f}, Python by "
    "{web_grown_python_mb:.1f}."
)


def machine() -> str:
    """The processor, and how busy it is."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0] if names else 'an unknown processor'}, load {os.getloadavg()[2]:.1f} over 15 minutes"


def rewrite(found: Mapping[str, Any], *, at: str, where: str, path: Path = TABLE) -> None:
    """Put the measured figures in place of the web's rows, claims and notes; all others stay. `at` is commit and date, `where` the machine.

    ValueError where one is missing.
    """
    if missing := [name for name in NEEDED if found.get(name) is None]:
        raise ValueError(f"Not measured: {', '.join(missing)}. The table stays as it is; run more episodes, with the extra 'web'.")
    table = json.loads(path.read_text("utf-8"))
    written: dict[str, tuple[tuple[str, ...], list[Any]]] = {
        "rows": (ROWS, rows(found, at)),
        "claims": (CLAIMS, claims(found)),
        "notes": (NOTES, [NOTE.format(where=where, **found)]),
    }
    for key, (starts, new) in written.items():
        kept = [one for one in table[key] if not (one if isinstance(one, str) else next(iter(one.values()))).startswith(starts)]
        table[key] = [*kept, *new]
    path.write_text(json.dumps(table, ensure_ascii=False) + "\n", "utf-8")


def rows(found: Mapping[str, Any], at: str) -> list[dict[str, Any]]:
    """Steps a second of one browser, from medians."""

    def row(name: str, ours: float, theirs: float | None = None) -> dict[str, Any]:
        stock, ratio = (_rounded(1 / theirs), _rounded(theirs / ours)) if theirs else (None, None)
        return {"environment": f"{name} (browser; wall clock; {at})", "steps": _rounded(1 / ours), "stock": stock, "ratio": ratio}

    wait = found["web_wait_s"]
    return [
        row("MiniWoB, steps that go on; stock waits 0.5 s, as shipped", found["web_step_s"], found["web_stock_step_s"]),
        row(f"MiniWoB, steps that go on; both wait {wait:g} s", found["web_step_s"], found["web_stock_step_same_wait_s"]),
        row("MiniWoB, steps that end an episode: no page is read", found["web_end_s"]),
        row("the example shop, steps that go on", found["web_shop_step_s"]),
        row("the example forum, steps that go on", found["web_forum_step_s"]),
    ]


def claims(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was asked of the browser."""

    def claim(what: str, most: float, got: float) -> dict[str, Any]:
        return {"what": what, "asked": f"at most {most:g}", "got": _rounded(got), "interval": None, "met": got <= most}

    reset, step = found["web_stock_reset_s"], found["web_stock_step_s"]
    return [
        claim(f"MiniWoB in one browser, a reset, seconds at the median (BrowserGym's own: {reset:.2f})", 0.5, found["web_reset_s"]),
        claim(
            f"MiniWoB in one browser, a step that goes on, seconds at the median (BrowserGym's own, same actions: {step:.2f})",
            0.35,
            found["web_step_s"],
        ),
        *(
            claim(f"memory of a browser with eight contexts of {name}, MiB", 600, found[f"web_{prefix}eight_contexts_mb"])
            for name, prefix in (("MiniWoB", ""), ("the shop", "shop_"), ("the forum", "forum_"))
        ),
        claim(
            f"memory that the second half of {found['web_episodes']} episodes of MiniWoB adds, browser to Python, MiB an episode",
            LEAK,
            found["web_grown_late_mb"] / max(1, found["web_episodes"] - found["web_episodes"] // 2 - 1),
        ),
    ]


def _rounded(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")
