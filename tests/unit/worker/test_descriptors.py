"""Descriptors: numbers that somebody closes, or gives to something else."""

from __future__ import annotations

import os
import socket

from kiqcluster.worker.descriptors import Descriptors


def test_a_number_that_is_closed_or_something_else_is_lost_under_its_name() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    descriptors = Descriptors({"line": (ours.fileno(), theirs.fileno()), "wakeup": (reader, writer)})
    assert descriptors.lost() == []

    os.close(reader)
    assert descriptors.lost() == ["wakeup"]
    os.dup2(writer, theirs.fileno())
    assert descriptors.lost() == ["line", "wakeup"]

    ours.close()
    theirs.close()
    os.close(writer)
