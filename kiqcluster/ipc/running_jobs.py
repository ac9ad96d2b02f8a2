"""Running jobs: shared memory of one child, in which each processor writes the unit that it runs.

The supervisor creates it before the fork, and it outlives the child.  After any death the supervisor knows exactly
which units were running: for the death report, and because only one of these can have killed the process.
1. start, finish   processors, for each unit: every job pays for the time that this takes; async jobs have records of
                   their own, behind those of the processors
   step            the event loop: which async job runs now, the others wait
2. stamp           main thread of the child, once a second: since when each unit runs
3. limit           processors, for a unit with a timeout_hard: its seconds
4. thread          processors, once: their thread, as the kernel numbers it
5. tokens, jobs, limits, threads   supervisor
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from struct import Struct

__all__ = ["TIMED_OUT", "RunningJob", "RunningJobs"]

TOKEN_BYTES = 64  # for the length of a token (1 byte, whose highest bit says that the payload was cut) and the token
CUT = 0x80
HEAD_BYTES, TAIL_BYTES = 640, 372  # of a payload that are kept: the class is near the start, the jid near the end
RECORD_BYTES = TOKEN_BYTES + HEAD_BYTES + TAIL_BYTES  # of one processor: length, token, payload
STAMP = Struct(f"<d{TOKEN_BYTES}p")  # start in epoch seconds, token
SECONDS = Struct("<d")
THREAD = Struct("<q")
NUMBER = Struct("<i")
TIMED_OUT = ":timed-out"  # behind a token: the unit ran for longer than its timeout_hard, and its process was killed
CLASS, JID = (re.compile(rb'"%s":"([^"\\]{1,200})"' % name) for name in (b"class", b"jid"))


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that a processor runs, or ran when its process died.  since: epoch seconds, to the second.

    is_waiting: an async job that was not the last one to run on the event loop.
    """

    token: str
    jid: str
    name: str
    since: float
    is_waiting: bool = False

    def as_json(self, now: float) -> dict[str, object]:
        """Return the form that pages and events show.  now: epoch seconds."""
        return {"jid": self.jid, "class": self.name, "seconds": round(max(0.0, now - self.since), 1)}


