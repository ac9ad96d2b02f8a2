"""Selection: which jobs of many are meant.  Pure.

matches   decides, by what a job says
parts     texts that the bytes of such a job contain for certain, so that Redis can leave out most of the others
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from kiqcluster.api.records import JobRecord
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.selectors import JobAttributes, Selector, Values, attributes_of

__all__ = ["PAYLOAD_ATTRIBUTES", "Selection"]

PAYLOAD_ATTRIBUTES = ("worker_name", "name", "queue_namespace", "tags")
PLAIN_TEXT = re.compile(r"[A-Za-z0-9 _.,;=()+*@#$%^!?~|{}:-]+")  # characters that no writer of JSON escapes
PLAIN_WORD = re.compile(r"[A-Za-z0-9_]+")  # also the same in a list of arguments, however it is spaced
COMPRESSED = b'"compressed"'  # key of payloads whose arguments cannot be searched as they are
BOUNDS = ("lowest", "highest")  # fields that are numbers
KEPT = ("name", "queue", "error", "tag", "jid", "arguments", "lowest", "highest")  # fields that a dict can keep


@dataclass(frozen=True, slots=True)
class Selection:
    """What a job has to be like; None: anything.

    error: a part of `class: message`.  text: a glob, or a part of its bytes, for Redis to look for.  arguments: a part
    of them, as they are shown.  older, newer: seconds.  lowest, highest: scores, both included.  declared: class → what
    the application declares of it; then a job of any other class matches no selector.
    """

    name: str | None = None
    queue: str | None = None
    error: str | None = None
    text: str | None = None
    tag: str | None = None
    jid: str | None = None
    arguments: str | None = None
    older: float | None = None
    newer: float | None = None
    selector: Selector | None = None
    declared: Mapping[str, JobAttributes] | None = None
    lowest: float | None = None
    highest: float | None = None

    @property
    def has_filters(self) -> bool:
        """Whether it leaves anything out."""
        return any(getattr(self, each.name) is not None for each in fields(self))

    def matches(
        self,
        job: JobRecord,
        now: float,
        since: float | None = None,
        arguments: Callable[[JobRecord], str] | None = None,
    ) -> bool:
        """Return whether a job is meant; `text`, `lowest` and `highest` are for Redis to tell.

        since: when the age that counts began.  arguments: how they are shown; None means as JSON.
        """
        return (
            (self.jid is None or job.jid == self.jid)
            and (self.name is None or self.name in (job.name, job.display_class))
            and (self.queue is None or job.queue == self.queue)
            and (self.error is None or self.error in f"{job.error_class or ''}: {job.error_message or ''}")
            and (self.tag is None or self.tag in job.tags)
            and (self.arguments is None or self.arguments in (arguments or _arguments)(job))
            and (self.older is None or (since is not None and now - since >= self.older))
            and (self.newer is None or (since is not None and now - since <= self.newer))
            and (self.selector is None or self._is_selected(self.selector, job))
        )

    def _is_selected(self, selector: Selector, job: JobRecord) -> bool:
        if self.declared is None:
            return selector.matches(_attributes(job))
        known = self.declared.get(job.display_class) or self.declared.get(job.name)
        if known is None:  # its urgency, say, would be a guess, and a filter may delete
            return False
        of_payload = {name: _attributes(job)[name] for name in PAYLOAD_ATTRIBUTES}
        namespace = known.values["queue_namespace"] or of_payload["queue_namespace"]
        tags = known.values["tags"] | of_payload["tags"]
        return selector.matches({**known.values, **of_payload, "queue_namespace": namespace, "tags": tags})

    def parts(self, *, are_arguments_json: bool = True) -> list[Sequence[bytes]]:
        """Return lists of texts; the bytes of a job that is meant contain one text of each list.

        are_arguments_json: whether arguments are shown as JSON, and not in words of the application.
        """
        found: list[Sequence[bytes] | None] = [
            _quoted(self.jid),
            _class_name(self.name),
            _quoted(self.queue),
            _quoted(self.tag),
            _piece(self.error, PLAIN_TEXT, ": "),
        ]
        if are_arguments_json and (words := _piece(self.arguments, PLAIN_WORD)):
            found.append([*words, COMPRESSED])
        return [texts for texts in found if texts]

    def as_dict(self) -> dict[str, Any]:
        """Return what a page or a bulk action keeps of it: without `text`, `older` and the like."""
        return {name: getattr(self, name) for name in KEPT if getattr(self, name) is not None}

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """Return what `as_dict` has kept.  Raises TypeError for values that it never keeps."""
        found = {name: kept[name] for name in KEPT if kept.get(name) is not None}
        for name, value in found.items():
            is_right = isinstance(value, int | float) if name in BOUNDS else isinstance(value, str)
            if not is_right or isinstance(value, bool):
                raise TypeError(f"{name} of a selection is not {value!r:.100}")
        return cls(**found)


def _quoted(value: str | None) -> Sequence[bytes] | None:
    """Return a whole string as JSON has it, None where writers may spell it in several ways."""
    return [f'"{value}"'.encode()] if value and PLAIN_TEXT.fullmatch(value) else None


def _class_name(name: str | None) -> Sequence[bytes] | None:
    """Return how JSON has the name of a class; of `Mailer#method` its two halves are arguments."""
    if name is None or "#" not in name:
        return _quoted(name)
    words = _piece(name, PLAIN_WORD)
    return None if words is None else [*words, COMPRESSED]


def _piece(text: str | None, plain: re.Pattern[str], separator: str = "") -> Sequence[bytes] | None:
    """Return the longest piece of a text that JSON has as it is, None where there is none."""
    if text is None:
        return None
    parts = text.split(separator) if separator else [text]
    pieces = [piece for part in parts for piece in plain.findall(part)]
    return [max(pieces, key=len).encode()] if pieces else None


def _arguments(job: JobRecord) -> str:
    """Return a job's arguments as Ruby would print them, without spaces."""
    return ruby_json.encode(job.display_args).decode(errors="replace")


def _attributes(job: JobRecord) -> Values:
    """Return the attributes that a payload has; a job that ActiveJob has wrapped has both class names."""
    known = attributes_of(job.display_class, job.queue or "", {"tags": job.tags}).values
    return {**known, "worker_name": frozenset((job.name, job.display_class))}
