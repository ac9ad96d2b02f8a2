"""Commands: `manage.py kiqcluster` and `manage.py kiqctl` become the commands themselves, told what the settings say.

1. passed_words   manage.py's --settings and --pythonpath are its own; all other arguments are passed on
2. variables      DJANGO_SETTINGS_MODULE, the path of manage.py, settings that nothing closer has (settings.variables)
3. _become        the process becomes `python -m kiqcluster …`: the supervisor imports no application, keeps the pid and
                  gets the signals; called from code (call_command), it is a process of its own
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, SystemCheckError

from kiqcluster.contrib.django.settings import current_config, variables
from kiqcluster.errors import ExitCode, KiqError
from kiqcluster.process.config import Config, Origins
from kiqcluster.store import embedded

__all__ = ["APPLICATION", "PassingCommand", "cluster_variables", "cluster_words", "passed_words"]

APPLICATION = "kiqcluster.contrib.django:load"
OWN_FLAGS = ("--settings", "--pythonpath")  # of manage.py
HELP_FLAGS = frozenset({"-h", "--help", "--version"})
ALL_QUEUES = "*"


class PassingCommand(BaseCommand):
    """A command of manage.py that passes its arguments on.  module: that runs."""

    module = ""
    requires_system_checks: Sequence[str] = ()

    def words(self, words: list[str], config: Config) -> list[str]:  # noqa: ARG002
        """Return the arguments of the command."""
        return words

    def variables(self, config: Config, origins: Origins) -> dict[str, str]:  # noqa: ARG002
        """Return variables of this command's own."""
        return {}

    def examine(self) -> None:
        """Check the project before the command begins.  Raises SystemCheckError."""

    def prepared(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment of the process.  Raises CommandError."""
        passed = passed_words(words)
        named = _parsed(passed, ("-C", "--config"), ("-e", "--environment"))
        project = settings.SETTINGS_MODULE or os.environ.get("DJANGO_SETTINGS_MODULE")
        if not project:
            raise CommandError(
                "the settings are of no module, and other processes need one: set DJANGO_SETTINGS_MODULE"
            )
        try:
            config, origins = current_config(named.config, environment=named.environment)
            told = {**os.environ, **variables(origins, project), **self.variables(config, origins)}
        except (KiqError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=int(ExitCode.USAGE)) from error
        told["DJANGO_SETTINGS_MODULE"] = project
        paths = [str(Path(sys.path[0]).resolve()), *filter(None, told.get("PYTHONPATH", "").split(os.pathsep))]
        told["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))  # of manage.py, or what --pythonpath says
        return [sys.executable, "-m", self.module, *self.words(passed, config)], told

    def run_from_argv(self, argv: list[str]) -> None:
        """Become the command."""
        words = argv[2:]
        try:
            if HELP_FLAGS.isdisjoint(words):
                self.examine()
            line, environ = self.prepared(words)
        except (CommandError, SystemCheckError) as error:
            self.stderr.write(str(error))
            raise SystemExit(int(error.returncode)) from error
        _become(line, environ)

    def print_help(self, prog_name: str, subcommand: str) -> None:  # noqa: ARG002
        """Print the help of the command (manage.py help kiqcluster)."""
        line, environ = self.prepared(["--help"])
        subprocess.run(line, env=environ, check=False)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def handle(self, *_: Any, words: Sequence[str] = (), **__: Any) -> None:
        """Run the command as a process of its own (call_command).  Raises CommandError with its exit code."""
        line, environ = self.prepared(list(words))
        done = subprocess.run(line, env=environ, check=False)
        if done.returncode:
            raise CommandError(f"{self.module} has failed", returncode=done.returncode)


def _become(line: list[str], environ: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(line[0], line, environ)  # noqa: S606  # the arguments are of the person who has called manage.py


def _parsed(words: Sequence[str], *flags: tuple[str, ...], **kind: Any) -> argparse.Namespace:
    """Return the values of these flags among others."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in flags:
        parser.add_argument(*names, **kind)
    return parser.parse_known_args(list(words))[0]


def passed_words(words: Sequence[str]) -> list[str]:
    """Return the arguments without those of manage.py."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in OWN_FLAGS:
        parser.add_argument(flag)
    return parser.parse_known_args(list(words))[1]


def cluster_words(words: Sequence[str], config: Config) -> list[str]:
    """Return the arguments of kiqcluster: Django is imported first, then what else is required."""
    named = _parsed(words, ("-r", "--require"), action="append", default=[])
    required = [] if named.require else [word for each in config.require for word in ("-r", each)]
    return ["-r", APPLICATION, *required, *words]


def cluster_variables(config: Config) -> dict[str, str]:
    """Return variables of kiqcluster: all queues where none are named, and the private server of the settings."""
    told = {} if config.groups else {"KIQ_GROUPS": ALL_QUEUES}
    if config.embedded is None and config.redis.startswith(embedded.SCHEME):
        told["KIQ_EMBEDDED"] = str(embedded.directory_of(config.redis))
    return told
