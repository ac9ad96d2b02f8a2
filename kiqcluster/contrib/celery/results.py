"""Results: AsyncResult, the handle of a task that was enqueued (kept by features/results).

AsyncResult   of a push, or of an id
HandleOfId    a handle that knows no task: the task keeps its result, unless it says ignore_result
EagerResult   of `task.apply(…)`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NoReturn, TypeVar

from kiqcluster import cancel
from kiqcluster.client.handle import Handle
from kiqcluster.contrib.celery.attributes import RefusesAttributes
from kiqcluster.contrib.celery.catalogue import GET, RESULT, REVOKE, Entry, refusal
from kiqcluster.contrib.celery.errors import Unsupported
from kiqcluster.contrib.celery.rules import of_revoke
from kiqcluster.errors import JobDropped, JobFailed
from kiqcluster.process.runtime import current_setup

__all__ = ["AsyncResult", "EagerResult", "HandleOfId"]

R = TypeVar("R", covariant=True)
STATES = {"pending": "PENDING", "done": "SUCCESS", "failed": "FAILURE", "dropped": "REVOKED"}


class HandleOfId(Handle[R]):
    """The handle of a job whose task is not declared in this process.  Without a result, it waits for its timeout."""

    def _check(self) -> None:
        """Any job may keep a result."""


def _handle_of(jid: str) -> HandleOfId[Any]:
    """Return the handle of an id.  Raises Unsupported where the job may be in any of several shards."""
    setup = current_setup()
    if setup.delivery is None and setup.current_config().shards:
        raise Unsupported(f"AsyncResult({jid!r}): the shard of the job is not known; ask the task: add.AsyncResult(id)")
    store = setup.current_store() if setup.delivery is None else None
    return HandleOfId(jid, None, store, name="job")  # type: ignore[arg-type]  # a jid is text


class AsyncResult(RefusesAttributes, Generic[R]):
    """A task that was enqueued.  handle: kiqcluster's own handle of it."""

    def __init__(self, of: Handle[R] | str, *, app: object = None) -> None:  # noqa: ARG002  # all apps have one Redis
        """of: the handle, or the id of the job."""
        self.handle: Handle[R] = _handle_of(of) if isinstance(of, str) else of

    @property
    def id(self) -> str:
        return self.handle.jid

    @property
    def task_id(self) -> str:
        return self.id

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> R:  # as in Celery
        """Wait until the task has ended; return what it returned.

        Raises TimeoutError; JobFailed or JobDropped, which it returns where propagate is False.
        """
        _refuse(GET, options, "AsyncResult.get")
        try:
            return self.handle.result(timeout)
        except (JobFailed, JobDropped) as error:
            if propagate:
                raise
            return error  # type: ignore[return-value]  # what Celery does

    @property
    def status(self) -> str:
        """PENDING, SUCCESS, FAILURE or REVOKED.  One round trip."""
        found = self.handle.status()
        is_failed = found.state == "done" and found.error_class  # what it returned could not be kept
        return "FAILURE" if is_failed else STATES[found.state]

    state = status

    @property
    def result(self) -> Any:
        """What the task returned, the error of one that failed, None while it has not ended."""
        return None if not self.ready() else self.get(0, propagate=False)

    def ready(self) -> bool:
        return self.status != "PENDING"

    def successful(self) -> bool:
        return self.status == "SUCCESS"

    def failed(self) -> bool:
        return self.status == "FAILURE"

    def revoke(self, *, terminate: bool = False, **options: Any) -> bool:
        """Cancel the job; return whether it was found.  One that runs is told, and may end itself."""
        _refuse(REVOKE, options, "AsyncResult.revoke")
        for refused in of_revoke({"terminate": terminate}):
            raise Unsupported(refused.reason)
        return cancel(self.id)

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def _missing(self, name: str) -> NoReturn:
        raise refusal(RESULT, name, "AsyncResult")


class EagerResult(RefusesAttributes, Generic[R]):
    """The result of `task.apply(…)`, which has run the task before it returned."""

    def __init__(self, value: R | None, error: Exception | None) -> None:
        self.result: Any = value if error is None else error
        self._error = error
        self._value = value

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> R | None:  # noqa: ARG002
        """Return what the task returned.  Raises its error."""
        _refuse(GET, options, "EagerResult.get")
        if propagate and self._error is not None:
            raise self._error
        return self._value

    @property
    def status(self) -> str:
        return "SUCCESS" if self._error is None else "FAILURE"

    state = status

    def ready(self) -> bool:
        return True

    def successful(self) -> bool:
        return self._error is None

    def failed(self) -> bool:
        return self._error is not None

    def _missing(self, name: str) -> NoReturn:
        raise refusal(RESULT, name, "EagerResult")


def _refuse(table: Mapping[str, Entry], options: Mapping[str, Any], where: str) -> None:
    """Raise Unsupported for the first of some options that have no effect here."""
    for name in options:
        raise refusal(table, name, where)
