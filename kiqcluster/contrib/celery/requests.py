"""Requests: the run of a task, as self.request, and the retry that a run has asked for.

Request   what self.request is
Asked     the retry that self.retry has asked for in a run: it happens however the run ends, as in Celery, which has
          pushed it by then.  Its hook reads it after the run, in the same context (declare.Retries)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn

from kiqcluster.contrib.celery.attributes import RefusesAttributes
from kiqcluster.contrib.celery.catalogue import REQUEST, refusal

__all__ = ["ASKED", "REQUEST_OF_RUN", "Asked", "Request"]


@dataclass(frozen=True, slots=True)
class Request(RefusesAttributes):
    """The run of a task, as self.request.  id: None of a call that is no job.  retries: failures before this run."""

    id: str | None
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    retries: int
    called_directly: bool

    def _missing(self, name: str) -> NoReturn:
        raise refusal(REQUEST, name, f"{self.task}: self.request")


@dataclass(slots=True)
class Asked:
    """The retry that a run has asked for last.  message: "" for none.  seconds: None for the delay of the task.

    It has no error: that would keep the frames of the run alive.
    """

    message: str = ""
    seconds: float | None = None


REQUEST_OF_RUN: ContextVar[Request | None] = ContextVar("kiqcluster_celery_request", default=None)
ASKED: ContextVar[Asked | None] = ContextVar("kiqcluster_celery_asked", default=None)
