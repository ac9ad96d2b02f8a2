"""kiqctl within the test's process."""

from __future__ import annotations

import json
from inspect import signature
from typing import Any

from click.testing import CliRunner, Result

from kiqcluster.ctl.command import command

RUNNER = CliRunner(**({"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}))  # click 8.1


class Kiqctl:
    """Runs kiqctl on a Redis; nobody is at a terminal."""

    def __init__(self, redis: str) -> None:
        self._environ = {"REDIS_URL": redis, "COLUMNS": None}

    def __call__(self, *words: str, **environ: str) -> Result:
        result = RUNNER.invoke(command, words, env={**self._environ, **environ})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def ask(self, *words: str, code: int = 0) -> Any:
        """Return the document that it prints with --json."""
        result = self(*words, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)
