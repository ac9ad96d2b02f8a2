"""The pages about guarantees: their examples print what they say, and they say what a user has to know."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.guarantee_pages import sections
from tests.docs.test_docs import output
from tests.kit import ROOT, RedisServer

CALLS = {  # of what an example declares, and what it prints
    "Rate limits": ("sync(7)", "synced 7\n"),
    "RetryError": (
        "try:\n    mirror.perform_inline('a')\nexcept RetryError as error:\n    print(type(error).__name__, error)",
        "NotThereYet a\n",
    ),
}
NO_GUARANTEES = ("__init__", "job_end", "stacks")
PRICED = [
    *(path for path in sorted((ROOT / "kiqcluster/features").glob("*.py")) if path.stem not in NO_GUARANTEES),
    *(ROOT / "kiqcluster" / name for name in ("limited_capacity.py", "limits.py", "policies.py", "client/router.py")),
]
SAID_OF_EACH = {  # what the section of a guarantee says, and a word by which that is known
    "its price": r"[Pp]rice|costs nothing",
    "what is lost with a key": r"Redis (?:loses|is lost)|lost with one|[Nn]o key|there are none|[Nn]othing (?:in|is)",
    "what Ruby does": r"\*\*(?:A )?Ruby|A Ruby process|Sidekiq without Pro",
    "where to see it": r"kiqctl|/metrics|_total",
    "an example": r"```(?:python|console)",
    "its tests": r"`test_",
}


@pytest.mark.parametrize("title", [title for title, text in sections().items() if "```python" in text])
@pytest.mark.usefixtures("store")  # an empty Redis
def test_the_examples_print_what_the_page_says(title: str, tmp_path: Path, redis_server: RedisServer) -> None:
    found = re.findall(r"^```(\w*)\n(.*?)^```", sections()[title], re.MULTILINE | re.DOTALL)
    call, prints = CALLS.get(title, ("", ""))
    (tmp_path / "page.py").write_text("\n".join([*(text for language, text in found if language == "python"), call]))

    printed = output(tmp_path / "page.py", redis_server)

    assert printed == "".join(text for language, text in found if not language) + prints


ELSEWHERE = ("not here", "the same")  # what a row says that names no test: it is not there, or the row above shows it


@pytest.mark.parametrize("title", [title for title, text in sections().items() if re.search(r"\| test[ |(]", text)])
def test_each_row_of_a_table_of_behaviours_names_a_test(title: str) -> None:
    _, _, table = re.split(r"(\| test[ |(].*\n)", sections()[title], maxsplit=1)
    rows = table.partition("\n\n")[0].splitlines()[1:]

    assert rows
    assert [row for row in rows if "`test_" not in row and not any(words in row for words in ELSEWHERE)] == []


@pytest.mark.parametrize("title", [title for title in sections() if title != "What else GitLab documents"])
def test_each_guarantee_says_what_a_user_has_to_know(title: str) -> None:
    text = sections()[title]

    assert [what for what, word in SAID_OF_EACH.items() if not re.search(word, text)] == []


@pytest.mark.parametrize("path", PRICED, ids=lambda path: path.stem)
def test_the_module_of_each_guarantee_says_its_price(path: Path) -> None:
    assert "\nPrice: " in (ast.get_docstring(ast.parse(path.read_text())) or "")
