"""Every error that kiqcluster raises, and every code that its processes exit with.

KiqError
├── UsageError                 a flag, a setting or a group that cannot be used          exit 2
├── ApplicationError           the application (-r) did not load                         exit 3
├── JobDefinitionError         a job class or function is declared in a way that cannot work
├── PushError                  a job was not enqueued
│   ├── InvalidPush            an item is not a job: it lacks a class, its queue has no name, …
│   ├── EncryptionError        its last argument was to be encrypted, and cannot be
│   ├── ExceedLimitError       its arguments are larger than the size limiter allows
│   └── InvalidArguments       arguments do not fit `perform`, or are not JSON-native (`path` says where)
├── OverLimit                  a rate limit allows no start now; a job that raises it is deferred (`seconds`)
├── NormalFailure              raised by a job of a batch that has failed for good: neither an error nor retried
├── BatchEnded                  a batch takes no more jobs: it is complete or cancelled, or has expired
├── RetryError                 raised by a job to be retried without a report to error handlers
├── JobCancelled               raised by `current_job().check_cancelled()`: somebody has cancelled this job
├── JobTimedOut                a job has run for longer than its `timeout` or `timeout_hard`; also a TimeoutError
├── JobKilled                  somebody has buried a job by hand; passed to death handlers
├── StoreError                 an operation on Redis failed, or its result is not known
│   ├── RedisUnavailable       nothing was sent: the command certainly did not run
│   ├── ReplyLost              it was sent, and no reply came: it may or may not have run
│   ├── NotReplicated          a push is stored, but not confirmed by as many replicas as were asked for
│   └── RedisRefused           Redis answered with an error (`code`: WRONGTYPE, NOAUTH, OOM, …)
└── CannotRun                  a payload that this worker cannot run; it ends in the dead set, with this as its reason
    ├── MalformedPayload       not JSON, not an object, or without a class or a list of arguments
    │   ├── PayloadDecryptionError              its encrypted argument cannot be read
    │   └── PayloadDecompressionError           its compressed arguments cannot be read
    │       └── PayloadDecompressionConflictError   … for it has not one argument, but others
    ├── MalformedIteration     Redis' state of an iterable job cannot be read
    ├── MisfitArguments        `perform` cannot be called with them; also an InvalidArguments
    ├── CannotDeserialize      ActiveJob's arguments have a value without a meaning in Python (a GlobalID, say)
    └── UnknownJob             no job of that name is registered here (a rolling deploy may bring it)

Control flow derives from BaseException, so that `except Exception` in a job does not catch it:
Interrupted                    the job gives up its place because the process stops; it will run again
└── GaveWay                    … because other jobs of its queue have waited long enough (iterable jobs)
AbortIteration                 an iterable job leaves out the items that are left
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, cast

__all__ = [
    "AbortIteration",
    "ApplicationError",
    "BatchEnded",
    "CannotDeserialize",
    "CannotRun",
    "EncryptionError",
    "ExceedLimitError",
    "ExitCode",
    "GaveWay",
    "Interrupted",
    "InvalidArguments",
    "InvalidPush",
    "JobCancelled",
    "JobDefinitionError",
    "JobDropped",
    "JobFailed",
    "JobKilled",
    "JobTimedOut",
    "KiqError",
    "MalformedIteration",
    "MalformedPayload",
    "MisfitArguments",
    "NormalFailure",
    "NotReplicated",
    "OverLimit",
    "PayloadDecompressionConflictError",
    "PayloadDecompressionError",
    "PayloadDecryptionError",
    "PushError",
    "RedisRefused",
    "RedisUnavailable",
    "ReplyLost",
    "RetryError",
    "StoreError",
    "UnknownJob",
    "UnroutedCall",
    "UsageError",
    "as_exception",
    "class_name",
    "message_of",
    "text_of",
]

_NAME, _MODULE = type.__dict__["__qualname__"], type.__dict__["__module__"]  # a metaclass may have such properties


class ExitCode(IntEnum):
    """Exit codes of supervisors and worker processes; docs/reference/exit_codes.md explains each."""

    STOPPED = 0
    UNEXPECTED = 1
    USAGE = 2
    APPLICATION = 3
    NEVER_READY = 4
    REDIS_REFUSED = 5
    PIDFILE_HELD = 6
    ADDRESS_IN_USE = 7
    FAIL_FAST = 8
    KILLED_AT_STOP = 9
    NAME_IN_USE = 10


class KiqError(Exception):
    """Base of all errors that kiqcluster raises."""

    exit_code = ExitCode.UNEXPECTED

    def __reduce__(self) -> tuple[Any, ...]:
        """Be copied and pickled without a call of `__init__`, which may take other arguments than the message."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(error_class: type[KiqError], args: tuple[Any, ...]) -> KiqError:
    error = error_class.__new__(error_class, *args)
    error.args = args  # an OSError of ours would have none
    return error


