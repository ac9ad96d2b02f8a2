"""Sphinx: how `make docs` makes one site of these pages.  Warnings are errors there."""

from __future__ import annotations

from typing import Any

from kiqcluster.process.version import VERSION

project = "kiqcluster"
release = version = VERSION
language = "en"
extensions = ["myst_parser", "sphinx.ext.autodoc"]

html_theme = "furo"
html_title = f"kiqcluster {VERSION}"
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 4  # links may lead to a heading of another page, as they do on GitHub

# Docstrings are prose with `code` in it, and here and there a drawing.
default_role = "code"
autodoc_typehints = "none"  # guides/ explain what is passed; editors read the types from the package (py.typed)
autodoc_preserve_defaults = True
TREE = ("├", "│", "└")  # how a line of a drawing begins


def keep_drawings(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Have paragraphs with a tree in them come out as they are written."""
    paragraphs = "\n".join(lines).split("\n\n")
    for at, paragraph in enumerate(paragraphs):
        drawn = paragraph.splitlines()
        if any(line.startswith(TREE) for line in drawn):
            paragraphs[at] = "\n".join(["::", "", *(f"    {line}" for line in drawn)])
    lines[:] = [*"\n\n".join(paragraphs).splitlines(), ""]


def setup(app: Any) -> None:
    """Hear of every docstring before it is parsed."""
    app.connect("autodoc-process-docstring", keep_drawings)
