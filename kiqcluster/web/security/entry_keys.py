"""Keys of jobs on pages: they name a job in a form or an address, and do not tell what is hidden of it.

1. digests   HMACs of the bytes of a job, behind where it is: its score, or its place in a queue
2. seal      a text that only these pages can read again: how far a page of a queue has got
Both are made with the secret of the pages (security/guard.py), so all processes of these pages make equal ones.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from functools import lru_cache

from kiqcluster.api import ParkedJob, SortedEntry
from kiqcluster.api.queues import QueuedJob

__all__ = ["EntryKeys", "entry_keys_of"]

DIGEST_CHARACTERS = 16
TAG_BYTES = 16
MAX_SEALED_CHARACTERS = 4_000
MAX_SECRETS = 8  # whose derived keys a process keeps
LOCK_NAME = re.compile(r"(.*):[0-9a-f]{64}", re.DOTALL)  # "<class>:<SHA-256 of arguments>" (features/deduplication)


class EntryKeys:
    """Makes the keys, from the secret of the pages.  Equal secrets make equal keys."""

    def __init__(self, secret: bytes) -> None:
        self._digests, self._tags, self._streams = (
            hmac.digest(secret, f"kiqcluster web {label}".encode(), "sha256")
            for label in ("digest of a job", "tag of a place", "stream of a place")
        )

    def digest_of(self, raw: bytes) -> str:
        """Return what stands for the bytes of a job in a key."""
        return hmac.digest(self._digests, raw, "sha256").hex()[:DIGEST_CHARACTERS]

    def entry(self, entry: SortedEntry) -> str:
        """Return the key of an entry of a set."""
        return f"{entry.score!r}-{self.digest_of(entry.raw)}"

    def queued(self, job: QueuedJob) -> str:
        """Return the key of a job of a queue."""
        return f"{job.place or 0}-{self.digest_of(job.raw)}"

    def parked(self, job: ParkedJob) -> str:
        """Return the key of a parked job."""
        return f"{job.parked_at!r}-{self.digest_of(job.raw)}"

    def lock(self, name: str) -> str:
        """Return what pages show of the name of a lock: where a digest of arguments ends it, another digest."""
        found = LOCK_NAME.fullmatch(name)
        return f"{found[1]}:{self.digest_of(name.encode(errors='surrogatepass'))}" if found else name

    def seal(self, text: str) -> str:
        """Return a text that only these pages can read; the same for equal texts, so that addresses are.

        The tag of the text is the nonce of the stream that hides it (as in SIV, RFC 5297).
        """
        raw = text.encode(errors="surrogatepass")
        tag = hmac.digest(self._tags, raw, "sha256")[:TAG_BYTES]
        return base64.urlsafe_b64encode(tag + self._with_stream(tag, raw)).decode().rstrip("=")

    def unseal(self, text: str) -> str:
        """Return what `seal` was given, "" for anything else."""
        try:
            sealed = base64.urlsafe_b64decode(text[:MAX_SEALED_CHARACTERS] + "=" * (-len(text) % 4))
        except ValueError:
            return ""
        tag, hidden = sealed[:TAG_BYTES], sealed[TAG_BYTES:]
        raw = self._with_stream(tag, hidden)
        is_ours = hmac.compare_digest(hmac.digest(self._tags, raw, "sha256")[:TAG_BYTES], tag)
        return raw.decode(errors="surrogatepass") if is_ours else ""

    def _with_stream(self, tag: bytes, raw: bytes) -> bytes:
        stream = hashlib.shake_256(self._streams + tag).digest(len(raw))
        return bytes(one ^ other for one, other in zip(raw, stream, strict=True))


@lru_cache(MAX_SECRETS)
def entry_keys_of(secret: bytes) -> EntryKeys:
    """Return what makes keys from a secret."""
    return EntryKeys(secret)