class UsageError(KiqError):
    """The command line or the configuration cannot be used; the message says what to do."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UnroutedCall(UsageError):
    """With `strict_routing`: nothing says to which shard a push or an inspection goes."""


class ApplicationError(KiqError):
    """The application did not load."""

    exit_code = ExitCode.APPLICATION


class JobDefinitionError(KiqError):
    """A job is declared in a way that cannot work; raised when the module is imported."""

    exit_code = ExitCode.APPLICATION


class PushError(KiqError):
    """A job was not enqueued."""


class InvalidPush(PushError):
    """The item is not a job."""


class EncryptionError(PushError):
    """The last argument of a job with `encrypt` cannot be encrypted."""


class ExceedLimitError(PushError):
    """The arguments of a job are too large; raised where the size limiter refuses them, else told to error handlers.

    name: of the job's class.  size: bytes of the arguments as they would be stored.  limit: the most bytes allowed.
    """

    def __init__(self, name: str, size: int, limit: int) -> None:
        super().__init__(
            f"{name} exceeds the limit of a job's size: its arguments have {size} bytes, and {limit} are allowed "
            "(size_limiter.limit); store the data elsewhere, and pass where it is"
        )
        self.name = name
        self.size = size
        self.limit = limit


class InvalidArguments(PushError, TypeError):
    """The arguments cannot be enqueued.

    path: place of the invalid value, like `args[1]["when"]`; None when the arguments as a whole do not fit.
    """

    def __init__(self, message: str, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class OverLimit(KiqError):
    """A rate limit allows no start now.  A job that raises it is deferred, and no attempt is counted.

    seconds: after which the start is allowed.
    """

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"the limit {name} allows no start for {seconds:.3f} s")
        self.name = name
        self.seconds = seconds


class NormalFailure(KiqError):
    """Raised by a job that has failed in the sense of its work: `failed` in its batch, with this text as a message.

    The job is done: it is not retried, and counts as no error.
    """


class BatchEnded(KiqError):
    """A batch takes no more jobs.  reason: COMPLETE, CANCELLED or UNKNOWN (it has expired, or is in another Redis)."""

    def __init__(self, batch: str, reason: str) -> None:
        words = {"COMPLETE": "is complete", "CANCELLED": "is cancelled"}.get(reason, "is not known to this Redis")
        super().__init__(f"batch {batch} {words}, and takes no more jobs; create another one")
        self.batch = batch
        self.reason = reason


class RetryError(KiqError):
    """Raise it, or a class of your own below it, in a job that should be tried again for a reason that is no fault.

    The failure counts and is retried as any other, but error handlers are told only of the one that is not retried.
    """


class JobCancelled(KiqError):
    """Somebody has cancelled the job that runs: it is dropped, which is no failure, and error handlers are not told."""

    def __init__(self, name: str, jid: str) -> None:
        super().__init__(f"{name} {jid} was cancelled while it ran")
        self.name = name
        self.jid = jid


class JobTimedOut(KiqError, TimeoutError):
    """A job has run for longer than it may: a failure like any other.

    option: timeout, or timeout_hard, for which its process was replaced.  limit: its value, seconds.
    """

    def __init__(self, name: str, option: str, limit: float) -> None:
        super().__init__(f"{name} ran for longer than its {option} of {limit:g} s")
        self.name = name
        self.option = option
        self.limit = limit


class JobKilled(KiqError):
    """Somebody has moved the job to the dead set; passed to death handlers in the process that did so."""


class StoreError(KiqError):
    """An operation on Redis failed, or its result is not known.

    enqueued: for a push, the jids of its jobs that are certainly enqueued anyway.
    moved, left, unknown: for moves and deletions of jobs, how many were moved, how many Redis refused to move, and for
    how many the result is not known.
    """

    enqueued: tuple[str, ...] = ()
    moved: int = 0
    left: int = 0
    unknown: int = 0


class RedisUnavailable(StoreError):
    """The command was not sent, or a server that takes none for now turned it away: it certainly did not run."""


class ReplyLost(StoreError):
    """The command was sent and no reply came: it may or may not have run.

    jids: the affected jobs, if the command was a push.
    """

    def __init__(self, message: str, jids: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.jids = jids


class NotReplicated(StoreError):
    """A push with `wait_replicas` is stored on the primary, and is lost if that fails before its replicas have it.

    jids: the affected jobs (they are among `enqueued`).  wanted, confirmed: numbers of replicas.
    """

    def __init__(self, message: str, jids: tuple[str, ...], wanted: int, confirmed: int) -> None:
        super().__init__(message)
        self.jids = jids
        self.wanted = wanted
        self.confirmed = confirmed


class RedisRefused(StoreError):
    """Redis answered with an error; code is its first word (WRONGTYPE, NOAUTH, OOM, READONLY, …)."""

    exit_code = ExitCode.REDIS_REFUSED

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message.split(" ", 1)[0]


class JobFailed(KiqError):
    """A job whose result was waited for has failed for good.  error_class, error_message: of its last error."""

    def __init__(self, name: str, jid: str, error_class: str, error_message: str) -> None:
        super().__init__(f"{name} {jid} has failed: {error_class}: {error_message}")
        self.name = name
        self.jid = jid
        self.error_class = error_class
        self.error_message = error_message


class JobDropped(KiqError):
    """A job whose result was waited for was dropped before it ran.  reason: by what."""

    def __init__(self, name: str, jid: str, reason: str) -> None:
        super().__init__(f"{name} {jid} was dropped{f' by {reason}' if reason else ''}; it will not run")
        self.name = name
        self.jid = jid
        self.reason = reason


class CannotRun(KiqError):
    """The payload cannot be run at all."""


def class_name(error: BaseException) -> str:
    """Return the name of an error's class as stored with a job: with its module, except for Python's own classes.

    A class may have any text as its name, and anything as its module.
    """
    kind = type(error)
    name, module = _NAME.__get__(kind), _MODULE.__get__(kind)
    full = name if type(module) is not str or module == "builtins" else f"{module}.{name}"
    return str(full.encode(errors="replace").decode())


def message_of(error: BaseException) -> str:
    """Return the text of an error, also of one whose class fails to make one."""
    return text_of(error, "message")


def text_of(value: object, noun: str = "text") -> str:
    """Return the text of a value of the application as a plain str, whatever its class does.  noun: names the text."""
    try:
        return str.__str__(str(value))  # __str__ may have returned an object of a subclass
    except BaseException as failure:  # noqa: BLE001  # code of the application: process/boundary/calls
        return f"(its {noun} cannot be shown: {class_name(failure)})"


def as_exception(raised: BaseException) -> Exception:
    """Return an error as handlers get it: an Exception, also where it is none (sys.exit in a job)."""
    if issubclass(type(raised), Exception):
        return cast("Exception", raised)
    wrapped = RuntimeError(f"{class_name(raised)}: {message_of(raised)}")
    wrapped.__cause__ = raised
    return wrapped


class MalformedPayload(CannotRun):
    """The payload is not a Sidekiq job."""


class PayloadDecryptionError(MalformedPayload):
    """The encrypted argument of a payload cannot be read: the key is missing, or something was changed."""

    is_key_unknown = False  # whether this process has no key of that version, which a restart may bring


class PayloadDecompressionError(MalformedPayload):
    """The compressed arguments of a payload cannot be read, or would be too large."""


class PayloadDecompressionConflictError(PayloadDecompressionError):
    """A compressed payload has more than one argument, or none: something has changed them since."""


class MalformedIteration(CannotRun):
    """The state of an iterable job cannot be read.  key: where it lies."""

    def __init__(self, key: str, reason: Exception) -> None:
        super().__init__(
            f"the state of this iterable job, {key}, cannot be read: {reason}. From the beginning, it would do again "
            f"what it has done; mend the field c, or delete the key where that does no harm, and retry the job"
        )
        self.key = key


class MisfitArguments(CannotRun, InvalidArguments):
    """A payload's arguments do not fit the signature that this worker knows."""


class CannotDeserialize(CannotRun):
    """ActiveJob's envelope has arguments that Python cannot represent; the message says where."""


class UnknownJob(CannotRun):
    """No job of this name is registered in this process.

    options: options that its definition needs, as written in code.
    """

    def __init__(self, name: str, options: str = "") -> None:
        super().__init__(
            f"no job named {name!r}{options and f' with {options}'} is registered in this worker; it is not run. "
            f"Import the module that defines it (-r), or give the definition name={name!r}{options and f', {options}'}."
        )
        self.name = name


class Interrupted(BaseException):
    """Raise it in a job that sees `current_job().stopping`: the job goes back to its queue and runs again."""


class GaveWay(Interrupted):
    """An iterable job has run for its `max_iteration_runtime`: it goes to the back of its queue, and goes on then."""


class AbortIteration(BaseException):
    """Raise it in an iterable job to leave the items out that are left: the job is complete."""
