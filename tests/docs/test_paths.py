"""Every path that the package, deploy/, examples/ and docs/ name leads to a file; messages name pages of the sdist."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import kiqcluster
from kiqcluster.words import WORDS, page
from tests.docs.test_structure import anchors
from tests.kit import ROOT

PACKAGE = Path(kiqcluster.__file__).parent
READ = ("_kiqcluster_pytest.py", "deploy/", "docs/", "examples/", "kiqcluster/", "tools/", "Makefile", "pyproject.toml")
FOLDERS = "benchmarks|deploy|docs|examples|kiqcluster|tests|tools"
PATH = re.compile(rf"(?<![\w./-])(?:{FOLDERS})/[\w./@-]*\w(?![\w*<{{-])")
DOCS = re.compile(r"\bdocs/[a-z_]+")
ADDRESS = re.compile(r"\bhttps?://([\w.-]+)")
MADE = {"benchmarks/results/latest.json"}  # by `make bench`
BEGINNINGS = ("docs/adr/",)  # a decision is named by its number
HOSTS = {  # of addresses, which this test cannot open
    "127.0.0.1": "this host",
    "docs.djangoproject.com": "in comments of files that Django has made",
    "docs.sentry.io": "the conventions of spans",
    "key": "an example of a DSN",
    "localhost": "this host",
    "opentelemetry.io": "the conventions of attributes",
    "prometheus-operated.monitoring": "a service in Kubernetes",
    "semver.org": "what a release number means",
    "www.w3.org": "the namespace of SVG",
}


@cache
def texts() -> dict[str, str]:
    """Return the text of each file that is read here, by its path."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = listed.stdout.splitlines() or [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    chosen = [name for name in names if name.startswith(READ) or ("/" not in name and name.endswith(".md"))]
    found = {}
    for name in chosen:
        raw = (ROOT / name).read_bytes() if (ROOT / name).is_file() and "/vendor/" not in name else b"\0"
        if b"\0" not in raw:  # else it is no text
            found[name] = raw.decode(errors="replace")
    return found


def leads_somewhere(path: str) -> bool:
    if path.startswith(BEGINNINGS) and list((ROOT / path).parent.glob(f"{Path(path).name}*")):
        return True
    return any((ROOT / f"{path}{suffix}").exists() for suffix in ("", ".py")) or path in MADE


def test_every_path_leads_to_a_file() -> None:
    missing = {f"{name}: {path}" for name, text in texts().items() for path in PATH.findall(text)}

    assert sorted(each for each in missing if not leads_somewhere(each.partition(": ")[2])) == []


def test_every_address_is_of_a_known_host() -> None:
    found = {host: name for name, text in texts().items() for host in ADDRESS.findall(text)}
    others = {host for host in found if "example" not in host}

    assert {host: found[host] for host in others - HOSTS.keys()} == {}
    assert HOSTS.keys() - others == set(), "an exception that has lost its reason"


@cache
def trees() -> dict[str, ast.Module]:
    """Return path within the package → syntax tree, of the modules whose text may name a page."""
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    return {
        str(path.relative_to(PACKAGE)): ast.parse(text)
        for path, text in texts.items()
        if "page(" in text or DOCS.search(text)
    }


def docstrings(tree: ast.Module) -> set[int]:
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef))
    return {id(node.body[0].value) for node in nodes if node.body and isinstance(node.body[0], ast.Expr)}


def test_users_are_sent_to_a_page_by_one_function_which_knows_the_address() -> None:
    """A path of the repository is of no use to somebody who has the wheel."""
    found = [
        f"{path}:{node.lineno}: {node.value}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOCS.search(node.value)
        if id(node) not in docstrings(tree) and path != "words.py"
    ]

    assert found == []


def pages() -> Iterator[str]:
    """Yield the pages that messages name."""
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "page":
                argument = node.args[0]
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)
    yield from (word.page for word in WORDS.values())


@pytest.mark.parametrize("name", sorted(set(pages())))
def test_a_page_that_a_message_names_is_there(name: str) -> None:
    path, _, anchor = name.partition("#")

    assert (ROOT / f"docs/{path}.md").exists()
    assert not anchor or anchor in anchors(ROOT / f"docs/{path}.md")


def test_the_source_distribution_has_the_pages() -> None:
    assert page("guides/redis") == "docs/guides/redis.md in the sdist"
    assert '"/docs"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
