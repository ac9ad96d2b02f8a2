"""Board: the shared memory of one slot, in which each processor writes which unit it runs.

It is made before the fork and outlives the child, so after any death the supervisor knows exactly what was
running: for the death report, and because only those units can have killed it.
1. start, finish   by processors, for each unit: what costs time here, every job pays
2. stamp           by the main thread, once a second: since when they run what they run
3. running, jobs   by the supervisor
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct

__all__ = ["Board", "RunningJob"]

RECORD = 64  # bytes for a token and its length: 1 byte, of which the highest bit says that the payload was cut
CUT = 0x80
HEAD_BYTES, TAIL_BYTES = 640, 372  # of a payload that are kept: the class is near its begin, the jid near its end
ROOM = RECORD + HEAD_BYTES + TAIL_BYTES  # of one processor: length, token, payload
STAMP = Struct(f"<d{RECORD}p")  # since when, epoch seconds, and what
SECONDS = Struct("<d")
CLASS, JID = (re.compile(rb'"%s":"([^"\\]{1,200})"' % name) for name in (b"class", b"jid"))


@dataclass(frozen=True, slots=True)
class RunningJob:
    """What a processor runs, or ran when its process died.  since: epoch seconds, to the second."""

    token: str
    jid: str
    name: str
    since: float

    def as_json(self, now: float) -> dict[str, object]:
        """Return what pages and events tell.  now: epoch seconds."""
        return {"jid": self.jid, "class": self.name, "seconds": round(max(0.0, now - self.since), 1)}


class Board:
    """An anonymous shared mapping with a record per processor; each record has one writer."""

    def __init__(self, processors: int) -> None:
        self._processors = processors
        self._stamps_at = processors * ROOM
        self._memory = mmap.mmap(-1, processors * (ROOM + STAMP.size) + SECONDS.size)

    def start(self, processor: int, token: str, payload: bytes = b"") -> None:
        """Note that a processor runs the unit.  The length is written last: a reader never sees half a token."""
        at, memory = processor * ROOM, self._memory
        encoded = token.encode()
        length = len(encoded)
        if length + len(payload) >= ROOM:  # not copied as a whole: it may have megabytes
            payload, length = payload[:HEAD_BYTES] + payload[-TAIL_BYTES:], length | CUT
        record = encoded + payload
        memory[at] = 0
        memory[at + 1 : at + 1 + len(record)] = record
        memory[at] = length

    def finish(self, processor: int) -> None:
        """Note that a processor runs nothing."""
        self._memory[processor * ROOM] = 0

    def stamp(self, now: float, running: Iterable[tuple[int, str, float]]) -> None:
        """Note what runs now, as (processor, token, since when): what starts later has run since now at most."""
        for processor, token, since in running:
            STAMP.pack_into(self._memory, self._stamps_at + processor * STAMP.size, since, token.encode())
        SECONDS.pack_into(self._memory, len(self._memory) - SECONDS.size, now)

    def running(self) -> list[str]:
        """Return the tokens of the units that run, or ran when the child died."""
        return [token for _, token, _ in self._units()]

    def jobs(self) -> list[RunningJob]:
        """Return the same with what is known of them."""
        (now,) = SECONDS.unpack_from(self._memory, len(self._memory) - SECONDS.size)
        return [
            RunningJob(token, *detail, self._since(processor, token, now)) for processor, token, detail in self._units()
        ]

    def clear(self) -> None:
        """Forget what a dead child ran."""
        for processor in range(self._processors):
            self.finish(processor)

    def close(self) -> None:
        self._memory.close()

    def _units(self) -> Iterator[tuple[int, str, tuple[str, str]]]:
        """Yield processor, token, and jid and class; without those that begin while they are read."""
        for processor in range(self._processors):
            at = processor * ROOM
            length = self._memory[at]
            if length:
                token_ends_at = at + 1 + length % CUT
                encoded = self._memory[at + 1 : token_ends_at]
                raw = self._memory[token_ends_at : at + ROOM]
                if self._memory[at] == length and self._memory[at + 1 : token_ends_at] == encoded:
                    yield processor, encoded.decode(errors="replace"), _named(raw, is_cut=length >= CUT)

    def _since(self, processor: int, token: str, now: float) -> float:
        since, stamped = STAMP.unpack_from(self._memory, self._stamps_at + processor * STAMP.size)
        return since if stamped == token.encode() else now


def _named(raw: bytes, *, is_cut: bool) -> tuple[str, str]:
    """Return jid and class of a payload, behind which older bytes may lie."""
    if is_cut:  # arguments may hold what looks like either, in between
        names, jids = CLASS.findall(raw, 0, HEAD_BYTES)[:1], JID.findall(raw, HEAD_BYTES)[-1:]
        return _text(jids, "(no jid)"), _text(names, "(no class)")
    try:
        payload, _ = json.JSONDecoder().raw_decode(raw.decode(errors="replace"))
    except ValueError:
        payload = {}
    found = payload if isinstance(payload, dict) else {}
    return str(found.get("jid", "(no jid)")), str(found.get("class", "(no class)"))


def _text(found: list[bytes], otherwise: str) -> str:
    return found[0].decode(errors="replace") if found else otherwise
