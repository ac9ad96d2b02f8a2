"""Inbox: the key under which `once` records a run.

jid:…   of the job that runs here, the default: a second run of the same job does nothing; one that perform_inline runs
        has a jid of its own, which is new at each call; an iterable job has a key for each item, and for each hook
key:…   of the caller's choice: an order, a message of another system, a step of a job
"""

from __future__ import annotations

from hashlib import sha256

from kiqcluster.errors import UsageError
from kiqcluster.process.job_context import running_jid, running_step

__all__ = ["MAX_KEY_CHARACTERS", "once_key"]

MAX_KEY_CHARACTERS = 255  # of the column


def once_key(key: str | None) -> str:
    """Return what is recorded.  Raises UsageError outside of a job without a key, and for a key that does not fit."""
    if key is None:
        jid = running_jid()
        if not jid:
            raise UsageError(
                'once() takes the jid of the running job, and none runs here; pass a key: once(…, key="…")'
            )
        name = _own_key(jid, running_step())
    elif isinstance(key, str) and key:
        name = f"key:{key}"
    else:
        raise UsageError(f"{key!r} is no key of once(); it takes text")
    if len(name) > MAX_KEY_CHARACTERS or "\0" in name:
        raise UsageError(f"a key of once() has at most {MAX_KEY_CHARACTERS - 4} characters, and no NUL")
    return name


def _own_key(jid: str, step: str) -> str:
    """Return the key of a job, or of a step of it; a step whose words are too many is known by their digest."""
    name = f"jid:{jid}:{step}" if step else f"jid:{jid}"
    return name if len(name) <= MAX_KEY_CHARACTERS else f"jid:{jid}:{sha256(step.encode()).hexdigest()}"
