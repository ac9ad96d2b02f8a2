"""All messages of the web pages: those of templates, and those that Python code marks or translates."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kiqcluster.web
from kiqcluster.web.templating import environment

PACKAGE = Path(kiqcluster.web.__file__).parent
MARKS = {"message", "gettext", "_"}

Message = tuple[str, str]  # one, many; "" where there is no plural


def messages() -> dict[Message, str]:
    """Return each message, and a file that has it."""
    found: dict[Message, str] = {}
    here = environment("en")
    for path in sorted((PACKAGE / "templates").glob("*.html")):
        for _, function, texts in here.extract_translations(path.read_text()):  # type: ignore[attr-defined]
            words = [texts] if isinstance(texts, str) else [each for each in texts or () if each is not None]
            if words:
                found.setdefault((words[0], words[1] if function == "ngettext" else ""), path.name)
    for path in sorted(PACKAGE.rglob("*.py")):
        for pair in _of_code(ast.parse(path.read_text())):
            found.setdefault(pair, path.name)
    return found


def _of_code(tree: ast.Module) -> Iterator[Message]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if name in MARKS and texts:
            yield texts[0], ""
        elif name in ("ngettext", "messages") and len(texts) >= 2:
            yield texts[0], texts[1]
