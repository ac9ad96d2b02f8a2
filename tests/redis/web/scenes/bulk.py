"""Scenes of bulk actions: each on a few dead jobs."""

from __future__ import annotations

from functools import partial

from kiqcluster.api import DeadSet
from kiqcluster.api.bulk import Selection, ask, start
from kiqcluster.store import Store
from kiqcluster.web.views.set_kinds import SETS, SetKind
from tests.redis.web.scenes.sets import FORM
from tests.redis.web.site import Scene
from tests.stored_jobs import fill_set


def three_entries(kind: SetKind, store: Store) -> Scene:
    fill_set(store, kind.job_set(store=store).key, range(3))
    return Scene({}, FORM)


def counted(store: Store) -> Scene:
    fill_set(store, store.keys.dead, range(3))
    return Scene({"id": ask(store, DeadSet, "retry", Selection())})


def left(store: Store) -> Scene:
    scene = counted(store)
    start(store, scene.route["id"])
    return scene


SCENES = {
    **{f"{kind.name}_bulk_{verb}": partial(three_entries, kind) for kind in SETS for verb in kind.verbs},
    "bulk_start": counted,
    "bulk_cancel": counted,
    "bulk_resume": left,
}
