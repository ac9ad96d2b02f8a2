"""The command `python -m kiqcluster.contrib.celery`: reads a code base, and imports nothing of it.

check      lists what it uses of Celery, and what each use becomes
schedule   prints its beat_schedule as entries of kiqcluster.toml
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from kiqcluster.contrib.celery.checker import report
from kiqcluster.contrib.celery.checker.assigned import settings_of
from kiqcluster.contrib.celery.checker.beat import beat_entries, zone_of
from kiqcluster.contrib.celery.checker.known import Known, Undecided
from kiqcluster.contrib.celery.checker.scan import scan
from kiqcluster.contrib.celery.checker.schedules import CronTable, toml
from kiqcluster.contrib.celery.checker.source import read_sources
from kiqcluster.contrib.celery.checker.unfollowed import unread_findings
from kiqcluster.contrib.celery.errors import Unsupported

__all__ = ["main"]

PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Look at a code base that uses Celery, before it moves to kiqcluster.  Nothing of it is imported."""


@main.command()
@PATHS
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--all", "shows_all", is_flag=True, help="List also the uses that work as they are.")
def check(paths: tuple[Path, ...], *, as_json: bool, shows_all: bool) -> None:
    """List what PATHS use of Celery, and what each use becomes.

    Exit code 0: everything works or has a counterpart.  1: something has none.  2: the command line is wrong.
    """
    sources = read_sources(paths)
    findings = scan(sources)
    if as_json:
        click.echo(json.dumps(report.document(findings, len(sources)), indent=2))
    else:
        click.echo(report.table(findings, len(sources), shows_all=shows_all), nl=False)
    click.get_current_context().exit(report.exit_code(findings))


@main.command()
@PATHS
@click.option("--tz", default="", help="Time zone of the entries; default: the setting timezone, else UTC.")
def schedule(paths: tuple[Path, ...], *, tz: str) -> None:
    """Print the beat schedules in PATHS as entries of kiqcluster.toml.

    Entries without a counterpart, and settings that no file tells, are listed on standard error; the exit code is 1.
    """
    sources = read_sources(paths)
    known = Known.of(sources)
    settings = list(settings_of(sources, known))
    try:
        zone = tz or zone_of(sources, settings)
    except Undecided as error:
        raise click.UsageError(f"{error}; name the time zone of the entries: --tz Europe/Berlin") from error
    entries = list(beat_entries(sources, known, settings, zone))
    tables: dict[str, str] = {}
    failures = 0
    for unread in unread_findings(known.modules):  # they may have entries, or the time zone
        failures += 1
        click.echo(f"{unread.path}:{unread.line}: {unread.name}: {unread.advice}", err=True)
    for entry in entries:
        text = entry.reason if entry.table is None else _text(entry.table, tables)
        if not text.startswith("["):
            failures += 1
            click.echo(f"{entry.source.path}:{getattr(entry.node, 'lineno', 1)}: {entry.name}: {text}", err=True)
    if not entries:
        click.echo(
            f"no schedule was found in {len(sources)} files; PATHS must have the file that declares it", err=True
        )
    click.echo("\n".join(tables.values()), nl=False)
    click.get_current_context().exit(int(failures > 0))


def _text(table: CronTable, tables: dict[str, str]) -> str:
    """Add the text of an entry to the tables, and return it, or the reason why it has none."""
    if table.name in tables:
        return "another entry has this name; rename one of them"
    try:
        tables[table.name] = toml([table])
    except Unsupported as error:
        return str(error)
    return tables[table.name]


if __name__ == "__main__":
    main()
