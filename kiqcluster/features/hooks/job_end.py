"""JobEnd: the end of a run, as `on_end` of features gets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Interrupted, Outcome, Requeue
from kiqcluster.sidekiq.payload import Payload

__all__ = ["JobEnd"]

DEFAULT_KEYS = Keys()


@dataclass(slots=True)  # a frozen one takes a microsecond longer to make
class JobEnd:
    """The end of a run, as features see it: a unit and its outcome, which is decided and not yet settled.

    Retry, Deferred, Requeue and Interrupted mean that the job runs again; Done, Discard and Dead that it does not.
    payload: as it came; the job and middleware have another copy, which they may change.  name: of the job's class.
    identity, token, keys: as those of Run.  raw: the unit's bytes, as they came.
    has_asked: whether its begin rows were put to Redis.  failure: the error that ended the run.
    messages: that the job has logged (current_job().log).  returned: by `perform`.
    iteration: where an iterable job is (iteration.Iteration), None where it has not begun.
    was_skipped: whether server middleware has ended the run without calling `perform`.
    """

    outcome: Outcome
    payload: Payload = field(repr=False)
    queue: str
    name: str
    identity: str
    token: str
    keys: Keys = field(default=DEFAULT_KEYS, repr=False)
    raw: bytes = field(default=b"", repr=False)
    has_asked: bool = True
    failure: BaseException | None = None
    messages: Sequence[str] = ()
    returned: Any = field(default=None, repr=False)
    iteration: Any = field(default=None, repr=False)
    was_skipped: bool = False

    @property
    def has_left_line(self) -> bool:
        """Whether the job leaves a line of parked jobs, and no begin has sent the next one on."""
        return not self.has_asked and not isinstance(self.outcome, Requeue | Interrupted)
