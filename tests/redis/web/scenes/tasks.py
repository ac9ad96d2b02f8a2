"""Scenes of the actions on tasks."""

from __future__ import annotations

from contextlib import suppress

from kiqcluster.store import Store
from kiqcluster.tasks import Task
from tests.redis.web.site import Scene


def running(store: Store) -> Scene:
    task = Task.create("import", "HandleRow", [[1], [2]], queue="rows")
    return Scene({"task": task.id}, {"reason": "wrong file"})


def left_open(store: Store) -> Scene:
    with suppress(ValueError), Task.open("import", store=store) as task:
        task.add("HandleRow", [[1]], queue="rows")
        raise ValueError("its creator died")
    return Scene({"task": task.id})


SCENES = {"task_cancel": running, "task_close": left_open}
