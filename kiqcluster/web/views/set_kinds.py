"""Set kinds: the table of sets of jobs, and the table of what is done to their entries.

A set has a row in SETS, and a verb a row in VERBS; pages, buttons, actions and bulk actions follow from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kiqcluster.api import DeadSet, DroppedSet, JobSet, RetrySet, ScheduledSet, SortedEntry
from kiqcluster.api.bulk.verbs import Target
from kiqcluster.web.i18n import message, messages
from kiqcluster.web.users import Role

__all__ = ["ALL_FIELDS", "LABELS", "QUEUE", "SETS", "VERBS", "QueueKind", "SetKind", "Verb", "kind_of"]

LABELS = {  # of the fields of filters
    "class": message("Class"),
    "queue": message("Queue"),
    "error": message("Error contains"),
    "args": message("Arguments contain"),
    "jid": message("Job id"),
    "tag": message("Tag"),
    "from": message("From"),
    "to": message("Until"),
}
ALL_FIELDS = tuple(LABELS)  # in queries


@dataclass(frozen=True, slots=True)
class SetKind:
    """A set.

    name: of its path and endpoints.  title, when, empty: messages; when: what its score means.  verbs: names of VERBS.
    is_ahead: whether its scores are times to come, the next of which is shown first.  has_errors: whether its jobs have
    failed.
    """

    name: str
    job_set: type[JobSet]
    title: str
    when: str
    empty: str
    place: int | None
    key: str
    verbs: tuple[str, ...]
    is_ahead: bool = False
    has_errors: bool = True

    @property
    def key_name(self) -> str:
        return self.job_set.key_name

    @property
    def fields(self) -> Sequence[str]:
        """Which fields its filter has."""
        return ALL_FIELDS if self.has_errors else tuple(each for each in ALL_FIELDS if each != "error")


@dataclass(frozen=True, slots=True)
class QueueKind:
    """Queues: what their lists of jobs have in common with sets."""

    name: str = "queue"
    title: str = message("Queues")
    empty: str = message("No job waits here.")
    verbs: tuple[str, ...] = ("move", "delete")
    fields: tuple[str, ...] = ("class", "args", "jid", "tag", "from", "to")
    is_ahead: bool = False


QUEUE = QueueKind()


SETS: tuple[SetKind, ...] = (
    SetKind(
        "scheduled",
        ScheduledSet,
        message("Scheduled"),
        message("Due"),
        message("No job is scheduled."),
        40,
        "s",
        ("enqueue", "reschedule", "move", "kill", "delete"),
        is_ahead=True,
        has_errors=False,
    ),
    SetKind(
        "retries",
        RetrySet,
        message("Retries"),
        message("Next try"),
        message("No job waits for another try."),
        50,
        "r",
        ("retry", "reschedule", "move", "kill", "delete"),
        is_ahead=True,
    ),
    SetKind(
        "dead",
        DeadSet,
        message("Dead"),
        message("Died"),
        message("No job is dead."),
        60,
        "d",
        ("retry", "move", "delete"),
    ),
    SetKind(
        "dropped",
        DroppedSet,
        message("Dropped"),
        message("Dropped at"),
        message("No job was dropped before it ran."),
        None,
        "",
        ("enqueue", "delete"),
        has_errors=False,
    ),
)


def kind_of(key_name: str) -> SetKind:
    """Return the set that has this key.  Raises StopIteration for none."""
    return next(kind for kind in SETS if kind.key_name == key_name)


@dataclass(frozen=True, slots=True)
class Verb:
    """What is done to entries; of the same name as in api/bulk/verbs.

    button: a message.  asks, told: messages for one, and for several; asks: None where it is done at once.  needs: the
    field of the form that it takes: when, target, or none.  bulk_role: who may do it to all that match.
    """

    name: str
    act: Callable[[JobSet, Sequence[SortedEntry], Target], int]
    button: str
    asks: tuple[str, str] | None
    told: tuple[str, str]
    needs: str = ""
    role: Role = Role.OPERATE
    bulk_role: Role = Role.OPERATE


VERBS: Mapping[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "retry",
            lambda job_set, entries, _: job_set.retry(entries),
            message("Retry"),
            None,
            messages("%(count)s job was put back into its queue.", "%(count)s jobs were put back into their queues."),
        ),
        Verb(
            "enqueue",
            lambda job_set, entries, _: job_set.add_to_queue(entries),
            message("Enqueue now"),
            None,
            messages("%(count)s job was put into its queue.", "%(count)s jobs were put into their queues."),
        ),
        Verb(
            "reschedule",
            lambda job_set, entries, target: job_set.reschedule(entries, target.at),
            message("Reschedule"),
            None,
            messages("%(count)s job has another time now.", "%(count)s jobs have another time now."),
            needs="when",
        ),
        Verb(
            "move",
            lambda job_set, entries, target: job_set.move(entries, target.queue),
            message("Change queue"),
            None,
            messages("%(count)s job has another queue now.", "%(count)s jobs have another queue now."),
            needs="target",
        ),
        Verb(
            "kill",
            lambda job_set, entries, _: job_set.kill(entries),
            message("Kill"),
            messages("Move %(count)s job to the dead jobs?", "Move %(count)s jobs to the dead jobs?"),
            messages("%(count)s job is dead now.", "%(count)s jobs are dead now."),
            bulk_role=Role.ADMIN,
        ),
        Verb(
            "delete",
            lambda job_set, entries, _: job_set.delete(entries),
            message("Delete"),
            messages("Delete %(count)s job for good?", "Delete %(count)s jobs for good?"),
            messages("%(count)s job was deleted.", "%(count)s jobs were deleted."),
            bulk_role=Role.ADMIN,
        ),
    )
}
