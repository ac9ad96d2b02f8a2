"""Bulk: finds jobs of sets and queues of any size by a filter, and does something to all of them, in the background.

Read in this order:
selection   what a job has to be like, and the texts by which Redis finds those that may be
look        one look at a set or a queue: from a place on, until there is enough, or the time is over
verbs       what is done to jobs
state       a bulk action in Redis: asked for, counted, begun, cancelled; how far it is
sources     where jobs are: a set, whose slices end at an entry, or a queue, from which others fetch
runner      works on bulk actions, slice by slice, in threads

Each slice holds Redis for about 5 ms at most.
"""

from kiqcluster.api.bulk.look import (
    Look,
    QueueLook,
    find_place,
    look,
    look_at_queue,
    read_anchors,
    walk,
    walk_queue,
    write_anchors,
)
from kiqcluster.api.bulk.runner import BulkRunner
from kiqcluster.api.bulk.selection import Selection
from kiqcluster.api.bulk.state import BulkAction, ask, bulk_actions, cancel, read_bulk, resume, start
from kiqcluster.api.bulk.verbs import VERBS, BulkVerb

__all__ = [
    "VERBS",
    "BulkAction",
    "BulkRunner",
    "BulkVerb",
    "Look",
    "QueueLook",
    "Selection",
    "ask",
    "bulk_actions",
    "cancel",
    "find_place",
    "look",
    "look_at_queue",
    "read_anchors",
    "read_bulk",
    "resume",
    "start",
    "walk",
    "walk_queue",
    "write_anchors",
]
