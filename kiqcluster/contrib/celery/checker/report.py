"""Report: what the commands print.  Pure.

table       findings → text, a line for each use that has to change; the others are counted
document    findings → the object of --json
exit_code   0, or 1 where a use has no counterpart
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kiqcluster.contrib.celery.catalogue import Verdict
from kiqcluster.contrib.celery.checker.finding import Finding

__all__ = ["document", "exit_code", "table"]

WORDS: dict[Verdict, str] = {"works": "works", "change": "change", "none": "no counterpart"}


def table(findings: Sequence[Finding], files: int, *, shows_all: bool = False) -> str:
    """Return a line for each use, and a summary."""
    lines = []
    for each in findings:
        if shows_all or each.verdict != "works":
            advice = f": {each.advice}" if each.advice else ""
            lines.append(f"{each.path}:{each.line}: {WORDS[each.verdict]}: {each.kind} {each.name}{advice}")
    return "\n".join([*lines, summary(findings, files)]) + "\n"


def summary(findings: Sequence[Finding], files: int) -> str:
    """Return the last line."""
    counts = Counter(each.verdict for each in findings)
    what = ", ".join(f"{counts[verdict]} {word}" for verdict, word in WORDS.items())
    return f"{files} files, {len(findings)} uses of Celery: {what}"


def document(findings: Sequence[Finding], files: int) -> dict[str, Any]:
    """Return what --json prints."""
    counts = Counter(each.verdict for each in findings)
    return {
        "files": files,
        "counts": {verdict: counts[verdict] for verdict in WORDS},
        "findings": [asdict(each) for each in findings],
    }


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if a use has no counterpart, or a file could not be read."""
    return int(any(each.verdict == "none" for each in findings))
