"""OwnLogger: kiqcluster's logger in processes of its own, which code of the application does not silence by accident.

`logging.config` disables every logger that it is not told of, unless `disable_existing_loggers` says otherwise, and
`logging.disable` is for all loggers of a process.  A worker whose lines are gone fails without a word.  So its logger
heeds neither: the setting log.level says which lines there are.  Code that names the logger `kiqcluster` means it, and
may change its level, its handlers and its filters.  A handler or filter that raises an error costs its line.

Price: none; the check before a line is one comparison.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from kiqcluster.errors import class_name, message_of
from kiqcluster.process.boundary.calls import guarded

__all__ = ["OwnLogger", "protect"]


def protect(logger: logging.Logger) -> None:
    """Have a logger be an OwnLogger from now on."""
    logger.__class__ = OwnLogger


class OwnLogger(logging.Logger):
    """See above."""

    @property
    def disabled(self) -> bool:
        """False, whatever is assigned."""
        return False

    @disabled.setter
    def disabled(self, _value: bool) -> None: ...

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  # logging's name
        return level >= self.getEffectiveLevel()

    def handle(self, record: logging.LogRecord) -> None:
        guarded(_report, super().handle, record)


def _report(error: BaseException) -> None:
    """Say on standard error that a line could not be written, as handlers of logging do."""
    with suppress(AttributeError, OSError, ValueError):  # there is none, or nobody reads it
        sys.stderr.write(f"kiqcluster: a line of the log is lost: {class_name(error)}: {message_of(error)}\n")
