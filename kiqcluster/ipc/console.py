"""Console: runs a click command, which ends with its exit code and no traceback even if its output fails."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from kiqcluster.errors import ExitCode
from kiqcluster.ipc import stdio

__all__ = ["run_command"]

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def run_command(command: click.Command, name: str, arguments: Sequence[str] | None = None, lost: str = "") -> NoReturn:
    """Run a command and exit with its code.  lost: text to add when there is no room for the output."""
    code: int = ExitCode.STOPPED
    try:
        try:
            result = command.main(arguments, prog_name=name, standalone_mode=False)
            code = result if isinstance(result, int) else code
        except click.ClickException as error:
            code = error.exit_code
            error.show()
        except click.Abort:
            code = ExitCode.UNEXPECTED
            click.echo("Aborted!", err=True)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        with suppress(OSError):  # standard error may be on the same full disk
            click.echo(f"{name}: {error.strerror}, so not all was printed{lost}", err=True)
        stdio.drop_output()
        code = code or getattr(error.__context__, "exit_code", None) or ExitCode.UNEXPECTED  # of the failed command
    raise SystemExit(int(code))
