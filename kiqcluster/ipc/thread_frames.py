"""Frames of this process' own threads, for Python code; also on Windows, where applications enqueue and test."""

from __future__ import annotations

import gc
import sys
from types import FrameType

__all__ = ["frames_by_thread"]


def frames_by_thread() -> dict[int, FrameType]:
    """Return the frame on top of each thread of this process, by the thread's id.

    Nothing is collected meanwhile: Python 3.11 holds the lock of its threads, and a finalizer that starts a thread
    would wait for that lock for ever (CPython gh-106883).
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()
