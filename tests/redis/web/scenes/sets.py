"""Scenes of the actions on sets."""

from __future__ import annotations

from functools import partial

from kiqcluster.store import Store
from kiqcluster.web.views.set_kinds import SETS, VERBS, SetKind
from tests.redis.web.site import Scene, entry_keys
from tests.stored_jobs import fill_set

FORM = {"when": "15m", "target": "mailers"}


def two_entries(kind: SetKind, store: Store) -> Scene:
    fill_set(store, kind.job_set(store=store).key, range(3))
    return Scene({}, {**FORM, "key": [entry_keys(store).entry(each) for each in list(kind.job_set(store=store))[:2]]})


SCENES = {f"{kind.name}_{VERBS[name].name}": partial(two_entries, kind) for kind in SETS for name in kind.verbs}
