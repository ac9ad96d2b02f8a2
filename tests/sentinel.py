"""A primary, its replica and a sentinel, as a test needs them: small, quick to fail over, on ports of their own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from kiqcluster.errors import StoreError
from kiqcluster.store import Store, embedded
from tests.kit import RedisServer, free_port, wait_until
from tests.proxy import Proxy

__all__ = ["SERVICE", "SentinelGroup"]

SERVICE = "jobs"
DOWN_AFTER = 300  # milliseconds without an answer after which the sentinel calls a server down
PACE = {"info-period": 100, "ping-period": 500, "publish-period": 100}  # milliseconds; its own is made for networks
HARDLY_EVER = 600_000  # milliseconds


class SentinelGroup:
    """Two servers and a sentinel, for a `with` block.

    servers: the first primary and its replica.
    is_far: the replica follows through `link`, so that a test can let it fall behind.
    """

    def __init__(self, *, is_far: bool = False) -> None:
        self.servers = [RedisServer(durable=True), RedisServer(durable=True)]
        self.link = Proxy(("127.0.0.1", self.servers[0].port))
        self.port = free_port()
        self._is_far = is_far
        self.url = f"redis+sentinel://127.0.0.1:{self.port}/{SERVICE}/0"
        self._directory = Path(tempfile.mkdtemp(prefix="kiq-sentinel-"))
        self._sentinel: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> SentinelGroup:
        try:
            self._set_up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _set_up(self) -> None:
        self.link.__enter__()
        primary, replica = (server.store() for server in self.servers)
        primary.call("CONFIG", "SET", "repl-diskless-sync-delay", "0")
        replica.call("REPLICAOF", "127.0.0.1", self.link.port if self._is_far else self.servers[0].port)
        wait_until(lambda: replica.call("ROLE")[3] == b"connected", "the replica to follow")
        self._start_sentinel()
        wait_until(self._knows_replica, "the sentinel to know the replica as one that it may promote")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sentinel is not None:
            self._sentinel.kill()
            self._sentinel.wait()
        self.link.close()
        for server in self.servers:
            server.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def ask(self, *words: str | int) -> Any:
        """Ask the sentinel."""
        return Store(f"redis://127.0.0.1:{self.port}/").call("SENTINEL", *words)

    def primary_port(self) -> int:
        """Return where the sentinel says that the primary is."""
        return int(self.ask("GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def wait_failed_over(self, to: int = 1) -> Store:
        """Wait until that one of `servers` is the primary, also for whoever asks the sentinel; return it."""
        wait_until(lambda: self.primary_port() == self.servers[to].port, "the sentinel to promote the replica")
        wait_until(lambda: answers(Store(self.url)), "clients to reach it")
        return self.servers[to].store()

    def fail_over(self, to: int) -> Store:
        """Have the sentinel exchange the roles, as before maintenance; return when the old primary is a replica."""
        wait_until(self._knows_replica, "the sentinel to know the replica as one that it may promote")
        self.ask("FAILOVER", SERVICE)
        store = self.wait_failed_over(to)
        old = self.servers[1 - to].store()
        wait_until(lambda: is_replica(old), "the old primary to be demoted")
        return store

    def _start_sentinel(self) -> None:
        settings = self._directory / "sentinel.conf"
        settings.write_text(
            f"port {self.port}\ndir {self._directory}\nlogfile {self._directory / 'log'}\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[0].port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}\n"
            f"sentinel failover-timeout {SERVICE} 5000\n"
        )
        command = [embedded.find_server(), str(settings), "--sentinel"]
        self._sentinel = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(lambda: answers(Store(f"redis://127.0.0.1:{self.port}/")), "the sentinel to answer")
        for name, milliseconds in PACE.items():
            self.ask("DEBUG", name, milliseconds)
        if self._is_far:  # after four of these periods it would have the replica follow directly
            self.ask("DEBUG", "publish-period", HARDLY_EVER)

    def _knows_replica(self) -> bool:
        for flat in self.ask("REPLICAS", SERVICE):
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            return bool(fields[b"flags"] == b"slave" and fields[b"master-link-status"] == b"ok")
        return False


def is_replica(store: Store) -> bool:
    """Return whether it says so; while it is being demoted, it breaks off connections."""
    try:
        return bool(store.call("ROLE")[0] == b"slave")
    except StoreError:
        return False


def answers(store: Store) -> bool:
    """Return whether somebody answers at once."""
    try:
        return bool(store.call("PING") == b"PONG")
    except StoreError:
        return False
