"""The structure of the documentation: every page has its place, its length, and links and examples that are checked."""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kiqcluster.sidekiq import encryption, payload
from tests.kit import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
OTHERS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*.md"))
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^[ ]*```.*?^[ ]*```$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"(.*\n)\n*^[ ]*```(?:python|console)\n", re.MULTILINE)
NOT_RUN = "<!-- not run:"  # in the line above an example, with the reason
MAX_WORDS = 1_500
MAX_README_LINES = 150
MIN_FONT_PIXELS = 12


def listed_pages(page: str) -> set[str]:
    """Return the pages below docs/ that the tables of contents of a page list."""
    folder = Path(page).parent
    trees = "".join(TOCTREE.findall((DOCS / page).read_text()))
    names = [line for line in trees.splitlines() if line and not line.startswith(":")]
    paths = {path for name in names for path in (DOCS / folder).glob(f"{name}.md")}
    return {Path(os.path.normpath(path)).relative_to(DOCS).as_posix() for path in paths}


def prose(text: str) -> str:
    """Return a page without code blocks, tables, headings and comments."""
    lines = re.sub(r"<!--.*?-->", "", BLOCK.sub("", text), flags=re.DOTALL).splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith(("|", "#")))


def count_words(text: str) -> int:
    """Return how many words of prose a page has; the address of a link is none."""
    return len(re.findall(r"\w[\w'’.:/-]*", re.sub(r"\]\([^)]*\)", "]", prose(text))))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and myst make them."""
    headings = re.findall(r"^#{1,4} (.*)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    names = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", name.lower()).strip().replace(" ", "-") for name in names}


def test_every_key_of_our_own_in_payloads_is_in_the_table() -> None:
    text = (DOCS / "reference/payload.md").read_text()
    ours = {payload.PROMISED_BY, payload.WRAPPED, encryption.KEY_VERSION, payload.THEN, payload.KEPT_RESULT_TTL}
    others = {payload.VERSION, payload.IDEMPOTENCY_KEY, payload.SCHEDULED_AT, payload.EXPIRES_IN, payload.EXPIRY}

    assert {key for key in ours | others if f"`{key}`" not in text} == set()


def test_every_page_is_reached_from_the_first_one() -> None:
    reached, new = set(), {"index.md"}

    while new:
        reached |= new
        new = {each for page in new for each in listed_pages(page)} - reached

    assert reached == set(PAGES)


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("adr/")])
def test_no_page_has_too_many_words(page: str) -> None:
    assert count_words((DOCS / page).read_text()) <= MAX_WORDS


def test_tables_code_and_headings_are_no_prose() -> None:
    table, code = "| a | table |\n|---|---|\n", "```python\nsome.code()\n```\n"
    page = f"# A page\n\nTwo words, `one`.\n\n{table}\n{code}\n- [a link](to/it.md)\n"

    assert count_words(page) == 5


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("page", [*OTHERS, *(f"docs/{page}" for page in PAGES)])
def test_links_to_headings_lead_to_one(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", BLOCK.sub("", path.read_text()))
    local = [((path.parent / name).resolve() if name else path, anchor) for name, anchor in links if "://" not in name]

    assert [(target.name, anchor) for target, anchor in local if anchor not in anchors(target)] == []


@pytest.mark.parametrize("drawing", sorted((DOCS / "images/diagrams").glob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_can_be_read_and_is_shown(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    sizes = [float(size) for size in re.findall(r"(?:font-size|font): ([\d.]+)px", drawing.read_text())]
    shown = re.findall(rf"!\[(.+)\]\(\S+/{drawing.name}\)", "".join((DOCS / page).read_text() for page in PAGES))

    assert root.findtext("{http://www.w3.org/2000/svg}title")
    assert min(sizes) >= MIN_FONT_PIXELS
    assert shown, "no page shows it with a text for those who do not see it"


def test_links_of_the_changelog_and_its_fragments_lead_somewhere() -> None:
    """Fragments stand in CHANGELOG.md one day, so their links begin at the root."""
    fragments = [ROOT / "CHANGELOG.md", *sorted((ROOT / "changelog.d").glob("*.md"))]
    links = {(path.name, link) for path in fragments for link in re.findall(r"\]\(([^)#\s]+)", path.read_text())}

    assert {(name, link) for name, link in links if "://" not in link and not (ROOT / link).exists()} == set()


def examples_that_are_run(page: str) -> list[str]:
    """Return the lines above the examples of a page that some test has to run."""
    return [line for line in EXAMPLE.findall((DOCS / page).read_text()) if not line.startswith(NOT_RUN)]


def test_a_test_names_each_page_that_has_examples() -> None:
    """Which examples it runs is that test's own business; most run all of them."""
    sources = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    named = "\n".join(path.read_text() for path in sources)

    with_examples = [page for page in PAGES if not page.startswith("adr/") and examples_that_are_run(page)]

    assert len(with_examples) > 30
    assert [page for page in with_examples if page.removesuffix(".md") not in named] == []
