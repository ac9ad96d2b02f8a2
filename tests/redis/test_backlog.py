"""Backlog: a server that accepts nobody any more, for its queue of connections is full."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.errors import RedisUnavailable
from kiqcluster.store import Store

TIMEOUT_SECONDS = 0.2


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_full_backlog_is_an_outage_after_the_timeout_and_nothing_was_sent(tmp_path: Path, kind: str) -> None:
    where: Any = str(tmp_path / "s") if kind == "unix" else ("127.0.0.1", 0)
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family) as listener, ExitStack() as waiting:
        listener.bind(where)
        listener.listen(0)
        place = listener.getsockname()
        while _queues(waiting.enter_context(socket.socket(family)), place):
            continue
        url = f"unix://{where}" if kind == "unix" else f"redis://127.0.0.1:{place[1]}/0"

        with pytest.raises(RedisUnavailable, match="nothing was sent"):
            Store(url, timeout=TIMEOUT_SECONDS).call("PING")


def _queues(client: socket.socket, place: Any) -> bool:
    """Return whether a listener that accepts nobody has room for one more."""
    client.settimeout(TIMEOUT_SECONDS)
    try:
        client.connect(place)
    except OSError:
        return False
    return True
