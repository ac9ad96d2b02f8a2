"""manage.py kiqcluster: runs the workers of this project; its arguments are those of `kiqcluster`, without -r."""

from __future__ import annotations

from kiqcluster.contrib.django.checks import TAG
from kiqcluster.contrib.django.commands import PassingCommand, cluster_variables, cluster_words
from kiqcluster.process.config import Config, Origins

__all__ = ["Command"]


class Command(PassingCommand):
    help = "Runs the workers of this project. Its arguments are those of the command kiqcluster."
    module = "kiqcluster"

    def words(self, words: list[str], config: Config) -> list[str]:
        return cluster_words(words, config)

    def variables(self, config: Config, origins: Origins) -> dict[str, str]:  # noqa: ARG002
        return cluster_variables(config)

    def examine(self) -> None:
        self.check(tags=[TAG], display_num_errors=True)
