"""Settings, variables and flags that pages, messages and deploy/ name are those that are declared."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import Field
from pathlib import Path
from typing import Any

import click
import pytest

from kiqcluster.cli import command
from kiqcluster.ctl import command as kiqctl
from kiqcluster.process import config, config_sources
from kiqcluster.process.durations import Bytes, show_size
from tests.docs.test_docs import PAGES, blocks
from tests.docs.test_paths import texts
from tests.kit import ROOT

NO_VARIABLES = {  # of the shape of a setting's variable
    "KIQ_BASE": "of make test-changed",
    "KIQ_CHAOS": "of make chaos",
    "KIQ_CONCURENCY": "an example of a typing mistake",
    "KIQ_FORKSERVER": "of the tests",
    "KIQ_NAME": "stands for all",
    "KIQ_PYTHONS": "of make test-versions",
    "KIQ_SITE_HOOKS_PUT_OFF": "from an interpreter to the one that it starts",
}
NO_FLAGS = {
    "--app": "Flask's",
    "--disable-gil": "of CPython's build",
    "--kill-who": "systemd's",
    "--kill-whom": "systemd's",
    "--no-clear-untrusted-proxy-headers": "waitress'",
    "--pool": "Celery's",
    "--queues": "RQ's and Celery's",
    "--small": "of the benchmarks",
    "--tz": "of our command for Celery",
    "--undo": "of tools.release",
}
WORDS = {
    "event_loop": config.EVENT_LOOPS,
    "log_jobs": config.JOB_LOGS,
    "log_format": config.LOG_FORMATS,
    "log_level": config.LOG_LEVELS,
    "ruby_json": config.JSON_VERSIONS,
    "size_limiter_mode": config.SIZE_LIMITER_MODES,
    "strict_args": config.ARGUMENT_MODES,
}


def flags_of(some: click.Command) -> Iterator[str]:
    """Yield the options of a command and of its subcommands."""
    for each in some.params:
        yield from (*each.opts, *each.secondary_opts)
    if isinstance(some, click.Group):
        for name in some.list_commands(context := click.Context(some)):
            found = some.get_command(context, name)
            assert found is not None
            yield from flags_of(found)


def row(setting: Field[Any]) -> str:
    """Return the row of a setting in docs/reference/settings.md."""
    default = ", ".join(setting.default) if isinstance(setting.default, tuple) else setting.default
    shown = "" if default in (None, "", False) else f"{default:g}" if isinstance(default, float) else str(default)
    if shown and config.FIELD_TYPES[setting.name] == Bytes:
        shown = show_size(setting.default)
    options = [each for each in command.params if each.name == setting.name and isinstance(each, click.Option)]
    others = [f"`{word}`" for each in options for word in each.opts if word.startswith("-")]
    others += ["`configure()`"] * setting.metadata["in_code"]
    return f"| `{config.key_of(setting)}` | {shown} | {' '.join(others)} | {setting.metadata['help']} |"


def test_every_setting_is_in_the_table() -> None:
    rows = "\n".join(row(each) for each in config.settings())

    assert rows in (ROOT / "docs/reference/settings.md").read_text(), f"the rows have to be\n{rows}"


def test_the_help_of_a_setting_names_its_words() -> None:
    named = {each.name: set(re.findall(r"[\w.]*\w", each.metadata["help"])) for each in config.settings()}

    assert {name for name, words in WORDS.items() if not set(words) <= named[name]} == set()


def test_every_variable_that_is_named_is_one_of_a_setting() -> None:
    ours = {f"KIQ_{each.name.upper()}" for each in config.settings()} | config_sources.NON_SETTING_VARIABLES
    named = {word: name for name, text in texts().items() for word in re.findall(r"\bKIQ_[A-Z][A-Z_]*\b", text)}

    assert {word: name for word, name in named.items() if word not in ours | {"KIQ_ENV"}}.keys() == NO_VARIABLES.keys()


def test_every_flag_that_is_named_is_one_of_a_command() -> None:
    groups = [each for each in vars(kiqctl).values() if isinstance(each, click.Group)]
    ours = {word for each in (command, *groups) for word in flags_of(each)} | {"--help"}
    named: dict[str, str] = {}
    for name, text in texts().items():
        spans = re.findall(r"`(--[a-z][a-z-]*)", text) if name.endswith(".md") else []
        if name.startswith(("deploy/", "docs/", "kiqcluster/")) or name.endswith(".md"):
            spans += re.findall(r"\b(?:kiqcluster|kiqctl)\b[^`|;&\n]*", text)
        named |= {word: name for span in spans for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)}

    assert {word: name for word, name in named.items() if word not in ours}.keys() == NO_FLAGS.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_configuration_that_a_page_shows_is_accepted(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "toml"):
        table = tomllib.loads(block)
        if "kiqcluster" in table.get("tool", {}) or "tool" not in table:
            file = tmp_path / ("pyproject.toml" if "tool" in table else "kiqcluster.toml")
            file.write_text(block)
            config_sources.load({}, file=str(file), environ={})