class RunningJobs:
    """An anonymous shared mapping with one record per processor, and for each job of the event loop.

    Each record has one writer.  processors: how many of the records are theirs.
    """

    def __init__(self, processors: int, async_places: int = 0) -> None:
        self.processors = processors
        self.async_places = async_places
        records = processors + async_places
        self._stamps_at = records * RECORD_BYTES
        self._limits_at = self._stamps_at + records * STAMP.size
        self._has_limits_at = self._limits_at + records * STAMP.size
        self._threads_at = self._has_limits_at + 1
        self._last_step_at = self._threads_at + records * THREAD.size
        self._used_at = self._last_step_at + NUMBER.size
        self._memory = mmap.mmap(-1, self._used_at + NUMBER.size + SECONDS.size)
        self._record_used(processors)

    def start(self, processor: int, token: str, payload: bytes = b"") -> None:
        """Record that a processor runs a unit.  The length is written last: a reader never sees half a token."""
        at, memory = processor * RECORD_BYTES, self._memory
        encoded = token.encode()
        length = len(encoded)
        if length + len(payload) >= RECORD_BYTES:  # a payload may have megabytes
            payload, length = payload[:HEAD_BYTES] + payload[-TAIL_BYTES:], length | CUT
        record = encoded + payload
        memory[at] = 0
        memory[at + 1 : at + 1 + len(record)] = record
        memory[at] = length

    def finish(self, processor: int) -> None:
        """Record that a processor runs nothing."""
        self._memory[processor * RECORD_BYTES] = 0

    def start_async(self, record: int, token: str, payload: bytes) -> None:
        """Record that the event loop runs a unit.  Readers look no further than to the last record that was used."""
        if record >= self._used():
            self._record_used(record + 1)
        self.start(record, token, payload)

    def step(self, record: int) -> None:
        """Record that an async job runs until it waits again."""
        NUMBER.pack_into(self._memory, self._last_step_at, record)

    def limit(self, processor: int, token: str, seconds: float) -> None:
        """Record for how long the unit may run that a processor runs."""
        STAMP.pack_into(self._memory, self._limits_at + processor * STAMP.size, seconds, token.encode())
        self._memory[self._has_limits_at] = 1

    def limits(self) -> dict[str, float]:
        """Return token → seconds of the units that run and have a limit.  One comparison where none ever had one."""
        if not self._memory[self._has_limits_at]:
            return {}
        found = {}
        for processor in range(self._used()):
            seconds, token = STAMP.unpack_from(self._memory, self._limits_at + processor * STAMP.size)
            at = processor * RECORD_BYTES
            length = self._memory[at] % CUT
            if length and self._memory[at + 1 : at + 1 + length] == token:  # else it was the limit of an earlier unit
                found[token.decode()] = seconds
        return found

    def thread(self, processor: int, number: int) -> None:
        """Record the thread of a processor (`threading.get_native_id`)."""
        THREAD.pack_into(self._memory, self._threads_at + processor * THREAD.size, number)

    def threads(self) -> dict[str, int]:
        """Return token → thread of the units that run; of async jobs the one whose step was the last."""
        return {
            token: THREAD.unpack_from(self._memory, self._threads_at + processor * THREAD.size)[0]
            for processor, token, _ in self._units()
            if not self._is_waiting(processor)
        }

    def stamp(self, now: float, running: Iterable[tuple[int, str, float]]) -> None:
        """Record since when units run, as (processor, token, epoch seconds).  Later units started after `now`."""
        for processor, token, since in running:
            STAMP.pack_into(self._memory, self._stamps_at + processor * STAMP.size, since, token.encode())
        SECONDS.pack_into(self._memory, len(self._memory) - SECONDS.size, now)

    def tokens(self) -> list[str]:
        """Return the tokens of the units that run, or ran when the child died."""
        return [token for _, token, _ in self._units()]

    def jobs(self) -> list[RunningJob]:
        """Return these units with their class, jid and start."""
        (now,) = SECONDS.unpack_from(self._memory, len(self._memory) - SECONDS.size)
        return [
            RunningJob(token, *detail, self._since(processor, token, now), self._is_waiting(processor))
            for processor, token, detail in self._units()
        ]

    def clear(self, keep: Collection[str] = ()) -> None:
        """Clear the records of all processors, but those of these tokens."""
        kept = {processor for processor, token, _ in self._units() if token in keep}
        for processor in range(self._used()):
            if processor not in kept:
                self.finish(processor)

    def close(self) -> None:
        self._memory.close()

    def _units(self) -> Iterator[tuple[int, str, tuple[str, str]]]:
        """Yield processor, token, and (jid, class).  A unit that starts during the read is left out."""
        for processor in range(self._used()):
            at = processor * RECORD_BYTES
            length = self._memory[at]
            if length:
                token_ends_at = at + 1 + length % CUT
                encoded = self._memory[at + 1 : token_ends_at]
                raw = self._memory[token_ends_at : at + RECORD_BYTES]
                if self._memory[at] == length and self._memory[at + 1 : token_ends_at] == encoded:
                    yield processor, encoded.decode(errors="replace"), _named(raw, is_cut=length >= CUT)

    def _is_waiting(self, record: int) -> bool:
        return record >= self.processors and NUMBER.unpack_from(self._memory, self._last_step_at)[0] != record

    def _used(self) -> int:
        """Return how many records were used: memory that nobody has looked at costs nothing."""
        (used,) = NUMBER.unpack_from(self._memory, self._used_at)
        return int(used)

    def _record_used(self, records: int) -> None:
        NUMBER.pack_into(self._memory, self._used_at, records)

    def _since(self, processor: int, token: str, now: float) -> float:
        since, stamped = STAMP.unpack_from(self._memory, self._stamps_at + processor * STAMP.size)
        return since if stamped == token.encode() else now


def _named(raw: bytes, *, is_cut: bool) -> tuple[str, str]:
    """Return jid and class of a payload; bytes of an older payload may follow it."""
    if is_cut:  # arguments in between may look like a class or a jid
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
