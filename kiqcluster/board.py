"""Board: the shared memory of one slot, in which each processor writes the token that it runs.

It is made before the fork and outlives the child, so after any death the supervisor knows exactly what was
running: for the death report, and because only those units can have killed it.
"""

from __future__ import annotations

import mmap

__all__ = ["Board"]

RECORD = 64  # bytes of one processor: length of the token (1 byte), then the token


class Board:
    """An anonymous shared mapping with a record per processor; each record has one writer."""

    def __init__(self, processors: int) -> None:
        self._memory = mmap.mmap(-1, max(1, processors) * RECORD)
        self._processors = processors

    def start(self, processor: int, token: str) -> None:
        """Note that a processor runs the unit.  The length is written last: a reader never sees half a token."""
        at = processor * RECORD
        encoded = token.encode()
        self._memory[at] = 0
        self._memory[at + 1 : at + 1 + len(encoded)] = encoded
        self._memory[at] = len(encoded)

    def finish(self, processor: int) -> None:
        """Note that a processor runs nothing."""
        self._memory[processor * RECORD] = 0

    def running(self) -> list[str]:
        """Return the tokens of the units that run, or ran when the child died."""
        tokens = []
        for at in range(0, self._processors * RECORD, RECORD):
            length = self._memory[at]
            if length:
                tokens.append(self._memory[at + 1 : at + 1 + length].decode(errors="replace"))
        return tokens

    def clear(self) -> None:
        """Forget what a dead child ran."""
        for processor in range(self._processors):
            self.finish(processor)

    def close(self) -> None:
        self._memory.close()
