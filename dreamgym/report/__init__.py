"""The report of a run: one self-contained page, made from the run directory and nothing else, finished or not.

    data.py       the run directory as plain records       metrics.py   the meaning of every number
    sentences.py  the results in sentences                charts.py    lines, stacks and intervals as SVG
    curves.py     the charts of a run                      episodes.py  three episodes, turn by turn
    logs.py       what was learned from logs alone
    page.html, parts.html, style.css                       the page

Nothing is loaded until a page is asked for.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from dreamgym.runs.files import write_atomic
from dreamgym.runs.rundir import RunDir

PAGE = "report.html"


def write(run_path: Path) -> Path:
    """Write `report.html` into a run directory and return its path. RunDirError if it is not one."""
    run = RunDir.view(run_path)
    page = run.path / PAGE
    write_atomic(page, render(run))
    return page


def render(run: RunDir) -> str:
    """The page as text. Everything that came out of a run is escaped: what a model writes may look like HTML."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    from dreamgym.report import charts, curves, data, episodes, logs, sentences
    from dreamgym.report.metrics import METRICS

    found = data.read(run)
    environment = Environment(
        loader=FunctionLoader(_resource), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["interval"] = charts.interval
    environment.filters |= {
        "percent": sentences.percent,
        "count": sentences.count,
        "duration": sentences.duration,
        "unbroken": sentences.unbroken,
    }
    return environment.get_template("page.html").render(
        run=found,
        style=Markup(_resource("style.css")),
        facts=sentences.facts(found),
        headline=sentences.headline(found),
        warnings=sentences.warnings(found),
        gains=sentences.gains(found),
        status=sentences.status(found),
        scale=data.scale(found.rows),
        gap=sentences.policy_gap(found),
        audits=[(audit, sentences.fidelity(audit)) for audit in found.audits],
        audit_rows=data.AUDIT_ROWS,
        success=curves.success(found),
        details=curves.details(found),
        early_stops=sentences.early_stops(found),
        verifiers=sentences.verifiers(found),
        determinism=sentences.determinism(found),
        waits=sentences.waits(found),
        episodes=episodes.chosen(run),
        from_logs=logs.read(run, found),
        sources=logs.SOURCES,
        metrics=METRICS,
    )


def _resource(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")
