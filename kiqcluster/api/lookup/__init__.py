"""Lookup: one job by its id, wherever it is.

locate   the processes that hold it; then sets, lines of parked jobs and queues, a while at a time
known    what Redis keeps under its id: result, progress, iteration, cancel; the jobs of its chain
"""

from kiqcluster.api.lookup.known import Known, cancel_everywhere, chain_of, read_known
from kiqcluster.api.lookup.locate import Found, Located, Position, held, locate, read_position

__all__ = [
    "Found",
    "Known",
    "Located",
    "Position",
    "cancel_everywhere",
    "chain_of",
    "held",
    "locate",
    "read_known",
    "read_position",
]
