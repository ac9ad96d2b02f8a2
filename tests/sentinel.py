"""A primary, its replica and a sentinel, as a test needs them: small, quick to fail over, on ports of their own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.store import Store, embedded
from tests.kit import RedisServer, free_port, wait_until
from tests.proxy import Proxy
from tests.tls import LockedServer, Locks

__all__ = ["HARDLY_EVER_MS", "SERVICE", "SentinelGroup"]

SERVICE = "jobs"
DOWN_AFTER_MS = 1_000  # without an answer after which it calls a server down: more than a busy disk takes
PACE = {"info-period": 100, "ping-period": 500, "publish-period": 100}  # milliseconds; its own is made for networks
MAX_TRIES = 3  # ports, of which each may be taken
MAX_FAILOVERS = 3  # that are asked for until the roles are exchanged
FAILOVER_SECONDS = 30  # after which the sentinel has broken one off
HARDLY_EVER_MS = 600_000


class SentinelGroup:
    """Two servers and a sentinel, for a `with` block.

    servers: the first primary and its replica.
    is_far: the replica follows through `link`, so that a test can let it fall behind.
    locks: TLS and passwords, between all three and for whoever comes.
    """

    def __init__(self, *, is_far: bool = False, locks: Locks | None = None) -> None:
        self.servers = [RedisServer(durable=True) if locks is None else LockedServer(locks) for _ in range(2)]
        first, *_ = [server.port for server in self.servers]  # a replica tells its own port when it begins to follow
        self.link = Proxy(("127.0.0.1", first))
        self.port = 0  # of the sentinel, once it runs
        self._is_far = is_far
        self._locks = locks
        self._directory = Path(tempfile.mkdtemp(prefix="kiq-sentinel-"))
        self._sentinel: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address of the service."""
        if (locks := self._locks) is None:
            return f"redis+sentinel://127.0.0.1:{self.port}/{SERVICE}/0"
        secret = locks.query(sentinel_password=locks.sentinel_password)
        return f"rediss+sentinel://{locks.login}127.0.0.1:{self.port}/{SERVICE}/0{secret}"

    @property
    def _own_url(self) -> str:
        """The address of the sentinel itself."""
        if (locks := self._locks) is None:
            return f"redis://127.0.0.1:{self.port}/"
        return f"rediss://:{quote(locks.sentinel_password)}@127.0.0.1:{self.port}/{locks.query()}"

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
            end(self._sentinel)
        self.link.close()
        for server in self.servers:
            server.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def ask(self, *words: str | int) -> Any:
        """Ask the sentinel."""
        return Store(self._own_url).call("SENTINEL", *words)

    def primary_port(self) -> int:
        """Return where the sentinel says that the primary is."""
        return int(self.ask("GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def wait_failed_over(self, to: int = 1) -> Store:
        """Wait until that one of `servers` is the primary, also for whoever asks the sentinel; return it."""
        wait_until(lambda: self.primary_port() == self.servers[to].port, "the sentinel to promote the replica")
        wait_until(lambda: answers(Store(self.url)), "clients to reach it")
        return self.servers[to].store()

    def promote(self, to: int) -> Store:
        """Have the sentinel promote the replica; return when clients reach it.

        It breaks off where the replica falls behind meanwhile, as on a busy host; then it is asked once more.
        """
        port = self.servers[to].port
        for _ in range(MAX_FAILOVERS):
            wait_until(self._knows_replica, "the sentinel to know the replica as one that it may promote")
            with suppress(RedisRefused):  # the one before still goes on
                self.ask("FAILOVER", SERVICE)
            with suppress(AssertionError):
                wait_until(lambda: self.primary_port() == port, "the exchange of roles", FAILOVER_SECONDS)
                break
        return self.wait_failed_over(to)

    def fail_over(self, to: int) -> Store:
        """Have the sentinel exchange the roles, as before maintenance; return when the old primary is a replica."""
        store = self.promote(to)
        old = self.servers[1 - to].store()
        wait_until(lambda: is_replica(old), "the old primary to be demoted")
        return store

    def _start_sentinel(self) -> None:
        """Start it; on another port where somebody has taken this one since it was free."""
        for _ in range(MAX_TRIES):
            self.port = free_port()
            self._sentinel = self._new_sentinel()
            if wait_until(self._answer_or_end, "the sentinel to answer, or to end") == "answers":
                self._set_pace()
                return
        raise AssertionError(f"the sentinel ended:\n{(self._directory / 'log').read_text(errors='replace')}")

    def _answer_or_end(self) -> str:
        assert self._sentinel is not None
        if self._sentinel.poll() is not None:
            return "has ended"
        try:  # who has taken the port may answer as well
            return "answers" if self.primary_port() == self.servers[0].port else ""
        except StoreError:
            return ""

    def _new_sentinel(self) -> subprocess.Popen[bytes]:
        settings, locks = self._directory / "sentinel.conf", self._locks
        settings.write_text("".join(f"{line}\n" for line in self._settings()))
        command = [embedded.find_server() if locks is None else locks.program, str(settings), "--sentinel"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def _set_pace(self) -> None:
        for name, milliseconds in PACE.items():
            self.ask("DEBUG", name, milliseconds)
        if self._is_far:  # after four of these periods it would have the replica follow directly
            self.ask("DEBUG", "publish-period", HARDLY_EVER_MS)

    def _settings(self) -> Iterator[str]:
        locks = self._locks
        yield from (f"dir {self._directory}", f"logfile {self._directory / 'log'}")
        yield from ("bind 127.0.0.1", f"port {self.port if locks is None else 0}")
        if locks is not None:
            yield from (f"tls-port {self.port}", "tls-replication yes", f'requirepass "{locks.sentinel_password}"')
            yield from (f"{name} {file}" for name, file in locks.files.items())
        yield f"sentinel monitor {SERVICE} 127.0.0.1 {self.servers[0].port} 1"
        yield f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"
        yield f"sentinel failover-timeout {SERVICE} 5000"
        if locks is not None:
            yield f'sentinel auth-pass {SERVICE} "{locks.password}"'

    def _knows_replica(self) -> bool:
        for flat in self.ask("REPLICAS", SERVICE):
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            return bool(fields[b"flags"] == b"slave" and fields[b"master-link-status"] == b"ok")
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


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
