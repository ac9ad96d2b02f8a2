"""Exits: how a process ends.  kiqcluster calls os._exit nowhere else."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from kiqcluster.ipc.stdio import flush_output

__all__ = ["exit_at_once", "exit_process", "exit_process_after"]

FAILED_CODE = 1  # with which Python ends after an error


def exit_process(code: int) -> NoReturn:
    """End the process: flush what was printed, run no exit handlers of the parent, wait for no thread."""
    flush_output()
    os._exit(code)


def exit_at_once(code: int) -> NoReturn:
    """End the process without a flush, which can wait for ever: nobody reads the pipe that it was to go to."""
    os._exit(code)


def exit_process_after(error: BaseException | None) -> NoReturn:
    """End the process as Python ends a program that raised `error`, or that returned if it is None."""
    code = 0 if error is None else FAILED_CODE
    try:
        if isinstance(error, SystemExit):
            code = _exit_code(error)
        elif error is not None:
            sys.stderr.write("".join(traceback.format_exception(error)))
    finally:  # also if the traceback cannot be written
        exit_process(code)


def _exit_code(error: SystemExit) -> int:
    """Return the exit code of sys.exit.  A message goes to standard error, as in Python."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return FAILED_CODE
