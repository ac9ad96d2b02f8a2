"""Scenes of the actions on cron entries."""

from __future__ import annotations

from kiqcluster.api import CronSet
from kiqcluster.store import Store
from tests.redis.web.site import Scene


def entry(store: Store) -> Scene:
    CronSet(store=store).add("nightly", "30 2 * * *", "Report", ["all"], queue="reports", tz="Europe/Berlin")
    return Scene({"entry": "nightly"}, {"back": "list"})


def disabled(store: Store) -> Scene:
    scene = entry(store)
    CronSet(store=store).disable("nightly")
    return scene


SCENES = {"cron_enqueue": entry, "cron_disable": entry, "cron_enable": disabled, "cron_remove": entry}
