"""Sphinx: the documentation site from the pages of this folder (`make docs`). The pages are plain Markdown and read as well without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.resolve()

project = "dreamgym"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "dreamgym"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_copyright = html_show_sphinx = html_copy_source = False
myst_heading_anchors = 3
myst_linkify_issues = False
suppress_warnings = ["misc.highlighting_failure"]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True, "exclude-members": "model_config"}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

NAVIGATION = {
    "index": {
        "": ["concepts", "trust", "results"],
        "Tutorials": [
            "tutorials/environment",
            "tutorials/logs",
            "tutorials/from_logs",
            "tutorials/tau2",
            "tutorials/serve",
            "tutorials/trl",
            "tutorials/verl",
            "tutorials/verifiers",
            "tutorials/scale",
            "tutorials/servers",
            "tutorials/web",
            "tutorials/connect",
            "tutorials/algorithm",
            "tutorials/model",
        ],
        "Reference": ["configuration", "metrics", "engine", "architecture", "paper_map", "api/index"],
        "Background": ["lab/index"],
    },
    "api/index": {"": ["records", "environments", "experience", "engines", "training", "replay", "evaluation"]},
    "lab/index": {"": ["older_results", "log", *(f"decisions/{path.stem}" for path in sorted((HERE / "lab/decisions").glob("*.md")))]},
}
"""The tables of contents, by the page that they belong to and by caption."""

OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:#]+)(?:#[^)\s]*)?\)")


def prepare(app: Any, name: str, source: list[str]) -> None:
    """Add a page's table of contents. Links to files outside this folder have no page on the site: their text alone is shown."""
    folder = (HERE / name).parent

    def kept(link: re.Match[str]) -> str:
        return link[0] if (folder / link[2]).resolve().is_relative_to(HERE) else link[1]

    contents = ""
    for caption, pages in NAVIGATION.get(name, {}).items():
        heading = f":caption: {caption}\n" if caption else ""
        contents += "\n```{toctree}\n:hidden:\n" + heading + "\n" + "\n".join(pages) + "\n```\n"
    source[0] = OUTSIDE.sub(kept, source[0]) + contents


def restructure(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code` and indented blocks: keep both, and escape what reStructuredText would read as markup."""
    found: list[str] = []
    literal = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not literal:
            found += ["", "::", ""]
        elif line.strip() and literal and not indented:
            found.append("")
        literal = indented or (literal and not line.strip())
        found.append(line if literal else re.sub(r"^\* |`([^`]+)`|([*|\\_])", _escaped, line))
    lines[:] = found


def _escaped(match: re.Match[str]) -> str:
    return f"``{match[1]}``" if match[1] else f"\\{match[2]}" if match[2] else match[0]


def setup(app: Any) -> None:
    app.connect("source-read", prepare)
    app.connect("autodoc-process-docstring", restructure)
