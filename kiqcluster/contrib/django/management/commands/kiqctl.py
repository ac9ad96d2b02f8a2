"""manage.py kiqctl: kiqctl with the Redis of this project; its arguments are those of `kiqctl`."""

from __future__ import annotations

from kiqcluster.contrib.django.commands import APPLICATION, PassingCommand
from kiqcluster.process.config import Config, Origins

__all__ = ["Command"]


class Command(PassingCommand):
    help = "Steers and watches the jobs of this project. Its arguments are those of the command kiqctl."
    module = "kiqcluster.ctl"

    def variables(self, config: Config, origins: Origins) -> dict[str, str]:  # noqa: ARG002
        return {"KIQ_REQUIRE": APPLICATION} if origins["require"] == "default" else {}
