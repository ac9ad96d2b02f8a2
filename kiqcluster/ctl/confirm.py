"""Confirmation of what is done to many at once, or cannot be undone: it is said with its count, and then asked for.

Where nobody can be asked (no terminal, or a document is wanted), --yes is the answer; without it nothing is done.
"""

from __future__ import annotations

import sys

import click

from kiqcluster.ctl.options import Output
from kiqcluster.errors import KiqError, UsageError

__all__ = ["Declined", "confirm", "yes_option"]

yes_option = click.option("--yes", is_flag=True, help="do it without asking")


class Declined(KiqError):
    """Whoever was asked has not said yes."""


def confirm(output: Output, what: str, *, yes: bool) -> None:
    """Return if it is to be done.

    what: the whole of it, with its count, as in `delete 1,204 entries of the dead set`.
    Raises Declined, exit 1; UsageError, exit 2, where nobody can be asked.
    """
    if yes:
        return
    if output.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"this would {what}; nothing was done: add --yes to do it")
    try:
        is_wanted = click.confirm(f"This will {what}. Go on?", err=True)
    except click.Abort:
        click.echo(err=True)  # behind the question, where the cursor still is
        is_wanted = False
    if not is_wanted:
        raise Declined("nothing was done")
